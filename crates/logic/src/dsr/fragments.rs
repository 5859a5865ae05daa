//! Backends of packets that came in fragments: only the first one has ports, and the later ones follow it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::packet::FragmentKey;
use super::ring::BackendId;

/// Packets that are remembered. A further one takes the place of the oldest.
const MOST: usize = 4096;

/// How long the fragments of a packet may take, as long as a receiver waits for them (RFC 8200 section 4.5).
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// A backend, and which of its slot it was.
type Held = (BackendId, u32);

#[derive(Debug, Default)]
pub(super) struct Fragments {
    known: HashMap<FragmentKey, (Held, Instant)>,
    /// With the time of which the entry is: a number that is used again has a second place here.
    order: VecDeque<(FragmentKey, Instant)>,
}

impl Fragments {
    pub(super) fn lookup(&self, key: &FragmentKey, now: Instant) -> Option<Held> {
        let (held, since) = self.known.get(key)?;
        (now.saturating_duration_since(*since) < LONGEST).then_some(*held)
    }

    pub(super) fn insert(&mut self, key: FragmentKey, held: Held, now: Instant) {
        let before = self.known.insert(key, (held, now));
        if before.is_none_or(|(_, since)| since != now) {
            self.order.push_back((key, now));
        }
        if self.order.len() > MOST
            && let Some((oldest, then)) = self.order.pop_front()
            && self.known.get(&oldest).is_some_and(|(_, since)| *since == then)
        {
            self.known.remove(&oldest);
        }
    }
}
