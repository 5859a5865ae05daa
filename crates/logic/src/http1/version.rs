//! HTTP version of a message, and whether its connection stays open.

/// Whether a connection stays open after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The connection may carry another message.
    KeepAlive,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}
