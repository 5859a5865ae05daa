//! The account of descriptors in the status of a server.

use serde_json::Value;

use crate::server::{Server, Setup};

/// Starts a server with `limit` as its limit of open descriptors.
pub fn start(limit: u32, config: &str) -> Server {
    let limit = format!("--nofile={limit}:{limit}");
    Setup::new(config).through(["prlimit", &limit, "--"]).start()
}

pub fn descriptors(server: &Server) -> Value {
    server.ctl_json(&["status"])["descriptors"].clone()
}

/// Converts a number of the account.
#[track_caller]
pub fn count(of: &Value) -> usize {
    of.as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or_else(|| panic!("no number: {of}"))
}
