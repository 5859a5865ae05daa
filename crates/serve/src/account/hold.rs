//! How many backend connections one client connection may use: the place of the first was taken with the client's own, each further
//! one takes a place and counts in the shares of the connection and of its source.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use logic::account::{ConnectionUsage, Refusal, SourceUsage, may_wait};
use tokio::sync::{Mutex, Notify};

use super::{AtSource, Kind, PAUSE, PlaceCache, Source, Taken};
use crate::worker::{Control, Worker};

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

    #[cold]
    fn last_refusal(&self) -> Refusal {
        self.last.get().unwrap_or(Refusal::Connection)
    }

    fn may_have_further(&self, place_cache: &PlaceCache, places: usize) -> Result<(), Refusal> {
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
    fn wake(&self) {
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

/// The right to use one connection to a backend, given back when dropped.
pub struct Hold<'a> {
    worker: &'a Worker,
    control: &'a Control,
    which: Which,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Further(usize),
}

impl<'a> Hold<'a> {
    /// Takes it if it can be had now, and no stream of the connection waits that came earlier.
    #[inline]
    pub fn take(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        let share = &control.share;
        if share.waiting.get() > 0 {
            return Err(share.last_refusal());
        }
        Self::take_now(worker, control)
    }

    #[inline]
    fn take_now(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        if !control.share.first_is_used.replace(true) {
            return Ok(Self { worker, control, which: Which::First });
        }
        Self::take_further(worker, control)
    }

    #[cold]
    fn take_further(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        let share = &control.share;
        let places = worker.place_cache.account().backend_places();
        share.may_have_further(&worker.place_cache, places)?;
        if worker.place_cache.take(places) == Taken::No {
            // Idle connections are closed: those of this worker at once, those of others for the next request.
            worker.close_idle(places);
            if worker.place_cache.take(places) == Taken::No {
                return Err(Refusal::Full);
            }
        }
        worker.place_cache.note(Kind::Further, places.cast_signed());
        share.add(&share.further, places);
        Ok(Self { worker, control, which: Which::Further(places) })
    }

    /// Takes it as soon as another request of the client gives one back, within `limit`, and after the requests of the client that
    /// wait already. `refusal` is why it could not be taken at once.
    pub async fn wait(
        worker: &'a Worker,
        control: &'a Control,
        refusal: Refusal,
        limit: Duration,
        most: usize,
    ) -> Result<Self, Refusal> {
        let share = &control.share;
        let waited_for = share.waiting.get();
        let waits = share.wait_in(&share.waiting, &worker.place_cache, most);
        let _waits = waits.ok_or(refusal)?;
        if waited_for == 0 {
            share.last.set(Some(refusal));
        }
        let waiting = async {
            // The next stream gets it when this one has its hold, or is dropped.
            let _turn = share.turn.lock().await;
            let mut taken = match waited_for {
                0 => Err(refusal),
                _ => Self::take_now(worker, control),
            };
            loop {
                let why = match taken {
                    Ok(hold) => break hold,
                    Err(why) => why,
                };
                share.last.set(Some(why));
                match why {
                    // At least one is in use while a request waits: its drop notifies.
                    Refusal::Connection => share.freed.notified().await,
                    // Others hold the places, and do not notify. This does not wait at the account: while a task does, all
                    // workers close their idle backend connections, and those count as free already.
                    Refusal::Full | Refusal::Source => {
                        let _ = tokio::time::timeout(PAUSE, share.freed.notified()).await;
                    }
                }
                taken = Self::take_now(worker, control);
            }
        };
        match tokio::time::timeout(limit, waiting).await {
            Ok(hold) => Ok(hold),
            Err(_) => Err(share.last_refusal()),
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let share = &self.control.share;
        match self.which {
            Which::First => share.first_is_used.set(false),
            Which::Further(places) => {
                share.subtract(&share.further, places);
                self.worker.place_cache.give_of(Kind::Further, places);
            }
        }
        share.wake();
    }
}
