//! A process that was told to stop and waits for its sessions to end.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use serde::Serialize;
use state::State;
use state::events::timestamp;
use text::units;

#[derive(Clone, Debug, Serialize)]
pub struct StoppingReport {
    /// RFC 3339 in UTC.
    pub since: String,
    pub seconds: u64,
    /// Client connections that are still open.
    pub connections_left: usize,
    /// Time until those that are left then are cut off.
    pub seconds_left: u64,
}

impl StoppingReport {
    pub(super) fn read(state: &State, now: Instant) -> Option<Self> {
        let stopping = state.stopping.get()?;
        let left = stopping.deadline.saturating_duration_since(now);
        Some(Self {
            since: timestamp(stopping.since),
            seconds: now.saturating_duration_since(stopping.began).as_secs(),
            connections_left: state.connections.load(Relaxed),
            seconds_left: left.as_millis().div_ceil(1000) as u64,
        })
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        let since = self.since.split_once('.').map_or(self.since.clone(), |(second, _)| format!("{second}Z"));
        let left = match self.connections_left {
            0 => "no connection is left".to_owned(),
            1 => "1 connection left".to_owned(),
            count => format!("{count} connections left"),
        };
        let limit = units::duration(Duration::from_secs(self.seconds_left));
        format!("DRAINING since {since}, {left}, cut off in {limit}")
    }
}
