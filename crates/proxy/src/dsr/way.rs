//! The way of the probes of a service: a socket, and a port of our own.

use std::io;
use std::rc::Rc;

use logic::dsr::Mac;
use logic::dsr::probe::Prober;
use sys::packet::{PacketSocket, ReservedPort};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

pub(super) type Frames = AsyncFd<PacketSocket>;

/// The probes of one address.
#[derive(Default)]
pub(super) struct Probes {
    /// `None` if the pool has no check that says how to probe.
    pub(super) prober: Option<Prober>,
    /// `None` while there is no way to probe.
    pub(super) way: Option<Way>,
}

pub(super) struct Way {
    pub(super) socket: Rc<Frames>,
    pub(super) port: ReservedPort,
    pub(super) own_mac: Mac,
    /// Index of the interface.
    pub(super) interface: u32,
}

impl Probes {
    /// Whether probes keep flows from a backend.
    pub(super) fn is_down(&self, backend: &str) -> bool {
        self.prober.as_ref().is_some_and(|prober| prober.is_down(backend))
    }

    pub(super) fn prober(&self) -> Option<&Prober> {
        self.prober.as_ref()
    }

    /// Where replies come in.
    pub(super) fn socket(&self) -> Option<Rc<Frames>> {
        self.way.as_ref().map(|way| way.socket.clone())
    }
}

/// Waits for replies; for ever without a socket.
pub(super) async fn replies(socket: &Option<Rc<Frames>>) -> io::Result<AsyncFdReadyGuard<'_, PacketSocket>> {
    match socket {
        Some(socket) => socket.readable().await,
        None => std::future::pending().await,
    }
}
