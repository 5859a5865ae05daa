//! Tables of messages, good and bad, and properties of what reads them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod client_hello;
mod downgrade;
mod forward_reparse;
mod framing;
mod http2_random;
mod ocsp;
mod proxy_header;
mod requests;
mod response;
mod split_anywhere;
