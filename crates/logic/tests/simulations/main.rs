//! Seeded simulations of what decides over time.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod account;
mod acme;
mod balance;
mod failover;
mod flapping;
mod health;
mod outlier;
mod udp;
mod why;
