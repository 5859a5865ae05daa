//! SASL (RFC 4422) for both sides, without I/O: EXTERNAL, OAUTHBEARER, SCRAM-SHA-256 and GS2-KRB5, the last two with and without
//! channel bindings.
//!
//! - `crates/access/src/sasl/login.rs`: the side of the server, for every mechanism.
//! - `crates/access/src/sasl/scram.rs`: SCRAM-SHA-256 for both sides; what is stored of a password is in
//!   `crates/access/src/sasl/credential.rs`.
//! - `crates/access/src/sasl/krb5.rs`: the frame of GS2-KRB5 around the tokens of GSSAPI, which another program part makes.
//! - `crates/access/src/sasl/bearer.rs`: OAUTHBEARER.
//! - `crates/access/src/sasl/gs2.rs`: the header that SCRAM and GS2 share, and what it says of channel bindings.
//! - `crates/access/src/sasl/prepare.rs`: one form of the names and passwords that look alike (SASLprep).
//! - `crates/access/src/sasl/smtp.rs`: the commands by which a client begins all this (RFC 4954).

pub mod bearer;
mod credential;
pub mod gs2;
pub mod krb5;
mod login;
mod prepare;
pub mod saslname;
pub mod scram;
pub mod smtp;

pub use credential::{Credential, CredentialError, LEAST_ITERATIONS, MOST_ITERATIONS, keyed_digest};
pub use login::{Login, Offer, Refusal, Step};
pub use prepare::{PrepareError, prepare};
