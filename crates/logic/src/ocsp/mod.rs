//! OCSP (RFC 6960, in the profile of RFC 5019) for stapling: what to ask a responder, whether its answer may be sent to
//! clients, and when to ask again. `serve/src/tls/ocsp.rs` asks.

pub mod fault;
pub mod message;
pub mod query;
pub mod schedule;
mod verify;

pub use fault::{Fault, Hint, Revocation};
pub use query::{Query, QueryError};
pub use verify::{Algorithms, Good, verify};

/// A response larger than this is not one.
pub const LARGEST: usize = 64 * 1024;
