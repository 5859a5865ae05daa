//! What the tests of the real binary stand on: the server process, its peers, raw clients, tools, and the strict audit.
//! Every process started here is ended and reaped on drop; every wait has a deadline.
#![allow(dead_code, unused_imports, reason = "each test file is its own crate and uses its own part")]

pub mod account;
pub mod attack;
pub mod audit;
pub mod backend_pki;
pub mod client;
pub mod dns;
pub mod fleet;
pub mod hello;
pub mod http2;
pub mod lab;
pub mod load;
pub mod namespace;
pub mod ocsp;
pub mod pebble;
pub mod peers;
pub mod pki;
pub mod server;
pub mod sshd;
pub mod tools;
pub mod tunnel;
pub mod user;
pub mod websocket;
pub mod witness;

pub use client::{Client, End, Response};
pub use peers::{Conversation, Recorder, Scripted};
pub use server::Server;

use std::time::{Duration, Instant};

/// Limits of waits are what a free machine needs, with room. A machine that also builds something is so much slower.
const BUSY: u32 = 3;

/// Polls `condition` until it gives a value; panics with `what` when `limit` has passed [`BUSY`] times.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = limit * BUSY;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seconds, for short calls.
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Milliseconds, for short calls.
pub const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Bytes as text with every unprintable one escaped: for messages.
pub fn show(bytes: &[u8]) -> String {
    let shown = bytes.len().min(600);
    let more = if bytes.len() > shown { format!(" ... ({} bytes)", bytes.len()) } else { String::new() };
    format!("\"{}\"{more}", bytes[..shown].escape_ascii())
}
