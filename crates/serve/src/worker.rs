//! One worker: a thread with its own single-threaded runtime, its own sockets, its own idle backend connections.
//! It shares nothing on the hot path but the snapshot it was handed and counters that only it writes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use config::types::{LogFormat, LogTarget};
use logic::balance::Balancer;
use logic::route::PoolId;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::accept;
use crate::access_log::{AccessLog, Batch};
use crate::front::Front;
use crate::listen::{BoundKey, Socket};
use crate::snapshot::Snapshot;
use crate::upstream::IdlePool;

/// How often a worker hands its log lines on.
const TICK: Duration = Duration::from_millis(100);

/// How often a worker looks at its idle backend connections.
const SWEEP: Duration = Duration::from_secs(1);

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
        /// Told when every new session sees the new snapshot.
        done: oneshot::Sender<()>,
    },
    /// Take no new sessions, let the open ones end, then end the thread.
    Drain,
}

/// A snapshot as the sessions of one worker hold it: counted without atomics.
pub type Current = Rc<Arc<Snapshot>>;

/// A worker, shared by all tasks of its thread.
pub struct Worker {
    /// Its number, from 0.
    pub index: usize,
    /// The rest of the process.
    pub front: Arc<Front>,
    /// Idle connections to backends.
    pub idle: IdlePool,
    current: RefCell<Current>,
    balancers: RefCell<HashMap<PoolId, (u64, Balancer)>>,
    connections: RefCell<HashMap<u64, Rc<Control>>>,
    next_connection: Cell<u64>,
    draining: Cell<bool>,
    /// Accept loops that have not ended.
    pub(crate) accepting: Cell<usize>,
    emptied: Notify,
    batch: RefCell<Batch>,
    swept: Cell<Instant>,
    /// Accept loops by address; systemd may pass several sockets for one.
    sockets: RefCell<HashMap<BoundKey, Vec<Rc<accept::Gate>>>>,
}

/// What the worker can do to one of its client connections from outside its task.
#[derive(Debug, Default)]
pub struct Control {
    phase: Cell<Phase>,
    waker: RefCell<Option<Waker>>,
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
}

/// The end of a wait for a client's next request.
pub enum Woken<T> {
    /// What was waited for.
    By(T),
    /// The worker wants the connection closed.
    Closing,
}

impl Control {
    /// Waits with `poll` for the next request; ends early when the worker wants the connection closed.
    pub fn poll_idle<T>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Woken<T>> {
        match poll(cx) {
            Poll::Ready(value) => {
                self.phase.set(Phase::Busy);
                Poll::Ready(Woken::By(value))
            }
            Poll::Pending if self.phase.get() == Phase::Closing => Poll::Ready(Woken::Closing),
            Poll::Pending => {
                self.phase.set(Phase::Idle);
                let mut waker = self.waker.borrow_mut();
                if !waker.as_ref().is_some_and(|before| before.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Asks the connection to close as soon as it has nothing to do.
    pub fn close_when_idle(&self) {
        self.phase.set(Phase::Closing);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn close_if_idle(&self) -> Closed {
        if self.phase.get() != Phase::Idle {
            return Closed::No;
        }
        self.close_when_idle();
        Closed::Yes
    }
}

#[derive(PartialEq, Eq)]
enum Closed {
    Yes,
    No,
}

/// A client connection's entry in its worker; dropping it takes it out.
pub struct Registration {
    worker: Rc<Worker>,
    id: u64,
    /// Its control.
    pub control: Rc<Control>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let left = {
            let mut connections = self.worker.connections.borrow_mut();
            connections.remove(&self.id);
            connections.len()
        };
        if left == 0 {
            self.worker.emptied.notify_waiters();
        }
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
    pub fn register(self: &Rc<Self>) -> Registration {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        let control = Rc::new(Control::default());
        self.connections.borrow_mut().insert(id, control.clone());
        Registration { worker: self.clone(), id, control }
    }

    /// Closes one idle client connection to make room. Tells whether there was one.
    pub fn evict_idle(&self) -> bool {
        let evicted =
            self.connections.borrow().values().any(|control| control.close_if_idle() == Closed::Yes);
        if evicted {
            self.front.state.evicted.fetch_add(1, Relaxed);
        }
        evicted
    }

    /// Runs `choose` with the balancer of a pool, which starts afresh with every snapshot.
    pub fn with_balancer<T>(
        &self,
        snapshot: &Snapshot,
        pool: PoolId,
        choose: impl FnOnce(&mut Balancer) -> T,
    ) -> T {
        let mut balancers = self.balancers.borrow_mut();
        let plan = snapshot.pool(pool);
        let fresh = || (snapshot.generation, Balancer::new(plan.settings.balance, plan.backends.len()));
        let entry = balancers.entry(pool).or_insert_with(fresh);
        if entry.0 != snapshot.generation {
            *entry = fresh();
        }
        choose(&mut entry.1)
    }

    /// How to write access-log lines; `None`: not at all.
    pub fn log_format(&self) -> Option<LogFormat> {
        let current = self.current.borrow();
        let log = &current.config.access_log;
        (log.target != LogTarget::Off).then_some(log.format)
    }

    /// Adds one access-log line.
    pub fn log(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.batch.borrow_mut().push(write);
    }

    fn apply(self: &Rc<Self>, snapshot: Arc<Snapshot>, open: Vec<(BoundKey, Socket)>, close: Vec<BoundKey>) {
        *self.current.borrow_mut() = Rc::new(snapshot);
        for key in close {
            for gate in self.sockets.borrow_mut().remove(&key).unwrap_or_default() {
                gate.close();
            }
        }
        for (key, socket) in open {
            let gate = Rc::new(accept::Gate::default());
            self.sockets.borrow_mut().entry(key.clone()).or_default().push(gate.clone());
            tokio::task::spawn_local(accept::run(self.clone(), key, socket, gate));
        }
    }

    fn drain(&self) {
        self.draining.set(true);
        for gate in self.sockets.borrow_mut().drain().flat_map(|(_, gates)| gates) {
            gate.close();
        }
        for control in self.connections.borrow().values() {
            control.close_if_idle();
        }
        self.idle.clear();
    }

    fn tick(&self, now: Instant) {
        self.batch.borrow_mut().flush();
        if now.duration_since(self.swept.get()) >= SWEEP {
            self.swept.set(now);
            self.idle.sweep(now, &self.current.borrow());
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
    let worker = Rc::new(Worker {
        index,
        front,
        idle: IdlePool::default(),
        current: RefCell::new(Rc::new(snapshot)),
        balancers: RefCell::default(),
        connections: RefCell::default(),
        next_connection: Cell::new(0),
        draining: Cell::new(false),
        accepting: Cell::new(0),
        emptied: Notify::new(),
        batch: RefCell::new(Batch::new(log)),
        swept: Cell::new(Instant::now()),
        sockets: RefCell::default(),
    });
    runtime.block_on(async {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => worker.tick(Instant::now()),
                command = commands.recv() => match command {
                    Some(Command::Apply { snapshot, open, close, done }) => {
                        worker.apply(snapshot, open, close);
                        // The supervisor may have given up waiting.
                        let _ = done.send(());
                    }
                    Some(Command::Drain) | None => break,
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
            }
        }
        worker.batch.borrow_mut().flush();
    });
    Ok(())
}
