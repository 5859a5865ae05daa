//! Sessions of `protocol = "tcp"` in an io_uring(7) of their worker: no task, no timer and no registration with epoll for
//! each, and one system call for what all of them wait for.
//!
//! The ring has a session only for the beginning of its life: choose a backend, connect, pass bytes and ends on, and close
//! what `fast-close` closes. A session
//! leaves the ring for a task and the relay of `crates/proxy/src/tcp.rs` when it meets anything else: no backend at once, a
//! refused connection, more than [`MOST`] bytes, more than [`LONGEST`] of age, a failed send, no buffer, a drain. So queues,
//! retries, fallbacks, the idle timeout, slow readers, splice(2), parking and hand-overs are there alone. To leave, its
//! operations are cancelled; when the last of them is over, the ring has nothing of the session, and the bytes that were
//! received and not sent go along. So does a connection to the backend that the kernel still opens.
//!
//! `crates/sys/src/ring.rs` has the ring and its memory, `crates/proxy/src/tcp/ring/session.rs` what becomes of one session there,
//! `crates/proxy/src/tcp/ring/session/leaving.rs` how it leaves.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use config::types::Protocol;
use logic::acl::Verdict;
use logic::peers::Peer;
use slab::Slab;
use state::events::Level;
use sys::ring::{Completion, Operation, Ring};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::arrival::Entry;
use crate::snapshot::Begins;
use crate::worker::Worker;

mod session;

use session::{Ringed, Stage};

/// Bytes that a session moves in the ring: as many as in the relay before it splices.
const MOST: u64 = 64 * 1024;

/// Most buffers (4 KiB) that wait for one side of a session in the ring: full ones have [`MOST`] bytes.
const MOST_WAITING: usize = 16;

/// Age at which a session leaves the ring. It is looked at with each tick of the worker.
const LONGEST: Duration = Duration::from_millis(250);

/// With so many results in one turn, the kernel may hold more. The other tasks of the worker run before the next turn.
const MANY: usize = 1024;

/// Most turns in a row, before the other tasks of the worker run.
const TURNS: usize = 16;

pub(crate) struct Engine {
    number: RawFd,
    work: RefCell<Work>,
    /// Whether new sessions may begin in the ring.
    begins: Cell<Begins>,
    /// Whether this thread has queued work for the engine's task: it takes a turn without waiting for a result of the kernel.
    called: Cell<Called>,
    waker: Cell<Option<Waker>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Called {
    Yes,
    #[default]
    No,
}

struct Work {
    ring: Ring,
    /// A key is used again only after the last operation of its session.
    sessions: Slab<Box<Ringed>>,
    /// Sessions to look at in the next turn.
    visits: Vec<u32>,
    /// Sessions that are over. The next turn closes their connections, and then gives their places back.
    #[expect(clippy::vec_box, reason = "they are not moved")]
    over: Vec<Box<Ringed>>,
    /// Empty between turns: kept so that a turn need not allocate.
    completions: Vec<Completion>,
    touched: Vec<u32>,
}

impl Work {
    /// Submits what is queued to the kernel. More than the kernel takes at once goes in several calls.
    fn submit(&mut self) -> io::Result<()> {
        loop {
            let before = self.ring.waiting();
            self.ring.enter()?;
            if !self.ring.has_queued() || self.ring.waiting() == before {
                break;
            }
        }
        if !self.ring.has_queued() {
            // Their connections are closed now.
            self.over.clear();
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Turn {
    Done,
    /// Something was queued for the kernel.
    Another,
    /// The kernel may have more results.
    Full,
}

/// The descriptor of the ring, open for as long as the runtime watches it.
struct Watched(Rc<Engine>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.number
    }
}

/// Ends the engine with its task, also when that panics: no session may wait for turns that never come.
struct Driven {
    /// `None` only while it is dropped: before the engine ends, which may close the descriptor.
    watched: Option<AsyncFd<Watched>>,
    engine: Rc<Engine>,
    worker: Rc<Worker>,
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.watched = None;
        self.engine.clear();
        if std::thread::panicking() {
            tell_end(&self.worker, &"its task panicked (a fault of penstock: the process log has the place)");
        }
    }
}

impl Engine {
    /// Starts the engine of a worker, on its thread, if the process has one.
    pub(crate) fn start(worker: &Rc<Worker>) -> Option<Rc<Self>> {
        let ring = worker.front.state.engine.take_ring()?;
        match Self::new(ring) {
            Ok((engine, watched)) => {
                tokio::task::spawn_local(drive(watched, worker.clone()));
                Some(engine)
            }
            Err(error) => {
                let message = format!(
                    "worker {} cannot use its io_uring: {error}; its TCP sessions are served by epoll",
                    worker.index
                );
                tell_failure(worker, Level::Warning, message);
                None
            }
        }
    }

    fn new(mut ring: Ring) -> io::Result<(Rc<Self>, AsyncFd<Watched>)> {
        ring.enable()?;
        // With nothing to do, to learn now whether this thread may.
        ring.enter()?;
        let engine = Rc::new(Self {
            number: ring.number(),
            work: RefCell::new(Work {
                ring,
                sessions: Slab::new(),
                visits: Vec::new(),
                over: Vec::new(),
                completions: Vec::new(),
                touched: Vec::new(),
            }),
            begins: Cell::new(Begins::InRing),
            called: Cell::default(),
            waker: Cell::default(),
        });
        #[expect(
            deprecated,
            reason = "its successor is unsafe; an `Engine` keeps the one descriptor of its ring"
        )]
        let watched = AsyncFd::with_interest(Watched(engine.clone()), Interest::READABLE)?;
        Ok((engine, watched))
    }

    /// Whether a session may begin in the ring.
    pub(crate) fn is_for(&self, entry: &Entry) -> bool {
        self.begins.get() == Begins::InRing
            && entry.plan.begins == Begins::InRing
            && entry.standing == Verdict::Permit
            && matches!(entry.plan.settings.protocol, Protocol::Tcp(_))
            && !entry.worker.front.state.captures.is_active()
    }

    /// Begins the session of a client; only if [`Self::is_for`] says so.
    pub(crate) fn begin(&self, entry: Entry, client: TcpStream, peer: Peer) {
        let Protocol::Tcp(settings) = &entry.plan.settings.protocol else { return };
        let settings = settings.clone();
        let Work { ring, sessions, visits, .. } = &mut *self.work.borrow_mut();
        let place = sessions.vacant_entry();
        // No process has that many descriptors.
        let key = u32::try_from(place.key()).unwrap_or(u32::MAX);
        let mut session = Box::new(Ringed::new(entry, &settings, client, peer));
        session.receive(ring, key);
        place.insert(session);
        visits.push(key);
        self.call();
    }

    /// Wakes the engine's task for a turn.
    fn call(&self) {
        self.called.set(Called::Yes);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Takes what the kernel has done, and begins what follows from it. An error means that the ring cannot be used any more.
    fn turn(&self) -> io::Result<Turn> {
        let work = &mut *self.work.borrow_mut();
        work.submit()?;
        let Work { ring, sessions, visits, over, completions, touched } = work;
        ring.take(completions);
        let is_full = completions.len() >= MANY;
        for completion in completions.drain(..) {
            if completion.operation == Operation::Close {
                continue;
            }
            let key = completion.key;
            match sessions.get_mut(key as usize) {
                Some(session) => {
                    session.note(ring, completion);
                    session.touch(key, touched);
                }
                None => debug_assert!(false, "a key is used until its operations are over"),
            }
        }
        for key in visits.drain(..) {
            if let Some(session) = sessions.get_mut(key as usize) {
                session.touch(key, touched);
            }
        }
        for key in touched.drain(..) {
            let Some(session) = sessions.get_mut(key as usize) else { continue };
            if session.advance(ring, key) == Stage::Over {
                over.extend(sessions.remove(key as usize).finish(ring));
            }
        }
        Ok(match ring.has_queued() {
            _ if is_full => Turn::Full,
            true => Turn::Another,
            false => Turn::Done,
        })
    }

    /// Submits what is queued, before other tasks of the worker run: the kernel closes the connections of sessions that are over,
    /// and new clients may need their places.
    fn submit(&self) -> io::Result<()> {
        self.work.borrow_mut().submit()
    }

    /// Begins to move the sessions for which `is_due` is true out of the ring, to a task each.
    fn leave(&self, is_due: impl Fn(&Ringed) -> bool) {
        let Work { ring, sessions, visits, .. } = &mut *self.work.borrow_mut();
        let mut is_any = false;
        for (key, session) in sessions.iter_mut().filter(|(_, session)| is_due(session)) {
            let key = u32::try_from(key).unwrap_or(u32::MAX);
            session.leave(ring, key);
            visits.push(key);
            is_any = true;
        }
        if is_any {
            self.call();
        }
    }

    pub(crate) fn sweep(&self, now: Instant) {
        self.leave(|session| session.is_older(now, LONGEST));
    }

    /// Ends the sessions for which an operator has sent `ctl kill`.
    pub(crate) fn end_killed(&self) {
        self.leave(Ringed::is_killed);
    }

    /// The process drains: no session begins in the ring any more, and those in it go on in tasks.
    pub(crate) fn leave_all(&self) {
        self.begins.set(Begins::InTask);
        self.leave(|_| true);
    }

    /// Closes the connections of all sessions in the ring. No session begins in it any more.
    pub(crate) fn clear(&self) {
        self.begins.set(Begins::InTask);
        // It is borrowed only if a turn has panicked.
        let Ok(mut work) = self.work.try_borrow_mut() else { return };
        work.ring.end();
        let mut sessions = std::mem::take(&mut work.sessions);
        sessions.iter_mut().for_each(|(_, session)| session.cut());
        let over = std::mem::take(&mut work.over);
        work.visits.clear();
        drop(work);
        drop((sessions, over));
    }
}

fn tell_failure(worker: &Worker, level: Level, message: String) {
    let state = &worker.front.state;
    state.events.record(level, "process", format!("process.engine: {message}"));
    state.engine.note_failure(message);
}

/// Tells that the ring of a worker is not used any more.
fn tell_end(worker: &Worker, why: &dyn Display) {
    let message = format!(
        "worker {}: its io_uring has failed: {why}; TCP sessions that it had are reset, and those that begin from now on are served by epoll",
        worker.index
    );
    tell_failure(worker, Level::Error, message);
}

async fn drive(watched: AsyncFd<Watched>, worker: Rc<Worker>) {
    let engine = watched.get_ref().0.clone();
    let driven = Driven { watched: Some(watched), engine, worker };
    let Driven { watched: Some(watched), engine, worker } = &driven else { return };
    loop {
        poll_fn(|cx| {
            if engine.called.take() == Called::Yes {
                return Poll::Ready(());
            }
            match watched.poll_read_ready(cx) {
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    Poll::Ready(())
                }
                // Only while the runtime shuts down.
                Poll::Ready(Err(_)) | Poll::Pending => {
                    engine.waker.set(Some(cx.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await;
        let mut turns = 0;
        loop {
            let turn = match engine.turn() {
                Ok(Turn::Done) => break,
                Ok(turn) => turn,
                Err(error) => return tell_end(worker, &error),
            };
            turns += 1;
            if turn == Turn::Full || turns % TURNS == 0 {
                if let Err(error) = engine.submit() {
                    return tell_end(worker, &error);
                }
                tokio::task::yield_now().await;
            }
        }
    }
}
