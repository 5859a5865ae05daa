//! Every decision and protocol step of Penstock, without I/O.
//! No sockets, no clock (time is passed in), no unsafe, no runtime: everything here can be simulated, fuzzed and explained.
//! A decision and its I/O half share a file name: `health.rs` here decides, `serve/src/health.rs` acts.

pub mod access_log;
pub mod account;
pub mod acme;
pub mod balance;
pub mod client_hello;
pub mod client_name;
pub mod elapsed;
pub mod fleet;
pub mod harmless;
pub mod health;
pub mod http1;
pub mod http2;
pub mod identity;
pub mod ocsp;
pub mod pace;
pub mod peers;
pub mod places;
pub mod proxy_header;
pub mod retry;
pub mod route;
pub mod ssh;
pub mod tunnel;
