//! Listening sockets, opened by the supervisor before privileges drop or at a reload: one per worker for TCP and UDP
//! (SO_REUSEPORT), one shared by all workers for Unix sockets and sockets from systemd. A UDP socket from systemd has one
//! worker: two would have two flows for one client.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use config::types::{BindAddress, DsrSettings, Listener, Transport};
use logic::balance::hash_bytes;
use logic::dsr::{Service, path};
use sys::packet::{PacketError, PacketSocket};
use sys::socket::{DualStack, Inherited, InheritedError, ListenAddress};

use crate::claim::Claim;
use crate::data_path::{self, DataPath};

mod handed;
mod moves;
mod proxied;

pub use handed::{Handed, HandedKey};
pub use moves::moved;

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

    fn try_clone(&self) -> io::Result<Self> {
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
    shared: Option<UnixListener>,
    /// Of an address whose packets are forwarded.
    claim: Option<Claim>,
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
    fn overlaps(&self, bind: &BindAddress, transport: Transport) -> bool {
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

/// Sockets from systemd. They stay open whichever listener uses them: systemd keeps them open too, and a listener that
/// a reload removes may return with the next reload. At an upgrade also the sockets of the process before.
#[derive(Debug, Default)]
pub struct Passed {
    sockets: Vec<PassedSocket>,
    handed: Vec<Handed>,
}

#[derive(Debug)]
struct PassedSocket {
    socket: Inherited,
    asked_for: AskedFor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedFor {
    NotYet,
    Yes,
}

impl Passed {
    /// Takes over the sockets that systemd passed to this process, once.
    pub fn take() -> Result<Self, InheritedError> {
        let mut passed = Self::default();
        sys::socket::inherited()?.into_iter().for_each(|socket| passed.add(socket));
        Ok(passed)
    }

    /// Adds a socket of systemd.
    pub fn add(&mut self, socket: Inherited) {
        self.sockets.push(PassedSocket { socket, asked_for: AskedFor::NotYet });
    }

    /// The sockets of systemd, for the next process.
    pub fn sockets(&self) -> impl Iterator<Item = &Inherited> {
        self.sockets.iter().map(|passed| &passed.socket)
    }

    /// Duplicates of the passed sockets that match `bind`: all sockets of a name and transport, or one that already
    /// listens on the address. One unit may have `ListenStream=` and `ListenDatagram=`.
    fn handles(
        &mut self,
        bind: &BindAddress,
        transport: Transport,
    ) -> io::Result<Vec<(Socket, ListenAddress)>> {
        let has_transport = |socket: &Inherited| match socket.address {
            ListenAddress::Udp(_) => transport == Transport::Datagram,
            ListenAddress::Tcp(_) | ListenAddress::Unix(_) => transport == Transport::Stream,
            ListenAddress::Packets(_) => false,
        };
        let wanted = |socket: &Inherited| match bind {
            _ if !has_transport(socket) => false,
            BindAddress::Systemd(name) => socket.name == *name,
            _ => listens_on(socket, bind),
        };
        let most = if matches!(bind, BindAddress::Systemd(_)) { usize::MAX } else { 1 };
        let mut handles = Vec::new();
        for passed in self.sockets.iter_mut().filter(|passed| wanted(&passed.socket)).take(most) {
            passed.asked_for = AskedFor::Yes;
            let socket = passed.socket.socket.try_clone()?;
            let socket = match passed.socket.address {
                ListenAddress::Tcp(_) => Socket::Tcp(socket.into()),
                ListenAddress::Udp(_) => Socket::Udp(socket.into()),
                ListenAddress::Unix(_) => Socket::Unix(socket.into()),
                ListenAddress::Packets(_) => continue,
            };
            handles.push((socket, passed.socket.address.clone()));
        }
        Ok(handles)
    }

    /// Names of sockets that no listener uses.
    pub fn unused(&self) -> BTreeSet<String> {
        let left = self.sockets.iter().filter(|passed| passed.asked_for == AskedFor::NotYet);
        left.map(|passed| passed.socket.name.clone()).collect()
    }
}

fn listens_on(socket: &Inherited, bind: &BindAddress) -> bool {
    match (&socket.address, bind) {
        (ListenAddress::Tcp(address) | ListenAddress::Udp(address), BindAddress::Ip(wanted)) => {
            address == wanted
        }
        (ListenAddress::Tcp(address) | ListenAddress::Udp(address), BindAddress::AnyIp(port)) => {
            address.port() == *port && address.ip().is_unspecified()
        }
        (ListenAddress::Unix(path), BindAddress::Unix(wanted)) => path == wanted,
        _ => false,
    }
}

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

fn share_unix(
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
fn share(socket: Socket, workers: &mut [Vec<Socket>]) -> io::Result<()> {
    let Some((last, others)) = workers.split_last_mut() else { return Ok(()) };
    for worker in others {
        worker.push(socket.try_clone()?);
    }
    last.push(socket);
    Ok(())
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
