//! HTTP/1.1 (RFC 9110, RFC 9112): strict parsing, framing and rewriting. Ambiguous messages are refused, never
//! forwarded.
//!
//! No sockets, no clock. `proxy` reads a head with [`request::resume`], sends the output of [`forward::write_request`],
//! reads the response with [`response::resume`] and decodes bodies with [`chunked::Decoder`]. Every line is written
//! from its parsed form, never forwarded as received. (Adjacent lines that were received exactly as Penstock writes
//! them are copied together.)

pub mod chunked;
pub mod error_page;
pub mod field;
mod fields;
pub mod forward;
pub(crate) mod grammar;
mod head;
pub mod hops;
mod host;
mod limits;
mod line;
pub mod own_response;
pub mod reason;
pub mod refusal;
pub mod request;
pub mod response;
pub mod span;
mod target;
mod version;
