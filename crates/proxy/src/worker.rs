//! One worker: a thread with its own single-threaded runtime, sockets and idle backend connections. Its only state
//! shared with other threads on the hot path is its snapshot and counters that only this worker writes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use config::types::LogFormat;
use logic::balance::Balancer;
use logic::hedge::Hedging;
use logic::route::PoolId;
use logic::sessions::Rates;
use state::access_log::{AccessLog, Batch};
use state::account::{Account, RefusalLog, Share, SlotCache};
use state::events::Level;
use tokio::sync::Notify;

use crate::front::Front;
use crate::http2::backend::Lines;
use crate::idle::IdlePool;
use crate::idle_sessions::IdleSessions;
use crate::live::{Live, Running};
use crate::past::{Entry, Past};
use crate::pipes::Pipes;
use crate::snapshot::Snapshot;
use crate::udp::mailbox::Mailboxes;
use crate::waits::Waits;

mod answers;
mod eviction;
mod giving;
mod handle;
mod offers;
mod per_pool;
mod sessions;
mod thread;

use eviction::IdleClients;
use handle::Phase;
pub use handle::{ConnectionHandle, WaitEnd};
use offers::Giving;
use per_pool::PerPool;
pub use thread::{Command, run};

/// Interval at which a worker checks its idle backend connections.
const SWEEP: Duration = Duration::from_secs(1);

/// Time without a request after which an HTTP/1.1 connection waits without a task.
const PARK_AFTER: Duration = Duration::from_secs(1);

/// Most connections that are asked at once to wait without a task: some milliseconds of work.
const PARK_AT_ONCE: usize = 1024;

/// Slots of idle backend connections that a worker gives back at once when other workers need slots.
const GIVEN_UP: usize = 8;

/// Capacity of the connection table above which its memory is freed when no connection is open.
const REMEMBERED_NUMBERS: usize = 1024;

/// A snapshot as the sessions of one worker hold it: the `Rc` avoids atomic reference counts.
pub type Current = Rc<Arc<Snapshot>>;

pub struct Worker {
    pub index: usize,
    /// State shared by all workers of the process.
    pub front: Arc<Front>,
    /// Slots that this worker has taken from the account of descriptors.
    pub slot_cache: Rc<SlotCache>,
    /// Pipes for splice(2).
    pub pipes: Rc<Pipes>,
    /// Idle HTTP/1.1 connections to backends.
    pub idle: IdlePool,
    /// TCP sessions in which neither side sends, and HTTP/1.1 connections without a request.
    pub idle_sessions: IdleSessions,
    pub lines: Lines,
    /// Requests that wait for a response.
    pub waits: Waits,
    /// Sessions that run, for operators.
    pub running: Running,
    current: RefCell<Current>,
    balancers: PerPool<Balancer>,
    hedging: PerPool<Hedging>,
    past: RefCell<Past>,
    rates: RefCell<Rates>,
    /// Sockets for UDP, for operators.
    pub(crate) mailboxes: Rc<Mailboxes>,
    connections: RefCell<Connections>,
    idle_clients: IdleClients,
    /// Notified when a client connection of this worker has ended.
    pub(crate) place_freed: Notify,
    draining: Cell<bool>,
    /// Drains because another process has taken over.
    handed_over: Cell<bool>,
    cutting: Cell<bool>,
    /// Number of running accept loops.
    pub(crate) accepting: Cell<usize>,
    emptied: Notify,
    log: AccessLog,
    batch: RefCell<Batch>,
    giving: RefCell<Giving>,
    swept: Cell<Instant>,
    /// Number of the connection with which [`Self::park_idle`] goes on.
    park_from: Cell<usize>,
    refusal_log: RefusalLog,
}

/// The open client connections of a worker, indexed by their numbers.
#[derive(Default)]
struct Connections {
    controls: Vec<Option<Rc<ConnectionHandle>>>,
    free: Vec<u32>,
    /// Serial numbers of the connections, by their numbers.
    serials: Vec<u32>,
    next_serial: u32,
}

impl Connections {
    fn insert(&mut self, share: Share, live: Live) -> Rc<ConnectionHandle> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.controls.push(None);
            self.serials.push(0);
            // No process has that many descriptors.
            u32::try_from(self.controls.len() - 1).unwrap_or(u32::MAX)
        });
        let handle = Rc::new(ConnectionHandle::new(number, share, live));
        self.serials[number as usize] = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        self.controls[number as usize] = Some(handle.clone());
        handle
    }

    fn remove(&mut self, number: u32) {
        self.controls[number as usize] = None;
        self.free.push(number);
        if self.is_empty() && self.controls.len() > REMEMBERED_NUMBERS {
            // Frees the memory of the table after many connections were open.
            *self = Self { next_serial: self.next_serial, ..Self::default() };
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.controls.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Rc<ConnectionHandle>> {
        self.controls.iter().flatten()
    }
}

/// Entry of a client connection in its worker. Dropping it removes the connection.
pub struct Registration {
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
}

impl Registration {
    pub fn handle(&self) -> &Rc<ConnectionHandle> {
        &self.handle
    }

    /// The account that counts the slots of the connection.
    pub fn account(&self) -> &Account {
        self.worker.slot_cache.account()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.handle.phase.set(Phase::Gone);
        drop(self.handle.live.task.take());
        let granted = self.handle.granted.take();
        let slots = self.handle.share.leave();
        let mut connections = self.worker.connections.borrow_mut();
        connections.remove(self.handle.number);
        if connections.is_empty() {
            self.worker.emptied.notify_waiters();
        }
        drop(connections);
        self.worker.give_place_back(slots);
        // Notifies the waiting client last, when the slots are free.
        drop(granted);
    }
}

impl Worker {
    /// Creates a worker without sockets. To be called on the worker's thread.
    fn new(
        index: usize,
        front: Arc<Front>,
        snapshot: Arc<Snapshot>,
        log: AccessLog,
    ) -> std::io::Result<Rc<Self>> {
        let slot_cache = Rc::new(SlotCache::new(front.state.account.clone(), index));
        let workers = front.state.workers;
        Ok(Rc::new(Self {
            index,
            front,
            pipes: Pipes::new(slot_cache.clone()),
            idle: IdlePool::new(slot_cache.clone()),
            idle_sessions: IdleSessions::new()?,
            lines: Lines::new(slot_cache.clone()),
            waits: Waits::default(),
            running: Running::default(),
            slot_cache,
            current: RefCell::new(Rc::new(snapshot)),
            balancers: PerPool::new(index),
            hedging: PerPool::new(index),
            past: RefCell::new(Past::new(workers)),
            rates: RefCell::default(),
            mailboxes: Rc::default(),
            connections: RefCell::default(),
            idle_clients: IdleClients::default(),
            place_freed: Notify::new(),
            draining: Cell::new(false),
            handed_over: Cell::new(false),
            cutting: Cell::new(false),
            accepting: Cell::new(0),
            emptied: Notify::new(),
            batch: RefCell::new(Batch::new(log.clone())),
            log,
            giving: RefCell::default(),
            swept: Cell::new(Instant::now()),
            park_from: Cell::new(0),
            refusal_log: RefusalLog::default(),
        }))
    }

    /// Returns the snapshot for a session that starts now.
    pub fn current(&self) -> Current {
        self.current.borrow().clone()
    }

    /// Whether the process is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Whether connections end as soon as no request is on its way. After an upgrade they end with their next request: a
    /// client that sends one at this moment must not lose it.
    pub fn closes_idle(&self) -> bool {
        self.draining.get() && !self.handed_over.get()
    }

    /// Whether this worker adds up what the process before this one still counts. After an upgrade, too: the next process hears it from
    /// this one.
    fn counts_for_the_process_before(&self) -> bool {
        self.index == 0 && self.handed_over.get() && self.front.state.upgrade.older().is_some()
    }

    pub(crate) fn register(self: &Rc<Self>, share: Share, live: Live) -> Registration {
        let handle = self.connections.borrow_mut().insert(share, live);
        Registration { worker: self.clone(), handle }
    }

    /// Counts the end of a client connection that had `slots` slots.
    pub(crate) fn give_place_back(&self, slots: usize) {
        self.front.state.connections.fetch_sub(1, Relaxed);
        self.slot_cache.give(slots);
        self.place_freed.notify_one();
    }

    /// Whether open sessions are being aborted, at the end of a shutdown.
    pub fn is_cutting(&self) -> bool {
        self.cutting.get()
    }

    /// Runs `choose` with the balancer of a pool. Requests from before a reload that choose after it have one of their own.
    pub fn with_balancer<T>(
        &self,
        snapshot: &Snapshot,
        pool: PoolId,
        choose: impl FnOnce(&mut Balancer) -> T,
    ) -> T {
        self.balancers.with(snapshot, pool, choose)
    }

    /// Gives `act` what this worker knows of the latencies of a pool.
    pub fn with_hedging<T>(
        &self,
        snapshot: &Snapshot,
        pool: PoolId,
        act: impl FnOnce(&mut Hedging) -> T,
    ) -> T {
        self.hedging.with(snapshot, pool, act)
    }

    /// Format of access-log lines; `None` if the access log is off.
    pub fn log_format(&self) -> Option<LogFormat> {
        self.log.is_on().then(|| self.current.borrow().config.access_log.format)
    }

    pub fn log(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.batch.borrow_mut().push(write);
    }

    /// Keeps a session that has ended, for an operator who asks about it.
    pub fn keep_past(&self, fill: impl FnOnce(&mut Entry)) {
        // It is borrowed only if `fill` has panicked.
        if let Ok(mut past) = self.past.try_borrow_mut() {
            past.push(fill);
        }
    }

    /// Switches to a new snapshot for sessions that start from now on.
    fn adopt(&self, snapshot: Arc<Snapshot>) {
        // Here, too: a worker without sessions would keep the pools of the earlier snapshot.
        self.balancers.follow(&snapshot);
        self.hedging.follow(&snapshot);
        // Its queues may have sessions that wait for what is new in it.
        let pools: Vec<_> = snapshot.pools.iter().filter(|pool| pool.queue.waiting() > 0).cloned().collect();
        *self.current.borrow_mut() = Rc::new(snapshot);
        pools.iter().for_each(|pool| pool.queue.freed());
        self.past.borrow_mut().freeze();
    }

    /// Lets all that waits for a backend decide anew, because the health of a backend has changed.
    fn handle_health_change(&self) {
        self.waits.wake();
        self.idle_sessions.wake_movable();
    }

    /// Drains for an upgrade.
    fn hand_over(&self) {
        self.draining.set(true);
        self.handed_over.set(true);
        for handle in self.connections.borrow().iter() {
            // HTTP/2 sends GOAWAY.
            handle.wake_again();
        }
    }

    fn drain(&self) {
        self.draining.set(true);
        for handle in self.connections.borrow().iter() {
            handle.begin_drain();
            self.resume(handle);
        }
        self.idle.clear();
        self.lines.clear();
        self.pipes.give_up();
    }

    /// Closes idle backend connections until `slots` slots are freed, those of this worker first. If these do not free
    /// enough slots at once, asks other workers to close theirs; slots of HTTP/2 connections return a moment later.
    pub(crate) fn close_idle(&self, slots: usize) {
        let given = self.idle.give_up(slots);
        if given < slots {
            self.lines.give_up(slots - given);
            self.slot_cache.account().want();
        }
    }

    /// Closes idle backend connections of this worker until `slots` slots are freed. Returns their number of slots.
    /// Slots of HTTP/2 connections return a moment later.
    pub(crate) fn give_up_idle(&self, slots: usize) -> usize {
        let given = self.idle.give_up(slots);
        given + self.lines.give_up(slots.saturating_sub(given))
    }

    /// Frees idle backend connections, pipes and cached slots when another worker needs slots.
    fn give_up_unused(&self) {
        self.give_up_idle(GIVEN_UP);
        self.pipes.give_up();
        self.slot_cache.empty();
    }

    /// Asks the connections that can wait without a task, and have been idle for a while, to do so: a part of the
    /// connections at each call, because each of their tasks must run for it.
    fn park_idle(&self, now: Instant) {
        let connections = self.connections.borrow();
        let part = connections.controls.iter().skip(self.park_from.get()).take(PARK_AT_ONCE);
        if let Some(before) = now.checked_sub(PARK_AFTER) {
            part.flatten().for_each(|handle| handle.end_task(before));
        }
        self.park_from.set(self.park_from.get() + PARK_AT_ONCE);
    }

    /// Gives a connection a task again if it waits without one.
    fn resume(&self, handle: &ConnectionHandle) {
        if let Some(key) = handle.parked_key() {
            self.idle_sessions.wake(key);
        }
    }

    fn tick(&self, now: Instant) {
        self.batch.borrow_mut().flush();
        self.idle_sessions.give_back_memory();
        self.park_idle(now);
        self.go_on_giving(now);
        if now.duration_since(self.swept.get()) >= SWEEP {
            self.swept.set(now);
            self.idle.sweep(now, &self.current.borrow());
            self.idle_sessions.sweep(now);
            self.rates.borrow_mut().forget(now);
            self.mailboxes.forget_rates(now);
            if self.park_from.get() >= self.connections.borrow().controls.len() {
                self.park_from.set(0);
            }
            self.lines.sweep(now, &self.current.borrow());
            if self.index == 0 {
                let account = self.slot_cache.account();
                account.sources.sweep(self.front.state.started.elapsed());
                if let Some(message) = self.refusal_log.take(account, now) {
                    self.front.state.events.record(Level::Warning, "process", message);
                }
            }
        }
    }
}
