//! Chooses the idle client connection that a worker closes to make room for a new one: the one that has been idle for longest,
//! of all or of one source. `accept.rs` says when.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Control, Worker};
use crate::account::{AtSource, Source};

/// Idle client connections remembered by one look at all of them, so that a flood of new clients does not cost a look each.
const REMEMBERED: usize = 64;

/// A worker looks at most so often for idle connections of one source: a source that has none does not cost a look for each of its
/// new clients.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What was idle at the last look, the longest idle last.
#[derive(Default)]
pub(super) struct IdleClients {
    all: RefCell<Vec<Idle>>,
    /// When all were looked at for clients of other workers.
    looked: Cell<Option<Instant>>,
    of_source: RefCell<OfSource>,
}

type Idle = (Instant, Rc<Control>);

/// The same of the source that was looked for last.
#[derive(Default)]
struct OfSource {
    source: Weak<Source>,
    idle: Vec<Idle>,
    looked: Option<Instant>,
}

impl Worker {
    /// Closes the client connection that has been idle for longest, to make room. `None` if no client is idle.
    pub fn evict_idle(&self) -> Option<Rc<Control>> {
        let mut idle = self.idle_clients.all.borrow_mut();
        let evicted = take_longest_idle(&mut idle).or_else(|| {
            self.look_for_idle(&mut idle, |_| true);
            take_longest_idle(&mut idle)
        })?;
        self.evict(&evicted);
        Some(evicted)
    }

    /// The same among those of one source, for a new one from there, which gets what the closed one held of the source's share.
    pub fn evict_idle_of(&self, source: &Arc<Source>) -> Option<(Rc<Control>, AtSource)> {
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
            self.look_for_idle(idle, |control| control.share.is_of(source));
            evicted = take_longest_idle(idle);
        }
        let evicted = evicted?;
        let seat = evicted.share.pass_on()?;
        self.evict(&evicted);
        Some((evicted, seat))
    }

    /// Closes the longest idle client connections for clients of other workers, one for each that asks.
    pub(super) fn grant_wishes(&self) {
        let account = self.place_cache.account();
        let mut idle = self.idle_clients.all.borrow_mut();
        while account.has_wish() {
            let longest = take_longest_idle(&mut idle).or_else(|| {
                let (now, looked) = (Instant::now(), &self.idle_clients.looked);
                // Wishes come again and again until they are granted.
                if looked.get().is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
                    looked.set(Some(now));
                    self.look_for_idle(&mut idle, |_| true);
                }
                take_longest_idle(&mut idle)
            });
            let Some(control) = longest else { return };
            let Some(granted) = account.grant() else {
                // Another worker was first.
                idle.extend(control.idle_since().map(|since| (since, control)));
                return;
            };
            control.granted.replace(Some(granted));
            self.evict(&control);
        }
    }

    fn evict(&self, control: &Control) {
        self.front.state.evicted.fetch_add(1, Relaxed);
        control.close_when_idle();
    }

    fn look_for_idle(&self, idle: &mut Vec<Idle>, wanted: impl Fn(&Control) -> bool) {
        let connections = self.connections.borrow();
        let mut all: Vec<_> = connections
            .iter()
            .filter_map(|control| control.idle_since().map(|since| (since, control)))
            .filter(|(_, control)| wanted(control))
            .collect();
        if all.len() > REMEMBERED {
            all.select_nth_unstable_by_key(REMEMBERED, |(since, _)| *since);
            all.truncate(REMEMBERED);
        }
        all.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        idle.extend(all.into_iter().map(|(since, control)| (since, control.clone())));
    }
}

/// The longest idle of those remembered that still is what it was then.
fn take_longest_idle(idle: &mut Vec<Idle>) -> Option<Rc<Control>> {
    while let Some((since, control)) = idle.pop() {
        if control.idle_since() == Some(since) {
            return Some(control);
        }
    }
    None
}
