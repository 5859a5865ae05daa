//! The parts of `penstock demo`: a front door with backends, certificates and traffic.
//!
//! `crates/demo/src/stage.rs` starts the parts: backends (`crates/demo/src/backend.rs`), certificates
//! (`crates/demo/src/authority.rs`), the configuration, and the front door, which is a process with exactly the
//! configuration file that the demo shows (`crates/demo/src/server.rs`). `crates/demo/src/traffic.rs` sends requests,
//! `crates/demo/src/status.rs` reads the status of the front door, `crates/demo/src/table.rs` shows both, and
//! `crates/demo/src/outage.rs` takes backends down. The demo sees the front door only from outside: by its log, its
//! control socket and HTTP. `crates/penstock/src/cmd/demo.rs` prints.

mod authority;
pub mod backend;
pub mod outage;
mod server;
pub mod stage;
pub mod status;
pub mod table;
pub mod traffic;
