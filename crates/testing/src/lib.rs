//! Helpers of the tests: the server process, its peers, raw clients, tools, certificates, and the strict parser of
//! requests. Only tests depend on this crate. Every process started here is ended and reaped on drop; every wait has a
//! deadline.

pub mod account;
pub mod agent;
pub mod attack;
pub mod audit;
pub mod client;
pub mod descriptors;
pub mod dns;
pub mod dns_updates;
pub mod fleet;
pub mod forger;
pub mod full_backlog;
pub mod hello;
pub mod http2;
pub mod lab;
pub mod load;
pub mod memory;
pub mod name_server;
pub mod namespace;
pub mod network;
pub mod ocsp;
pub mod pebble;
pub mod peers;
pub mod pki;
pub mod port;
pub mod server;
pub mod shown;
pub mod sshd;
pub mod tools;
pub mod tunnel;
pub mod user;
pub mod wait;
pub mod websocket;
pub mod witness;

pub use client::{Client, End, Response, show};
pub use peers::{BackendConnection, Recorder, Scripted};
pub use server::{Server, binary};
pub use wait::{eventually, millis, secs};
