//! Listening sockets, opened by the supervisor before privileges drop or at a reload: one per worker for TCP and UDP
//! (SO_REUSEPORT), one shared by all workers for Unix sockets and sockets from systemd. A UDP socket from systemd has one
//! worker: two would have two flows for one client.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use config::types::{BindAddress, DsrSettings, Listener, Transport};
use logic::balance::hash_bytes;
use logic::dsr::{Service, path};
use sys::packet::{PacketError, PacketSocket};
use sys::socket::{DualStack, ListenAddress};

use crate::claim::Claim;
use crate::data_path;

mod bound;
mod handed;
mod moves;
mod proxied;

pub use bound::{BindError, Bound, BoundKey, Changed, OpenAddress, Socket, SocketPath};
pub use handed::{Handed, HandedKey, Passed};
pub use moves::moved;

use bound::{share, share_unix};

/// Expected owner of an address when it is opened.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'a> {
    /// No process: another process that listens there is an error.
    NoProcess,
    /// This process, for a listener that a reload is about to replace.
    Ourselves(&'a OpenAddress),
}

impl<'a> Holder<'a> {
    /// Owner of an address among the open ones.
    pub fn of(key: &BoundKey, mut open: impl Iterator<Item = &'a OpenAddress>) -> Self {
        open.find(|open| open.overlaps(&key.bind, key.transport)).map_or(Self::NoProcess, Self::Ourselves)
    }
}

/// Opens one address of a listener for `workers` workers.
pub fn open(
    listener: &Listener,
    bind: &BindAddress,
    holder: Holder<'_>,
    workers: usize,
    passed: &mut Passed,
) -> Result<Bound, BindError> {
    let fail = |reason: String| BindError { listener: listener.name.clone(), bind: bind.clone(), reason };
    let key = BoundKey::new(listener, bind);
    let transport = key.transport;
    if let Some(settings) = listener.dsr() {
        return open_service(key, settings, holder, workers).map_err(fail);
    }
    let handles = passed.handles(bind, transport).map_err(|error| fail(error.to_string()))?;
    if !handles.is_empty() {
        return match transport {
            Transport::Stream => share_passed(key, handles, workers).map_err(|error| fail(error.to_string())),
            Transport::Datagram | Transport::Packet => Ok(distribute_passed(key, handles, workers)),
        };
    }
    if let Some(handed) = passed.handed(&key) {
        let adopted = handed::adopt(&key, handed, listener.backlog, workers);
        if let Some(bound) = adopted.map_err(|error| fail(format!("cannot be taken over: {error}")))? {
            return Ok(bound);
        }
    }
    if let BindAddress::Systemd(name) = bind {
        let (kind, setting) = match transport {
            Transport::Stream => ("socket", "ListenStream="),
            Transport::Datagram | Transport::Packet => ("UDP socket", "ListenDatagram="),
        };
        return Err(fail(format!(
            "systemd passed no {kind} named \"{name}\"; the socket unit needs FileDescriptorName={name} and {setting}"
        )));
    }
    if transport == Transport::Datagram {
        return open_datagram(key, bind, holder, workers)
            .map_err(|error| fail(explain(&error, holder, transport)));
    }
    match bind {
        // Returned above.
        BindAddress::Systemd(_) | BindAddress::EveryPort(_) => {
            Err(fail(io::Error::from(io::ErrorKind::Unsupported).to_string()))
        }
        BindAddress::AnyIp(port) => open_any(key, *port, listener.backlog, holder, workers)
            .map_err(|error| fail(explain(&error, holder, transport))),
        BindAddress::Ip(address) => {
            open_tcp(key, *address, DualStack::V6Only, listener.backlog, holder, workers)
                .map_err(|error| fail(explain(&error, holder, transport)))
        }
        BindAddress::Unix(path) => match holder {
            Holder::Ourselves(OpenAddress { shared: Some(socket), file: Some(file), .. }) => {
                let handle = socket.try_clone().map_err(|error| fail(error.to_string()))?;
                share_unix(key, handle, file.clone(), workers).map_err(|error| fail(error.to_string()))
            }
            _ => {
                let (socket, file) = sys::socket::listen_unix(path, listener.unix_mode)
                    .map_err(|error| fail(error.to_string()))?;
                let file = Arc::new(SocketPath(file));
                share_unix(key, socket, file, workers).map_err(|error| fail(error.to_string()))
            }
        },
    }
}

const IS_OURS: &str = "this machine has the address, so the kernel would answer the clients itself; `ip address` shows where: \
                       remove it, or name another one; or data-path = \"proxy\", which forwards no packet";

/// Opens the sockets of a service.
fn open_service(
    key: BoundKey,
    settings: &DsrSettings,
    holder: Holder<'_>,
    workers: usize,
) -> Result<Bound, String> {
    if settings.data_path == path::DataPath::Proxy {
        return proxied::open(key, settings, None, holder, workers);
    }
    match PacketSocket::new() {
        Ok(socket) => open_packets(key, settings, socket, workers),
        Err(error @ (PacketError::NotPermitted(_) | PacketError::NoFamily(_)))
            if settings.data_path == path::DataPath::Auto =>
        {
            proxied::open(key, settings, Some(&error.to_string()), holder, workers)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Opens the socket of a service, for one worker: flows and fragments of a service are known in one place. The worker
/// follows the interface, which may come and go; here it is only checked.
fn open_packets(
    key: BoundKey,
    settings: &DsrSettings,
    socket: PacketSocket,
    workers: usize,
) -> Result<Bound, String> {
    // `config` allows only these.
    let Some(vip) = key.bind.vip() else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).to_string());
    };
    if matches!(sys::datagram::is_local(vip), Ok(true)) {
        return Err(IS_OURS.to_owned());
    }
    let claim = Claim::new(&settings.interface, vip, settings.transports)?;
    let service = Service { vip: vip.ip(), port: vip.port(), transports: settings.transports };
    // The worker lets packets of the service in, if they are its task.
    let interface =
        socket.bind(&settings.interface, &questions(&service)).map_err(|error| error.to_string())?;
    let found = data_path::open(&key.listener, vip, settings, interface.index)?;
    let mut sockets = Vec::new();
    sockets.resize_with(workers, Vec::new);
    if let Some(worker) = sockets.get_mut(worker_of(&key, vip, workers)) {
        worker.push(Socket::Packet(socket, Box::new(found)));
    }
    let open = OpenAddress {
        addresses: vec![ListenAddress::Packets(vip)],
        shared: None,
        file: None,
        claim: Some(claim),
    };
    Ok(Bound { key, sockets, open })
}

/// Services are spread over the workers.
fn worker_of(key: &BoundKey, vip: SocketAddr, workers: usize) -> usize {
    (hash_bytes(0, format!("{} {vip}", key.listener).as_bytes()) % workers.max(1) as u64) as usize
}

/// A filter, as the kernel takes it.
pub fn instructions(filter: Vec<logic::dsr::filter::Instruction>) -> Vec<sys::packet::Instruction> {
    filter.into_iter().map(|one| (one.code, one.jt, one.jf, one.k)).collect()
}

/// The filter of a service, as the kernel takes it.
pub fn filter(service: &Service) -> Vec<sys::packet::Instruction> {
    let all = logic::dsr::filter::program(service).into_iter();
    all.map(|one| (one.code, one.jt, one.jf, one.k)).collect()
}

/// The filter of a service whose packets stay in the kernel.
pub fn questions(service: &Service) -> Vec<sys::packet::Instruction> {
    let all = logic::dsr::filter::questions(service).into_iter();
    all.map(|one| (one.code, one.jt, one.jf, one.k)).collect()
}

/// The same, and packets to it that are too long for the tunnels to its backends.
pub fn questions_and_long(service: &Service, room: u16, most: u16) -> Vec<sys::packet::Instruction> {
    let all = logic::dsr::filter::questions_and_long(service, room, most).into_iter();
    all.map(|one| (one.code, one.jt, one.jf, one.k)).collect()
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc_codes::EAFNOSUPPORT | libc_codes::EADDRNOTAVAIL))
}

fn open_any(key: BoundKey, port: u16, backlog: u32, holder: Holder<'_>, workers: usize) -> io::Result<Bound> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open_tcp(key.clone(), both, DualStack::Both, backlog, holder, workers) {
        Err(error) if is_without_ipv6(&error) => {
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            open_tcp(key, v4, DualStack::V6Only, backlog, holder, workers)
        }
        other => other,
    }
}

/// `config` allows only addresses with a port.
fn open_datagram(key: BoundKey, bind: &BindAddress, holder: Holder<'_>, workers: usize) -> io::Result<Bound> {
    match bind {
        BindAddress::AnyIp(port) => {
            let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port));
            match open_udp(key.clone(), both, DualStack::Both, holder, workers) {
                Err(error) if is_without_ipv6(&error) => {
                    let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port));
                    open_udp(key, v4, DualStack::V6Only, holder, workers)
                }
                other => other,
            }
        }
        BindAddress::Ip(address) => open_udp(key, *address, DualStack::V6Only, holder, workers),
        BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

fn open_udp(
    key: BoundKey,
    address: SocketAddr,
    dual: DualStack,
    holder: Holder<'_>,
    workers: usize,
) -> io::Result<Bound> {
    if matches!(holder, Holder::NoProcess) {
        // SO_REUSEPORT would let another Penstock process share the port silently.
        sys::datagram::probe_udp(address, dual)?;
    }
    let first = sys::datagram::listen_udp(address, dual)?;
    let address = first.local_addr()?;
    let mut sockets = vec![vec![Socket::Udp(first)]];
    while sockets.len() < workers {
        sockets.push(vec![Socket::Udp(sys::datagram::listen_udp(address, dual)?)]);
    }
    let open =
        OpenAddress { addresses: vec![ListenAddress::Udp(address)], shared: None, file: None, claim: None };
    Ok(Bound { key, sockets, open })
}

fn open_tcp(
    key: BoundKey,
    address: SocketAddr,
    dual: DualStack,
    backlog: u32,
    holder: Holder<'_>,
    workers: usize,
) -> io::Result<Bound> {
    if matches!(holder, Holder::NoProcess) {
        // SO_REUSEPORT would let another Penstock process share the port silently.
        sys::socket::probe_tcp(address, dual)?;
    }
    let first = sys::socket::listen_tcp(address, dual, backlog)?;
    // The kernel chooses the port for port 0 with the first socket; the others use the same port.
    let address = first.local_addr()?;
    let mut sockets = vec![vec![Socket::Tcp(first)]];
    while sockets.len() < workers {
        sockets.push(vec![Socket::Tcp(sys::socket::listen_tcp(address, dual, backlog)?)]);
    }
    let open =
        OpenAddress { addresses: vec![ListenAddress::Tcp(address)], shared: None, file: None, claim: None };
    Ok(Bound { key, sockets, open })
}

fn share_passed(key: BoundKey, passed: Vec<(Socket, ListenAddress)>, workers: usize) -> io::Result<Bound> {
    let mut sockets = Vec::new();
    sockets.resize_with(workers, Vec::new);
    let mut addresses = Vec::new();
    for (socket, address) in passed {
        share(socket, &mut sockets)?;
        addresses.push(address);
    }
    Ok(Bound { key, sockets, open: OpenAddress { addresses, shared: None, file: None, claim: None } })
}

/// Gives each socket to one worker.
fn distribute_passed(key: BoundKey, passed: Vec<(Socket, ListenAddress)>, workers: usize) -> Bound {
    let mut sockets = Vec::new();
    sockets.resize_with(workers.max(1), Vec::new);
    let mut addresses = Vec::new();
    for (at, (socket, address)) in passed.into_iter().enumerate() {
        sockets[at % workers.max(1)].push(socket);
        addresses.push(address);
    }
    Bound { key, sockets, open: OpenAddress { addresses, shared: None, file: None, claim: None } }
}

/// Says of a failed bind what an operator can do.
pub fn explain(error: &io::Error, holder: Holder<'_>, transport: Transport) -> String {
    match (error.kind(), holder) {
        // SO_REUSEPORT works only between sockets of one user.
        (io::ErrorKind::AddrInUse, Holder::Ourselves(_)) => format!(
            "{error}: this process holds that port itself, from before it became another user; it can change hands at the next start"
        ),
        (io::ErrorKind::AddrInUse, Holder::NoProcess) => {
            let sockets = match transport {
                Transport::Stream => "ss -ltnp",
                Transport::Datagram => "ss -lunp",
                Transport::Packet => "ss -0p",
            };
            format!("{error}; `{sockets}` shows which program holds it")
        }
        (io::ErrorKind::PermissionDenied, _) => format!(
            "{error}; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE (packaging/penstock.service grants it)"
        ),
        _ if sys::descriptors::are_exhausted(error) => {
            format!("{error}: raise LimitNOFILE= of the service, or ulimit -n of the shell")
        }
        (io::ErrorKind::AddrNotAvailable, _) => {
            format!("{error}; `ip address` shows the addresses of this machine")
        }
        _ => error.to_string(),
    }
}

/// Numbers of errno(3) that std does not name.
mod libc_codes {
    pub(super) const EAFNOSUPPORT: i32 = nix::errno::Errno::EAFNOSUPPORT as i32;
    pub(super) const EADDRNOTAVAIL: i32 = nix::errno::Errno::EADDRNOTAVAIL as i32;
}
