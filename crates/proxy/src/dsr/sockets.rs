//! Packet sockets of a service: room to send, and for probes a socket and a port of our own.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use logic::dsr::Mac;
use logic::dsr::probe::Prober;
use sys::packet::{PacketSocket, ReservedPort};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

pub(super) type Frames = AsyncFd<PacketSocket>;

/// The probes of one address.
#[derive(Default)]
pub(super) struct Probes {
    /// `None` if the pool has no check that says how to probe.
    pub(super) prober: Option<Prober>,
    /// `None` while there is no way to probe.
    pub(super) way: Option<ProbeSocket>,
}

pub(super) struct ProbeSocket {
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

    /// Whether the backend accepts the address, as the last probes have found.
    pub(super) fn is_up(&self, backend: &str) -> bool {
        self.prober.as_ref().is_some_and(|prober| prober.is_up(backend))
    }

    /// Whether the last probe of a backend has failed.
    pub(super) fn is_failing(&self, backend: &str) -> bool {
        self.prober.as_ref().is_some_and(|prober| prober.is_failing(backend))
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

/// Waits until a socket has room for what is to be sent. The socket itself is watched only for what comes in: the kernel
/// would tell of each frame that has left it.
pub(super) async fn has_room(socket: &Frames) -> io::Result<()> {
    let same = socket.get_ref().as_fd().try_clone_to_owned()?;
    #[expect(deprecated, reason = "its successor is unsafe; an `OwnedFd` keeps the one descriptor it owns")]
    let watched = AsyncFd::with_interest(same, Interest::WRITABLE)?;
    watched.writable().await.map(drop)
}
