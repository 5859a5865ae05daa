//! What happened to the front door itself: a bounded ring that `penstock ctl events` shows and can follow.
//! Traffic is in the access log; here are state changes, reloads, degraded things.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

/// Events remembered.
const RING: usize = 1024;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Something is degraded; traffic goes on.
    Warning,
    /// Something that was asked for cannot be done.
    Error,
}

/// One event.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Event {
    /// Position in the stream of events of this process; starts at 1.
    pub number: u64,
    /// When, as RFC 3339 in UTC.
    pub at: String,
    /// How much it matters.
    pub level: Level,
    /// What it is about, as a path: `pool.app.10.0.0.1:80`, `listener.web`, `process`.
    pub subject: String,
    /// What happened, for people.
    pub message: String,
}

/// The ring and its followers.
#[derive(Debug)]
pub struct Events {
    ring: Mutex<(u64, VecDeque<Event>)>,
    followers: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), followers: broadcast::channel(256).0 }
    }
}

impl Events {
    /// Records an event and writes it to the process log.
    pub fn record(&self, level: Level, subject: impl Into<String>, message: impl Into<String>) {
        let (subject, message) = (subject.into(), message.into());
        match level {
            Level::Info => tracing::info!(%subject, "{message}"),
            Level::Warning => tracing::warn!(%subject, "{message}"),
            Level::Error => tracing::error!(%subject, "{message}"),
        }
        let event = {
            let mut ring = self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            ring.0 += 1;
            let at = timestamp(SystemTime::now());
            let event = Event { number: ring.0, at, level, subject, message };
            if ring.1.len() == RING {
                ring.1.pop_front();
            }
            ring.1.push_back(event.clone());
            event
        };
        // An error only says that nobody follows.
        let _ = self.followers.send(event);
    }

    /// The last `count` events, oldest first.
    pub fn last(&self, count: usize) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ring.1.iter().skip(ring.1.len().saturating_sub(count)).cloned().collect()
    }

    /// New events from now on. A follower that is too slow loses the oldest and is told so.
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.followers.subscribe()
    }
}

/// For an event that peers can cause as often as they like: it is recorded at most once a minute.
#[derive(Debug, Default)]
pub struct Seldom {
    /// When it may be recorded again, in seconds on the caller's clock.
    next: AtomicU64,
}

impl Seldom {
    /// Whether it may be recorded `now`; then no other caller may for a minute.
    pub fn may(&self, now: Duration) -> bool {
        let (now, next) = (now.as_secs(), self.next.load(Relaxed));
        now >= next && self.next.compare_exchange(next, now + 60, Relaxed, Relaxed).is_ok()
    }
}

/// RFC 3339 in UTC with milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    match jiff::Timestamp::try_from(at) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_that_peers_cause_is_recorded_once_a_minute() {
        let seldom = Seldom::default();
        let told = (0..200).filter(|second| seldom.may(Duration::from_secs(*second))).count();
        assert_eq!(told, 4);
    }
}
