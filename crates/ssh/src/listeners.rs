//! The listeners of one session, and the queue of each for connections that wait for accept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::stream::Stream;

/// The queue of each listener.
pub(crate) type Rooms = Arc<Mutex<HashMap<Listener, mpsc::Sender<(Stream, String)>>>>;

/// The place where a server listens for this client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listener {
    /// The requested bind address, and the port that the server bound.
    Tcp(String, u16),
    Unix(String),
}

#[derive(Default)]
pub(crate) struct Listeners(Rooms);

impl Listeners {
    /// Returns the queue for a port. A server may name the address differently from the request: if only one listener
    /// has the port, the port is enough.
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

    pub(crate) fn unix(&self, path: &str) -> Option<mpsc::Sender<(Stream, String)>> {
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.get(&Listener::Unix(path.to_owned())).cloned()
    }

    /// Registers the listener `at`, and returns the receiver of its connections.
    pub(crate) fn open(&self, at: Listener) -> mpsc::Receiver<(Stream, String)> {
        let (room, arriving) = mpsc::channel(WAITING);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at, room);
        arriving
    }

    pub(crate) fn rooms(&self) -> Rooms {
        Arc::clone(&self.0)
    }

    /// Closes the queues of all listeners.
    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Maximum number of connections that wait for accept; more are refused.
const WAITING: usize = 128;
