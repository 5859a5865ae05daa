//! State of certificate orders (`crates/serve/src/acme.rs`) that outlives a snapshot: progress, and the challenges that
//! workers answer.

mod board;
mod challenges;

pub use board::{Board, Key, Phase, RenewalState};
pub use challenges::{ALPN, Challenges, Offer};
