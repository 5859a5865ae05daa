//! Who may operate the front door and the fleet: what a log-in proves, and every protocol by which it proves it. No
//! sockets, no files, no clock: what a decision needs is passed in, so that each can be simulated and fuzzed, and so that
//! other programs can use this crate by itself.
//!
//! - `crates/access/src/identity.rs`: what a log-in that succeeded says of the operator.
//! - `crates/access/src/backoff.rs`: how long those who guess must wait.
//! - `crates/access/src/keys.rs`: keys in the DNS.
//! - `crates/access/src/otp.rs`: one-time passwords.
//! - `crates/access/src/sasl.rs`: the log-in itself, by SASL, for both sides.
//! - `crates/access/src/step_up.rs`: for how long a one-time password is enough.
//! - `crates/access/src/users.rs`: the file of users; `crates/access/src/policy.rs`: what each may do.

pub mod backoff;
mod identity;
pub mod keys;
pub mod otp;
pub mod policy;
pub mod sasl;
pub mod step_up;
pub mod users;

/// Random bytes for nonces, salts and keys; `None`: the system gives none.
pub fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(bytes)
}

pub use identity::{ChannelBinding, Factor, Factors, Identity, Mechanism};
