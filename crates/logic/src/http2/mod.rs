//! HTTP/2 (RFC 9113), converted to and from HTTP/1.1: requests and responses of clients (`downgrade`, `respond`), those
//! of backends (`upgrade`, and `web_socket` for WebSockets), and limits for frames that transfer no data (`flood`).
//!
//! The `h2` crate does frames and header compression, in `proxy/src/http2.rs` and `proxy/src/http2/backend.rs`. Its
//! output is checked again here and written as an HTTP/1.1 head, so that every rule of `http1` applies to it too.

pub mod downgrade;
pub mod flood;
pub mod malformed;
pub mod respond;
pub mod upgrade;
pub mod web_socket;
