//! Ports and sockets on which a server listens for this client (RFC 4254 section 7; OpenSSH PROTOCOL section 2.4).

use std::sync::{PoisonError, Weak};

use russh::client::Handle;
use tokio::sync::mpsc;

use crate::handler::Handler;
pub use crate::listeners::Listener;
use crate::listeners::{Listeners, Rooms};
use crate::stream::Stream;

/// Connections from clients of the remote listener. The drop closes the listener.
pub struct Incoming {
    pub(crate) at: Listener,
    pub(crate) arriving: mpsc::Receiver<(Stream, String)>,
    pub(crate) handle: Weak<Handle<Handler>>,
    pub(crate) listeners: Rooms,
}

impl Incoming {
    /// Registers the listener `at`, so that its connections are queued.
    pub(crate) fn open(listeners: &Listeners, at: Listener, handle: Weak<Handle<Handler>>) -> Self {
        Self { arriving: listeners.open(at.clone()), at, handle, listeners: listeners.rooms() }
    }

    /// Waits for the next connection. The string is the address of its client, safe to print on a terminal (empty for a
    /// Unix socket). `None` after the session has ended.
    pub async fn accept(&mut self) -> Option<(Stream, String)> {
        self.arriving.recv().await
    }

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
