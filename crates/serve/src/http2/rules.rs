//! How a pool speaks HTTP/2 to its backends, and what a backend has done with a request.

use std::time::Duration;

use config::types::Pool;

/// How much of each response a backend may send ahead of what its client takes. A connection has one width for all its
/// requests, as HTTP/2 has one initial window for all streams of a connection (RFC 9113 section 6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// As much as a fast download needs.
    Wide,
    /// Little: for those of many requests of one client.
    Narrow,
}

/// How a pool speaks HTTP/2 to its backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Of the connection.
    pub width: Width,
    /// For how long a connection without requests is kept.
    pub keep_alive: Duration,
    /// Largest response head, as HTTP/2 counts (RFC 9113 section 6.5.2).
    pub header_list: u32,
}

impl Rules {
    /// Those of a pool.
    pub fn of(pool: &Pool) -> Self {
        Self { width: Width::Wide, keep_alive: pool.timeouts.keep_alive, header_list: HEADER_LIST }
    }
}

/// The limits of listeners hold as well, and are smaller unless they were made large.
const HEADER_LIST: u32 = 256 * 1024;

/// What a backend has done with a request whose stream it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nobody knows.
    Unknown,
    /// Nothing: it says so (RFC 9113 section 8.7), and it can be sent again.
    Refused,
    /// Nothing: HTTP/2 has no words for it, and it was never sent.
    Unsayable,
}
