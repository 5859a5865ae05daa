//! What an operator may see of open sessions, for `penstock ctl sessions`. A worker keeps it for itself: its thread alone
//! writes and reads it, between two sessions, when it is asked (`crates/proxy/src/worker/sessions.rs`).
//!
//! Each client connection has a [`Live`] in its handle, and each session that runs on it (a request; the only one of a
//! TCP connection) an entry in the table of its worker. What the kernel knows of a connection is asked when it is shown.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use logic::peers::Peer;
use slab::Slab;
use state::{BackendState, ListenerState};
use tokio::task::AbortHandle;

use crate::http::RequestId;

/// Number of entries above which the memory of a table is freed when no session runs.
const REMEMBERED: usize = 1024;

/// No descriptor. Descriptor 0 is never that of a connection that is looked at.
pub const NO_SOCKET: RawFd = 0;

/// A client connection.
#[derive(Default)]
pub struct Live {
    /// `None` before the registration is complete.
    pub(crate) listener: Option<Arc<ListenerState>>,
    /// Smaller than a [`Peer`]. `None` for a client of a Unix socket.
    client: Cell<Option<(IpAddr, u16)>>,
    /// When it was accepted, in milliseconds after the start of the process; negative: in the process before it.
    began: i64,
    /// Bytes of the sessions on it that have ended.
    pub(crate) up: Cell<u64>,
    pub(crate) down: Cell<u64>,
    pub(crate) speaks: Cell<Speaks>,
    /// Whether an operator has ended it.
    pub(crate) killed: Cell<Killed>,
    /// Whether the next process of an upgrade can go on with its session.
    pub(crate) movable: Cell<Movable>,
    /// Ends the task of the connection, while it has one.
    pub(crate) task: Cell<Option<AbortHandle>>,
    /// The session on it that began last.
    newest: Cell<Link>,
    /// Descriptor of the connection, as long as it is open; then [`NO_SOCKET`], if the session on it goes on.
    pub(crate) socket: Cell<RawFd>,
}

/// Facts about a client that was just accepted.
pub struct Accepted {
    pub peer: Peer,
    pub socket: RawFd,
    /// Time since the start of the process.
    pub at: Duration,
    /// For how long it had been with the process before.
    pub age: Duration,
}

/// What the client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speaks {
    /// Not known yet: PROXY header, TLS handshake.
    #[default]
    Nothing,
    Tcp,
    Udp,
    TlsPassthrough,
    Http1,
    Http2,
    WebSocket,
    /// Another protocol after HTTP/1.1.
    Upgraded,
}

impl Speaks {
    pub fn word(self) -> &'static str {
        match self {
            Self::Nothing => "handshake",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::TlsPassthrough => "tls-passthrough",
            Self::Http1 => "http/1.1",
            Self::Http2 => "http/2",
            Self::WebSocket => "websocket",
            Self::Upgraded => "upgraded",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Killed {
    #[default]
    No,
    Yes,
}

/// Whether another process can go on with a TCP session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Movable {
    #[default]
    No,
    Yes,
}

impl Live {
    /// The client's connection is closed while its session goes on: the next connection may get the descriptor.
    pub(crate) fn hide_socket(&self) {
        self.socket.set(NO_SOCKET);
    }

    pub(crate) fn new(listener: Arc<ListenerState>, accepted: &Accepted) -> Self {
        let live = Self {
            listener: Some(listener),
            began: millis(accepted.at).saturating_sub(millis(accepted.age)),
            socket: Cell::new(accepted.socket),
            ..Self::default()
        };
        live.set_client(accepted.peer);
        live
    }

    pub(crate) fn set_client(&self, peer: Peer) {
        self.client.set(match peer {
            Peer::Ip(address) => Some((address.ip(), address.port())),
            Peer::Unix => None,
        });
    }

    pub(crate) fn client(&self) -> Peer {
        self.client.get().map_or(Peer::Unix, |(ip, port)| Peer::Ip(SocketAddr::new(ip, port)))
    }

    /// Time since it was accepted. `uptime`: time since the start of the process.
    pub(crate) fn age(&self, uptime: Duration) -> Duration {
        Duration::from_millis(u64::try_from(millis(uptime).saturating_sub(self.began)).unwrap_or(0))
    }

    /// Notes the task that serves the connection from now on.
    pub(crate) fn served_by(&self, task: AbortHandle) {
        self.task.set(Some(task));
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Bytes that a session has moved so far: up to the backend, and down to the client.
#[derive(Debug, Default)]
pub struct Totals {
    pub up: Cell<u64>,
    pub down: Cell<u64>,
}

impl Totals {
    pub(crate) fn both(&self) -> (u64, u64) {
        (self.up.get(), self.down.get())
    }
}

/// Key of an entry plus one; `None` for none.
type Link = Option<NonZeroU32>;

fn link(key: usize) -> Link {
    u32::try_from(key + 1).ok().and_then(NonZeroU32::new)
}

fn key(link: Link) -> Option<usize> {
    link.map(|above_one| above_one.get() as usize - 1)
}

/// The sessions that run in one worker.
#[derive(Default)]
pub struct Running(RefCell<Slab<Entry>>);

/// One session that runs.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) backend: Option<Arc<BackendState>>,
    pub(crate) request_id: RequestId,
    /// Bytes that it moves now.
    pub(crate) totals: Option<Rc<Totals>>,
    /// Sessions on the same connection that began after and before it.
    newer: Link,
    older: Link,
    /// Descriptor of its connection to the backend, while no other session can get it.
    pub(crate) socket: RawFd,
    /// Ends it without the others on the same connection. `None` if it cannot have others.
    pub(crate) cut: Option<Rc<Cut>>,
}

/// How an operator ends one HTTP/2 stream.
#[derive(Default)]
pub(crate) struct Cut {
    /// Ends the task of the stream.
    pub(crate) task: Cell<Option<AbortHandle>>,
    pub(crate) killed: Cell<Killed>,
}

impl Running {
    /// Adds a session, and returns its key. Each must be given to [`Self::end`].
    pub(crate) fn begin(&self, live: &Live) -> u32 {
        let mut entries = self.0.borrow_mut();
        let newest = &live.newest;
        let at = entries.insert(Entry { older: newest.get(), ..Entry::default() });
        if let Some(older) = key(newest.get()).and_then(|key| entries.get_mut(key)) {
            older.newer = link(at);
        }
        newest.set(link(at));
        // No process has that many sessions.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Removes a session that had so many bytes.
    pub(crate) fn end(&self, live: &Live, at: u32, up: u64, down: u64) {
        live.up.set(live.up.get().wrapping_add(up));
        live.down.set(live.down.get().wrapping_add(down));
        let mut entries = self.0.borrow_mut();
        let Some(entry) = entries.try_remove(at as usize) else { return };
        match key(entry.newer).and_then(|key| entries.get_mut(key)) {
            Some(newer) => newer.older = entry.older,
            None => live.newest.set(entry.older),
        }
        if let Some(older) = key(entry.older).and_then(|key| entries.get_mut(key)) {
            older.newer = entry.newer;
        }
        if entries.is_empty() && entries.capacity() > REMEMBERED {
            *entries = Slab::new();
        }
    }

    #[inline]
    pub(crate) fn change(&self, key: u32, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.borrow_mut().get_mut(key as usize) {
            change(entry);
        }
    }

    /// Whether an operator has ended this session alone.
    pub(crate) fn is_cut(&self, key: u32) -> bool {
        let entries = self.0.borrow();
        let cut = entries.get(key as usize).and_then(|entry| entry.cut.as_ref());
        cut.is_some_and(|cut| cut.killed.get() == Killed::Yes)
    }

    /// Shows `each` session of a connection, the newest first.
    pub(crate) fn of(&self, live: &Live, mut each: impl FnMut(&Entry)) {
        let entries = self.0.borrow();
        let mut next = key(live.newest.get());
        while let Some(entry) = next.and_then(|key| entries.get(key)) {
            each(entry);
            next = key(entry.older);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(running: &Running, live: &Live) -> usize {
        let mut count = 0;
        running.of(live, |_| count += 1);
        count
    }

    #[test]
    fn sessions_of_a_connection_end_in_any_order() {
        let running = Running::default();
        let [one, other] = [(); 2].map(|()| Live::default());
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
            let places = [(); 3].map(|()| running.begin(&one));
            let apart = running.begin(&other);
            running.change(places[1], |entry| entry.socket = 7);
            for (ended, at) in order.into_iter().enumerate() {
                assert_eq!(count(&running, &one), 3 - ended);
                running.end(&one, places[at], 1, 2);
            }
            assert_eq!((count(&running, &one), count(&running, &other)), (0, 1));
            running.end(&other, apart, 0, 0);
        }
        assert_eq!((one.up.get(), one.down.get()), (12, 24));
    }
}
