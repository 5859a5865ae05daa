/// Upper bound in bytes for the configured limit of a head: offsets are 32 bits wide.
pub const MAX_HEAD: usize = 16 * 1024 * 1024;

/// Limits of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size in bytes of a head with its first and its empty line; at most [`MAX_HEAD`].
    pub head: usize,
    pub headers: usize,
    /// Maximum length of a request target in bytes.
    pub target: usize,
    /// Maximum Content-Length of a body in bytes; the caller counts the bytes of a chunked body.
    pub body: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 32 * 1024, headers: 100, target: 8 * 1024, body: None }
    }
}
