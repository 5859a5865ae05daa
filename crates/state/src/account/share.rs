//! Slots of one client connection, its limit, and its requests that wait for slots.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use logic::account::{ConnectionUsage, Refusal, SourceUsage, may_wait};
use logic::flood_delay::FloodDelay;
use tokio::sync::{Mutex, MutexGuard, Notify};

use super::{AtSource, SlotCache, Source, Taken};

#[derive(Debug, Default)]
pub struct Share {
    /// Slots charged to the client's address; `None` if the client has no address or its address is not limited.
    at_source: RefCell<Option<AtSource>>,
    /// Slots of the connection itself and of its first backend connection.
    slots: Cell<usize>,
    /// The first backend connection is in use.
    first_is_used: Cell<bool>,
    additional: Cell<usize>,
    /// Slots of HTTP/2 backend connections that are charged to this connection.
    lines: Cell<usize>,
    /// Allocated when the first stream waits: few connections have such streams, and each connection has a share.
    queue: OnceCell<Box<Queue>>,
}

/// Streams of one client connection that wait.
#[derive(Debug, Default)]
struct Queue {
    /// Streams that wait for a backend connection.
    waiting: Cell<usize>,
    /// Streams that wait for a free stream on connections to HTTP/2 backends.
    waiting_for_room: Cell<usize>,
    /// Held in order of arrival by the streams that wait for a backend connection. Only the stream that holds the lock
    /// tries to take one.
    turn: Mutex<()>,
    /// Last refusal of a waiting stream; also applies to the streams after it.
    last: Cell<Option<Refusal>>,
    /// Wakes the stream that holds `turn`, to try again.
    freed: Notify,
}

impl Share {
    /// Creates the share of a connection that has taken `slots`.
    pub fn new(at_source: Option<AtSource>, slots: usize) -> Self {
        Self { at_source: RefCell::new(at_source), slots: Cell::new(slots), ..Self::default() }
    }

    /// Slots of the connection itself and of its first backend connection.
    pub fn slots(&self) -> usize {
        self.slots.get()
    }

    /// Charges the connection to a source as soon as its address is known.
    pub fn set_source(&self, at_source: Option<AtSource>) {
        *self.at_source.borrow_mut() = at_source;
    }

    /// Notes at `now`, the time since the start of the process, that the connection is ended for a flood.
    pub fn flooded(&self, now: Duration) {
        if let Some(at_source) = &*self.at_source.borrow() {
            at_source.flooded(now);
        }
    }

    /// Floods of earlier connections of the source; none if the connection is charged to no source.
    pub fn floods(&self) -> FloodDelay {
        self.at_source.borrow().as_ref().map_or_else(FloodDelay::default, AtSource::floods)
    }

    /// Moves the slots at the source to a new connection from the same source, for which this connection is closed.
    pub fn pass_on(&self) -> Option<AtSource> {
        self.at_source.borrow().as_ref()?.pass_on()
    }

    /// Tells whether the connection is charged to this source.
    pub fn is_of(&self, source: &Arc<Source>) -> bool {
        self.at_source.borrow().as_ref().is_some_and(|at_source| at_source.is_of(source))
    }

    /// Ends the charge at the source when the connection has ended, even if a task still refers to the connection.
    /// Returns the slots that the caller must return.
    pub fn leave(&self) -> usize {
        self.set_source(None);
        self.slots.take()
    }

    /// Takes the first backend connection unless a request uses it.
    #[inline]
    pub fn take_first(&self) -> Taken {
        if self.first_is_used.replace(true) { Taken::No } else { Taken::Yes }
    }

    pub fn give_first(&self) {
        self.first_is_used.set(false);
    }

    /// Why streams of the connection wait; `None` if no stream waits.
    #[inline]
    pub fn refusal_of_waiting(&self) -> Option<Refusal> {
        (self.waiting() > 0).then(|| self.last_refusal())
    }

    /// Number of streams that wait for a backend connection.
    #[inline]
    fn waiting(&self) -> usize {
        self.queue.get().map_or(0, |queue| queue.waiting.get())
    }

    fn queue(&self) -> &Queue {
        self.queue.get_or_init(Box::default)
    }

    /// Last refusal of a waiting stream.
    #[cold]
    pub fn last_refusal(&self) -> Refusal {
        self.queue.get().and_then(|queue| queue.last.get()).unwrap_or(Refusal::Connection)
    }

    /// Records the refusal of the stream that holds the turn.
    pub fn note_refusal(&self, refusal: Refusal) {
        self.queue().last.set(Some(refusal));
    }

    /// Counts a stream that waits for a backend connection. Also returns the number of streams before it; `None` if too
    /// many wait.
    pub fn wait_for_hold<'a>(&'a self, slot_cache: &'a SlotCache, most: usize) -> Option<(Waits<'a>, usize)> {
        let waiting = &self.queue().waiting;
        let before = waiting.get();
        Some((self.wait_in(waiting, slot_cache, most)?, before))
    }

    /// Waits for the turn; the next stream gets it when the guard is dropped.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.queue().turn.lock().await
    }

    /// Waits until the stream that holds the turn must try again.
    pub async fn freed(&self) {
        self.queue().freed.notified().await;
    }

    /// Charges an additional backend connection to this connection.
    pub fn add_additional(&self, slots: usize) {
        self.add(&self.additional, slots);
    }

    /// Ends the charge of an additional backend connection.
    pub fn subtract_additional(&self, slots: usize) {
        self.subtract(&self.additional, slots);
    }

    /// Decides whether the connection may have one more backend connection.
    pub fn may_have_additional(&self, slot_cache: &SlotCache, slots: usize) -> Result<(), Refusal> {
        let account = slot_cache.account();
        account.usage().additional(account.shares(), self.usage(), self.source(), slots)
    }

    /// Decides whether one more connection to an HTTP/2 backend may be charged to this connection.
    pub fn may_have_line(&self, slot_cache: &SlotCache, slots: usize) -> Result<(), Refusal> {
        let account = slot_cache.account();
        account.usage().line(account.shares(), self.usage(), self.source(), slots)
    }

    fn usage(&self) -> ConnectionUsage {
        ConnectionUsage { additional: self.additional.get(), lines: self.lines.get() }
    }

    fn source(&self) -> Option<SourceUsage> {
        self.at_source.borrow().as_ref().map(AtSource::of_source)
    }

    /// Charges a connection to an HTTP/2 backend to this connection.
    pub fn add_line(&self, slots: usize) {
        self.add(&self.lines, slots);
    }

    /// Ends the charge of a connection to an HTTP/2 backend.
    pub fn subtract_line(&self, slots: usize) {
        self.subtract(&self.lines, slots);
        self.wake();
    }

    fn add(&self, count: &Cell<usize>, slots: usize) {
        count.set(count.get() + slots);
        if let Some(at_source) = &*self.at_source.borrow() {
            at_source.add(slots);
        }
    }

    fn subtract(&self, count: &Cell<usize>, slots: usize) {
        count.set(count.get() - slots);
        if let Some(at_source) = &*self.at_source.borrow() {
            at_source.subtract(slots);
        }
    }

    /// Wakes the stream whose turn it is, so that it tries again to take its slots.
    pub fn wake(&self) {
        if self.waiting() > 0 {
            self.queue().freed.notify_one();
        }
    }

    /// Counts a stream that waits for a free stream on connections to HTTP/2 backends; `None` if too many wait.
    pub fn wait_for_room<'a>(&'a self, slot_cache: &'a SlotCache, most: usize) -> Option<Waits<'a>> {
        self.wait_in(&self.queue().waiting_for_room, slot_cache, most)
    }

    /// Each waiting stream holds a request in memory: at most `most` wait in a worker, and one connection may use only
    /// a part.
    fn wait_in<'a>(
        &'a self,
        count: &'a Cell<usize>,
        slot_cache: &'a SlotCache,
        most: usize,
    ) -> Option<Waits<'a>> {
        let queue = self.queue();
        let (own, all) = (queue.waiting.get() + queue.waiting_for_room.get(), &slot_cache.waiting_streams);
        (own < may_wait(most, all.get() - own)).then(|| Waits::begin([count, all]))
    }
}

/// Counts a stream as waiting until dropped.
pub struct Waits<'a>([&'a Cell<usize>; 2]);

impl<'a> Waits<'a> {
    fn begin(counts: [&'a Cell<usize>; 2]) -> Self {
        counts.iter().for_each(|count| count.set(count.get() + 1));
        Self(counts)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|count| count.set(count.get() - 1));
    }
}
