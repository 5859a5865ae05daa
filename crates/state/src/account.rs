//! Account of the process's descriptors: traffic takes a slot here before it opens a descriptor, and returns the slot
//! after it closes the descriptor. `logic/account.rs` decides which client may take a slot.
//!
//! All workers share one counter of taken slots. Each worker keeps a few slots in its [`SlotCache`], so that a short
//! connection does not write memory that other workers read. If a client waits for a slot, it gets those slots too.
//!
//! Descriptors for other purposes wait for turns: `account/turns.rs`. A worker that has no idle client to close for a
//! new one asks the other workers: `account/wish.rs`.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logic::account::{Division, Part, Percent, Refusal, Shares, Usage};
use tokio::sync::Notify;

use crate::client_slots::Size;
use crate::lock::lock;
use crate::metrics::PerWorker;

mod refusal_log;
mod share;
mod source;
mod turns;
mod wish;

pub use refusal_log::RefusalLog;
pub use share::Share;
pub use source::{AtSource, Source, Sources};
pub use turns::{OF_GATE, OF_LOOK_UP, OF_ORDER, OF_REQUEST};
pub use turns::{Purpose, Turn, Wanted};
pub use wish::{Granted, Wish};

/// A worker keeps at most 1/64 of its part of the slots, and at most [`MOST_SPARE`].
const SPARE_OF: usize = 64;
const MOST_SPARE: usize = 32;

/// Time after which a task that waits for a slot tries again, also without a notification.
pub const PAUSE: Duration = Duration::from_millis(20);

/// Account that all workers share.
pub struct Account {
    limit: AtomicUsize,
    /// Taken slots, including those in the caches of workers.
    taken: AtomicUsize,
    /// Descriptors reserved for purposes other than traffic.
    reserve: AtomicUsize,
    /// Part of `reserve` for admin, control, checks, look-ups and files.
    watch: Mutex<Part>,
    /// Turns of checks, look-ups and requests to ACME authorities.
    turns: turns::Turns,
    /// Requests of workers to close an idle client of another worker.
    wishes: Arc<wish::Wishes>,
    /// Descriptors that the process may open; 0 while unknown.
    descriptors: AtomicUsize,
    /// Slots of one connection to a backend.
    backend: AtomicUsize,
    connection_share: AtomicUsize,
    source_share: AtomicUsize,
    /// Slots that each client address holds.
    pub sources: Sources,
    workers: PerWorker<OfWorker>,
    /// Number of tasks that wait for a slot.
    waiting: AtomicUsize,
    freed: Notify,
    refused: [AtomicU64; REFUSALS.len()],
    /// Number of idle backend connections closed to free slots.
    pub idle_closed: AtomicU64,
}

/// Reasons for refused slots, in the order of the counters.
const REFUSALS: [Refusal; 3] = [Refusal::NoDescriptors, Refusal::Connection, Refusal::Source];

/// Slots of one worker by kind; only that worker writes them.
#[derive(Debug, Default)]
struct OfWorker {
    spare: AtomicUsize,
    idle: AtomicUsize,
    additional: AtomicUsize,
    lines: AtomicUsize,
    pipes: AtomicUsize,
    flows: AtomicUsize,
    /// Notified when another worker needs slots: this worker closes unused connections.
    wanted: Notify,
    /// Notified when another worker opens a wish.
    wished: Notify,
}

/// Use of slots besides a client connection and its first backend connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Idle,
    /// Backend connections of clients that use several at once.
    Additional,
    /// Connections to HTTP/2 backends.
    Lines,
    /// Pipes of bulk flows.
    Pipes,
    /// Backend sockets of UDP flows.
    Flows,
}

#[derive(Clone, Copy, Debug)]
pub struct AccountSnapshot {
    /// Descriptors that the process may open; `None` while unknown.
    pub descriptors: Option<usize>,
    /// Descriptors reserved for purposes other than traffic.
    pub reserve: usize,
    pub limit: usize,
    pub taken: usize,
    /// Part of `taken` for idle backend connections.
    pub idle: usize,
    /// Backend connections of clients that use several at once.
    pub additional: usize,
    /// Connections to HTTP/2 backends.
    pub lines: usize,
    /// Pipes of bulk flows.
    pub pipes: usize,
    /// Backend sockets of UDP flows.
    pub flows: usize,
    /// Slots that workers keep for their next connections.
    pub spare: usize,
}

impl Account {
    /// Creates an account without a limit.
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
            idle_closed: AtomicU64::new(0),
        })
    }

    /// Changes the limits; they apply also to slots already taken.
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

    /// Slots of one connection to a backend; two for a backend behind SSH, whose tunnel has a socket at both ends in
    /// this process.
    pub fn backend_slots(&self) -> usize {
        self.backend.load(Relaxed)
    }

    /// Maximum number of admin or control clients: `wanted`, or fewer if the reserve is smaller than the process needs.
    pub fn size_of(&self, wanted: Size) -> Size {
        let watch = *lock(&self.watch);
        wanted.within(watch.of(wanted.descriptors()))
    }

    /// Slots of a client: its own, and those of one backend connection.
    pub fn client_slots(&self) -> usize {
        1 + self.backend_slots()
    }

    /// Current usage of slots, for decisions.
    pub fn usage(&self) -> Usage {
        let (mut yielding, mut beside) = (0, 0);
        for one in self.workers.iter() {
            yielding += one.spare.load(Relaxed) + one.idle.load(Relaxed);
            beside += one.additional.load(Relaxed) + one.lines.load(Relaxed) + one.pipes.load(Relaxed);
            beside += one.flows.load(Relaxed);
        }
        let taken = self.taken.load(Relaxed).saturating_sub(yielding);
        Usage { limit: self.limit.load(Relaxed), taken, beside }
    }

    pub fn shares(&self) -> Shares {
        let percent = |share: &AtomicUsize| {
            u8::try_from(share.load(Relaxed)).ok().and_then(Percent::new).unwrap_or(ALL)
        };
        Shares { connection: percent(&self.connection_share), source: percent(&self.source_share) }
    }

    /// Current numbers of the account, for reports.
    pub fn standing(&self) -> AccountSnapshot {
        let sum = |of: fn(&OfWorker) -> &AtomicUsize| {
            self.workers.iter().map(|worker| of(worker).load(Relaxed)).sum()
        };
        AccountSnapshot {
            descriptors: Some(self.descriptors.load(Relaxed)).filter(|count| *count > 0),
            reserve: self.reserve.load(Relaxed),
            limit: self.limit.load(Relaxed),
            taken: self.taken.load(Relaxed),
            idle: sum(|worker| &worker.idle),
            additional: sum(|worker| &worker.additional),
            lines: sum(|worker| &worker.lines),
            pipes: sum(|worker| &worker.pipes),
            flows: sum(|worker| &worker.flows),
            spare: sum(|worker| &worker.spare),
        }
    }

    pub fn count(&self, refusal: Refusal) {
        if let Some(at) = REFUSALS.iter().position(|one| *one == refusal) {
            self.refused[at].fetch_add(1, Relaxed);
        }
    }

    /// Number of refusals by reason.
    pub fn refusals(&self) -> [(&'static str, u64); REFUSALS.len()] {
        std::array::from_fn(|at| (REFUSALS[at].word(), self.refused[at].load(Relaxed)))
    }

    /// Counters of refusals with their reasons.
    pub(crate) fn refusal_counters(&self) -> impl Iterator<Item = (&'static str, &AtomicU64)> {
        REFUSALS.iter().map(|refusal| refusal.word()).zip(&self.refused)
    }

    /// Takes `count` slots if all of them are free.
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

    /// Counts a new client of `address` that takes `slots` in the share of its address.
    ///
    /// # Errors
    /// Why the client is refused.
    pub fn count_client(&self, address: IpAddr, slots: usize) -> Result<AtSource, Refusal> {
        // The source first: its slots are compared with the account as it is after this look-up.
        let source = self.sources.of(address);
        AtSource::take(source, (self.usage(), self.shares()), slots)
    }

    /// Asks the other workers to close one idle client.
    pub fn wish(&self, asks: usize) -> Wish {
        let wish = self.wishes.open();
        for (_, other) in self.workers.iter().enumerate().filter(|(at, _)| *at != asks) {
            other.wished.notify_one();
        }
        wish
    }

    /// Waits until another worker opens a wish.
    pub async fn wished(&self, worker: usize) {
        self.workers.of(worker).wished.notified().await;
    }

    pub fn has_wish(&self) -> bool {
        self.wishes.is_any_open()
    }

    /// Grants the oldest open wish. The caller closes a client, which keeps the returned value until it has ended.
    pub fn grant(&self) -> Option<Granted> {
        self.wishes.grant()
    }

    /// Asks every worker to close unused connections.
    pub fn want(&self) {
        for worker in self.workers.iter() {
            worker.wanted.notify_one();
        }
    }

    pub async fn wanted(&self, worker: usize) {
        self.workers.of(worker).wanted.notified().await;
    }

    /// Waits at most 20 ms until any worker returns slots. While a task waits here, workers keep no spare slots and no
    /// idle backend connections.
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

    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

const ALL: Percent = match Percent::new(100) {
    Some(percent) => percent,
    None => unreachable!(),
};

pub struct SlotCache {
    account: Arc<Account>,
    worker: usize,
    /// Taken from the account and not yet used.
    spare: Cell<usize>,
    /// Maximum of `spare`.
    most: Cell<usize>,
    /// Streams of this worker that wait for another stream of the same client to end.
    waiting_streams: Cell<usize>,
}

impl SlotCache {
    pub fn new(account: Arc<Account>, worker: usize) -> Self {
        Self { account, worker, spare: Cell::new(0), most: Cell::new(0), waiting_streams: Cell::new(0) }
    }

    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub fn worker(&self) -> usize {
        self.worker
    }

    fn own(&self) -> &OfWorker {
        self.account.workers.of(self.worker)
    }

    /// Sets the maximum number of spare slots from the current limit.
    fn look_at_limit(&self) -> usize {
        let share = self.account.limit.load(Relaxed) / (SPARE_OF * self.account.workers.iter().count());
        self.most.set(share.min(MOST_SPARE));
        self.most.get()
    }

    fn set_spare(&self, spare: usize) {
        self.spare.set(spare);
        self.own().spare.store(spare, Relaxed);
    }

    /// Takes `count` slots if all of them are free. The caller must return them.
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

    pub fn give(&self, count: usize) {
        let spare = self.spare.get() + count;
        self.set_spare(spare);
        if spare > self.most.get() || self.account.is_waited_for() {
            self.empty();
        }
    }

    /// Returns all spare slots to the account.
    pub fn empty(&self) {
        let spare = self.spare.get();
        self.set_spare(0);
        self.account.give(spare);
    }

    /// Adds `change` to the number of slots of a kind.
    pub fn note(&self, kind: Kind, change: isize) {
        let own = self.own();
        let count = match kind {
            Kind::Idle => &own.idle,
            Kind::Additional => &own.additional,
            Kind::Lines => &own.lines,
            Kind::Pipes => &own.pipes,
            Kind::Flows => &own.flows,
        };
        // A plain load and store is enough, because only this worker writes.
        count.store(count.load(Relaxed).wrapping_add_signed(change), Relaxed);
    }

    /// Takes slots of a kind; the caller must return them with [`Self::give_of`].
    #[must_use]
    pub fn take_of(&self, kind: Kind, count: usize) -> Taken {
        let taken = self.take(count);
        if taken == Taken::Yes {
            self.note(kind, count.cast_signed());
        }
        taken
    }

    /// Returns slots of a kind.
    pub fn give_of(&self, kind: Kind, count: usize) {
        self.note(kind, -count.cast_signed());
        self.give(count);
    }
}

impl Drop for SlotCache {
    fn drop(&mut self) {
        self.empty();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Yes,
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
        let (one, other) = (SlotCache::new(account.clone(), 0), SlotCache::new(account.clone(), 1));
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
        let slot_cache = SlotCache::new(account.clone(), 0);
        assert_eq!(slot_cache.take(2), Taken::Yes);
        assert_eq!(slot_cache.take_of(Kind::Idle, 5), Taken::Yes);
        assert!(account.standing().taken > 7, "{:?}", account.standing());
        assert_eq!(account.usage(), Usage { limit: 10_000, taken: 2, beside: 0 });
        slot_cache.give_of(Kind::Idle, 5);
        slot_cache.give(2);
        drop(slot_cache);
        assert_eq!(account.standing().taken, 0);
    }

    #[tokio::test]
    async fn a_waiting_task_gets_the_places_that_other_workers_cache() {
        let account = account(10_000, 2);
        let slot_cache = SlotCache::new(account.clone(), 0);
        assert_eq!(slot_cache.take(1), Taken::Yes);
        let waiting = tokio::spawn({
            let account = account.clone();
            async move { account.freed().await }
        });
        while !account.is_waited_for() {
            tokio::task::yield_now().await;
        }
        slot_cache.give(1);
        assert_eq!(account.standing().taken, 0);
        waiting.await.unwrap();
        assert!(!account.is_waited_for());
    }
}
