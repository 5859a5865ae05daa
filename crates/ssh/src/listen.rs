//! Ports and sockets on which a server listens for us (RFC 4254 section 7; OpenSSH PROTOCOL section 2.4).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use russh::client::Handle;
use tokio::sync::mpsc;

use crate::handler::Handler;
use crate::stream::Stream;

/// Connections that clients of the remote listener made. Dropping it ends the listener.
pub struct Incoming {
    pub(crate) at: Listener,
    pub(crate) arriving: mpsc::Receiver<(Stream, String)>,
    pub(crate) handle: Weak<Handle<Handler>>,
    pub(crate) listeners: Rooms,
}

/// Where the connections to each listener wait to be accepted.
type Rooms = Arc<Mutex<HashMap<Listener, mpsc::Sender<(Stream, String)>>>>;

/// Where a server listens for us.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listener {
    /// A bind address as it was asked for, and the port that the server bound.
    Tcp(String, u16),
    /// The path of a socket.
    Unix(String),
}

impl Incoming {
    /// The next connection, and where its client is, harmless on a terminal (empty for a Unix socket). `None` once the
    /// session has ended.
    pub async fn accept(&mut self) -> Option<(Stream, String)> {
        self.arriving.recv().await
    }

    /// Where the server listens.
    #[must_use]
    pub fn at(&self) -> &Listener {
        &self.at
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.at);
        let (Some(handle), Ok(runtime)) = (self.handle.upgrade(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let at = self.at.clone();
        runtime.spawn(async move {
            let _ = match at {
                Listener::Tcp(address, port) => handle.cancel_tcpip_forward(address, u32::from(port)).await,
                Listener::Unix(path) => handle.cancel_streamlocal_forward(path).await,
            };
        });
    }
}

/// The listeners of one session.
#[derive(Default)]
pub(crate) struct Listeners(Rooms);

impl Listeners {
    /// Who waits for connections to this port. Servers may name the address differently from how it was asked for,
    /// so with only one listener on the port the port is enough.
    pub(crate) fn tcp(&self, address: &str, port: u32) -> Option<mpsc::Sender<(Stream, String)>> {
        let port = u16::try_from(port).ok()?;
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exact) = listeners.get(&Listener::Tcp(address.to_owned(), port)) {
            return Some(exact.clone());
        }
        let mut same =
            listeners.iter().filter(|(at, _)| matches!(at, Listener::Tcp(_, bound) if *bound == port));
        match (same.next(), same.next()) {
            (Some((_, room)), None) => Some(room.clone()),
            _ => None,
        }
    }

    /// Who waits for connections to this socket.
    pub(crate) fn unix(&self, path: &str) -> Option<mpsc::Sender<(Stream, String)>> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&Listener::Unix(path.to_owned())).cloned()
    }

    /// Opens a place for connections to `at`.
    pub(crate) fn open(&self, at: Listener, handle: Weak<Handle<Handler>>) -> Incoming {
        let (room, arriving) = mpsc::channel(WAITING);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at.clone(), room);
        Incoming { at, arriving, handle, listeners: Arc::clone(&self.0) }
    }

    /// No more connections will come.
    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// So many connections may wait to be accepted; more are refused.
const WAITING: usize = 128;
