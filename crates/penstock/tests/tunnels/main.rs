//! `penstock tunnel`, jobs in tunnels, and backends behind them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod behind_ssh;
mod configuration;
mod forwards;
mod nas;
mod openssh;
mod status;
mod stopped;
mod unwind;
