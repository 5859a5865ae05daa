//! Flows of a service that go on, in a table of which the caller limits the size.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::packet::Flow;
use super::ring::BackendId;
use crate::udp::chain::{Chain, Links};

/// Silence after which a connection is forgotten of which the client has sent a FIN or RST.
pub(super) const CLOSING: Duration = Duration::from_secs(60);

/// How long a flow is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Tcp,
    /// A TCP connection that one side has ended.
    Closing,
    Udp,
}

#[derive(Debug)]
struct Entry {
    flow: Flow,
    backend: BackendId,
    class: Class,
    seen: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Flows {
    index: HashMap<Flow, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    links: Links,
    /// Flows of each class, the one that was silent for longest first.
    chains: [Chain; 3],
}

impl Flows {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn lookup(&self, flow: &Flow) -> Option<(BackendId, Class)> {
        let entry = &self.entries[*self.index.get(flow)? as usize];
        Some((entry.backend, entry.class))
    }

    /// Time since the last packet of a flow; zero if it is not known.
    pub(super) fn silent(&self, flow: &Flow, now: Instant) -> Duration {
        let seen = self.index.get(flow).map(|number| self.entries[*number as usize].seen);
        seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen))
    }

    /// Notes a packet of a flow.
    pub(super) fn touch(&mut self, flow: &Flow, class: Class, now: Instant) {
        let Some(number) = self.index.get(flow).copied() else { return };
        let entry = &mut self.entries[number as usize];
        let before = entry.class;
        (entry.class, entry.seen) = (class, now);
        self.links.remove(&mut self.chains[before as usize], number);
        self.links.append(&mut self.chains[class as usize], number);
    }

    /// Adds a flow that is not in the table.
    pub(super) fn insert(&mut self, flow: Flow, backend: BackendId, class: Class, now: Instant) {
        let entry = Entry { flow, backend, class, seen: now };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.index.insert(flow, number);
        self.links.append(&mut self.chains[class as usize], number);
    }

    /// Removes a flow. Returns its backend.
    pub(super) fn remove(&mut self, flow: &Flow) -> Option<BackendId> {
        let number = self.index.remove(flow)?;
        let Entry { class, backend, .. } = self.entries[number as usize];
        self.links.remove(&mut self.chains[class as usize], number);
        self.free.push(number);
        Some(backend)
    }

    /// Removes the flow that is missed least: one that has ended, else the one that was silent for longest.
    pub(super) fn evict(&mut self) -> Option<BackendId> {
        let first = |class: Class| self.chains[class as usize].first();
        let closing = first(Class::Closing);
        let silent = [first(Class::Tcp), first(Class::Udp)].into_iter().flatten();
        let number = closing.or_else(|| silent.min_by_key(|number| self.entries[*number as usize].seen))?;
        self.remove(&self.entries[number as usize].flow.clone())
    }

    /// Removes one flow of a class that was silent for too long.
    pub(super) fn expire(&mut self, class: Class, idle: Duration, now: Instant) -> Option<BackendId> {
        let number = self.chains[class as usize].first()?;
        let Entry { flow, seen, .. } = self.entries[number as usize];
        if now.saturating_duration_since(seen) < idle {
            return None;
        }
        self.remove(&flow)
    }
}
