//! The part of `status json` from the control socket that the demo shows.

use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::mpsc;

/// Status of the front door.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    pub uptime_seconds: u64,
    pub connections: Connections,
    /// Parts that do not work as configured.
    pub degraded: Vec<serde::de::IgnoredAny>,
    /// Listeners in the order of the configuration.
    pub listeners: Vec<Listener>,
    /// Pools in the order of the configuration.
    pub pools: Vec<Pool>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Connections {
    pub now: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Listener {
    pub sessions: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Pool {
    pub backends: Vec<Backend>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Backend {
    /// Address of the backend in the configuration.
    pub name: String,
    pub state: String,
    /// Age of `state`.
    pub state_seconds: u64,
    pub admission: String,
    pub sessions: u64,
    pub failures: u64,
    /// Time to the first byte, since the start of the front door.
    pub latency: Latency,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
}

/// One reading of the front door's status.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    /// The status, or why it could not be read.
    pub status: Result<Status, String>,
}

/// Reads `status json` at once and then at each `interval`, until the receiver is dropped.
pub fn watch(
    mut ask: impl FnMut() -> Result<String, String> + Send + 'static,
    interval: Duration,
) -> std::io::Result<mpsc::Receiver<Sample>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::Builder::new().name("demo-status".to_owned()).spawn(move || {
        loop {
            let status = ask().and_then(|answer| understood(&answer));
            if sender.blocking_send(Sample { at: Instant::now(), status }).is_err() {
                return;
            }
            thread::sleep(interval);
        }
    })?;
    Ok(receiver)
}

fn understood(answer: &str) -> Result<Status, String> {
    serde_json::from_str(answer).map_err(|error| format!("status is not understood: {error}"))
}
