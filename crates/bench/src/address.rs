//! Listening addresses, written `127.0.0.1:80`, `udp:127.0.0.1:53`, `unix:/path`, `seqpacket:/path` or `abstract:name`.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Address {
    Tcp(SocketAddr),
    Udp(SocketAddr),
    Unix(PathBuf),
    /// Unix SOCK_SEQPACKET socket with a path.
    Seqpacket(PathBuf),
    /// Unix stream socket with a name in the abstract namespace (unix(7)).
    Abstract(String),
}

impl Address {
    /// Connects and blocks until connected. TCP sockets get TCP_NODELAY, as in every proxy.
    pub fn connect(&self) -> io::Result<Socket> {
        let socket = self.socket()?;
        socket.connect(&self.raw()?)?;
        self.tune(&socket)?;
        Ok(socket)
    }

    /// Whether a program takes clients at this address.
    pub fn is_served(&self) -> bool {
        match self {
            // A datagram would be work for the program.
            Address::Udp(address) => is_bound_udp(*address).unwrap_or(false),
            _ => self.connect().is_ok(),
        }
    }

    /// Listens. Port 0 selects a free port: see [`Address::of`].
    pub fn listen(&self) -> io::Result<Socket> {
        let socket = self.socket()?;
        if let Address::Tcp(_) = self {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&self.raw()?)?;
        match self {
            Address::Udp(_) => {}
            _ => socket.listen(1024)?,
        }
        Ok(socket)
    }

    /// Returns the actual address of `listener`, with the port that the kernel selected.
    pub fn of(&self, listener: &Socket) -> io::Result<Address> {
        let bound = || {
            let address = listener.local_addr()?.as_socket();
            address.ok_or_else(|| io::Error::other("a socket of IP without an address"))
        };
        match self {
            Address::Tcp(_) => bound().map(Address::Tcp),
            Address::Udp(_) => bound().map(Address::Udp),
            other => Ok(other.clone()),
        }
    }

    /// Sets the options of an accepted or connected socket.
    pub fn tune(&self, socket: &Socket) -> io::Result<()> {
        match self {
            Address::Tcp(_) => socket.set_tcp_nodelay(true),
            _ => Ok(()),
        }
    }

    fn socket(&self) -> io::Result<Socket> {
        match self {
            Address::Tcp(address) => Socket::new(Domain::for_address(*address), Type::STREAM, None),
            Address::Udp(address) => Socket::new(Domain::for_address(*address), Type::DGRAM, None),
            Address::Unix(_) | Address::Abstract(_) => Socket::new(Domain::UNIX, Type::STREAM, None),
            Address::Seqpacket(_) => Socket::new(Domain::UNIX, Type::SEQPACKET, None),
        }
    }

    fn raw(&self) -> io::Result<SockAddr> {
        match self {
            Address::Tcp(address) | Address::Udp(address) => Ok((*address).into()),
            Address::Unix(path) | Address::Seqpacket(path) => SockAddr::unix(path),
            Address::Abstract(name) => SockAddr::unix(format!("\0{name}")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Udp(address) => write!(f, "udp:{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Seqpacket(path) => write!(f, "seqpacket:{}", path.display()),
            Address::Abstract(name) => write!(f, "abstract:{name}"),
        }
    }
}

/// Looks for a socket on exactly this IPv4 address in the kernel's table (proc(5), `/proc/net/udp`).
fn is_bound_udp(address: SocketAddr) -> io::Result<bool> {
    let IpAddr::V4(ip) = address.ip() else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "no table of IPv6 sockets is read"));
    };
    // The four bytes of the address are shown as one number in the machine's own order.
    let shown = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port());
    let table = fs::read_to_string("/proc/net/udp")?;
    Ok(table.lines().filter_map(|line| line.split_whitespace().nth(1)).any(|local| local == shown))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_kind_of_address_carries_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let addresses = [
            Address::Tcp("127.0.0.1:0".parse().unwrap()),
            Address::Unix(directory.path().join("s")),
            Address::Seqpacket(directory.path().join("p")),
            Address::Abstract(format!("penstock-test-{}", std::process::id())),
        ];
        for wanted in addresses {
            let listener = wanted.listen().unwrap();
            let address = wanted.of(&listener).unwrap();
            let mut client = address.connect().unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"hello").unwrap();
            let mut buffer = [0; 5];
            server.read_exact(&mut buffer).unwrap();
            assert_eq!(&buffer, b"hello", "{address}");
        }
    }

    #[test]
    fn an_address_of_udp_is_served_while_a_socket_is_bound_to_it() {
        let wanted = Address::Udp("127.0.0.1:0".parse().unwrap());
        let socket = wanted.listen().unwrap();
        let address = wanted.of(&socket).unwrap();
        assert!(address.is_served() && address.connect().is_ok(), "{address}");
        drop(socket);
        // A process that another test starts holds the socket until its exec.
        let start = Instant::now();
        while address.is_served() {
            assert!(start.elapsed() < Duration::from_secs(60), "{address}");
        }
    }
}
