//! How a client comes from its socket: watched by the runtime from the beginning, or bare, for an engine.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use logic::peers::Peer;
use state::listen::Socket;
use tls::plain::Plain;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::arrival::{Entry, canonical};
use crate::connection;
use crate::tcp::ring::Engine;

/// A listening socket.
pub(super) trait Accepts {
    type Client: Arrived;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Client, Peer)>>;

    /// Takes the socket out of the runtime, whose readiness may lag behind the queue and whose budget ends a long loop.
    fn into_socket(self) -> io::Result<Socket>;
}

/// A client that was accepted.
pub(super) trait Arrived {
    /// Number of its descriptor.
    fn number(&self) -> RawFd;

    /// Its connection, watched by the runtime. `None` if that cannot be: then it is closed.
    fn watched(self) -> Option<Plain>;

    /// Begins its session after `wait`.
    fn begin(self, entry: Entry, peer: Peer, wait: Duration);
}

impl Arrived for Plain {
    fn number(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    fn watched(self) -> Option<Plain> {
        Some(self)
    }

    fn begin(self, entry: Entry, peer: Peer, wait: Duration) {
        let handle = entry.admitted.handle().clone();
        let task = if wait.is_zero() {
            tokio::task::spawn_local(connection::serve(entry, self, peer))
        } else {
            tokio::task::spawn_local(async move {
                tokio::time::sleep(wait).await;
                connection::serve(entry, self, peer).await;
            })
        };
        handle.live.served_by(task.abort_handle());
    }
}

/// Accepts for an engine.
pub(super) struct RingAcceptor {
    listener: AsyncFd<std::net::TcpListener>,
    engine: Rc<Engine>,
}

impl RingAcceptor {
    pub(super) fn new(tcp: std::net::TcpListener, engine: Rc<Engine>) -> io::Result<Self> {
        // Accepted sockets inherit it.
        sys::socket::set_nodelay(tcp.as_fd())?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a `TcpListener` keeps the one descriptor it owns"
        )]
        let listener = AsyncFd::with_interest(tcp, Interest::READABLE)?;
        Ok(Self { listener, engine })
    }
}

impl Accepts for RingAcceptor {
    type Client = Bare;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Bare, Peer)>> {
        loop {
            let mut ready = ready!(self.listener.poll_read_ready(cx))?;
            if let Ok(accepted) = ready.try_io(|listener| listener.get_ref().accept()) {
                let engine = || self.engine.clone();
                return Poll::Ready(
                    accepted.map(|(tcp, peer)| (Bare { tcp, engine: engine() }, Peer::Ip(canonical(peer)))),
                );
            }
        }
    }

    fn into_socket(self) -> io::Result<Socket> {
        Ok(Socket::Tcp(self.listener.into_inner()))
    }
}

/// A client that the runtime does not know.
pub(super) struct Bare {
    tcp: TcpStream,
    engine: Rc<Engine>,
}

impl Arrived for Bare {
    fn number(&self) -> RawFd {
        self.tcp.as_raw_fd()
    }

    fn watched(self) -> Option<Plain> {
        let watched = self.tcp.set_nonblocking(true).and_then(|()| tokio::net::TcpStream::from_std(self.tcp));
        watched
            .inspect_err(|error| tracing::warn!("cannot watch a client's connection: {error}"))
            .ok()
            .map(Plain::Tcp)
    }

    fn begin(self, entry: Entry, peer: Peer, wait: Duration) {
        if wait.is_zero() && self.engine.is_for(&entry) {
            return self.engine.begin(entry, self.tcp, peer);
        }
        if let Some(plain) = self.watched() {
            plain.begin(entry, peer, wait);
        }
    }
}
