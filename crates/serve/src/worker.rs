//! One worker: a thread with its own single-threaded runtime, its own sockets, its own idle backend connections.
//! It shares nothing on the hot path but the snapshot it was handed and counters that only it writes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use config::types::LogFormat;
use logic::balance::Balancer;
use logic::route::PoolId;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::accept;
use crate::access_log::{AccessLog, Batch};
use crate::account::{Account, Granted, PlaceCache, RefusalLog, Share};
use crate::dormitory::Dormitory;
use crate::events::Level;
use crate::front::Front;
use crate::http2::backend::Lines;
use crate::listen::{BoundKey, Socket};
use crate::pipes::Pipes;
use crate::snapshot::Snapshot;
use crate::upstream::IdlePool;

mod eviction;

use eviction::IdleClients;

/// How often a worker hands on its log lines, and memory that it no longer needs.
const TICK: Duration = Duration::from_millis(100);

/// How often a worker looks at its idle backend connections.
const SWEEP: Duration = Duration::from_secs(1);

/// Places of idle backend connections that a worker gives back at once when others need places.
const GIVEN_UP: usize = 8;

/// Numbers of client connections that a worker without any keeps room for.
const REMEMBERED_NUMBERS: usize = 1024;

/// What the supervisor tells a worker.
pub enum Command {
    /// Serve this snapshot from now on; open and close these sockets.
    Apply {
        /// The new snapshot.
        snapshot: Arc<Snapshot>,
        /// Sockets to accept from.
        open: Vec<(BoundKey, Socket)>,
        /// Sockets to give up, after what waits in their queues was accepted.
        close: Vec<BoundKey>,
        /// Told when every new session sees the new snapshot and the sockets of `close` are closed.
        done: oneshot::Sender<()>,
    },
    /// Take no new sessions, let the open ones end, then end the thread.
    Drain,
    /// After [`Self::Drain`]: end the open sessions too, each with its record.
    Cut,
}

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
    /// Accept loops by address; systemd may pass several sockets for one.
    sockets: RefCell<HashMap<BoundKey, Vec<Accepting>>>,
}

/// An accept loop: how to end it, and its end.
struct Accepting {
    gate: Rc<accept::Gate>,
    task: JoinHandle<()>,
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
        let control = Rc::new(Control { number, share, ..Control::default() });
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

/// What the worker can do to one of its client connections from outside its task.
#[derive(Debug, Default)]
pub struct Control {
    phase: Cell<Phase>,
    /// Among the connections of the worker.
    number: u32,
    /// When the phase became [`Phase::Idle`].
    idle_since: Cell<Option<Instant>>,
    /// For a client of another worker that takes its place.
    granted: RefCell<Option<Granted>>,
    waker: RefCell<Option<Waker>>,
    /// What it holds, and may hold, of the account of descriptors.
    pub(crate) share: Share,
}

/// What a client connection is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// In a session.
    #[default]
    Busy,
    /// Between two requests: nothing is lost when it is closed.
    Idle,
    /// Asked to close.
    Closing,
    /// It has ended.
    Gone,
}

/// The end of a wait for a client's next request.
pub enum Woken<T> {
    /// What was waited for.
    By(T),
    /// The worker wants the connection closed.
    Closing,
}

impl Control {
    /// Waits with `poll` for the next request; ends early when the worker wants the connection closed. `since` is when the
    /// wait began.
    pub fn poll_idle<T>(
        &self,
        cx: &mut Context<'_>,
        since: Instant,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Woken<T>> {
        match poll(cx) {
            Poll::Ready(value) => {
                self.go_on();
                Poll::Ready(Woken::By(value))
            }
            Poll::Pending if self.phase.get() == Phase::Closing => Poll::Ready(Woken::Closing),
            Poll::Pending => {
                self.phase.set(Phase::Idle);
                self.idle_since.set(Some(since));
                let mut waker = self.waker.borrow_mut();
                if !waker.as_ref().is_some_and(|before| before.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn go_on(&self) {
        if self.phase.replace(Phase::Busy) == Phase::Closing {
            // It may take a minute: the new client asks for another one.
            drop(self.granted.take());
        }
    }

    /// Wakes the task of `cx` when the process begins to end, although the connection is busy: for those that carry several
    /// sessions and must say so to their client.
    pub fn wake_for_drain(&self, cx: &mut Context<'_>) {
        self.go_on();
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|before| before.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Asks the connection to close as soon as it has nothing to do.
    pub fn close_when_idle(&self) {
        self.phase.set(Phase::Closing);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The wait for a request ended without one: from here on the connection closes by itself.
    pub fn stop_waiting(&self) {
        if self.phase.get() != Phase::Closing {
            self.phase.set(Phase::Busy);
        }
    }

    /// Whether it was asked to close, and has neither ended nor gone on with a request that had come meanwhile.
    pub(crate) fn is_closing(&self) -> bool {
        self.phase.get() == Phase::Closing
    }

    /// Since when it has been idle, if it is.
    fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get().filter(|_| self.phase.get() == Phase::Idle)
    }

    fn begin_drain(&self) {
        if self.phase.get() == Phase::Idle {
            self.close_when_idle();
        } else if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
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

    /// The accept loops that end are given back: with each end a socket is closed.
    fn apply(
        self: &Rc<Self>,
        snapshot: Arc<Snapshot>,
        open: Vec<(BoundKey, Socket)>,
        close: Vec<BoundKey>,
    ) -> Vec<JoinHandle<()>> {
        *self.current.borrow_mut() = Rc::new(snapshot);
        let mut sockets = self.sockets.borrow_mut();
        let mut ending = Vec::new();
        for key in close {
            for Accepting { gate, task } in sockets.remove(&key).unwrap_or_default() {
                gate.close();
                ending.push(task);
            }
        }
        for (key, socket) in open {
            let gate = Rc::new(accept::Gate::default());
            let accepting = accept::run(self.clone(), key.clone(), socket, gate.clone());
            let task = tokio::task::spawn_local(accepting);
            sockets.entry(key).or_default().push(Accepting { gate, task });
        }
        ending
    }

    fn drain(&self) {
        self.draining.set(true);
        for accepting in self.sockets.borrow_mut().drain().flat_map(|(_, all)| all) {
            accepting.gate.close();
        }
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

/// The worker's thread: serves commands until it is drained. Runs on the calling thread.
pub fn run(
    index: usize,
    front: Arc<Front>,
    snapshot: Arc<Snapshot>,
    log: AccessLog,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> std::io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let place_cache = Rc::new(PlaceCache::new(front.state.account.clone(), index));
    let worker = Rc::new(Worker {
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
        sockets: RefCell::default(),
    });
    let result = runtime.block_on(async {
        // In the task of the worker itself: were it to end, sessions would sleep for ever.
        let mut keeping = pin!(worker.dormitory.keep());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => worker.tick(Instant::now()),
                () = worker.place_cache.account().wanted(index) => worker.give_up_unused(),
                () = worker.place_cache.account().wished(index) => worker.grant_wishes(),
                error = &mut keeping => return Err(error),
                command = commands.recv() => match command {
                    Some(Command::Apply { snapshot, open, close, done }) => {
                        let ending = worker.apply(snapshot, open, close);
                        tokio::task::spawn_local(async move {
                            for task in ending {
                                // One that panicked has closed its socket as well.
                                let _ = task.await;
                            }
                            // The supervisor may have given up waiting.
                            let _ = done.send(());
                        });
                    }
                    Some(Command::Drain | Command::Cut) | None => break,
                },
            }
        }
        worker.drain();
        loop {
            let emptied = worker.emptied.notified();
            if worker.connections.borrow().is_empty() && worker.accepting.get() == 0 {
                break;
            }
            tokio::select! {
                () = emptied => {}
                _ = tick.tick() => worker.tick(Instant::now()),
                error = &mut keeping => return Err(error),
                command = commands.recv() => if matches!(command, Some(Command::Cut) | None) {
                    worker.cutting.set(true);
                    break;
                },
            }
        }
        Ok(())
    });
    // Ends every session that is left; each writes its record as it goes.
    worker.dormitory.clear();
    drop(runtime);
    worker.batch.borrow_mut().flush();
    result
}
