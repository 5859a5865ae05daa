//! All decisions and protocol steps of the front door, without I/O. No sockets, no clock (time is passed in), no
//! unsafe, no runtime: everything here can be simulated and fuzzed. A decision and its I/O half share a file name:
//! `health.rs` here decides, `crates/serve/src/health.rs` acts.

pub mod access_log;
pub mod account;
pub mod acl;
pub mod acme;
pub mod attempts;
pub mod balance;
pub mod bandwidth;
pub mod client_hello;
pub mod client_name;
pub mod client_slots;
pub mod control_access;
pub mod cookie;
pub mod discovery;
pub mod dsr;
pub mod finding;
pub mod flood_delay;
pub mod grpc;
pub mod health;
pub mod hedge;
pub mod http1;
pub mod http2;
pub mod ocsp;
pub mod pace;
pub mod pcapng;
pub mod peers;
pub mod proxy_header;
pub mod rate;
pub mod retry;
pub mod retry_budget;
pub mod rings;
pub mod room;
pub mod route;
pub mod self_test;
pub mod sessions;
pub mod syslog;
pub mod tls_alert;
pub mod transaction;
pub mod tsig_key;
pub mod udp;
