//! Opens a connection to a backend: to its path, its address, or the addresses of its name one after the other.
//! Traffic (`upstream.rs`) and checks (`health/probe.rs`) connect in the same way and name failures in the same words.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use config::types::BackendAddress;
use fleet::tunnel::supervise::READY;
use logic::account::Refusal;
use logic::health::Cause;
use nix::errno::Errno;
use sys::socket::Opening;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

use crate::plain::Plain;
use crate::state::BackendState;
use crate::tls::backend::{Endpoint, Outbound};

/// Whether a connection has carried a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Just opened, and how long that took.
    Fresh(Duration),
    /// Of another request, earlier or at the same time: the backend may have closed it meanwhile, which is not its fault.
    Kept,
}

/// First wait before a Unix socket whose queue is full is tried again; it doubles up to [`UNIX_BACK_OFF_MAX`].
const UNIX_BACK_OFF: Duration = Duration::from_millis(1);
const UNIX_BACK_OFF_MAX: Duration = Duration::from_millis(50);

/// Why there is no connection, and whose fault that is.
#[derive(Debug)]
pub enum ConnectFault {
    /// The backend's, or the way's to it.
    Backend(Cause),
    /// Ours: memory or ports have run out. It says nothing about the backend.
    Ours(io::Error),
    /// Ours: descriptors have run out.
    NoDescriptors(Shortage),
}

/// What of descriptors has run out, and so whether there are more when idle connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Those of the process, or of the whole system: the kernel refused one.
    OfKernel,
    /// Places in the account, as idle connections have theirs there.
    OfPlaces,
    /// A share, of the client or of such connections together. Idle connections count as free there already.
    OfShare(Refusal),
}

impl ConnectFault {
    /// In the words of a verdict.
    pub fn cause(self) -> Cause {
        match self {
            Self::Backend(cause) => cause,
            Self::Ours(error) => Cause::ConnectFailed(error.to_string()),
            Self::NoDescriptors(_) => Cause::ConnectFailed(Errno::EMFILE.desc().to_owned()),
        }
    }
}

/// Connects within `limit`. Of several addresses each gets its share of the time that is left, so that a silent one does
/// not hide those behind it.
async fn open(backend: &BackendState, opening: Opening, limit: Duration) -> Result<Plain, ConnectFault> {
    let deadline = Instant::now() + limit;
    if let BackendAddress::Unix(path) = &backend.address {
        return match timeout_at(deadline.into(), open_unix(path)).await {
            Ok(Ok(unix)) => Ok(Plain::Unix(unix)),
            Ok(Err(error)) => Err(fault(error, limit)),
            Err(_) => Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
        };
    }
    if let BackendAddress::Ssh { .. } = &backend.address {
        let Some(path) = backend.through.load_full() else {
            return Err(ConnectFault::Backend(Cause::Tunnel("it is not up yet".to_owned())));
        };
        return match timeout_at(deadline.into(), open_through(&path, limit)).await {
            Ok(opened) => opened.map(Plain::Unix),
            Err(_) => Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
        };
    }
    let addresses = backend.addresses.load_full();
    let unresolved = || Cause::Unresolvable("its name has no address yet".to_owned());
    let mut last = ConnectFault::Backend(unresolved());
    for (at, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
        last = match timeout_at((Instant::now() + share).into(), open_tcp(*address, opening)).await {
            Ok(Ok(tcp)) => return Ok(Plain::Tcp(tcp)),
            Ok(Err(error)) if is_out_of_ports(&error, *address) => ConnectFault::Ours(error),
            Ok(Err(error)) => fault(error, limit),
            Err(_) => ConnectFault::Backend(Cause::ConnectTimeout { after: limit }),
        };
    }
    Err(last)
}

/// A connection to a backend, ready for what it is for.
pub enum Link {
    /// Without TLS.
    Plain(Plain),
    /// With TLS.
    Tls(Box<Outbound>),
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(cx, into),
            Self::Tls(outbound) => Pin::new(outbound).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write(cx, from),
            Self::Tls(outbound) => Pin::new(outbound).poll_write(cx, from),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, from),
            Self::Tls(outbound) => Pin::new(outbound).poll_write_vectored(cx, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Self::Tls(outbound) => Pin::new(outbound).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Self::Tls(outbound) => Pin::new(outbound).poll_shutdown(cx),
        }
    }
}

/// Connects, says `preface` (a PROXY header), and makes the TLS handshake if there is one to make, all within `limit`.
pub async fn establish(
    backend: &BackendState,
    tls: Option<&Arc<Endpoint>>,
    opening: Opening,
    preface: &[u8],
    limit: Duration,
) -> Result<Link, ConnectFault> {
    let deadline = Instant::now() + limit;
    let mut plain = open(backend, opening, limit).await?;
    if !preface.is_empty() {
        match timeout_at(deadline.into(), plain.write_all(preface)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(ConnectFault::Backend(Cause::ClosedEarly)),
            Err(_) => return Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
        }
    }
    let Some(endpoint) = tls else { return Ok(Link::Plain(plain)) };
    let shaken = Box::pin(endpoint.shake_hands(plain, deadline)).await;
    shaken.map(|outbound| Link::Tls(Box::new(outbound))).map_err(ConnectFault::Backend)
}

async fn open_tcp(address: SocketAddr, opening: Opening) -> io::Result<TcpStream> {
    let tcp = TcpStream::from_std(sys::socket::connect_tcp(address, opening)?)?;
    // Within one machine the handshake is over when connect(2) returns, although it says that it has only begun. Asking is
    // cheaper than a turn of the runtime and a timer.
    if address.ip().is_loopback() && tcp.peer_addr().is_ok() {
        return Ok(tcp);
    }
    // Epoll tells of a failure together with the end of the wait: only then the socket is asked what happened.
    if tcp.ready(Interest::WRITABLE).await?.is_write_closed()
        && let Some(error) = tcp.take_error()?
    {
        return Err(error);
    }
    Ok(tcp)
}

/// Linux answers EAGAIN at once when the queue of a listening Unix socket is full (unix(7)), where TCP would wait.
async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let mut wait = UNIX_BACK_OFF;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(UNIX_BACK_OFF_MAX);
            }
            result => return result,
        }
    }
}

/// To the end of a tunnel of ours, which says first whether the host has connected to the application. So connecting fails when
/// that is down, and somebody else can be asked.
async fn open_through(path: &Path, limit: Duration) -> Result<UnixStream, ConnectFault> {
    let mut unix = open_unix(path).await.map_err(|error| fault(error, limit))?;
    let ended = |_| ConnectFault::Backend(Cause::Tunnel("it ended".to_owned()));
    if unix.read_u8().await.map_err(ended)? == READY {
        return Ok(unix);
    }
    let mut why = Vec::new();
    // What was read until it broke is said.
    let _ = unix.take(LONGEST_REASON).read_to_end(&mut why).await;
    Err(ConnectFault::Backend(Cause::ConnectFailed(String::from_utf8_lossy(&why).into_owned())))
}

/// In bytes.
const LONGEST_REASON: u64 = 1024;

/// Every local port towards this address is taken. With IPv6 the same error means that this machine has none.
fn is_out_of_ports(error: &io::Error, address: SocketAddr) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable && address.is_ipv4()
}

fn fault(error: io::Error, limit: Duration) -> ConnectFault {
    ConnectFault::Backend(match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE) => return ConnectFault::NoDescriptors(Shortage::OfKernel),
        Some(Errno::ENOMEM | Errno::ENOBUFS) => {
            return ConnectFault::Ours(error);
        }
        Some(Errno::ECONNREFUSED) => Cause::ConnectRefused,
        Some(Errno::ENOENT) => Cause::SocketMissing,
        Some(Errno::EACCES) => Cause::PermissionDenied,
        Some(Errno::ETIMEDOUT) => Cause::ConnectTimeout { after: limit },
        Some(errno) => Cause::ConnectFailed(errno.desc().to_owned()),
        None => Cause::ConnectFailed(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_lack_ourselves_says_nothing_of_the_backend() {
        let limit = Duration::from_secs(1);
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            let fault = fault(io::Error::from_raw_os_error(errno as i32), limit);
            assert!(matches!(fault, ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)), "{errno}");
        }
        let denied = fault(io::Error::from_raw_os_error(Errno::EACCES as i32), limit);
        assert!(matches!(denied, ConnectFault::Backend(Cause::PermissionDenied)));
    }

    #[test]
    fn running_out_of_ports_is_our_want_and_missing_ipv6_is_not() {
        let error = io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32);
        assert!(is_out_of_ports(&error, "127.0.0.1:80".parse().unwrap()));
        assert!(!is_out_of_ports(&error, "[::1]:80".parse().unwrap()));
    }
}
