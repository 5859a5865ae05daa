//! A listening socket of the slow side: of the control socket, control over the network, the admin listener and PAM modules.
//! It is bound before privileges drop, and accepts in the runtime that serves it. Who may come is decided by those who use it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::types::{BindAddress, Transport};
use state::State;
use state::events::{Level, RateLimitedEvent};
use state::listen::{self, Holder, SocketPath};
use sys::socket::{
    DualStack, ListenAddress, ListenUnixError, SocketFile, listen_tcp, listen_unix, probe_tcp,
};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;

/// Pause after a failed accept, for example when descriptors are exhausted.
const PAUSE: Duration = Duration::from_millis(200);

/// A bound socket without a runtime. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub struct Bound(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(std::net::TcpListener),
    // Rust drops fields in declaration order: the file goes after the socket.
    Unix(std::os::unix::net::UnixListener, Option<SocketPath>),
}

impl Bound {
    /// Binds an address of the network. The error says in words why it cannot be had.
    pub(crate) fn tcp(address: &BindAddress, backlog: u32) -> io::Result<Self> {
        let bind = |socket: SocketAddr, dual: DualStack| {
            // Without SO_REUSEPORT: a process that already listens on the port is an error.
            let free = if socket.port() == 0 { Ok(()) } else { probe_tcp(socket, dual) };
            free.and_then(|()| listen_tcp(socket, dual, backlog))
        };
        let bound = match address {
            BindAddress::Ip(socket) => bind(*socket, DualStack::V6Only),
            BindAddress::AnyIp(port) => match bind((Ipv6Addr::UNSPECIFIED, *port).into(), DualStack::Both) {
                // The kernel has no IPv6.
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    bind((Ipv4Addr::UNSPECIFIED, *port).into(), DualStack::V6Only)
                }
                result => result,
            },
            // `config` refuses these.
            BindAddress::Unix(_) | BindAddress::Systemd(_) | BindAddress::EveryPort(_) => {
                Err(io::ErrorKind::Unsupported.into())
            }
        };
        bound.map(|listener| Self(Socket::Tcp(listener))).map_err(|error| {
            let words = listen::explain(&error, Holder::NoProcess, Transport::Stream);
            io::Error::new(error.kind(), words)
        })
    }

    pub(crate) fn unix(path: &Path, mode: u32) -> Result<Self, ListenUnixError> {
        let (listener, file) = listen_unix(path, mode)?;
        Ok(Self(Socket::Unix(listener, Some(SocketPath(file)))))
    }

    /// With the file apart, for an owner that removes it at another time than the one that accepts ends.
    pub(crate) fn unix_and_file(path: &Path, mode: u32) -> Result<(Self, SocketPath), ListenUnixError> {
        let (listener, file) = listen_unix(path, mode)?;
        Ok((Self::from(listener), SocketPath(file)))
    }

    /// The socket of the process before, at an upgrade. `None` if it cannot be used.
    pub(crate) fn passed_on(socket: OwnedFd, file: Option<SocketPath>) -> Option<Self> {
        match (sys::socket::listening(&socket).ok()??, file) {
            (ListenAddress::Tcp(_), None) => Some(Self(Socket::Tcp(socket.into()))),
            (ListenAddress::Unix(_), Some(file)) => Some(Self(Socket::Unix(socket.into(), Some(file)))),
            _ => None,
        }
    }

    /// A further descriptor for the next process, with the file of a Unix socket if it is here.
    pub(crate) fn share(&self) -> io::Result<(OwnedFd, Option<SocketFile>)> {
        Ok(match &self.0 {
            Socket::Tcp(tcp) => (tcp.try_clone()?.into(), None),
            Socket::Unix(unix, file) => (unix.try_clone()?.into(), file.as_ref().map(|file| file.0.clone())),
        })
    }

    /// The address of the network that it has got.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Tcp(tcp) => tcp.local_addr().ok(),
            // getsockname(2) returns the temporary path of the bind; the configuration has the final one.
            Socket::Unix(..) => None,
        }
    }

    /// Goes on in the runtime of the caller. Events have the subject `subject`.
    pub(crate) fn register(self, subject: &'static str, state: Arc<State>) -> io::Result<Acceptor> {
        let socket = match self.0 {
            Socket::Tcp(tcp) => {
                tcp.set_nonblocking(true)?;
                Registered::Tcp(tokio::net::TcpListener::from_std(tcp)?)
            }
            Socket::Unix(unix, file) => {
                unix.set_nonblocking(true)?;
                Registered::Unix(tokio::net::UnixListener::from_std(unix)?, file)
            }
        };
        Ok(Acceptor { socket, subject, state, failed: RateLimitedEvent::default() })
    }
}

impl From<std::net::TcpListener> for Bound {
    fn from(listener: std::net::TcpListener) -> Self {
        Self(Socket::Tcp(listener))
    }
}

/// Its file is elsewhere.
impl From<std::os::unix::net::UnixListener> for Bound {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Self(Socket::Unix(listener, None))
    }
}

/// A socket that accepts.
pub(crate) struct Acceptor {
    socket: Registered,
    subject: &'static str,
    state: Arc<State>,
    failed: RateLimitedEvent,
}

enum Registered {
    Tcp(tokio::net::TcpListener),
    /// Its file is removed when it is dropped.
    Unix(tokio::net::UnixListener, #[allow(dead_code, reason = "held for its Drop")] Option<SocketPath>),
}

/// A client that has connected.
#[derive(Debug)]
pub(crate) enum Arrival {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Closes a connection at once. The client is told by a reset, so that no state of the connection is left in the kernel.
pub(crate) fn refuse(stream: TcpStream) {
    // Without it the close is an ordinary one.
    let _ = sys::socket::set_linger_zero(stream.as_fd());
}

impl Acceptor {
    /// The next client. While the kernel gives none, it waits and says so once a minute.
    pub(crate) async fn next(&self) -> Arrival {
        loop {
            let accepted = match &self.socket {
                Registered::Tcp(tcp) => tcp.accept().await.map(|(stream, peer)| Arrival::Tcp(stream, peer)),
                Registered::Unix(unix, _) => unix.accept().await.map(|(stream, _)| Arrival::Unix(stream)),
            };
            match accepted {
                Ok(arrival) => return arrival,
                Err(error) => {
                    if self.failed.may(self.state.started.elapsed()) {
                        let message = format!("cannot accept a client: {error}");
                        self.state.events.record(Level::Warning, self.subject, message);
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
