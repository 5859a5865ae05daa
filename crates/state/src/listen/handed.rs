//! Listening sockets that systemd passes to this process, or at an upgrade the process before: their queues go on, so no client
//! notices.

use std::collections::BTreeSet;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use config::types::{BindAddress, Transport};
use sys::socket::{DualStack, Inherited, InheritedError, ListenAddress, SocketFile};

use super::bound::{Bound, BoundKey, OpenAddress, Socket, SocketPath, share_unix};

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
    pub(super) fn handles(
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

/// What identifies an address in both processes, whose versions may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedKey {
    pub listener: String,
    /// As the configuration writes it.
    pub bind: String,
    /// `stream` or `datagram`.
    pub transport: String,
}

/// The sockets of one address.
#[derive(Debug)]
pub struct Handed {
    pub key: HandedKey,
    /// One per worker of the process before, or several of one socket.
    pub sockets: Vec<OwnedFd>,
    /// Path of a Unix socket, with device and inode of its file.
    pub file: Option<(String, (u64, u64))>,
}

impl HandedKey {
    pub fn of(key: &BoundKey) -> Self {
        let transport = match key.transport {
            Transport::Stream => "stream",
            Transport::Datagram => "datagram",
            Transport::Packet => "packet",
        };
        Self {
            listener: key.listener.to_string(),
            bind: key.bind.to_string(),
            transport: transport.to_owned(),
        }
    }
}

impl Handed {
    /// Whether these sockets are bound where `key` is to be, also if their listener had another name.
    fn is_bound_at(&self, key: &BoundKey) -> bool {
        let has_address = |socket: &OwnedFd| match (sys::socket::listening(socket), key.transport) {
            (Ok(Some(ListenAddress::Tcp(own))), Transport::Stream)
            | (Ok(Some(ListenAddress::Udp(own))), Transport::Datagram) => match key.bind {
                BindAddress::Ip(wanted) => own == wanted,
                BindAddress::AnyIp(port) => own.port() == port && own.ip().is_unspecified(),
                _ => false,
            },
            _ => false,
        };
        match (&key.bind, &self.file) {
            (BindAddress::Unix(wanted), Some((path, _))) => Path::new(path) == wanted,
            _ => self.sockets.first().is_some_and(has_address),
        }
    }
}

impl Passed {
    /// Adds sockets that the process before passes on.
    pub fn hand(&mut self, handed: Handed) {
        self.handed.push(handed);
    }

    /// Takes the sockets for `key` out: those of the listener with the same name, or else those with the same address.
    pub(super) fn handed(&mut self, key: &BoundKey) -> Option<Handed> {
        let wanted = HandedKey::of(key);
        let all = &self.handed;
        let at = all.iter().position(|one| one.key == wanted);
        let at = at.or_else(|| all.iter().position(|one| one.is_bound_at(key)))?;
        Some(self.handed.remove(at))
    }

    /// Closes those that no listener has taken.
    pub fn drop_handed(&mut self) {
        self.handed.clear();
    }
}

/// Gives the workers the sockets of the process before. `None` if they cannot be used: the address is opened anew then.
pub(super) fn adopt(
    key: &BoundKey,
    handed: Handed,
    backlog: u32,
    workers: usize,
) -> io::Result<Option<Bound>> {
    let mut all = Vec::new();
    for socket in handed.sockets {
        let socket = match (sys::socket::listening(&socket)?, key.transport) {
            (Some(ListenAddress::Tcp(_)), Transport::Stream) => Socket::Tcp(TcpListener::from(socket)),
            (Some(ListenAddress::Udp(_)), Transport::Datagram) => Socket::Udp(UdpSocket::from(socket)),
            (Some(ListenAddress::Unix(_)), Transport::Stream) => Socket::Unix(UnixListener::from(socket)),
            _ => return Ok(None),
        };
        all.push(socket);
    }
    let key = key.clone();
    match (all.first(), &handed.file) {
        (Some(Socket::Unix(socket)), Some((path, identity))) => {
            let Some(file) = SocketFile::passed_on(Path::new(path), *identity) else { return Ok(None) };
            let socket = socket.try_clone()?;
            share_unix(key, socket, Arc::new(SocketPath(file)), workers).map(Some)
        }
        (Some(Socket::Tcp(_) | Socket::Udp(_)), _) => distribute(key, all, backlog, workers).map(Some),
        _ => Ok(None),
    }
}

/// Each socket has a queue of its own, so each gets a worker: one worker may have several.
fn distribute(key: BoundKey, all: Vec<Socket>, backlog: u32, workers: usize) -> io::Result<Bound> {
    let workers = workers.max(1);
    let address = match all.first() {
        Some(Socket::Tcp(socket)) => ListenAddress::Tcp(socket.local_addr()?),
        Some(Socket::Udp(socket)) => ListenAddress::Udp(socket.local_addr()?),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let mut sockets: Vec<Vec<Socket>> = Vec::new();
    sockets.resize_with(workers, Vec::new);
    let count = all.len();
    for (at, socket) in all.into_iter().enumerate() {
        sockets[at % workers].push(socket);
    }
    let dual = if matches!(key.bind, BindAddress::AnyIp(_)) { DualStack::Both } else { DualStack::V6Only };
    for at in count..workers {
        let further = match &address {
            ListenAddress::Tcp(address) => match sys::socket::listen_tcp(*address, dual, backlog) {
                Ok(socket) => Some(Socket::Tcp(socket)),
                // Another user opened the first one: all workers may accept from it.
                Err(_) => Some(sockets[at % count][0].try_clone()?),
            },
            ListenAddress::Udp(address) => sys::datagram::listen_udp(*address, dual).ok().map(Socket::Udp),
            ListenAddress::Packets(_) | ListenAddress::Unix(_) => None,
        };
        sockets[at].extend(further);
    }
    let open = OpenAddress { addresses: vec![address], shared: None, file: None, claim: None };
    Ok(Bound { key, sockets, open })
}

impl OpenAddress {
    /// Path of a Unix socket of ours, with device and inode of its file, for the next process.
    pub fn socket_file(&self) -> Option<(String, (u64, u64))> {
        let file = self.file.as_ref()?;
        Some((file.path().to_str()?.to_owned(), file.0.identity()?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn key(listener: &str, bind: SocketAddr, transport: Transport) -> BoundKey {
        BoundKey { listener: listener.into(), bind: BindAddress::Ip(bind), transport }
    }

    fn listeners(count: usize) -> (SocketAddr, Vec<OwnedFd>) {
        let any = "127.0.0.1:0".parse().unwrap();
        let first = sys::socket::listen_tcp(any, DualStack::V6Only, 16).unwrap();
        let address = first.local_addr().unwrap();
        let further = (1..count).map(|_| sys::socket::listen_tcp(address, DualStack::V6Only, 16).unwrap());
        let further: Vec<_> = further.collect();
        (address, std::iter::once(first).chain(further).map(OwnedFd::from).collect())
    }

    #[test]
    fn sockets_are_found_by_the_name_of_their_listener_or_by_their_address() {
        let any = "127.0.0.1:0".parse().unwrap();
        let mut passed = Passed::default();
        let (address, sockets) = listeners(1);
        let named = HandedKey::of(&key("web", any, Transport::Stream));
        passed.hand(Handed { key: named, sockets, file: None });
        assert!(passed.handed(&key("other", any, Transport::Stream)).is_none());
        assert!(passed.handed(&key("web", address, Transport::Datagram)).is_none());
        let taken = passed.handed(&key("renamed", address, Transport::Stream)).unwrap();
        passed.hand(taken);
        assert!(passed.handed(&key("web", any, Transport::Stream)).is_some());
        assert!(passed.handed(&key("web", any, Transport::Stream)).is_none(), "it is taken");
    }

    #[test]
    fn every_queue_has_a_worker_and_every_worker_a_queue() {
        for (count, workers, expected) in [(3, 2, vec![2, 1]), (2, 2, vec![1, 1]), (1, 3, vec![1, 1, 1])] {
            let (address, sockets) = listeners(count);
            let key = key("web", address, Transport::Stream);
            let handed = Handed { key: HandedKey::of(&key), sockets, file: None };
            let bound = adopt(&key, handed, 16, workers).unwrap().unwrap();
            assert_eq!(bound.sockets.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            assert_eq!(bound.open.addresses, [ListenAddress::Tcp(address)]);
        }
    }

    #[test]
    fn what_does_not_listen_is_not_used() {
        let (address, _) = listeners(1);
        let key = key("web", address, Transport::Stream);
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let handed = Handed { key: HandedKey::of(&key), sockets: vec![file], file: None };
        assert!(adopt(&key, handed, 16, 1).is_err());
        let datagrams = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        let handed = Handed { key: HandedKey::of(&key), sockets: vec![datagrams], file: None };
        assert!(adopt(&key, handed, 16, 1).unwrap().is_none());
    }
}
