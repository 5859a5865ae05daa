//! Listening sockets of the workers, opened here or inherited, and the socket options of sessions.
//!
//! Every worker has its own listener on the same address (`SO_REUSEPORT`): the kernel distributes the connections among
//! them. With this option a second program of the same user could listen on the address too, without an error; so the
//! caller calls [`probe_tcp`] before the first bind of an address.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{IpBindAddressNoPort, IpTransparent};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

pub use crate::inherited::{Inherited, InheritedError, ListenAddress, inherited, listening};
pub use crate::unix_listener::{ListenUnixError, Removal, SocketFile, listen_unix, remove_stale_unix};

/// Use of an IPv6 listener by IPv4 clients. No effect on an IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DualStack {
    /// The listener accepts IPv4 clients, with IPv4-mapped addresses (`::ffff:192.0.2.1`).
    Both,
    /// The listener accepts IPv6 clients only: another listener can have the IPv4 address with the same port.
    V6Only,
}

/// Listens on `addr`, nonblocking and with close-on-exec, with every other listener that this function has made there.
/// `backlog` is the length of the queue of connections that wait for accept(2); its maximum is `net.core.somaxconn`.
pub fn listen_tcp(addr: SocketAddr, dual: DualStack, backlog: u32) -> io::Result<TcpListener> {
    let socket = bind_tcp(addr, dual, PortSharing::WithOurWorkers)?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Fails with [`io::ErrorKind::AddrInUse`] if a process listens on `addr`, even with `SO_REUSEPORT`. Connections in
/// TIME-WAIT do not matter. The probe binds the address and does not listen, so no client can connect to it.
pub fn probe_tcp(addr: SocketAddr, dual: DualStack) -> io::Result<()> {
    bind_tcp(addr, dual, PortSharing::No).map(drop)
}

/// The side that sends the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opening {
    /// Penstock sends first, and at once: the kernel delays the last packet of the TCP handshake and sends it with the
    /// first bytes, which saves each side one packet. Without first bytes, the kernel sends the packet after 200 ms.
    WeSpeak,
    /// The peer may send first.
    TheyMaySpeak,
}

/// Settings of a socket that connects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Outgoing {
    /// Local address; `None`: the kernel chooses one.
    pub source: Option<IpAddr>,
    /// Whose address that is.
    pub owner: Owner,
    /// Silence after which the kernel probes the peer. It then probes it in a third of that time each, and ends the
    /// connection after three probes without an answer.
    pub keepalive: Option<Duration>,
}

/// Whose address a local address is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Owner {
    /// One of this machine.
    #[default]
    Machine,
    /// That of a client (`IP_TRANSPARENT`), which needs CAP_NET_RAW, and routes that bring the answers here.
    Client,
}

/// Sets `IPV6_TRANSPARENT`, which nix does not have.
fn set_transparent_v6(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value lives until the call returns, with its true length.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IPV6,
            libc::IPV6_TRANSPARENT,
            (&raw const on).cast(),
            length,
        )
    };
    Errno::result(done)?;
    Ok(())
}

/// Probes without an answer after which the kernel ends a connection.
const KEEPALIVE_PROBES: u32 = 3;

impl Outgoing {
    /// Binds a socket to the local address. The kernel then chooses the port when the socket connects: the port is taken
    /// for that peer only, and not for all (ip(7), `IP_BIND_ADDRESS_NO_PORT`).
    pub(crate) fn bind(self, socket: &Socket) -> io::Result<()> {
        let Some(source) = self.source else { return Ok(()) };
        match (self.owner, source) {
            (Owner::Machine, _) => {}
            (Owner::Client, IpAddr::V4(_)) => setsockopt(socket, IpTransparent, &true)?,
            (Owner::Client, IpAddr::V6(_)) => set_transparent_v6(socket)?,
        }
        setsockopt(socket, IpBindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(source, 0).into())
    }
}

impl Outgoing {
    /// The settings for a connection to `address`. A client's address is used only where the backend can answer it: it is
    /// of the same family, and an address of the loopback interface stays on this machine.
    #[must_use]
    pub fn towards(self, address: IpAddr) -> Self {
        // A link-local address means nothing without its link; the others belong to no single machine.
        let is_usable = |source: IpAddr| match source {
            IpAddr::V4(source) => {
                !source.is_unspecified() && !source.is_multicast() && !source.is_broadcast()
            }
            IpAddr::V6(source) => {
                !source.is_unspecified() && !source.is_multicast() && !source.is_unicast_link_local()
            }
        };
        let answers = |source: IpAddr| {
            is_usable(source)
                && source.is_ipv4() == address.is_ipv4()
                && (!source.is_loopback() || address.is_loopback())
        };
        match (self.owner, self.source) {
            (Owner::Client, Some(source)) if !answers(source) => {
                Self { source: None, owner: Owner::Machine, ..self }
            }
            _ => self,
        }
    }
}

/// Fails unless this machine may use `source` as a local address.
pub fn probe_source(source: IpAddr) -> io::Result<()> {
    let addr = SocketAddr::new(source, 0);
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    Outgoing { source: Some(source), ..Outgoing::default() }.bind(&socket)
}

/// Fails unless this process may use addresses of other machines as local addresses.
pub fn probe_transparent() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    Ok(setsockopt(&socket, IpTransparent, &true)?)
}

/// Begins to connect to `addr`: nonblocking, with close-on-exec, and with `TCP_NODELAY`. The connection is established
/// when the socket is writable and has no error (connect(2), EINPROGRESS).
pub fn connect_tcp(addr: SocketAddr, opening: Opening, outgoing: Outgoing) -> io::Result<TcpStream> {
    let socket = prepare_tcp(addr, opening, outgoing)?;
    match socket.connect(&addr.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Makes the socket that [`connect_tcp`] connects.
pub fn prepare_tcp(addr: SocketAddr, opening: Opening, outgoing: Outgoing) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    outgoing.bind(&socket)?;
    if let Some(time) = outgoing.keepalive {
        let interval = (time / KEEPALIVE_PROBES).max(Duration::from_secs(1));
        let params =
            TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(KEEPALIVE_PROBES);
        socket.set_tcp_keepalive(&params)?;
    }
    if opening == Opening::WeSpeak {
        // The option applies to the handshake only: the kernel resets it when the answer to its SYN arrives.
        socket.set_tcp_quickack(false)?;
    }
    Ok(socket)
}

/// Connects to the Unix socket at `path`: nonblocking, with close-on-exec. The kernel never leaves such a connection in
/// progress: the function fails with [`io::ErrorKind::WouldBlock`] if the socket's queue is full (unix(7), EAGAIN).
pub fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Duplicates the descriptor of a listening socket, with close-on-exec: so each worker gets a Unix or inherited socket.
/// The descriptors share one queue and one set of flags. The kernel closes the socket with the last descriptor.
pub fn dup_listener<L: AsFd + From<OwnedFd>>(listener: &L) -> io::Result<L> {
    Ok(L::from(listener.as_fd().try_clone_to_owned()?))
}

/// Makes the kernel send small segments at once, without a wait for an acknowledgement (`TCP_NODELAY`).
pub fn set_nodelay(fd: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&fd).set_tcp_nodelay(true)
}

/// Makes the close of a TCP connection a reset (RST): the kernel drops unsent data, and the peer sees an error. A relay
/// calls this function when its other side has failed: after a normal close, the peer would take an incomplete stream
/// for a complete one.
pub fn set_linger_zero(fd: BorrowedFd<'_>) -> io::Result<()> {
    SockRef::from(&fd).set_linger(Some(Duration::ZERO))
}

#[derive(PartialEq, Eq)]
enum PortSharing {
    WithOurWorkers,
    No,
}

fn bind_tcp(addr: SocketAddr, dual: DualStack, sharing: PortSharing) -> io::Result<Socket> {
    // socket2 sets SOCK_CLOEXEC in the same system call.
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Without SO_REUSEADDR a restart would have to wait until no connection is in TIME-WAIT.
    socket.set_reuse_address(true)?;
    if sharing == PortSharing::WithOurWorkers {
        socket.set_reuse_port(true)?;
    }
    if addr.is_ipv6() {
        // The option is always set, because its default is a sysctl (net.ipv6.bindv6only).
        socket.set_only_v6(dual == DualStack::V6Only)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::Ipv4Addr;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn workers_share_one_address() {
        let first = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        let addr = first.local_addr().unwrap();
        let second = listen_tcp(addr, DualStack::V6Only, 16).unwrap();
        assert_eq!(second.local_addr().unwrap(), addr);
    }

    #[test]
    fn a_listener_is_nonblocking_and_closed_on_exec() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let flags = FdFlag::from_bits_retain(fcntl(&listener, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }

    #[test]
    fn the_probe_sees_a_listener_that_shares_its_port() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        let addr = listener.local_addr().unwrap();
        assert_eq!(probe_tcp(addr, DualStack::V6Only).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(listener);
        probe_tcp(addr, DualStack::V6Only).unwrap();
    }

    #[test]
    fn only_a_dual_stack_listener_hears_ipv4_clients() {
        // `::ffff:127.0.0.1`: an IPv6 socket that accepts only IPv4 clients of this machine.
        let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0));
        let both = listen_tcp(mapped, DualStack::Both, 16).unwrap();
        let port = both.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // The kernel refuses the same address to a listener for IPv6 only.
        assert!(listen_tcp(mapped, DualStack::V6Only, 16).is_err());
    }

    #[test]
    fn whoever_speaks_first_a_connection_comes_about_and_carries_bytes() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        let addr = listener.local_addr().unwrap();
        listener.set_nonblocking(false).unwrap();
        for opening in [Opening::WeSpeak, Opening::TheyMaySpeak] {
            let mut client = connect_tcp(addr, opening, Outgoing::default()).unwrap();
            assert!(client.nodelay().unwrap());
            let flags = FdFlag::from_bits_retain(fcntl(&client, FcntlArg::F_GETFD).unwrap());
            assert!(flags.contains(FdFlag::FD_CLOEXEC));
            let mut byte = [0];
            assert_eq!(client.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
            client.set_nonblocking(false).unwrap();
            client.write_all(b"a").unwrap();
            let (mut session, _) = listener.accept().unwrap();
            session.read_exact(&mut byte).unwrap();
            session.write_all(&byte).unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"a");
        }
    }

    #[test]
    fn a_connection_comes_from_its_source_and_is_probed_when_it_is_silent() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        listener.set_nonblocking(false).unwrap();
        let source = IpAddr::from([127, 0, 0, 9]);
        let keepalive = Some(Duration::from_secs(30));
        let outgoing = Outgoing { source: Some(source), keepalive, ..Outgoing::default() };
        let client = connect_tcp(listener.local_addr().unwrap(), Opening::WeSpeak, outgoing).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), source);
        let socket = SockRef::from(&client);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert!(probe_source(source).is_ok());
        let foreign = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(probe_source(foreign).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn a_clients_address_is_used_only_where_it_can_be_answered() {
        let used = |source: &str, address: &str| {
            let source = Some(source.parse().unwrap());
            let outgoing = Outgoing { source, owner: Owner::Client, keepalive: None };
            outgoing.towards(address.parse().unwrap()).source == source
        };
        assert!(used("192.0.2.1", "10.0.0.1") && used("2001:db8::1", "2001:db8::2"));
        assert!(used("127.0.0.2", "127.0.0.1") && used("::1", "::1"));
        assert!(!used("192.0.2.1", "2001:db8::2") && !used("2001:db8::1", "10.0.0.1"));
        assert!(!used("127.0.0.1", "10.0.0.1") && !used("::1", "2001:db8::2"));
        let fixed = Outgoing { source: Some([10, 0, 0, 5].into()), ..Outgoing::default() };
        assert_eq!(fixed.towards("2001:db8::2".parse().unwrap()), fixed);
    }

    #[test]
    fn an_accepted_connection_inherits_nodelay() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        set_nodelay(listener.as_fd()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listener.accept().unwrap().0.nodelay().unwrap());
    }

    #[test]
    fn a_duplicate_accepts_from_the_same_queue() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        let addr = listener.local_addr().unwrap();
        let duplicate = dup_listener(&listener).unwrap();
        drop(listener);
        duplicate.set_nonblocking(false).unwrap();
        let client = TcpStream::connect(addr).unwrap();
        let (_session, peer) = duplicate.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
    }

    #[test]
    fn linger_zero_makes_the_close_a_reset() {
        let listener = listen_tcp(LOOPBACK, DualStack::V6Only, 16).unwrap();
        listener.set_nonblocking(false).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (session, _) = listener.accept().unwrap();
        set_nodelay(session.as_fd()).unwrap();
        assert!(session.nodelay().unwrap());
        set_linger_zero(session.as_fd()).unwrap();
        drop(session);
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
