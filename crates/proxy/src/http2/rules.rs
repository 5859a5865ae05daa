//! HTTP/2 settings of a pool, and whether a backend processed a request.

use std::time::Duration;

use config::types::{BackendHttp2, Pool};
use logic::http1::refusal::Refusal;

/// Size of the flow-control window for each response of a backend. All requests of a connection have the same width, as
/// the streams of an HTTP/2 connection share one initial window size (RFC 9113 section 6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// Large enough for a fast download.
    Wide,
    /// Small, for a client with many concurrent requests.
    Narrow,
}

/// HTTP/2 settings of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub width: Width,
    /// Idle timeout of a connection.
    pub keep_alive: Duration,
    pub limits: BackendHttp2,
}

impl Rules {
    pub fn of(pool: &Pool) -> Self {
        Self { width: Width::Wide, keep_alive: pool.timeouts.keep_alive, limits: pool.http2 }
    }

    /// Receive window of one stream: bytes of a response that may wait for a slow client. The window of the connection
    /// is the sum of all stream windows, so a client that reads nothing stops only its own stream. The frame layer needs
    /// up to two bytes of memory for each byte that it holds.
    pub fn window(&self) -> u32 {
        match self.width {
            Width::Wide => self.limits.stream_window,
            Width::Narrow => self.limits.narrow_window,
        }
    }
}

/// Why a backend did not process a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprocessed {
    /// It leaves the connection, and looks at none of the last requests (GOAWAY): another connection may do.
    Leaving,
    /// It refused the stream (REFUSED_STREAM).
    Refused,
}

/// Whether a backend processed a request on a stream that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processing {
    Unknown,
    /// The request was not processed and may be sent again (RFC 9113 section 8.7).
    NotProcessed(Unprocessed),
    /// The backend violated HTTP/2, on this stream or on its connection.
    Violated,
    /// The request cannot be expressed in HTTP/2, for this reason, and was not sent.
    Unrepresentable(Refusal),
    /// The request asks for a WebSocket, which the backend does not take over HTTP/2 (RFC 8441 section 3): not sent.
    NoWebSockets,
}
