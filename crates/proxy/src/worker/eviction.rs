//! Closes the client connection that has been idle for longest, of all clients or of one source address, to make room
//! for a new client. `accept.rs` decides when.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use state::account::{AtSource, Source};

use super::{ConnectionHandle, Worker};

/// Number of idle connections that one scan remembers, so that not every new client costs a scan.
const REMEMBERED: usize = 64;

/// Most entries with those that are to leave first.
const MOST_REMEMBERED: usize = 16 * REMEMBERED;

/// Shortest interval between two scans: a source without idle connections does not cost a scan per new client.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Idle connections found by the last scans, the longest idle last.
#[derive(Default)]
pub(super) struct IdleClients {
    all: RefCell<Vec<Idle>>,
    /// Time of the last scan on behalf of other workers.
    looked: Cell<Option<Instant>>,
    of_source: RefCell<OfSource>,
}

type Idle = (Instant, Rc<ConnectionHandle>);

/// Idle connections of the source that was scanned last.
#[derive(Default)]
struct OfSource {
    source: Weak<Source>,
    idle: Vec<Idle>,
    looked: Option<Instant>,
}

impl Worker {
    /// Closes the client connection that has been idle for longest. `None` if no client is idle.
    pub fn evict_idle(&self) -> Option<Rc<ConnectionHandle>> {
        let mut idle = self.idle_clients.all.borrow_mut();
        let evicted = take_longest_idle(&mut idle).or_else(|| {
            self.look_for_idle(&mut idle, |_| true);
            take_longest_idle(&mut idle)
        })?;
        self.evict(&evicted);
        Some(evicted)
    }

    /// Closes the longest idle connection of one source. Its part of the source's share passes to the new client.
    pub fn evict_idle_of(&self, source: &Arc<Source>) -> Option<(Rc<ConnectionHandle>, AtSource)> {
        let mut remembered = self.idle_clients.of_source.borrow_mut();
        let OfSource { source: last, idle, looked } = &mut *remembered;
        if !std::ptr::eq(last.as_ptr(), Arc::as_ptr(source)) {
            *last = Arc::downgrade(source);
            idle.clear();
        }
        let mut evicted = take_longest_idle(idle);
        let now = Instant::now();
        if evicted.is_none() && looked.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
            *looked = Some(now);
            self.look_for_idle(idle, |handle| handle.share.is_of(source));
            evicted = take_longest_idle(idle);
        }
        let evicted = evicted?;
        let counted = evicted.share.pass_on()?;
        self.evict(&evicted);
        Some((evicted, counted))
    }

    /// Closes the longest idle connections for clients of other workers, one for each waiting client.
    pub(super) fn grant_wishes(&self) {
        let account = self.slot_cache.account();
        let mut idle = self.idle_clients.all.borrow_mut();
        while account.has_wish() {
            let longest = take_longest_idle(&mut idle).or_else(|| {
                let (now, looked) = (Instant::now(), &self.idle_clients.looked);
                // Other workers repeat a wish until it is granted.
                if looked.get().is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
                    looked.set(Some(now));
                    self.look_for_idle(&mut idle, |_| true);
                }
                take_longest_idle(&mut idle)
            });
            let Some(handle) = longest else { return };
            let Some(granted) = account.grant() else {
                // Another worker has granted the wish.
                idle.extend(handle.idle_since().map(|since| (since, handle)));
                return;
            };
            handle.granted.replace(Some(granted));
            self.evict(&handle);
        }
    }

    /// Makes a connection, idle since `since`, the next one that is closed for another client.
    pub(crate) fn leaves_first(&self, since: Instant, handle: &Rc<ConnectionHandle>) {
        let mut all = self.idle_clients.all.borrow_mut();
        if all.len() >= MOST_REMEMBERED {
            all.retain(|(since, handle)| handle.idle_since() == Some(*since));
        }
        if all.len() < MOST_REMEMBERED {
            all.push((since, handle.clone()));
        }
    }

    fn evict(&self, handle: &ConnectionHandle) {
        self.front.state.evicted.fetch_add(1, Relaxed);
        handle.close_when_idle();
        self.resume(handle);
    }

    fn look_for_idle(&self, idle: &mut Vec<Idle>, wanted: impl Fn(&ConnectionHandle) -> bool) {
        let connections = self.connections.borrow();
        let mut all: Vec<_> = connections
            .iter()
            .filter_map(|handle| handle.idle_since().map(|since| (since, handle)))
            .filter(|(_, handle)| wanted(handle))
            .collect();
        if all.len() > REMEMBERED {
            all.select_nth_unstable_by_key(REMEMBERED, |(since, _)| *since);
            all.truncate(REMEMBERED);
        }
        all.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        idle.extend(all.into_iter().map(|(since, handle)| (since, handle.clone())));
    }
}

/// Removes and returns the longest idle connection. Skips entries that have not been idle since the scan.
fn take_longest_idle(idle: &mut Vec<Idle>) -> Option<Rc<ConnectionHandle>> {
    while let Some((since, handle)) = idle.pop() {
        if handle.idle_since() == Some(since) {
            return Some(handle);
        }
    }
    None
}
