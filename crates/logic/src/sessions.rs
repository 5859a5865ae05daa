//! Which open sessions an operator asks for, in which order, and the numbers by which they are named.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::peers::{Peer, PeerSet};

/// Number of an open session. A worker uses a number again only after 2^32 connections.
///
/// Each worker counts its connections by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNumber(pub u64);

impl SessionNumber {
    /// The number of the connection with this serial number, from 0, of a worker.
    pub fn new(serial: u32, worker: usize, workers: usize) -> Self {
        Self(u64::from(serial) * workers.max(1) as u64 + worker as u64 + 1)
    }

    /// The number of the flow of UDP with this serial number, from 0, of a worker. No connection has such a number: flows
    /// may begin so fast that numbers of four bytes would soon be used again.
    pub fn of_flow(serial: u64, worker: usize, workers: usize) -> Self {
        let at = serial.saturating_mul(workers.max(1) as u64).saturating_add(worker as u64);
        Self(FLOWS.saturating_add(at).saturating_add(1))
    }
}

/// What the numbers of flows are above: more than the connections of 2,000 workers.
const FLOWS: u64 = 10_000_000_000_000;

/// How an operator names one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionName {
    Number(SessionNumber),
    Client(SocketAddr),
    /// Request id of a request that is not answered yet.
    Request(String),
}

impl SessionName {
    /// `None` if a session cannot have such a name.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return None;
        }
        // A request id has 32 digits and may have no letters.
        if let Ok(number) = text.parse::<u64>()
            && number > 0
            && text.len() < 20
        {
            return Some(Self::Number(SessionNumber(number)));
        }
        if let Ok(client) = text.parse() {
            return Some(Self::Client(client));
        }
        Some(Self::Request(text.to_owned()))
    }
}

/// Conditions that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub listener: Option<String>,
    pub backend: Option<String>,
    pub client: Option<PeerSet>,
    pub longer_than: Option<Duration>,
    /// One of these names; empty: any.
    pub names: Vec<SessionName>,
}

/// What a filter looks at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub number: SessionNumber,
    pub listener: &'a str,
    pub client: Peer,
    pub age: Duration,
    /// Backends and request ids of the open requests.
    pub requests: &'a [(&'a str, &'a str)],
}

impl Filter {
    /// Whether nothing is asked for in particular.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether [`Facts::requests`] matters.
    pub fn looks_at_requests(&self) -> bool {
        self.backend.is_some() || self.names.iter().any(|name| matches!(name, SessionName::Request(_)))
    }

    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        self.listener.as_deref().is_none_or(|listener| listener == facts.listener)
            && self.client.as_ref().is_none_or(|networks| networks.contains(&facts.client))
            && self.longer_than.is_none_or(|age| facts.age > age)
            && self
                .backend
                .as_deref()
                .is_none_or(|wanted| facts.requests.iter().any(|(backend, _)| *backend == wanted))
            && (self.names.is_empty() || self.names.iter().any(|name| name.is_of(facts)))
    }
}

impl SessionName {
    /// Whether the session has this name.
    pub fn is_of(&self, facts: &Facts<'_>) -> bool {
        match self {
            Self::Number(number) => *number == facts.number,
            Self::Client(client) => facts.client == Peer::Ip(*client),
            Self::Request(id) => facts.requests.iter().any(|(_, request)| request == id),
        }
    }
}

text::words! {
    /// Order of sessions, the largest first.
    pub enum Sort: "order of sessions" {
        /// The oldest first.
        Age = "age",
        /// Most bytes in both directions.
        Bytes = "bytes",
        /// Most bytes a second.
        Rate = "rate",
        /// Most open requests.
        Requests = "requests",
        /// The newest first.
        Newest = "newest",
    }
}

/// What sessions are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    pub age: Duration,
    pub bytes: u64,
    pub rate: Option<u64>,
    pub requests: u32,
}

impl Sort {
    /// Key of a session; the largest comes first.
    pub fn key(self, weight: &Weight) -> u64 {
        let age = u64::try_from(weight.age.as_micros()).unwrap_or(u64::MAX);
        match self {
            Self::Age => age,
            Self::Bytes => weight.bytes,
            Self::Rate => weight.rate.unwrap_or(0),
            Self::Requests => weight.requests.into(),
            Self::Newest => u64::MAX - age,
        }
    }
}

/// Keeps the `most` entries with the largest keys, the largest first; of equal keys that with the smaller number.
pub fn keep_largest<T>(all: &mut Vec<T>, most: usize, key: impl Fn(&T) -> (u64, SessionNumber)) {
    let order = |entry: &T| {
        let (key, number) = key(entry);
        (std::cmp::Reverse(key), number)
    };
    if all.len() > most && most > 0 {
        all.select_nth_unstable_by_key(most, order);
    }
    all.truncate(most);
    all.sort_unstable_by_key(order);
}

/// Shortest time over which a rate is measured.
const SHORTEST: Duration = Duration::from_millis(100);

/// Time without a question after which what rates are measured from is freed.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// What the rates of connections are measured from, by their numbers. Empty while no operator asks for sessions.
#[derive(Default)]
pub struct Rates {
    samples: Vec<Sample>,
    asked: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    at: Option<Instant>,
    serial: u32,
    bytes: u64,
    rate: Option<u64>,
}

impl Rates {
    /// Returns the bytes a second of a connection since the last call; `bytes` is its total until now.
    pub fn measure(&mut self, number: usize, serial: u32, bytes: u64, now: Instant) -> Option<u64> {
        self.asked = Some(now);
        if self.samples.len() <= number {
            self.samples.resize(number + 1, Sample::default());
        }
        let sample = &mut self.samples[number];
        let Some(at) = sample.at.filter(|_| sample.serial == serial) else {
            *sample = Sample { at: Some(now), serial, bytes, rate: None };
            return None;
        };
        let passed = now.saturating_duration_since(at);
        if passed >= SHORTEST {
            let moved = bytes.saturating_sub(sample.bytes) as f64;
            let rate = Some((moved / passed.as_secs_f64()) as u64);
            *sample = Sample { at: Some(now), serial, bytes, rate };
        }
        sample.rate
    }

    /// Frees the memory when no operator has asked for a while.
    pub fn forget(&mut self, now: Instant) {
        if self.asked.is_some_and(|asked| now.saturating_duration_since(asked) >= FORGOTTEN) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_connections_have_the_same_number_and_none_has_zero() {
        for workers in [1, 2, 7] {
            let mut all = std::collections::HashSet::from([SessionNumber(0)]);
            for worker in 0..workers {
                for serial in [0, 1, 4_000_000_000] {
                    assert!(all.insert(SessionNumber::new(serial, worker, workers)));
                }
            }
        }
    }

    #[test]
    fn a_flow_has_a_number_that_no_connection_has() {
        assert_eq!(SessionNumber::of_flow(0, 0, 1), SessionNumber(10_000_000_000_001));
        assert_eq!(SessionNumber::of_flow(3, 1, 2), SessionNumber(10_000_000_000_008));
        assert!(SessionNumber::new(u32::MAX, 1999, 2000) < SessionNumber::of_flow(0, 0, 2000));
        assert_eq!(SessionNumber::of_flow(u64::MAX, 1, 2), SessionNumber(u64::MAX));
    }

    #[test]
    fn names_are_numbers_addresses_or_request_ids() {
        assert_eq!(SessionName::parse("17"), Some(SessionName::Number(SessionNumber(17))));
        let client = SessionName::Client(([192, 0, 2, 1], 80).into());
        assert_eq!(SessionName::parse("192.0.2.1:80"), Some(client));
        let id = "12345678901234567890123456789012";
        assert_eq!(SessionName::parse(id), Some(SessionName::Request(id.to_owned())));
        assert_eq!(SessionName::parse("0"), Some(SessionName::Request("0".to_owned())));
        for wrong in ["", "a b", "a\u{1b}"] {
            assert_eq!(SessionName::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let facts = Facts {
            number: SessionNumber(3),
            listener: "web",
            client: Peer::Ip(([192, 0, 2, 1], 80).into()),
            age: Duration::from_secs(60),
            requests: &[("10.0.0.1:80", "abc"), ("10.0.0.2:80", "def")],
        };
        let all = Filter::default();
        assert!(all.is_empty() && all.matches(&facts));
        let named =
            |text: &str| Filter { names: vec![SessionName::parse(text).unwrap()], ..Filter::default() };
        for name in ["3", "192.0.2.1:80", "def"] {
            assert!(named(name).matches(&facts), "{name}");
        }
        for name in ["4", "192.0.2.1:81", "ghi"] {
            assert!(!named(name).matches(&facts), "{name}");
        }
        let backend = Filter { backend: Some("10.0.0.2:80".to_owned()), ..Filter::default() };
        assert!(backend.matches(&facts));
        let older = Filter { longer_than: Some(Duration::from_secs(60)), ..backend.clone() };
        assert!(!older.matches(&facts));
        let other = Filter { listener: Some("other".to_owned()), ..backend };
        assert!(!other.matches(&facts));
    }

    #[test]
    fn the_largest_come_first_and_no_more_than_asked_for() {
        let mut all: Vec<u64> = (1..=100).map(|n| n * 37 % 101).collect();
        let mut same = all.clone();
        keep_largest(&mut all, 3, |n| (*n, SessionNumber(*n)));
        assert_eq!(all, [100, 99, 98]);
        keep_largest(&mut same, 2, |n| (0, SessionNumber(*n)));
        assert_eq!(same, [1, 2], "of equal keys the smaller number");
        keep_largest(&mut same, 0, |n| (0, SessionNumber(*n)));
        assert!(same.is_empty());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the start of a test")]
    fn a_rate_is_measured_between_two_looks_at_the_same_connection() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        let at = |millis| now + Duration::from_millis(millis);
        assert_eq!(rates.measure(3, 1, 1000, now), None);
        assert_eq!(rates.measure(3, 1, 2000, at(50)), None, "too soon");
        assert_eq!(rates.measure(3, 1, 6000, at(500)), Some(10_000));
        assert_eq!(rates.measure(3, 1, 7000, at(550)), Some(10_000), "too soon: as before");
        assert_eq!(rates.measure(3, 2, 7000, at(1500)), None, "another connection with this number");
    }
}
