//! How long sessions wait for a backend of a pool that is at its limit.

use std::time::{Duration, Instant};

use serde::Serialize;
use state::queue::Queue;
use text::units;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueueReport {
    /// Sessions that wait now.
    pub waiting: usize,
    /// For how long the one has waited that came first; `None` if none waits.
    pub longest_ms: Option<f64>,
    pub last_minute: WaitsReport,
}

/// Waits that ended, also those that ended without a backend.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WaitsReport {
    pub sessions: u64,
    /// Median; `None` like the others if none has waited.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub longest_ms: Option<f64>,
}

impl QueueReport {
    pub(super) fn read(queue: &Queue, now: Instant) -> Self {
        let times = queue.times(now);
        let waits = times.last_minute;
        Self {
            waiting: queue.waiting(),
            longest_ms: times.longest.map(milliseconds),
            last_minute: WaitsReport {
                sessions: waits.count(),
                p50_ms: waits.quantile(0.5).map(milliseconds),
                p99_ms: waits.quantile(0.99).map(milliseconds),
                longest_ms: (waits.count() > 0)
                    .then(|| milliseconds(Duration::from_micros(waits.longest_micros))),
            },
        }
    }

    /// For people; `None` if no session waits or has waited.
    pub(super) fn line(&self) -> Option<String> {
        let now = self.longest_ms.map(|longest| {
            let verb = if self.waiting == 1 { "waits" } else { "wait" };
            format!(
                "{} {verb}, the longest for {}",
                units::count(self.waiting, "session"),
                time(Some(longest))
            )
        });
        let WaitsReport { sessions, p50_ms, p99_ms, longest_ms } = self.last_minute;
        let past = (sessions > 0).then(|| {
            let (p50, p99, longest) = (time(p50_ms), time(p99_ms), time(longest_ms));
            format!("in the last minute {sessions} waited: p50 {p50}, p99 {p99}, longest {longest}")
        });
        let all: Vec<_> = now.into_iter().chain(past).collect();
        (!all.is_empty()).then(|| format!("queue: {}", all.join("; ")))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn time(milliseconds: Option<f64>) -> String {
    milliseconds.map_or("-".to_owned(), |time| units::duration(Duration::from_secs_f64(time / 1e3)))
}
