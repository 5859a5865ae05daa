//! The account of descriptors of a server, as its status tells it.

use serde_json::Value;

use super::server::{Server, Setup};

/// Starts a server that may open so many descriptors.
pub fn start(limit: u32, config: &str) -> Server {
    let limit = format!("--nofile={limit}:{limit}");
    Setup::new(config).through(["prlimit", &limit, "--"]).start()
}

/// The account.
pub fn descriptors(server: &Server) -> Value {
    server.ctl_json(&["status"])["descriptors"].clone()
}

/// A number of it.
#[track_caller]
pub fn count(of: &Value) -> usize {
    of.as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or_else(|| panic!("no number: {of}"))
}
