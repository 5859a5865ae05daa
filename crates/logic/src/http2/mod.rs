//! HTTP/2 as RFC 9113 wants it, seen from a proxy that thinks in HTTP/1.1: what requests and responses of clients become
//! (`downgrade`, `respond`), what those of backends become (`upgrade`), and how many frames a client may send that move nothing.
//!
//! Frames and header compression are the `h2` crate's in `serve/src/http2.rs` and `serve/src/http2/backend.rs`. What comes out of
//! it is checked here again and written as an HTTP/1.1 head, so that every rule of `http1` holds for it too.

pub mod downgrade;
pub mod flood;
pub mod malformed;
pub mod respond;
pub mod upgrade;
