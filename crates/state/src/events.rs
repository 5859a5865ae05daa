//! Events of the front door: a bounded ring that `penstock ctl events` shows and can follow. Sessions are in the access
//! log; events are state changes, reloads and degraded subjects.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

const RING: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Info,
    /// A subject is degraded; traffic continues.
    Warning,
    /// An operation that the operator asked for failed.
    Error,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct Event {
    /// Position in the event stream of this process, from 1.
    pub number: u64,
    /// RFC 3339 in UTC.
    pub at: String,
    pub level: Level,
    /// Subject as a path: `pool.app.10.0.0.1:80`, `listener.web`, `process`.
    pub subject: String,
    /// Text for operators.
    pub message: String,
}

#[derive(Debug)]
pub struct Events {
    ring: Mutex<Ring>,
    followers: broadcast::Sender<Event>,
}

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    events: VecDeque<Event>,
    copy: EventCopy,
}

/// Who gets each event as well.
#[derive(Default)]
struct EventCopy(Option<TakesEvent>);

type TakesEvent = Box<dyn Fn(&Event) + Send + Sync>;

impl fmt::Debug for EventCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventCopy").field(&self.0.is_some()).finish()
    }
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
        {
            let mut ring = self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            ring.last += 1;
            let at = timestamp(SystemTime::now());
            let event = Event { number: ring.last, at, level, subject, message };
            if ring.events.len() == RING {
                ring.events.pop_front();
            }
            if let Some(copy) = &ring.copy.0 {
                copy(&event);
            }
            // Under the lock, so that followers get events in the order of their numbers. An error only means that the last
            // follower has just left.
            if self.followers.receiver_count() > 0 {
                let _ = self.followers.send(event.clone());
            }
            ring.events.push_back(event);
        }
    }

    /// Last `count` events, oldest first.
    pub fn last(&self, count: usize) -> Vec<Event> {
        let ring = self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ring.events.iter().skip(ring.events.len().saturating_sub(count)).cloned().collect()
    }

    /// Gives `copy` the events so far, and each that is recorded later. It is called under a lock: it must not wait, nor
    /// record events.
    pub fn copy_to(&self, copy: impl Fn(&Event) + Send + Sync + 'static) {
        let mut ring = self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ring.events.iter().for_each(&copy);
        ring.copy = EventCopy(Some(Box::new(copy)));
    }

    /// Receives new events. A follower that is too slow loses the oldest ones and gets an error.
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.followers.subscribe()
    }
}

/// Limits an event that peers can cause at any rate to one per minute.
#[derive(Debug, Default)]
pub struct RateLimitedEvent {
    /// Earliest time of the next event, in seconds on the caller's clock.
    next: AtomicU64,
}

impl RateLimitedEvent {
    /// Tells whether the event may be recorded at `now`; if so, later calls return false for a minute.
    pub fn may(&self, now: Duration) -> bool {
        let (now, next) = (now.as_secs(), self.next.load(Relaxed));
        now >= next && self.next.compare_exchange(next, now + 60, Relaxed, Relaxed).is_ok()
    }
}

/// Formats RFC 3339 in UTC with milliseconds.
pub fn timestamp(at: SystemTime) -> String {
    match jiff::Timestamp::try_from(at) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => "-".to_owned(),
    }
}

/// Formats the value of a `Date` field (RFC 9110 section 5.6.7). A time before the year 0, which the format does not
/// express, becomes that of Unix time 0.
pub fn http_date(at: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(at).unwrap_or_default();
    jiff::fmt::rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&at)
        .unwrap_or_else(|_| EPOCH.to_owned())
}

const EPOCH: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_that_peers_cause_is_recorded_once_a_minute() {
        let seldom = RateLimitedEvent::default();
        let told = (0..200).filter(|second| seldom.may(Duration::from_secs(*second))).count();
        assert_eq!(told, 4);
    }
}
