//! Debian's Pen and Penstock side by side: the same arguments, the same clients and backends, and what the clients see.
//!
//! `same.rs` and `settings.rs` have what must be equal, `differences.rs` where Penstock differs on purpose, each with its reason, and
//! `command.rs` the command `penstock import` and the name `pen`. `doors.rs` starts both.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod awaited;
mod command;
mod differences;
mod doors;
mod programs;
mod same;
mod settings;
