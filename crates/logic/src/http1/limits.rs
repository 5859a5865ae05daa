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
    pub trailers: TrailerLimits,
    /// Maximum number of interim responses (1xx) before a final one. Together they may be as long as one head.
    pub interim: u32,
}

/// Limits of the trailers of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailerLimits {
    /// Maximum bytes of all trailer lines together.
    pub bytes: usize,
    /// Maximum number of trailer lines: each line is one allocation.
    pub fields: usize,
}

impl Default for TrailerLimits {
    fn default() -> Self {
        Self { bytes: 8 * 1024, fields: 32 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: 32 * 1024,
            headers: 100,
            target: 8 * 1024,
            body: None,
            trailers: TrailerLimits::default(),
            interim: 32,
        }
    }
}
