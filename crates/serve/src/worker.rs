//! One worker: a thread with its own single-threaded runtime, its own sockets, its own idle backend connections.
//! It shares nothing on the hot path but the snapshot it was handed and counters that only it writes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use config::types::LogFormat;
use logic::balance::Balancer;
use logic::route::PoolId;
use tokio::sync::Notify;

use crate::access_log::{AccessLog, Batch};
use crate::account::{Account, PlaceCache, RefusalLog, Share};
use crate::dormitory::Dormitory;
use crate::events::Level;
use crate::front::Front;
use crate::http2::backend::Lines;
use crate::idle::IdlePool;
use crate::pipes::Pipes;
use crate::snapshot::Snapshot;

mod control;
mod eviction;
mod thread;

use control::Phase;
pub use control::{Control, Woken};
use eviction::IdleClients;
pub use thread::{Command, run};

/// How often a worker looks at its idle backend connections.
const SWEEP: Duration = Duration::from_secs(1);

/// Places of idle backend connections that a worker gives back at once when others need places.
const GIVEN_UP: usize = 8;

/// Numbers of client connections that a worker without any keeps room for.
const REMEMBERED_NUMBERS: usize = 1024;

/// A snapshot as the sessions of one worker hold it: counted without atomics.
pub type Current = Rc<Arc<Snapshot>>;

/// A worker, shared by all tasks of its thread.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// The rest of the process.
    pub front: Arc<Front>,
    /// Its places in the account of descriptors.
    pub place_cache: Rc<PlaceCache>,
    /// Pipes for bulk flows.
    pub pipes: Rc<Pipes>,
    /// Idle connections to backends.
    pub idle: IdlePool,
    /// Its TCP sessions in which nobody speaks.
    pub dormitory: Dormitory,
    /// Connections to backends that speak HTTP/2.
    pub lines: Lines,
    current: RefCell<Current>,
    /// By [`PoolId`], with the generation that each was made for.
    balancers: RefCell<Vec<Option<(u64, Balancer)>>>,
    connections: RefCell<Connections>,
    idle_clients: IdleClients,
    /// A client connection of this worker has ended.
    pub(crate) place_freed: Notify,
    draining: Cell<bool>,
    cutting: Cell<bool>,
    /// Accept loops that have not ended.
    pub(crate) accepting: Cell<usize>,
    emptied: Notify,
    log: AccessLog,
    batch: RefCell<Batch>,
    swept: Cell<Instant>,
    /// Reports refused descriptors.
    refusal_log: RefusalLog,
}

/// The open client connections of a worker, each at its number.
#[derive(Default)]
struct Connections {
    controls: Vec<Option<Rc<Control>>>,
    /// Numbers that nobody has.
    free: Vec<u32>,
}

impl Connections {
    fn insert(&mut self, share: Share) -> Rc<Control> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.controls.push(None);
            // Nobody has as many descriptors.
            u32::try_from(self.controls.len() - 1).unwrap_or(u32::MAX)
        });
        let control = Rc::new(Control::new(number, share));
        self.controls[number as usize] = Some(control.clone());
        control
    }

    fn remove(&mut self, number: u32) {
        self.controls[number as usize] = None;
        self.free.push(number);
        if self.is_empty() && self.controls.len() > REMEMBERED_NUMBERS {
            // What a flood of clients took is given back.
            *self = Self::default();
        }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.controls.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Rc<Control>> {
        self.controls.iter().flatten()
    }
}

/// A client connection's entry in its worker; dropping it takes it out.
pub struct Registration {
    worker: Rc<Worker>,
    control: Rc<Control>,
}

impl Registration {
    /// What the worker can ask of the connection.
    pub fn control(&self) -> &Rc<Control> {
        &self.control
    }

    /// What its places are counted in.
    pub fn account(&self) -> &Account {
        self.worker.place_cache.account()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.control.phase.set(Phase::Gone);
        let granted = self.control.granted.take();
        let places = self.control.share.leave();
        let mut connections = self.worker.connections.borrow_mut();
        connections.remove(self.control.number);
        if connections.is_empty() {
            self.worker.emptied.notify_waiters();
        }
        drop(connections);
        self.worker.give_place_back(places);
        // The new client is told last: now the place is free.
        drop(granted);
    }
}

impl Worker {
    /// A worker without sockets. On its own thread, inside its runtime or before that.
    fn new(
        index: usize,
        front: Arc<Front>,
        snapshot: Arc<Snapshot>,
        log: AccessLog,
    ) -> std::io::Result<Rc<Self>> {
        let place_cache = Rc::new(PlaceCache::new(front.state.account.clone(), index));
        Ok(Rc::new(Self {
            index,
            front,
            pipes: Pipes::new(place_cache.clone()),
            idle: IdlePool::new(place_cache.clone()),
            dormitory: Dormitory::new()?,
            lines: Lines::new(place_cache.clone()),
            place_cache,
            current: RefCell::new(Rc::new(snapshot)),
            balancers: RefCell::default(),
            connections: RefCell::default(),
            idle_clients: IdleClients::default(),
            place_freed: Notify::new(),
            draining: Cell::new(false),
            cutting: Cell::new(false),
            accepting: Cell::new(0),
            emptied: Notify::new(),
            batch: RefCell::new(Batch::new(log.clone())),
            log,
            swept: Cell::new(Instant::now()),
            refusal_log: RefusalLog::default(),
        }))
    }

    /// The snapshot for a session that starts now.
    pub fn current(&self) -> Current {
        self.current.borrow().clone()
    }

    /// Whether the process is ending.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Enters a client connection.
    pub fn register(self: &Rc<Self>, share: Share) -> Registration {
        let control = self.connections.borrow_mut().insert(share);
        Registration { worker: self.clone(), control }
    }

    /// A client connection that had `places` has ended.
    pub(crate) fn give_place_back(&self, places: usize) {
        self.front.state.connections.fetch_sub(1, Relaxed);
        self.place_cache.give(places);
        self.place_freed.notify_one();
    }

    /// Whether open sessions are being ended.
    pub fn is_cutting(&self) -> bool {
        self.cutting.get()
    }

    /// Runs `choose` with the balancer of a pool, which starts afresh with every snapshot.
    pub fn with_balancer<T>(
        &self,
        snapshot: &Snapshot,
        pool: PoolId,
        choose: impl FnOnce(&mut Balancer) -> T,
    ) -> T {
        let mut balancers = self.balancers.borrow_mut();
        if balancers.len() < snapshot.pools.len() {
            balancers.resize_with(snapshot.pools.len(), || None);
        }
        let entry = &mut balancers[pool.0];
        if entry.as_ref().is_some_and(|(generation, _)| *generation != snapshot.generation) {
            *entry = None;
        }
        let (_, balancer) = entry.get_or_insert_with(|| {
            let plan = snapshot.pool(pool);
            let balancer = Balancer::with_phase(plan.settings.balance, plan.backends.len(), self.index);
            (snapshot.generation, balancer)
        });
        choose(balancer)
    }

    /// How to write access-log lines; `None`: not at all.
    pub fn log_format(&self) -> Option<LogFormat> {
        self.log.is_on().then(|| self.current.borrow().config.access_log.format)
    }

    /// Adds one access-log line.
    pub fn log(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.batch.borrow_mut().push(write);
    }

    /// Takes a new snapshot: sessions that start from now on see it.
    fn adopt(&self, snapshot: Arc<Snapshot>) {
        *self.current.borrow_mut() = Rc::new(snapshot);
    }

    fn drain(&self) {
        self.draining.set(true);
        for control in self.connections.borrow().iter() {
            control.begin_drain();
        }
        self.idle.clear();
        self.lines.clear();
        self.pipes.give_up();
    }

    /// Closes idle backend connections with `places` in all: those of this worker first. Others are asked to close theirs, for the
    /// next request, where places do not come back at once: those of HTTP/2 do when the connections have ended.
    pub(crate) fn close_idle(&self, places: usize) {
        let given = self.idle.give_up(places);
        if given < places {
            self.lines.give_up(places - given);
            self.place_cache.account().want();
        }
    }

    /// Closes idle backend connections of this worker with `places` in all. Returns how many places they had. Those of HTTP/2
    /// come back a moment later.
    pub(crate) fn give_up_idle(&self, places: usize) -> usize {
        let given = self.idle.give_up(places);
        given + self.lines.give_up(places.saturating_sub(given))
    }

    /// Closes unused connections and pipes, as other workers need places.
    fn give_up_unused(&self) {
        self.give_up_idle(GIVEN_UP);
        self.pipes.give_up();
        self.place_cache.empty();
    }

    fn tick(&self, now: Instant) {
        self.batch.borrow_mut().flush();
        self.dormitory.give_back_memory();
        if now.duration_since(self.swept.get()) >= SWEEP {
            self.swept.set(now);
            self.idle.sweep(now, &self.current.borrow());
            self.dormitory.sweep(now);
            self.lines.sweep(now, &self.current.borrow());
            if self.index == 0 {
                let account = self.place_cache.account();
                account.sources.sweep();
                if let Some(message) = self.refusal_log.take(account, now) {
                    self.front.state.events.record(Level::Warning, "process", message);
                }
            }
        }
    }
}
