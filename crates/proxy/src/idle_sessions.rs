//! Keeps the TCP sessions of a worker in which neither side sends, WebSockets among them, and its HTTP/1.1 connections that wait for
//! a request.
//! They have no task and the runtime does not watch their connections. Each costs its record, its descriptors and their
//! entries in an epoll instance of the worker, which is one descriptor for the runtime. The first byte from either side
//! wakes it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use slab::Slab;
use tls::plain::Parked;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::given::Carried;

/// Limit of sessions woken before the worker yields to other tasks.
const WAKE_AT_ONCE: usize = 128;

/// Capacity of the table above which its memory is freed when no session is idle.
const SPARE_ENTRIES: usize = 1024;

/// Number of new idle sessions from which returning memory to the kernel pays. Each leaves about one KiB. Sessions that
/// wake do not count any more: memory that is soon used again is not returned.
const WORTH_GIVING_BACK: usize = 256;

/// From this number of new idle sessions, memory is returned even while more sessions become idle.
const MOST_UNRETURNED: usize = 4096;

pub enum IdleSession {
    Relay { session: Box<dyn IdleRelay>, client: Parked, backend: Parked },
    Http { connection: Box<dyn IdleConnection>, client: Parked },
}

/// A TCP session, or one that has become so, without its connections.
pub trait IdleRelay {
    /// When the idle timeout of the session expires.
    fn due(&self) -> Instant;

    /// Notes under which key an operator may end the session by [`IdleSessions::end`].
    fn note_key(&self, key: usize);

    /// Whether the backend of the session was judged down and the session may go to another one.
    fn may_move(&self) -> bool;

    /// Continues the session after one side has sent something, or to move it.
    fn wake(self: Box<Self>, client: Parked, backend: Parked);

    /// Ends the session after its idle timeout.
    fn expire(self: Box<Self>);

    /// Whether another process may go on with the session.
    fn is_for_hand_over(&self) -> bool;

    /// What another process is told of the session; `None` if it cannot go on with it.
    fn carried(&self) -> Option<Carried>;

    /// The session is not for another process any more.
    fn stay(&mut self);

    /// Another process goes on with the session: it leaves this one without an end.
    fn leave(self: Box<Self>);
}

/// An HTTP connection between two requests, without its stream.
pub trait IdleConnection {
    /// When the idle timeout of the connection expires.
    fn due(&self) -> Instant;

    /// Notes under which key the connection may be woken by [`IdleSessions::wake`].
    fn note_key(&self, key: usize);

    /// Continues the connection after the client has sent something, after its idle timeout, or to close it.
    fn wake(self: Box<Self>, client: Parked);
}

impl IdleSession {
    fn connections(&self) -> impl Iterator<Item = &Parked> {
        let (client, backend) = match self {
            Self::Relay { client, backend, .. } => (client, Some(backend)),
            Self::Http { client, .. } => (client, None),
        };
        std::iter::once(client).chain(backend)
    }

    fn due(&self) -> Instant {
        match self {
            Self::Relay { session, .. } => session.due(),
            Self::Http { connection, .. } => connection.due(),
        }
    }

    fn may_move(&self) -> bool {
        match self {
            Self::Relay { session, .. } => session.may_move(),
            Self::Http { .. } => false,
        }
    }

    fn is_for_hand_over(&self) -> bool {
        match self {
            Self::Relay { session, .. } => session.is_for_hand_over(),
            Self::Http { .. } => false,
        }
    }

    /// What another process is told of the session, and its connections.
    pub(crate) fn carried(&self) -> Option<(Carried, [BorrowedFd<'_>; 2])> {
        match self {
            Self::Relay { session, client, backend } => {
                Some((session.carried()?, [client.as_fd(), backend.as_fd()]))
            }
            Self::Http { .. } => None,
        }
    }

    /// Goes on in this process.
    pub(crate) fn stay(mut self) {
        if let Self::Relay { session, .. } = &mut self {
            session.stay();
        }
        self.wake();
    }

    /// Another process goes on with the session. Its connections are closed here before their slots are released.
    pub(crate) fn leave(self) {
        if let Self::Relay { session, client, backend } = self {
            drop((client, backend));
            session.leave();
        }
    }

    fn note_key(&self, key: usize) {
        match self {
            Self::Relay { session, .. } => session.note_key(key),
            Self::Http { connection, .. } => connection.note_key(key),
        }
    }

    pub(crate) fn wake(self) {
        match self {
            Self::Relay { session, client, backend } => session.wake(client, backend),
            Self::Http { connection, client } => connection.wake(client),
        }
    }

    fn expire(self) {
        match self {
            Self::Relay { session, .. } => session.expire(),
            // Its task closes it gracefully.
            Self::Http { connection, client } => connection.wake(client),
        }
    }
}

pub struct IdleSessions {
    epoll: Rc<OwnedEpoll>,
    sessions: RefCell<Slab<IdleSession>>,
    /// Earliest expiry of all idle sessions; `None` without sessions.
    due: Cell<Option<Instant>>,
    /// Number of sessions that became idle since the last call of [`Self::give_back_memory`], and still are.
    newly_idle: Cell<usize>,
    /// Number of sessions that became idle earlier, still are, and whose memory was not yet returned.
    unreturned: Cell<usize>,
}

/// The epoll instance that watches the connections of all idle sessions.
struct OwnedEpoll(Epoll);

impl AsRawFd for OwnedEpoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

impl IdleSessions {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Rc::new(OwnedEpoll(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?)),
            sessions: RefCell::default(),
            due: Cell::new(None),
            newly_idle: Cell::new(0),
            unreturned: Cell::new(0),
        })
    }

    /// Adds an idle session. If epoll cannot watch its connections, the session is woken at once.
    pub fn park(&self, session: IdleSession) {
        let mut sessions = self.sessions.borrow_mut();
        let entry = sessions.vacant_entry();
        if !session.connections().all(|connection| self.listen(connection, entry.key())) {
            drop(sessions);
            self.forget(&session);
            return session.wake();
        }
        let due = session.due();
        self.due.set(Some(self.due.get().map_or(due, |earliest| earliest.min(due))));
        session.note_key(entry.key());
        entry.insert(session);
        self.newly_idle.set(self.newly_idle.get() + 1);
    }

    /// Wakes sessions whenever a side sends. Returns only with an error that prevents it.
    pub async fn run(&self) -> io::Error {
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `OwnedEpoll` keeps the one descriptor it owns"
        )]
        let watched = AsyncFd::with_interest(self.epoll.clone(), Interest::READABLE);
        let epoll = match watched {
            Ok(epoll) => epoll,
            Err(error) => return error,
        };
        loop {
            let mut opened = match epoll.readable().await {
                Ok(opened) => opened,
                Err(error) => return error,
            };
            match self.wake_ready() {
                Ok(WAKE_AT_ONCE..) => tokio::task::yield_now().await,
                // The epoll instance has no ready connection left: its next readiness is a new event.
                Ok(_) => opened.clear_ready(),
                Err(error) => return error,
            }
        }
    }

    /// Returns the memory of new idle sessions to the kernel once no more sessions become idle. To be called often.
    pub fn give_back_memory(&self) {
        let (new, unreturned) = (self.newly_idle.take(), self.unreturned.get());
        match new {
            0 if unreturned >= WORTH_GIVING_BACK => {}
            _ if unreturned + new >= MOST_UNRETURNED => {}
            _ => return self.unreturned.set(unreturned + new),
        }
        self.unreturned.set(0);
        sys::memory::give_back();
    }

    /// Ends sessions whose idle timeout has expired. To be called about once per second.
    pub fn sweep(&self, now: Instant) {
        if self.due.get().is_none_or(|due| now < due) {
            return;
        }
        let due_now = self.take_all(|session| session.due() <= now);
        self.due.set(self.sessions.borrow().iter().map(|(_, session)| session.due()).min());
        due_now.into_iter().for_each(IdleSession::expire);
    }

    /// Wakes the sessions that may go to another backend. To be called when the health of a backend has changed.
    pub fn wake_movable(&self) {
        self.take_all(IdleSession::may_move).into_iter().for_each(IdleSession::wake);
    }

    pub fn clear(&self) {
        drop(self.sessions.take());
        self.due.set(None);
    }

    /// Returns how many connections were ready.
    fn wake_ready(&self) -> io::Result<usize> {
        let mut events = [EpollEvent::empty(); WAKE_AT_ONCE];
        let count = match self.epoll.0.wait(&mut events, EpollTimeout::ZERO) {
            Err(nix::errno::Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let key = usize::try_from(event.data()).unwrap_or(usize::MAX);
            // Both connections of a session may be ready: an empty key is that of a session just woken.
            self.wake(key);
        }
        Ok(count)
    }

    /// Wakes the session with this key, if there is one.
    pub fn wake(&self, key: usize) {
        if let Some(session) = self.take(key) {
            session.wake();
        }
    }

    /// Ends the session with this key at once, if there is one.
    pub fn end(&self, key: usize) {
        drop(self.take(key));
    }

    /// Takes the next session for another process, from the key `from` on, which is set for the next call.
    pub(crate) fn take_for_hand_over(&self, from: &mut usize) -> Option<IdleSession> {
        let sessions = self.sessions.borrow();
        let end = sessions.capacity();
        let is_it = |key: &usize| sessions.get(*key).is_some_and(IdleSession::is_for_hand_over);
        let key = (*from..end).find(is_it);
        drop(sessions);
        *from = key.map_or(end, |key| key + 1);
        self.take(key?)
    }

    fn take_all(&self, wanted: impl Fn(&IdleSession) -> bool) -> Vec<IdleSession> {
        let sessions = self.sessions.borrow();
        let keys: Vec<usize> =
            sessions.iter().filter(|(_, session)| wanted(session)).map(|(key, _)| key).collect();
        drop(sessions);
        keys.into_iter().filter_map(|key| self.take(key)).collect()
    }

    fn take(&self, key: usize) -> Option<IdleSession> {
        let mut sessions = self.sessions.borrow_mut();
        let session = sessions.try_remove(key)?;
        if sessions.is_empty() && sessions.capacity() > SPARE_ENTRIES {
            // Frees the memory of the table after many sessions were idle.
            *sessions = Slab::new();
        }
        self.forget(&session);
        match self.newly_idle.get() {
            0 => self.unreturned.set(self.unreturned.get().saturating_sub(1)),
            new => self.newly_idle.set(new - 1),
        }
        Some(session)
    }

    fn listen(&self, connection: &Parked, key: usize) -> bool {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, key as u64);
        self.epoll.0.add(connection, event).is_ok()
    }

    fn forget(&self, session: &IdleSession) {
        for connection in session.connections() {
            // The call fails harmlessly for a connection that was never added.
            let _ = self.epoll.0.delete(connection);
        }
    }
}
