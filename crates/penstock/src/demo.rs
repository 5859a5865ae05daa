//! The parts of `penstock demo`; `cmd/demo.rs` puts them together.

pub mod authority;
pub mod backend;
pub mod server;
pub mod status;
pub mod table;
pub mod traffic;
