//! Opens a connection to a backend: to its path, its address, or the addresses of its name in turn. Traffic
//! (`upstream.rs`) and checks (`crates/serve/src/health/probe.rs`) share this code and its error messages.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use config::types::BackendAddress;
use logic::account::Refusal;
use logic::attempts::Fault;
use logic::health::Cause;
use nix::errno::Errno;
use state::BackendState;
use sys::socket::{Opening, Outgoing, Owner};
use tls::backend::{Endpoint, Outbound};
use tls::plain::Plain;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;

/// Tells whether a connection has carried a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Newly opened; with the time that opening took.
    Fresh(Duration),
    /// Used by another request before or at the same time: the backend may have closed it since, which is no fault of
    /// the backend.
    Kept,
}

/// First wait before a Unix socket whose queue is full is tried again; each further wait doubles up to
/// [`UNIX_BACK_OFF_MAX`].
const UNIX_BACK_OFF: Duration = Duration::from_millis(1);
const UNIX_BACK_OFF_MAX: Duration = Duration::from_millis(50);

/// Reason why there is no connection.
#[derive(Debug)]
pub enum ConnectFault {
    /// The backend or the network to it failed.
    Backend(Cause),
    /// Penstock has no memory or local ports. The error says nothing about the backend.
    Ours(io::Error),
    NoDescriptors(Shortage),
}

impl ConnectFault {
    /// The fault in a word.
    pub fn word(&self) -> Fault {
        match self {
            Self::Backend(cause) => Fault::of(cause),
            Self::Ours(_) | Self::NoDescriptors(_) => Fault::Ours,
        }
    }
}

/// Kind of descriptor shortage; decides whether closing idle connections helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The process or the system has no descriptors: the kernel refused one.
    OfKernel,
    /// The account has no slots; idle connections hold slots.
    OfPlaces,
    /// A share is used up. Idle connections already count as free in shares.
    OfShare(Refusal),
}

impl ConnectFault {
    /// Returns the cause for a verdict.
    pub fn cause(self) -> Cause {
        match self {
            Self::Backend(cause) => cause,
            Self::Ours(error) => Cause::ConnectFailed(error.to_string()),
            Self::NoDescriptors(_) => Cause::ConnectFailed(Errno::EMFILE.desc().to_owned()),
        }
    }
}

/// Time limit of an attempt to connect.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    pub began: Instant,
    pub limit: Duration,
}

impl TimeLimit {
    pub fn from_now(limit: Duration) -> Self {
        Self { began: Instant::now(), limit }
    }

    fn due(self) -> Instant {
        self.began + self.limit
    }
}

/// Connects within the time limit. Each of several addresses gets a part of the time left, so that one that does not
/// answer does not block the others. A connection that is open at once needs no timer, and no box for the wait.
async fn open(
    backend: &BackendState,
    outgoing: Outgoing,
    opening: Opening,
    time: TimeLimit,
) -> Result<Plain, ConnectFault> {
    let limit = time.limit;
    if let BackendAddress::Unix(path) = &backend.address {
        let opened = match sys::socket::connect_unix(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match Box::pin(timeout_at(time.due().into(), open_unix(path))).await {
                    Ok(opened) => opened,
                    Err(_) => return Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
                }
            }
            opened => opened.and_then(UnixStream::from_std),
        };
        return opened.map(Plain::Unix).map_err(|error| fault(error, limit));
    }
    if let BackendAddress::Ssh { .. } = &backend.address {
        let Some(path) = backend.through.load_full() else {
            return Err(ConnectFault::Backend(Cause::Tunnel("it is not up yet".to_owned())));
        };
        return match Box::pin(timeout_at(time.due().into(), open_through(&path, limit))).await {
            Ok(opened) => opened.map(Plain::Unix),
            Err(_) => Err(ConnectFault::Backend(Cause::ConnectTimeout { after: limit })),
        };
    }
    let addresses = backend.addresses.load_full();
    let mut last = None;
    for (at, address) in addresses.iter().enumerate() {
        if !fits(outgoing, *address) {
            continue;
        }
        let outgoing = outgoing.towards(address.ip());
        let opened = match begin_tcp(*address, opening, outgoing) {
            Ok((tcp, Begun::Open)) => return Ok(Plain::Tcp(tcp)),
            Ok((tcp, Begun::Opening)) => {
                let now = Instant::now();
                let left = time.due().saturating_duration_since(now);
                let share = left / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
                Box::pin(timeout_at((now + share).into(), finish_tcp(tcp))).await
            }
            Err(error) => Ok(Err(error)),
        };
        last = Some(match opened {
            Ok(Ok(tcp)) => return Ok(Plain::Tcp(tcp)),
            Ok(Err(error)) if is_of_client_address(&error, outgoing) => ConnectFault::Ours(error),
            Ok(Err(error)) => fault_of(error, Some(*address), limit),
            Err(_) => ConnectFault::Backend(Cause::ConnectTimeout { after: limit }),
        });
    }
    Err(last.unwrap_or_else(|| ConnectFault::Backend(no_address(&addresses))))
}

/// Waits, within the time limit, until a TCP connection is open that was begun to the only address of a backend.
pub async fn finish(backend: &BackendState, socket: OwnedFd, time: TimeLimit) -> Result<Plain, ConnectFault> {
    let address = backend.addresses.load().first().copied();
    let tcp = std::net::TcpStream::from(socket);
    let watched = tcp.set_nonblocking(true).and_then(|()| TcpStream::from_std(tcp));
    let opened = match watched {
        Ok(tcp) => Box::pin(timeout_at(time.due().into(), finish_tcp(tcp))).await,
        Err(error) => Ok(Err(error)),
    };
    match opened {
        Ok(Ok(tcp)) => Ok(Plain::Tcp(tcp)),
        Ok(Err(error)) => Err(fault_of(error, address, time.limit)),
        Err(_) => Err(ConnectFault::Backend(Cause::ConnectTimeout { after: time.limit })),
    }
}

/// Returns the address of a backend to which a UDP socket is connected first, and the settings for it.
pub fn first_address(backend: &BackendState, outgoing: Outgoing) -> Option<(SocketAddr, Outgoing)> {
    let addresses = backend.addresses.load();
    let address = addresses.iter().copied().find(|address| fits(outgoing, *address))?;
    Some((address, outgoing.towards(address.ip())))
}

/// Returns true unless a socket with the configured source address cannot connect there.
fn fits(outgoing: Outgoing, address: SocketAddr) -> bool {
    let outgoing = outgoing.towards(address.ip());
    outgoing.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4())
}

/// The cause of a failure if no address was tried.
fn no_address(addresses: &[SocketAddr]) -> Cause {
    let why = match addresses {
        [] => "its name has no address yet",
        _ => "its name has no address of the family of source-address",
    };
    Cause::Unresolvable(why.to_owned())
}

/// A connection to a backend, after the TLS handshake if TLS is used.
pub enum Link {
    Plain(Plain),
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

/// Connects, sends `preface` (a PROXY header), and performs the TLS handshake if TLS is configured, all within the time
/// limit.
pub async fn establish(
    backend: &BackendState,
    tls: Option<&Arc<Endpoint>>,
    outgoing: Outgoing,
    opening: Opening,
    preface: &[u8],
    time: TimeLimit,
) -> Result<Link, ConnectFault> {
    let mut plain = open(backend, outgoing, opening, time).await?;
    if !preface.is_empty() {
        match Box::pin(timeout_at(time.due().into(), plain.write_all(preface))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(ConnectFault::Backend(Cause::ClosedEarly)),
            Err(_) => return Err(ConnectFault::Backend(Cause::ConnectTimeout { after: time.limit })),
        }
    }
    let Some(endpoint) = tls else { return Ok(Link::Plain(plain)) };
    let shaken = Box::pin(endpoint.shake_hands(plain, time.due())).await;
    shaken.map(|outbound| Link::Tls(Box::new(outbound))).map_err(ConnectFault::Backend)
}

/// Opens a UDP socket to a backend: to the first of its addresses to which there is a way. Returns that address, and the
/// settings that were used.
pub fn open_udp(
    backend: &BackendState,
    outgoing: Outgoing,
) -> Result<(UdpSocket, SocketAddr, Outgoing), ConnectFault> {
    let addresses = backend.addresses.load();
    let mut last = ConnectFault::Backend(no_address(&addresses));
    for address in addresses.iter().filter(|address| fits(outgoing, **address)) {
        let outgoing = outgoing.towards(address.ip());
        last = match sys::datagram::connect_udp(*address, outgoing) {
            Ok(socket) => return Ok((socket, *address, outgoing)),
            Err(error) if is_of_client_address(&error, outgoing) => ConnectFault::Ours(error),
            // UDP sockets are out of ports with another error than TCP sockets.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(ConnectFault::Ours(error)),
            Err(error) => fault(error, Duration::ZERO),
        };
    }
    Err(last)
}

/// The cause of an error of a UDP socket of [`open_udp`]; `None` if it says nothing about the backend. Those that do are what
/// Linux makes of ICMP and ICMPv6 messages (icmp_err_convert, icmpv6_err_convert): of these, EMSGSIZE says only that a datagram
/// was too large for the path.
pub fn udp_cause(error: &io::Error) -> Option<Cause> {
    let errno = Errno::from_raw(error.raw_os_error()?);
    Some(match errno {
        Errno::ECONNREFUSED => Cause::ConnectRefused,
        Errno::ENETUNREACH
        | Errno::EHOSTUNREACH
        | Errno::EHOSTDOWN
        | Errno::ENONET
        | Errno::ENOPROTOOPT
        | Errno::EOPNOTSUPP
        | Errno::EPROTO
        | Errno::EACCES => Cause::ConnectFailed(errno.desc().to_owned()),
        _ => return None,
    })
}

/// State of a connection that was begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Open,
    /// [`finish_tcp`] waits for it.
    Opening,
}

fn begin_tcp(address: SocketAddr, opening: Opening, outgoing: Outgoing) -> io::Result<(TcpStream, Begun)> {
    let tcp = TcpStream::from_std(sys::socket::connect_tcp(address, opening, outgoing)?)?;
    // Over loopback the TCP handshake is complete when connect(2) returns EINPROGRESS. Asking the kernel is cheaper
    // than a turn of the runtime and a timer.
    let is_open = address.ip().is_loopback() && tcp.peer_addr().is_ok();
    Ok((tcp, if is_open { Begun::Open } else { Begun::Opening }))
}

async fn finish_tcp(tcp: TcpStream) -> io::Result<TcpStream> {
    // epoll reports a failure together with the end of the wait: only then is the socket asked for its error.
    if tcp.ready(Interest::WRITABLE).await?.is_write_closed()
        && let Some(error) = tcp.take_error()?
    {
        return Err(error);
    }
    Ok(tcp)
}

/// Connects to a Unix socket whose queue is full: Linux returns EAGAIN at once (unix(7)), so it is tried again.
/// The connection is established when the function returns: it needs no turn of the runtime.
async fn open_unix(path: &Path) -> io::Result<UnixStream> {
    let mut wait = UNIX_BACK_OFF;
    loop {
        match sys::socket::connect_unix(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(UNIX_BACK_OFF_MAX);
            }
            result => return UnixStream::from_std(result?),
        }
    }
}

/// Connects to a tunnel's local end, which first reports whether the host has connected to the application. So
/// connecting fails if the application is down, and another backend can be tried.
async fn open_through(path: &Path, limit: Duration) -> Result<UnixStream, ConnectFault> {
    let mut unix = open_unix(path).await.map_err(|error| fault(error, limit))?;
    let ended = |_| ConnectFault::Backend(Cause::Tunnel("it ended".to_owned()));
    if unix.read_u8().await.map_err(ended)? == READY {
        return Ok(unix);
    }
    let mut why = Vec::new();
    // A reason that was cut short is reported as far as it was read.
    let _ = unix.take(LONGEST_REASON).read_to_end(&mut why).await;
    Err(ConnectFault::Backend(Cause::ConnectFailed(String::from_utf8_lossy(&why).into_owned())))
}

/// First byte from a tunnel whose host has connected to the backend. The tunnel is in `serve`, whose constant must be
/// equal.
pub const READY: u8 = b'+';

const LONGEST_REASON: u64 = 1024;

/// Returns true if all local ports towards this address are in use. With IPv6 the same error means that the machine has
/// no IPv6 address.
fn is_out_of_ports(error: &io::Error, address: SocketAddr) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable && address.is_ipv4()
}

/// Returns true if the address of a client cannot be used: that is no fault of the backend.
fn is_of_client_address(error: &io::Error, outgoing: Outgoing) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let is_of_address = matches!(
        errno,
        Some(Errno::EPERM | Errno::EINVAL | Errno::EADDRNOTAVAIL | Errno::EADDRINUSE | Errno::ENETUNREACH)
    );
    outgoing.owner == Owner::Client && is_of_address
}

/// Says of a failed connect(2) whose fault it is.
pub(crate) fn fault_of(error: io::Error, address: Option<SocketAddr>, limit: Duration) -> ConnectFault {
    match address {
        Some(address) if is_out_of_ports(&error, address) => ConnectFault::Ours(error),
        _ => fault(error, limit),
    }
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
    fn a_datagram_that_is_too_large_or_not_taken_says_nothing_of_the_backend() {
        for errno in [Errno::EMSGSIZE, Errno::EAGAIN, Errno::EINTR, Errno::EPERM, Errno::ENOBUFS] {
            assert!(udp_cause(&io::Error::from_raw_os_error(errno as i32)).is_none(), "{errno}");
        }
        for errno in [Errno::ECONNREFUSED, Errno::EHOSTUNREACH, Errno::EACCES, Errno::EPROTO] {
            assert!(udp_cause(&io::Error::from_raw_os_error(errno as i32)).is_some(), "{errno}");
        }
    }

    #[test]
    fn running_out_of_ports_is_our_want_and_missing_ipv6_is_not() {
        let error = io::Error::from_raw_os_error(Errno::EADDRNOTAVAIL as i32);
        assert!(is_out_of_ports(&error, "127.0.0.1:80".parse().unwrap()));
        assert!(!is_out_of_ports(&error, "[::1]:80".parse().unwrap()));
    }
}
