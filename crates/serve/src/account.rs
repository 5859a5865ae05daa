//! The account of descriptors of the process: for each descriptor that traffic opens a place is taken here first, and given
//! back when it is closed. `logic/account.rs` decides which client may take one.
//!
//! The number of places taken is one for all workers. A worker keeps a few places in its [`PlaceCache`], so that a short
//! connection writes nothing that other workers read; a client that waits for a place gets those as well.
//!
//! What the process opens beside traffic takes turns: `account/turns.rs`. A worker without an idle client to close for a new one
//! asks the others: `account/wish.rs`.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logic::account::{Division, Part, Percent, Refusal, Shares, Usage};
use tokio::sync::Notify;

use crate::lock::lock;
use crate::metrics::PerWorker;
use crate::places::Size;

mod refusal_log;
mod share;
mod source;
mod turns;
mod wish;

pub use refusal_log::RefusalLog;
pub use share::Share;
pub use source::{AtSource, Source, Sources};
pub(crate) use turns::{OF_LOOK_UP, OF_ORDER, OF_REQUEST};
pub use turns::{Purpose, Turn, Wanted};
pub use wish::{Granted, Wish};

/// A worker keeps at most one in 64 of its part of the places, and at most [`MOST_SPARE`].
const SPARE_OF: usize = 64;
const MOST_SPARE: usize = 32;

/// A task that waits for a place tries again after this time, also without a notification.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// The account, shared by all workers.
pub struct Account {
    /// Places for traffic.
    limit: AtomicUsize,
    /// Places taken, those in the caches of workers included.
    taken: AtomicUsize,
    /// What the process keeps for itself.
    reserve: AtomicUsize,
    /// Of that, the part for admin, control, checks, look-ups and files.
    watch: Mutex<Part>,
    /// That of checks, look-ups and requests to authorities.
    turns: turns::Turns,
    /// Clients of other workers to be closed for a new one.
    wishes: Arc<wish::Wishes>,
    /// Descriptors that the process may open; 0 while that is unknown.
    descriptors: AtomicUsize,
    /// Places that a connection to a backend takes.
    backend: AtomicUsize,
    connection_share: AtomicUsize,
    source_share: AtomicUsize,
    /// What each address holds.
    pub sources: Sources,
    workers: PerWorker<OfWorker>,
    /// How many wait for a place.
    waiting: AtomicUsize,
    freed: Notify,
    refused: [AtomicU64; REFUSALS.len()],
    /// Idle backend connections that were given up for others.
    pub given_up: AtomicU64,
}

/// Why places were refused, in the order of the counters.
const REFUSALS: [Refusal; 3] = [Refusal::Full, Refusal::Connection, Refusal::Source];

/// What one worker holds of some kind; only it writes.
#[derive(Debug, Default)]
struct OfWorker {
    spare: AtomicUsize,
    idle: AtomicUsize,
    further: AtomicUsize,
    lines: AtomicUsize,
    pipes: AtomicUsize,
    /// Notified when another worker needs places: this one closes what is unused.
    wanted: Notify,
    /// Notified when another worker has a wish.
    wished: Notify,
}

/// What places are taken for, beside a client connection and its first backend connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Idle backend connections.
    Idle,
    /// Backend connections of clients that use several at once.
    Further,
    /// Connections to backends that speak HTTP/2.
    Lines,
    /// Pipes of bulk flows.
    Pipes,
}

/// The account at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Descriptors that the process may open; `None` while that is unknown.
    pub descriptors: Option<usize>,
    /// What the process keeps for itself.
    pub reserve: usize,
    /// Places for traffic.
    pub limit: usize,
    /// Places taken.
    pub taken: usize,
    /// Of these, for idle backend connections.
    pub idle: usize,
    /// Backend connections of clients that use several at once.
    pub further: usize,
    /// Connections to backends that speak HTTP/2.
    pub lines: usize,
    /// Pipes of bulk flows.
    pub pipes: usize,
    /// Taken by workers ahead of their next connections.
    pub spare: usize,
}

impl Account {
    /// An account without a limit.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicUsize::new(usize::MAX / 4),
            taken: AtomicUsize::new(0),
            reserve: AtomicUsize::new(0),
            watch: Mutex::default(),
            turns: turns::Turns::default(),
            wishes: Arc::default(),
            descriptors: AtomicUsize::new(0),
            backend: AtomicUsize::new(1),
            connection_share: AtomicUsize::new(100),
            source_share: AtomicUsize::new(100),
            sources: Sources::default(),
            workers: PerWorker::new(workers),
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
            refused: Default::default(),
            given_up: AtomicU64::new(0),
        })
    }

    /// Applies from now on, also to places that are taken already.
    pub fn set(
        &self,
        descriptors: usize,
        division: Division,
        shares: Shares,
        wanted: Wanted,
        backend: usize,
    ) {
        self.descriptors.store(descriptors, Relaxed);
        self.reserve.store(division.reserve, Relaxed);
        *lock(&self.watch) = division.watch;
        self.set_turns(wanted, division);
        self.connection_share.store(usize::from(shares.connection.get()), Relaxed);
        self.source_share.store(usize::from(shares.source.get()), Relaxed);
        self.backend.store(backend.max(1), Relaxed);
    }

    /// Places of a connection to a backend. One behind SSH has a socket at either end of its tunnel in this process.
    pub fn backend_places(&self) -> usize {
        self.backend.load(Relaxed)
    }

    /// How many admin or control clients there may be: `wanted`, or fewer where the reserve is smaller than the process needs.
    pub(crate) fn size_of(&self, wanted: Size) -> Size {
        let watch = *lock(&self.watch);
        wanted.within(watch.of(wanted.descriptors()))
    }

    /// Places of a client: its own, and those of one backend.
    pub fn client_places(&self) -> usize {
        1 + self.backend_places()
    }

    /// The account now, as decisions see it.
    pub fn usage(&self) -> Usage {
        let (mut yielding, mut beside) = (0, 0);
        for one in self.workers.iter() {
            yielding += one.spare.load(Relaxed) + one.idle.load(Relaxed);
            beside += one.further.load(Relaxed) + one.lines.load(Relaxed) + one.pipes.load(Relaxed);
        }
        let taken = self.taken.load(Relaxed).saturating_sub(yielding);
        Usage { limit: self.limit.load(Relaxed), taken, beside }
    }

    /// The shares now.
    pub fn shares(&self) -> Shares {
        let percent = |share: &AtomicUsize| {
            u8::try_from(share.load(Relaxed)).ok().and_then(Percent::new).unwrap_or(ALL)
        };
        Shares { connection: percent(&self.connection_share), source: percent(&self.source_share) }
    }

    /// The account at this moment.
    pub fn standing(&self) -> Standing {
        let sum = |of: fn(&OfWorker) -> &AtomicUsize| {
            self.workers.iter().map(|worker| of(worker).load(Relaxed)).sum()
        };
        Standing {
            descriptors: Some(self.descriptors.load(Relaxed)).filter(|count| *count > 0),
            reserve: self.reserve.load(Relaxed),
            limit: self.limit.load(Relaxed),
            taken: self.taken.load(Relaxed),
            idle: sum(|worker| &worker.idle),
            further: sum(|worker| &worker.further),
            lines: sum(|worker| &worker.lines),
            pipes: sum(|worker| &worker.pipes),
            spare: sum(|worker| &worker.spare),
        }
    }

    /// Counts a refusal.
    pub fn count(&self, refusal: Refusal) {
        if let Some(at) = REFUSALS.iter().position(|one| *one == refusal) {
            self.refused[at].fetch_add(1, Relaxed);
        }
    }

    /// Refusals so far, by reason.
    pub fn refusals(&self) -> [(&'static str, u64); REFUSALS.len()] {
        std::array::from_fn(|at| (REFUSALS[at].reason(), self.refused[at].load(Relaxed)))
    }

    /// Takes `count` places, if as many are free.
    fn take(&self, count: usize) -> bool {
        let limit = self.limit.load(Relaxed);
        let more = |taken: usize| taken.checked_add(count).filter(|taken| *taken <= limit);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give(&self, count: usize) {
        if count == 0 {
            return;
        }
        self.taken.fetch_sub(count, Relaxed);
        if self.waiting.load(Relaxed) > 0 {
            self.freed.notify_waiters();
        }
    }

    /// Counts a new client of `address` that takes `places`, unless its source has its share.
    ///
    /// # Errors
    /// Why the client does not come in.
    pub fn seat(&self, address: IpAddr, places: usize) -> Result<AtSource, Refusal> {
        // The source first: what it holds is compared with the account as it is after that.
        let source = self.sources.of(address);
        AtSource::take(source, (self.usage(), self.shares()), places)
    }

    /// Asks the other workers to close one client that is idle.
    pub fn wish(&self, asks: usize) -> Wish {
        let wish = self.wishes.open();
        for (_, other) in self.workers.iter().enumerate().filter(|(at, _)| *at != asks) {
            other.wished.notify_one();
        }
        wish
    }

    /// Waits until another worker has a wish.
    pub async fn wished(&self, worker: usize) {
        self.workers.of(worker).wished.notified().await;
    }

    /// Whether a wish is open.
    pub fn has_wish(&self) -> bool {
        self.wishes.is_any_open()
    }

    /// Grants the oldest wish, if one is open: the caller closes a client, which keeps what it gets.
    pub fn grant(&self) -> Option<Granted> {
        self.wishes.grant()
    }

    /// Asks every worker to close what is unused.
    pub fn want(&self) {
        for worker in self.workers.iter() {
            worker.wanted.notify_one();
        }
    }

    /// Waits until another task calls [`Self::want`].
    pub async fn wanted(&self, worker: usize) {
        self.workers.of(worker).wanted.notified().await;
    }

    /// Waits until any worker gives places back, at most 20 ms. While a task waits here, workers keep no spare places and
    /// no idle backend connections.
    pub async fn freed(&self) {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.waiting.fetch_add(1, Relaxed);
        let _waits = Waits(&self.waiting);
        let _ = tokio::time::timeout(PAUSE, self.freed.notified()).await;
    }

    /// Whether a task waits for a place.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

const ALL: Percent = match Percent::new(100) {
    Some(percent) => percent,
    None => unreachable!(),
};

/// The places of one worker.
pub struct PlaceCache {
    account: Arc<Account>,
    worker: usize,
    /// Taken from the account and not yet used.
    spare: Cell<usize>,
    /// No more than that are kept.
    most: Cell<usize>,
    /// Streams of this worker that wait for one of their own to end.
    waiting_streams: Cell<usize>,
}

impl PlaceCache {
    /// An empty one.
    pub fn new(account: Arc<Account>, worker: usize) -> Self {
        Self { account, worker, spare: Cell::new(0), most: Cell::new(0), waiting_streams: Cell::new(0) }
    }

    /// The account that it is filled from.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Whose it is.
    pub fn worker(&self) -> usize {
        self.worker
    }

    fn own(&self) -> &OfWorker {
        self.account.workers.of(self.worker)
    }

    /// How many may be kept, by what the limit is now.
    fn look_at_limit(&self) -> usize {
        let share = self.account.limit.load(Relaxed) / (SPARE_OF * self.account.workers.iter().count());
        self.most.set(share.min(MOST_SPARE));
        self.most.get()
    }

    fn set_spare(&self, spare: usize) {
        self.spare.set(spare);
        self.own().spare.store(spare, Relaxed);
    }

    /// Takes `count` places, if as many are free. They must be given back.
    #[must_use]
    pub fn take(&self, count: usize) -> Taken {
        let spare = self.spare.get();
        if spare >= count {
            self.set_spare(spare - count);
            return Taken::Yes;
        }
        self.fill_and_take(count - spare)
    }

    #[cold]
    fn fill_and_take(&self, missing: usize) -> Taken {
        let more = if self.account.is_waited_for() { 0 } else { self.look_at_limit() / 2 };
        if more > 0 && self.account.take(missing + more) {
            self.set_spare(more);
            return Taken::Yes;
        }
        if self.account.take(missing) {
            self.set_spare(0);
            return Taken::Yes;
        }
        Taken::No
    }

    /// Gives places back.
    pub fn give(&self, count: usize) {
        let spare = self.spare.get() + count;
        self.set_spare(spare);
        if spare > self.most.get() || self.account.is_waited_for() {
            self.empty();
        }
    }

    /// Gives unused places back to the account.
    pub fn empty(&self) {
        let spare = self.spare.get();
        self.set_spare(0);
        self.account.give(spare);
    }

    /// Counts places of a kind that this worker has taken or given back.
    pub fn note(&self, kind: Kind, change: isize) {
        let own = self.own();
        let count = match kind {
            Kind::Idle => &own.idle,
            Kind::Further => &own.further,
            Kind::Lines => &own.lines,
            Kind::Pipes => &own.pipes,
        };
        // Only this worker writes it.
        count.store(count.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// Takes places of a kind; they are given back by [`Self::give_of`].
    #[must_use]
    pub fn take_of(&self, kind: Kind, count: usize) -> Taken {
        let taken = self.take(count);
        if taken == Taken::Yes {
            self.note(kind, count.cast_signed());
        }
        taken
    }

    /// Gives places of a kind back.
    pub fn give_of(&self, kind: Kind, count: usize) {
        self.note(kind, -count.cast_signed());
        self.give(count);
    }
}

impl Drop for PlaceCache {
    fn drop(&mut self) {
        self.empty();
    }
}

/// Whether places were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// They were.
    Yes,
    /// Fewer are free.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(traffic: usize, workers: usize) -> Arc<Account> {
        let account = Account::new(workers);
        let division = Division { traffic, ..Division::default() };
        account.set(traffic, division, account.shares(), Wanted::default(), 1);
        account
    }

    #[test]
    fn every_place_can_be_had_and_comes_back() {
        let account = account(100, 2);
        let (one, other) = (PlaceCache::new(account.clone(), 0), PlaceCache::new(account.clone(), 1));
        let had = (0..60).filter(|_| one.take(2) == Taken::Yes).count();
        assert_eq!(had, 50);
        assert_eq!(other.take(1), Taken::No);
        one.give(100);
        assert_eq!(other.take(98), Taken::Yes);
        other.give(98);
        drop((one, other));
        assert_eq!(account.standing().taken, 0);
    }

    #[test]
    fn cached_places_and_idle_connections_count_as_free() {
        let account = account(10_000, 1);
        let place_cache = PlaceCache::new(account.clone(), 0);
        assert_eq!(place_cache.take(2), Taken::Yes);
        assert_eq!(place_cache.take_of(Kind::Idle, 5), Taken::Yes);
        assert!(account.standing().taken > 7, "{:?}", account.standing());
        assert_eq!(account.usage(), Usage { limit: 10_000, taken: 2, beside: 0 });
        place_cache.give_of(Kind::Idle, 5);
        place_cache.give(2);
        drop(place_cache);
        assert_eq!(account.standing().taken, 0);
    }

    #[tokio::test]
    async fn a_waiting_task_gets_the_places_that_other_workers_cache() {
        let account = account(10_000, 2);
        let place_cache = PlaceCache::new(account.clone(), 0);
        assert_eq!(place_cache.take(1), Taken::Yes);
        let waiting = tokio::spawn({
            let account = account.clone();
            async move { account.freed().await }
        });
        while !account.is_waited_for() {
            tokio::task::yield_now().await;
        }
        place_cache.give(1);
        assert_eq!(account.standing().taken, 0);
        waiting.await.unwrap();
        assert!(!account.is_waited_for());
    }
}
