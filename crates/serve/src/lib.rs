//! The front door as a whole: starts, drains and reloads it, answers operators (control socket, admin listener), checks
//! the health of backends, looks up their names, discovers more by names, and orders certificates.
//!
//! The highest of four crates whose dependencies go in one direction: `state` (data that outlives a snapshot) <- `tls`
//! <- `proxy` (a connection from its accept to its outcome) <- `serve`. None of the others depends on this crate. Slow
//! work runs here, on the main runtime in `start.rs`. It reaches workers (`crates/proxy/src/worker.rs`) only through a
//! replaced [`proxy::snapshot::Snapshot`], atomics in [`state::State`] and one command channel per worker.
//!
//! `crates/proxy/src/lib.rs` describes the path of a byte.

mod acceptor;
pub mod acme;
pub mod admin;
pub mod backend_host;
mod causes;
mod client_slots;
pub mod confinement;
pub mod control;
mod discovery;
pub mod doctor;
pub mod exposition;
pub mod health;
mod kept;
pub mod keytab;
mod log_in_files;
pub mod logins;
mod needs;
pub mod otp;
mod pace;
pub mod paths;
mod per_backend;
#[cfg(test)]
mod reference;
pub mod reload;
pub mod report;
pub mod resolve;
pub mod self_test;
pub mod service;
mod sessions;
pub mod signals;
pub mod start;
mod stopping;
pub mod through;
mod transaction;
pub mod upgrade;
mod why;

pub use start::{Options, StartError, run};
