//! Idle connections to backends that speak HTTP/1.1.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use state::BackendState;
use state::account::{Kind, SlotCache, Taken};

use crate::snapshot::Snapshot;
use crate::stream::{Quiet, Stream};

/// Idle connections of one worker to HTTP/1.1 backends. Each has slots of its own in the account, and is closed when
/// other connections need them.
pub struct IdlePool {
    kept: RefCell<HashMap<usize, Kept, BuildHasherDefault<AddressHasher>>>,
    slot_cache: Rc<SlotCache>,
}

/// Hashes the address of a backend's state: no peer can choose the address, and each request looks it up twice.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // The odd constant of the golden ratio spreads the address over the upper bits, which the table also uses.
        let spread = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

struct Kept {
    backend: Arc<BackendState>,
    slot_cache: Rc<SlotCache>,
    slots: usize,
    /// Oldest first. The newest is used first, so that the others can expire.
    streams: Vec<(Stream, Instant)>,
}

impl Kept {
    fn pop(&mut self) -> Option<(Stream, Instant)> {
        let popped = self.streams.pop()?;
        self.slot_cache.give_of(Kind::Idle, self.slots);
        Some(popped)
    }

    /// Closes the connection that was unused for longest. Returns its number of slots.
    fn close_oldest(&mut self) -> Option<usize> {
        let oldest = (!self.streams.is_empty()).then(|| self.streams.remove(0))?;
        drop(oldest);
        self.slot_cache.give_of(Kind::Idle, self.slots);
        Some(self.slots)
    }

    /// Closes the connections for which `keep` is false.
    fn retain(&mut self, mut keep: impl FnMut(&Stream, Instant) -> bool) {
        let before = self.streams.len();
        self.streams.retain(|(stream, until)| keep(stream, *until));
        self.slot_cache.give_of(Kind::Idle, (before - self.streams.len()) * self.slots);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.retain(|_, _| false);
    }
}

impl IdlePool {
    pub fn new(slot_cache: Rc<SlotCache>) -> Self {
        Self { kept: RefCell::default(), slot_cache }
    }

    /// Keeps a connection until `until`, unless `limit` are kept already or a client waits for its slots.
    pub fn give(&self, backend: &Arc<BackendState>, stream: Stream, until: Instant, limit: usize) {
        if self.slot_cache.account().is_waited_for() {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        let entry = kept.entry(Arc::as_ptr(backend) as usize).or_insert_with(|| Kept {
            backend: backend.clone(),
            slot_cache: self.slot_cache.clone(),
            slots: backend.slots(),
            streams: Vec::new(),
        });
        if entry.streams.len() < limit && self.slot_cache.take_of(Kind::Idle, entry.slots) == Taken::Yes {
            entry.streams.push((stream, until));
        }
    }

    pub(crate) fn take(&self, backend: &Arc<BackendState>, now: Instant) -> Option<Stream> {
        let mut kept = self.kept.borrow_mut();
        let entry = kept.get_mut(&(Arc::as_ptr(backend) as usize))?;
        while let Some((stream, until)) = entry.pop() {
            if now < until {
                return Some(stream);
            }
        }
        None
    }

    /// Closes connections that have expired, were closed by the backend, or whose backend is down or removed.
    pub fn sweep(&self, now: Instant, snapshot: &Snapshot) {
        self.kept.borrow_mut().retain(|_, kept| {
            let served = kept.backend.is_up()
                && snapshot.pools.iter().any(|pool| {
                    *pool.settings.name == *kept.backend.pool
                        && pool.backends.iter().any(|backend| Arc::ptr_eq(&backend.state, &kept.backend))
                });
            if !served {
                return false;
            }
            kept.retain(|stream, until| now < until && stream.is_quiet() == Quiet::Yes);
            !kept.streams.is_empty()
        });
    }

    /// Closes idle connections until `slots` are free or none is left. Returns the number of freed slots.
    pub fn give_up(&self, slots: usize) -> usize {
        let (mut given, mut connections) = (0, 0);
        for kept in self.kept.borrow_mut().values_mut() {
            while given < slots
                && let Some(closed) = kept.close_oldest()
            {
                given += closed;
                connections += 1;
            }
        }
        self.slot_cache.account().idle_closed.fetch_add(connections, Relaxed);
        given
    }

    /// Closes all connections, because the process ends.
    pub fn clear(&self) {
        self.kept.borrow_mut().clear();
    }
}
