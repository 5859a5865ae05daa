//! A port of our own for frames that come from no socket: as long as it is reserved, no program gets it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

/// Any port: nothing is sent there.
const SOME_PORT: u16 = 9;

/// What the port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    Tcp,
    Udp,
}

/// Our own address and port. What comes there, the kernel throws away (TCP) or keeps in a small buffer (UDP): a RST of its own would
/// end a connection whose segments are frames.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: Socket,
    pub address: SocketAddr,
}

/// The address of ours with which packets go to `to` through an interface.
pub fn own_address(to: IpAddr, interface: &str) -> io::Result<SocketAddr> {
    let to = SocketAddr::new(to, SOME_PORT);
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.bind_device(Some(interface.as_bytes()))?;
    // Sends nothing.
    socket.connect(&to.into())?;
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Reserves a port of an own address.
pub fn reserve(own: SocketAddr, kind: PortKind) -> io::Result<ReservedPort> {
    let (socket_type, protocol) = match kind {
        PortKind::Tcp => (Type::STREAM, Protocol::TCP),
        PortKind::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(own), socket_type.nonblocking(), Some(protocol))?;
    let mut wanted = own;
    wanted.set_port(0);
    socket.bind(&wanted.into())?;
    match kind {
        PortKind::Udp => {
            // This process never reads the socket: the kernel gives the smallest buffer that it has.
            socket.set_recv_buffer_size(1)?;
        }
        PortKind::Tcp => {
            drop_what_comes(&socket, own)?;
            socket.listen(1)?;
        }
    }
    let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(ReservedPort { _socket: socket, address })
}

/// Lets the kernel throw away what comes to a TCP socket, without a word: it takes only packets that no router has passed on and
/// whose sender gave them the most hops, which servers do not do (64 is usual). A filter would need CAP_NET_ADMIN.
fn drop_what_comes(socket: &Socket, own: SocketAddr) -> io::Result<()> {
    let (level, option) = match own {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MINTTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT),
    };
    let most: libc::c_int = 255;
    let length = size_of_val(&most) as libc::socklen_t;
    // SAFETY: the kernel reads an integer of this length, which lives until the call returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const most).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// linux/in6.h
const IPV6_MINHOPCOUNT: libc::c_int = 73;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_taken_until_it_is_dropped() {
        for kind in [PortKind::Tcp, PortKind::Udp] {
            let own = "127.0.0.1:0".parse().unwrap();
            let port = reserve(own, kind).unwrap();
            let is_free = || match kind {
                PortKind::Tcp => std::net::TcpListener::bind(port.address).is_ok(),
                PortKind::Udp => std::net::UdpSocket::bind(port.address).is_ok(),
            };
            assert!(port.address.port() > 0 && !is_free(), "{kind:?}");
        }
        assert_eq!(own_address("127.0.0.1".parse().unwrap(), "lo").unwrap().ip().to_string(), "127.0.0.1");
        assert!(own_address("127.0.0.1".parse().unwrap(), "no-such-card").is_err());
    }
}
