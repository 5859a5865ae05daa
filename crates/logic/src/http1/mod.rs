//! HTTP/1.1 as RFC 9110 and RFC 9112 want it: strict parsing, framing, rewriting. What is ambiguous is
//! refused, never forwarded.
//!
//! Bytes go in, decisions and bytes come out: no sockets, no clock. `serve` reads a head with
//! [`request::resume`], sends what [`forward::write_request`] wrote, reads the answer with
//! [`response::resume`] and decodes bodies with [`chunked::Decoder`].
//! Nothing of a message is passed on as it came: every line is written from what was understood of it. (Neighbouring
//! lines that came exactly as we write them are copied together.)

pub mod chunked;
pub mod error_page;
pub mod field;
mod fields;
pub mod forward;
pub(crate) mod grammar;
mod head;
pub mod hops;
mod host;
mod line;
pub mod refusal;
pub mod request;
pub mod response;
pub mod span;
mod target;
