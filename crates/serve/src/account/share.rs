//! What one client connection holds of the account, what it may have, and its requests that wait for more.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use logic::account::{ConnectionUsage, Refusal, SourceUsage, may_wait};
use tokio::sync::{Mutex, MutexGuard, Notify};

use super::{AtSource, PlaceCache, Source, Taken};

/// What one client connection holds.
#[derive(Debug, Default)]
pub struct Share {
    /// What it holds at its source; empty for a client without an address, or with an address that is not limited.
    seat: RefCell<Option<AtSource>>,
    /// Its own place, and those of the backend connection that belongs to it.
    places: Cell<usize>,
    /// The backend connection that belongs to it is in use.
    first_is_used: Cell<bool>,
    /// Places of the further ones.
    further: Cell<usize>,
    /// Places of connections to HTTP/2 backends that count for it.
    lines: Cell<usize>,
    /// Streams that wait for a hold.
    waiting: Cell<usize>,
    /// Streams that wait for room on connections to HTTP/2 backends.
    waiting_for_room: Cell<usize>,
    /// Streams that wait for a hold wait for this, in the order in which they came. Only the stream that has it looks whether it
    /// can take a hold.
    turn: Mutex<()>,
    /// Why a stream got nothing when it last looked: the reason of those behind it as well.
    last: Cell<Option<Refusal>>,
    /// Notified when the stream that has the turn is to look.
    freed: Notify,
}

impl Share {
    /// For a connection that has taken `places`.
    pub fn new(seat: Option<AtSource>, places: usize) -> Self {
        Self { seat: RefCell::new(seat), places: Cell::new(places), ..Self::default() }
    }

    /// Its own place, and those of one backend.
    pub fn places(&self) -> usize {
        self.places.get()
    }

    /// Makes the connection count at a source, once its address is known.
    pub fn sit(&self, seat: Option<AtSource>) {
        *self.seat.borrow_mut() = seat;
    }

    /// The connection is to be closed for a new one from the same source, which gets what it holds there.
    pub fn pass_on(&self) -> Option<AtSource> {
        self.seat.borrow().as_ref()?.pass_on()
    }

    /// Whether it counts at this source.
    pub fn is_of(&self, source: &Arc<Source>) -> bool {
        self.seat.borrow().as_ref().is_some_and(|seat| seat.is_of(source))
    }

    /// The connection has ended: it no longer counts at its source, even while a task still refers to it. Returns the places
    /// to be given back.
    pub fn leave(&self) -> usize {
        self.sit(None);
        self.places.take()
    }

    /// Takes the backend connection that belongs to it, if no request uses that.
    #[inline]
    pub fn take_first(&self) -> Taken {
        if self.first_is_used.replace(true) { Taken::No } else { Taken::Yes }
    }

    /// The backend connection that belongs to it is free again.
    pub fn give_first(&self) {
        self.first_is_used.set(false);
    }

    /// Why streams of the connection wait, if any do.
    #[inline]
    pub fn refusal_of_waiting(&self) -> Option<Refusal> {
        (self.waiting.get() > 0).then(|| self.last_refusal())
    }

    /// Why a stream that waited got nothing.
    #[cold]
    pub fn last_refusal(&self) -> Refusal {
        self.last.get().unwrap_or(Refusal::Connection)
    }

    /// A stream that has the turn got nothing, for this reason.
    pub fn note_refusal(&self, refusal: Refusal) {
        self.last.set(Some(refusal));
    }

    /// Counts a stream that is to wait for a hold. Gives also how many wait before it.
    pub fn wait_for_hold<'a>(
        &'a self,
        place_cache: &'a PlaceCache,
        most: usize,
    ) -> Option<(Waits<'a>, usize)> {
        let before = self.waiting.get();
        Some((self.wait_in(&self.waiting, place_cache, most)?, before))
    }

    /// Waits for the turn, which the next stream gets when this one drops it.
    pub async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Waits until the stream that has the turn is to look.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// A further backend connection is its own from now on.
    pub fn add_further(&self, places: usize) {
        self.add(&self.further, places);
    }

    /// A further backend connection is its own no longer.
    pub fn subtract_further(&self, places: usize) {
        self.subtract(&self.further, places);
    }

    /// Whether it may have one more backend connection.
    pub fn may_have_further(&self, place_cache: &PlaceCache, places: usize) -> Result<(), Refusal> {
        let account = place_cache.account();
        account.usage().further(account.shares(), self.usage(), self.source(), places)
    }

    /// Whether one more connection to an HTTP/2 backend may count for it.
    pub fn may_have_line(&self, place_cache: &PlaceCache, places: usize) -> Result<(), Refusal> {
        let account = place_cache.account();
        account.usage().line(account.shares(), self.usage(), self.source(), places)
    }

    fn usage(&self) -> ConnectionUsage {
        ConnectionUsage { further: self.further.get(), lines: self.lines.get() }
    }

    fn source(&self) -> Option<SourceUsage> {
        self.seat.borrow().as_ref().map(AtSource::of_source)
    }

    /// A connection to an HTTP/2 backend counts for it from now on.
    pub fn add_line(&self, places: usize) {
        self.add(&self.lines, places);
    }

    /// A connection to an HTTP/2 backend no longer counts for it.
    pub fn subtract_line(&self, places: usize) {
        self.subtract(&self.lines, places);
        self.wake();
    }

    fn add(&self, count: &Cell<usize>, places: usize) {
        count.set(count.get() + places);
        if let Some(seat) = &*self.seat.borrow() {
            seat.add(places);
        }
    }

    fn subtract(&self, count: &Cell<usize>, places: usize) {
        count.set(count.get() - places);
        if let Some(seat) = &*self.seat.borrow() {
            seat.subtract(places);
        }
    }

    /// The stream that has the turn is to look.
    pub fn wake(&self) {
        if self.waiting.get() > 0 {
            self.freed.notify_one();
        }
    }

    /// Counts a stream that is to wait for room on connections to HTTP/2 backends.
    pub fn wait_for_room<'a>(&'a self, place_cache: &'a PlaceCache, most: usize) -> Option<Waits<'a>> {
        self.wait_in(&self.waiting_for_room, place_cache, most)
    }

    /// No more than `most` wait in a worker, and of one connection only a part: each holds a request in memory.
    fn wait_in<'a>(
        &'a self,
        count: &'a Cell<usize>,
        place_cache: &'a PlaceCache,
        most: usize,
    ) -> Option<Waits<'a>> {
        let (own, all) = (self.waiting.get() + self.waiting_for_room.get(), &place_cache.waiting_streams);
        (own < may_wait(most, all.get() - own)).then(|| Waits::begin([count, all]))
    }
}

/// A stream that waits, counted until this is dropped.
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
