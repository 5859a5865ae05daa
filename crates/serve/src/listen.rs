//! Sockets to accept from: made by the supervisor before privileges drop or at a reload, one per worker for TCP
//! (SO_REUSEPORT), one shared by all workers for Unix sockets and those that systemd passes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use config::types::{BindAddress, Listener};
use sys::socket::{DualStack, Inherited, InheritedError, ListenAddress};

/// Waiting connections per socket; the kernel cuts it to net.core.somaxconn.
const BACKLOG: u32 = 4096;

/// Names a bound address across reloads: the same listener on the same address keeps its socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BoundKey {
    /// NAME of the listener.
    pub listener: Arc<str>,
    /// Address as configured.
    pub bind: BindAddress,
}

/// A socket to accept from.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixListener),
}

impl Socket {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(tcp) => Self::Tcp(tcp.try_clone()?),
            Self::Unix(unix) => Self::Unix(unix.try_clone()?),
        })
    }
}

/// An address that could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("listener.{listener}: cannot listen on {bind}: {reason}")]
pub struct BindError {
    /// NAME of the listener.
    pub listener: Arc<str>,
    /// Address as configured.
    pub bind: BindAddress,
    /// What the system said and what to do.
    pub reason: String,
}

/// A bound address: a socket for every worker.
#[derive(Debug)]
pub struct Bound {
    /// What it is called across reloads.
    pub key: BoundKey,
    /// For each worker its own.
    pub sockets: Vec<Vec<Socket>>,
    /// The addresses really bound, as text.
    pub addresses: Vec<String>,
    /// Path to unlink when it is given up.
    pub path: Option<PathBuf>,
}

/// Sockets that systemd passed and that no listener has taken.
#[derive(Debug, Default)]
pub struct Passed(HashMap<String, Vec<Inherited>>);

impl Passed {
    /// Takes over what systemd passed to this process, once.
    pub fn take() -> Result<Self, InheritedError> {
        let mut by_name: HashMap<String, Vec<Inherited>> = HashMap::new();
        for socket in sys::socket::inherited()? {
            by_name.entry(socket.name.clone()).or_default().push(socket);
        }
        Ok(Self(by_name))
    }

    fn named(&mut self, name: &str) -> Vec<Inherited> {
        self.0.remove(name).unwrap_or_default()
    }

    /// A passed socket that already listens on this address, if any.
    fn at(&mut self, bind: &BindAddress) -> Option<Inherited> {
        for sockets in self.0.values_mut() {
            if let Some(at) = sockets.iter().position(|socket| listens_on(socket, bind)) {
                return Some(sockets.remove(at));
            }
        }
        None
    }

    /// Names of sockets that nobody took.
    pub fn left(&self) -> Vec<String> {
        self.0.iter().filter(|(_, sockets)| !sockets.is_empty()).map(|(name, _)| name.clone()).collect()
    }
}

fn listens_on(socket: &Inherited, bind: &BindAddress) -> bool {
    match (&socket.address, bind) {
        (ListenAddress::Tcp(address), BindAddress::Ip(wanted)) => address == wanted,
        (ListenAddress::Tcp(address), BindAddress::AnyIp(port)) => {
            address.port() == *port && address.ip().is_unspecified()
        }
        (ListenAddress::Unix(path), BindAddress::Unix(wanted)) => path == wanted,
        _ => false,
    }
}

/// Who may hold an address at the moment when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody: anything that listens there is an error.
    Nobody,
    /// Another listener of this process, which a reload is about to replace.
    Ourselves,
}

/// Listens on one address of a listener, for `workers` workers.
pub fn open(
    listener: &Listener,
    bind: &BindAddress,
    holder: Holder,
    workers: usize,
    passed: &mut Passed,
) -> Result<Bound, BindError> {
    let fail = |reason: String| BindError { listener: listener.name.clone(), bind: bind.clone(), reason };
    let key = BoundKey { listener: listener.name.clone(), bind: bind.clone() };
    if let BindAddress::Systemd(name) = bind {
        let sockets = passed.named(name);
        if sockets.is_empty() {
            return Err(fail(format!(
                "systemd passed no socket named \"{name}\"; the socket unit needs FileDescriptorName={name}"
            )));
        }
        return share(key, sockets, workers).map_err(|error| fail(error.to_string()));
    }
    if let Some(socket) = passed.at(bind) {
        return share(key, vec![socket], workers).map_err(|error| fail(error.to_string()));
    }
    match bind {
        BindAddress::AnyIp(port) => {
            open_any(key, *port, holder, workers).map_err(|error| fail(explain(&error)))
        }
        BindAddress::Ip(address) => {
            open_tcp(key, *address, DualStack::V6Only, holder, workers).map_err(|error| fail(explain(&error)))
        }
        BindAddress::Unix(path) => {
            let socket = sys::socket::listen_unix(path, listener.unix_mode)
                .map_err(|error| fail(error.to_string()))?;
            share_one(
                key,
                Socket::Unix(socket),
                format!("unix:{}", path.display()),
                workers,
                Some(path.clone()),
            )
            .map_err(|error| fail(error.to_string()))
        }
        BindAddress::Systemd(_) => Err(fail("not reached: handled above".to_owned())),
    }
}

fn open_any(key: BoundKey, port: u16, holder: Holder, workers: usize) -> io::Result<Bound> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open_tcp(key.clone(), both, DualStack::Both, holder, workers) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc_codes::EAFNOSUPPORT | libc_codes::EADDRNOTAVAIL)) =>
        {
            open_tcp(key, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), DualStack::V6Only, holder, workers)
        }
        other => other,
    }
}

fn open_tcp(
    key: BoundKey,
    address: SocketAddr,
    dual: DualStack,
    holder: Holder,
    workers: usize,
) -> io::Result<Bound> {
    if holder == Holder::Nobody {
        // Our sockets share their port among the workers, so another process of ours would silently share it too.
        sys::socket::probe_tcp(address, dual)?;
    }
    let first = sys::socket::listen_tcp(address, dual, BACKLOG)?;
    // Port 0 is settled by the first socket; the others join it.
    let address = first.local_addr()?;
    let mut sockets = vec![vec![Socket::Tcp(first)]];
    while sockets.len() < workers {
        sockets.push(vec![Socket::Tcp(sys::socket::listen_tcp(address, dual, BACKLOG)?)]);
    }
    Ok(Bound { key, sockets, addresses: vec![address.to_string()], path: None })
}

fn share(key: BoundKey, passed: Vec<Inherited>, workers: usize) -> io::Result<Bound> {
    let mut all = Bound { key: key.clone(), sockets: Vec::new(), addresses: Vec::new(), path: None };
    all.sockets.resize_with(workers, Vec::new);
    for socket in passed {
        let (socket, address) = match socket.address {
            ListenAddress::Tcp(address) => (Socket::Tcp(socket.socket.into()), address.to_string()),
            ListenAddress::Unix(path) => {
                (Socket::Unix(socket.socket.into()), format!("unix:{}", path.display()))
            }
        };
        let bound = share_one(key.clone(), socket, address, workers, None)?;
        for (mine, theirs) in all.sockets.iter_mut().zip(bound.sockets) {
            mine.extend(theirs);
        }
        all.addresses.extend(bound.addresses);
    }
    Ok(all)
}

fn share_one(
    key: BoundKey,
    socket: Socket,
    address: String,
    workers: usize,
    path: Option<PathBuf>,
) -> io::Result<Bound> {
    let mut sockets = Vec::with_capacity(workers);
    for _ in 1..workers {
        sockets.push(vec![socket.try_clone()?]);
    }
    sockets.push(vec![socket]);
    Ok(Bound { key, sockets, addresses: vec![address], path })
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("{error}; `ss -ltnp` shows which program holds it"),
        io::ErrorKind::PermissionDenied => format!(
            "{error}; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE (packaging/penstock.service grants it)"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!("{error}; `ip address` shows the addresses of this machine")
        }
        _ => error.to_string(),
    }
}

/// Numbers of errno(3) that std has no name for.
mod libc_codes {
    pub(super) const EAFNOSUPPORT: i32 = nix::errno::Errno::EAFNOSUPPORT as i32;
    pub(super) const EADDRNOTAVAIL: i32 = nix::errno::Errno::EADDRNOTAVAIL as i32;
}
