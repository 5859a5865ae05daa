//! What is open at an address, and by which key a reload finds it again.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use config::types::{BindAddress, Listener, Transport};
use sys::packet::PacketSocket;
use sys::socket::ListenAddress;

use crate::claim::Claim;
use crate::data_path::DataPath;

/// Identifies a bound address across reloads: the same listener on the same address keeps its socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BoundKey {
    pub listener: Arc<str>,
    pub bind: BindAddress,
    pub transport: Transport,
}

impl BoundKey {
    /// Key of one address of a listener.
    pub fn new(listener: &Listener, bind: &BindAddress) -> Self {
        let transport = listener.protocol.transport();
        Self { listener: listener.name.clone(), bind: bind.clone(), transport }
    }

    /// Keys of all addresses of a listener.
    pub fn all(listener: &Listener) -> impl Iterator<Item = Self> + '_ {
        listener.binds.iter().map(|bind| Self::new(listener, bind))
    }
}

#[derive(Debug)]
pub enum Socket {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Unix(UnixListener),
    /// Not bound to its interface yet.
    Packet(PacketSocket, Box<DataPath>),
    /// Of a service whose connections and datagrams come to sockets beside this.
    Proxied(Box<DataPath>),
}

impl Socket {
    /// Number of the descriptor; `None` for what no other process takes over.
    pub fn number(&self) -> Option<RawFd> {
        match self {
            Self::Tcp(tcp) => Some(tcp.as_raw_fd()),
            Self::Udp(udp) => Some(udp.as_raw_fd()),
            Self::Unix(unix) => Some(unix.as_raw_fd()),
            Self::Packet(..) | Self::Proxied(_) => None,
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(tcp) => Self::Tcp(tcp.try_clone()?),
            Self::Udp(udp) => Self::Udp(udp.try_clone()?),
            Self::Unix(unix) => Self::Unix(unix.try_clone()?),
            // One worker has it.
            Self::Packet(..) | Self::Proxied(_) => return Err(io::ErrorKind::Unsupported.into()),
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("listener.{listener}: cannot listen on {bind}: {reason}")]
pub struct BindError {
    pub listener: Arc<str>,
    pub bind: BindAddress,
    /// Error of the kernel, and advice.
    pub reason: String,
}

/// Bound address, with sockets for every worker.
#[derive(Debug)]
pub struct Bound {
    /// Identifies the bound address across reloads.
    pub key: BoundKey,
    /// Sockets of each worker.
    pub sockets: Vec<Vec<Socket>>,
    // Declared after `sockets`, because fields are dropped in this order, and only a socket that no process has open is
    // unlinked.
    /// Data kept while the address is open.
    pub open: OpenAddress,
}

/// Data of an address that workers accept from.
#[derive(Debug)]
pub struct OpenAddress {
    /// Bound addresses, with the port that the kernel chose for port 0.
    pub addresses: Vec<ListenAddress>,
    /// Duplicate of Penstock's own Unix socket, for a listener that takes over its path.
    pub(super) shared: Option<UnixListener>,
    /// Of an address whose packets are forwarded.
    pub(super) claim: Option<Claim>,
    // Last field, because the socket above must be closed first.
    /// Path of Penstock's own Unix socket.
    pub file: Option<Arc<SocketPath>>,
}

impl OpenAddress {
    /// Bound addresses as text.
    pub fn texts(&self) -> impl Iterator<Item = String> + '_ {
        self.addresses.iter().map(|address| match address {
            ListenAddress::Packets(address) if address.port() == 0 => {
                BindAddress::EveryPort(address.ip()).to_string()
            }
            ListenAddress::Tcp(address) | ListenAddress::Udp(address) | ListenAddress::Packets(address) => {
                address.to_string()
            }
            ListenAddress::Unix(path) => format!("unix:{}", path.display()),
        })
    }

    /// Another descriptor of Penstock's own Unix socket, if it is one.
    pub fn share(&self) -> Option<io::Result<UnixListener>> {
        self.shared.as_ref().map(UnixListener::try_clone)
    }

    /// Tells whether `bind` includes an address that is bound here for the same transport.
    pub(super) fn overlaps(&self, bind: &BindAddress, transport: Transport) -> bool {
        let (ip, port) = match bind {
            BindAddress::AnyIp(port) => (IpAddr::from(Ipv6Addr::UNSPECIFIED), *port),
            BindAddress::Ip(address) => (address.ip(), address.port()),
            BindAddress::Unix(path) => {
                return self
                    .addresses
                    .iter()
                    .any(|own| matches!(own, ListenAddress::Unix(own) if own == path));
            }
            BindAddress::Systemd(_) | BindAddress::EveryPort(_) => return false,
        };
        self.addresses.iter().any(|own| match (own, transport) {
            (ListenAddress::Tcp(own), Transport::Stream) | (ListenAddress::Udp(own), Transport::Datagram) => {
                own.port() == port && (own.ip() == ip || own.ip().is_unspecified() || ip.is_unspecified())
            }
            (_, _) => false,
        })
    }
}

/// Path of Penstock's own Unix socket. Removed when the last holder drops it, unless a process still listens there:
/// close the socket first.
#[derive(Debug)]
pub struct SocketPath(pub sys::socket::SocketFile);

impl SocketPath {
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Sets the permission bits if they differ.
    pub fn set_mode(&self, mode: u32) -> io::Result<Changed> {
        let found = fs::symlink_metadata(self.path())?;
        if found.permissions().mode() & 0o7777 == mode {
            return Ok(Changed::No);
        }
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket any more"));
        }
        fs::set_permissions(self.path(), Permissions::from_mode(mode)).map(|()| Changed::Yes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Yes,
    No,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        self.0.remove_closed();
    }
}

pub(super) fn share_unix(
    key: BoundKey,
    socket: UnixListener,
    file: Arc<SocketPath>,
    workers: usize,
) -> io::Result<Bound> {
    let mut sockets = Vec::new();
    sockets.resize_with(workers, Vec::new);
    let shared = Some(socket.try_clone()?);
    share(Socket::Unix(socket), &mut sockets)?;
    let addresses = vec![ListenAddress::Unix(file.path().to_owned())];
    Ok(Bound { key, sockets, open: OpenAddress { addresses, shared, file: Some(file), claim: None } })
}

/// Gives each worker a duplicate of the socket.
pub(super) fn share(socket: Socket, workers: &mut [Vec<Socket>]) -> io::Result<()> {
    let Some((last, others)) = workers.split_last_mut() else { return Ok(()) };
    for worker in others {
        worker.push(socket.try_clone()?);
    }
    last.push(socket);
    Ok(())
}
