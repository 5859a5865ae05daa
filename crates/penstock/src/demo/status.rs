//! What the demo reads of `status json` from the control socket: the same words that any user gets.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::mpsc;

use crate::ctl::client::Client;

/// How the front door is, as far as the table shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Since the front door started.
    pub uptime_seconds: u64,
    /// Client connections.
    pub connections: Connections,
    /// What does not work as configured.
    pub degraded: Vec<serde::de::IgnoredAny>,
    /// Listeners in configuration order.
    pub listeners: Vec<Listener>,
    /// Pools in configuration order.
    pub pools: Vec<Pool>,
}

/// Client connections.
#[derive(Clone, Debug, Deserialize)]
pub struct Connections {
    /// Open now.
    pub now: u64,
}

/// A listener.
#[derive(Clone, Debug, Deserialize)]
pub struct Listener {
    /// Requests answered so far.
    pub sessions: u64,
}

/// A pool.
#[derive(Clone, Debug, Deserialize)]
pub struct Pool {
    /// In configuration order.
    pub backends: Vec<Backend>,
}

/// A backend.
#[derive(Clone, Debug, Deserialize)]
pub struct Backend {
    /// Its address as configured.
    pub name: String,
    /// `unchecked`, `up`, `down` or `ejected`.
    pub state: String,
    /// For how long it has been in this state.
    pub state_seconds: u64,
    /// `ready` or `draining`.
    pub admission: String,
    /// Requests so far.
    pub sessions: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Time to the first byte, since the start.
    pub latency: Latency,
}

/// Quantiles of a latency, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Latency {
    /// Half of all took at most so long.
    pub p50_ms: Option<f64>,
    /// 99 of 100 took at most so long.
    pub p99_ms: Option<f64>,
}

/// One look at the front door.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken.
    pub at: Instant,
    /// How it was, or why nobody knows.
    pub status: Result<Status, String>,
}

/// Looks at once and then after every `interval`, until the receiver is dropped.
pub fn watch(socket: PathBuf, interval: Duration) -> std::io::Result<mpsc::Receiver<Sample>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::Builder::new().name("demo-status".to_owned()).spawn(move || {
        loop {
            let status = ask(&socket);
            if sender.blocking_send(Sample { at: Instant::now(), status }).is_err() {
                return;
            }
            thread::sleep(interval);
        }
    })?;
    Ok(receiver)
}

fn ask(socket: &std::path::Path) -> Result<Status, String> {
    let mut client = Client::connect(socket, ANSWER_LIMIT).map_err(first_line)?;
    let answer = client.ask("status json").map_err(first_line)?;
    serde_json::from_str(&answer.lines.join("\n"))
        .map_err(|error| format!("status is not understood: {error}"))
}

/// The table has no room for hints.
fn first_line(error: impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

const ANSWER_LIMIT: Duration = Duration::from_secs(2);
