//! The front door: the only listeners of the program, and everything between a client's byte and a backend.
//!
//! Workers (`worker.rs`) own traffic: one thread, one single-threaded runtime, own sockets and own idle backend
//! connections per core. Everything slow (control socket, admin, health checks, name look-ups, reload) runs on the
//! main runtime in `start.rs` and reaches workers only through a swapped [`snapshot::Snapshot`], atomics in
//! [`state::State`] and one command channel per worker.

pub mod accept;
pub mod access_log;
pub mod account;
pub mod acme;
pub mod admin;
mod causes;
pub mod connect;
pub mod connection;
pub mod control;
pub mod dormitory;
mod events;
pub mod file;
pub mod front;
pub mod health;
pub mod http;
pub mod http2;
pub mod listen;
pub mod metrics;
pub mod outcome;
mod pace;
mod passthrough;
mod per_backend;
pub mod pipes;
mod places;
mod queue;
pub mod relay;
pub mod reload;
pub mod report;
pub mod resolve;
pub mod snapshot;
pub mod start;
pub mod state;
pub mod state_directory;
pub mod stream;
pub mod tcp;
pub mod through;
mod timer;
pub mod tls;
pub mod upstream;
pub mod worker;

pub use start::{Options, StartError, run};
