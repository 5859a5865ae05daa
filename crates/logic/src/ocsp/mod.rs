//! OCSP (RFC 6960, profile of RFC 5019) for stapling: builds requests, verifies responses, and decides when to ask the
//! responder again. `tls/src/ocsp.rs` sends the requests.

pub mod fault;
pub mod message;
pub mod query;
pub mod schedule;
mod verify;

pub use fault::{Fault, Hint, Revocation};
pub use query::{Query, QueryError};
pub use verify::{Algorithms, Good, verify};

/// Maximum size of a response in bytes.
pub const LARGEST: usize = 64 * 1024;
