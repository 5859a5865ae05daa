//! UDP sockets, and batches of datagrams: one system call receives or sends up to [`SLOTS`] of them (recvmmsg(2),
//! sendmmsg(2); recv(2) and send(2) where one is enough), and datagrams of one size for one receiver pass the kernel together (UDP_SEGMENT, udp(7)).
//!
//! A batch (`crates/sys/src/datagram/batch.rs`) has its memory once and for all, and a datagram stays in the slot into
//! which it was received: a relay sends it from there. A socket that is bound to every address tells to which address a
//! datagram was sent, and sends from the address that it is told (`IP_PKTINFO`, `IPV6_PKTINFO`,
//! `crates/sys/src/datagram/control.rs`): a client accepts replies from that address only.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::socket::{DualStack, Outgoing};

mod batch;
mod call;
mod control;

pub use batch::{Addresses, Batch, SLOTS};

/// Bytes asked for as the receive buffer of a listening socket. The kernel gives at most `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Datagrams and errors that [`drain`] throws away.
const MOST_DRAINED: usize = 16;

/// Binds `addr`, nonblocking and with close-on-exec, with every other socket that this function has bound there: the
/// kernel distributes the clients among them. On an unspecified address the socket tells the local address of each
/// datagram.
pub fn listen_udp(addr: SocketAddr, dual: DualStack) -> io::Result<UdpSocket> {
    let socket = bind(addr, dual, PortSharing::WithOurWorkers)?;
    prepare(&socket, addr)?;
    Ok(socket.into())
}

/// Sets the options that a socket for clients needs, bound to `addr`.
pub(crate) fn prepare(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    // A burst waits there until the worker comes to it.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    if addr.ip().is_unspecified() {
        match addr {
            SocketAddr::V4(_) => setsockopt(socket, Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(socket, Ipv6RecvPacketInfo, &true)?,
        }
    }
    Ok(())
}

/// Fails with [`io::ErrorKind::AddrInUse`] if a process has a UDP socket on `addr`, even one that shares its port.
pub fn probe_udp(addr: SocketAddr, dual: DualStack) -> io::Result<()> {
    bind(addr, dual, PortSharing::No).map(drop)
}

/// Opens a socket that sends to `addr` and receives from it only: nonblocking, with close-on-exec. ICMP errors of the
/// path to `addr` are errors of the next call.
pub fn connect_udp(addr: SocketAddr, outgoing: Outgoing) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    outgoing.bind(&socket)?;
    socket.connect(&addr.into())?;
    Ok(socket.into())
}

/// Takes the peer and the port away from a connected socket: nothing that is sent to its old port reaches it any more. What
/// has reached it before waits in it ([`drain`]).
pub fn disconnect(socket: &UdpSocket) -> io::Result<()> {
    // SAFETY: zeroes are a value of this struct of integers.
    let mut no_peer: libc::sockaddr = unsafe { std::mem::zeroed() };
    no_peer.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address lives until the call returns, with its true length.
    unsafe { call::connect(socket.as_fd(), &raw const no_peer, length) }
}

/// Throws away what waits in a socket, also errors, if it is not too much.
pub fn drain(socket: &UdpSocket) -> io::Result<()> {
    for _ in 0..MOST_DRAINED {
        let received = call::receive(socket.as_fd(), &mut [], libc::MSG_TRUNC);
        if received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return Ok(());
        }
    }
    Err(io::Error::other("datagrams keep coming"))
}

/// Connects a socket without a peer: it gets a new port, which the kernel chooses at random as for a new socket.
pub fn connect_again(socket: &UdpSocket, addr: SocketAddr) -> io::Result<()> {
    let address = SockAddr::from(addr);
    // SAFETY: `address` lives until the call returns, and tells its own length.
    unsafe { call::connect(socket.as_fd(), address.as_ptr().cast(), address.len()) }
}

/// Whether this machine itself receives what is sent to `address`: the kernel would send it from the same address.
pub fn is_local(address: SocketAddr) -> io::Result<bool> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(true);
    }
    match connect_udp(address, Outgoing::default()) {
        Ok(socket) => Ok(socket.local_addr()?.ip().to_canonical() == address.ip().to_canonical()),
        Err(error) => match error.kind() {
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => Ok(false),
            _ => Err(error),
        },
    }
}

#[derive(PartialEq, Eq)]
enum PortSharing {
    WithOurWorkers,
    No,
}

fn bind(addr: SocketAddr, dual: DualStack, sharing: PortSharing) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    // Not SO_REUSEADDR: with it a second program could take the datagrams of the first one.
    if sharing == PortSharing::WithOurWorkers {
        socket.set_reuse_port(true)?;
    }
    if addr.is_ipv6() {
        socket.set_only_v6(dual == DualStack::V6Only)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::IpAddr;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    fn client(ip: &str) -> UdpSocket {
        let client = UdpSocket::bind((ip.parse::<IpAddr>().unwrap(), 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client
    }

    fn loopback() -> UdpSocket {
        listen_udp("127.0.0.1:0".parse().unwrap(), DualStack::V6Only).unwrap()
    }

    /// On loopback a datagram is in the socket of its receiver when send(2) returns.
    #[test]
    fn a_batch_receives_what_is_there_and_sends_it_back_from_the_same_slots() {
        let listener = loopback();
        let address = listener.local_addr().unwrap();
        let mut batch = Batch::default();
        let none = batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
        let clients = [client("127.0.0.1"), client("127.0.0.2")];
        let largest = vec![7; 65_507];
        for datagram in [&b"one"[..], b"", &largest] {
            for client in &clients {
                client.send_to(datagram, address).unwrap();
            }
        }
        assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), 6);
        for (slot, expected) in [&b"one"[..], b"one", b"", b"", &largest, &largest].into_iter().enumerate() {
            assert_eq!(batch.datagram(slot), expected);
            let client = clients[slot % 2].local_addr().unwrap();
            assert_eq!((batch.sender(slot), batch.local(slot)), (Some(client), None));
            batch.address(slot, client, None);
        }
        assert_eq!(batch.send_to(listener.as_fd(), 0..6).unwrap(), 6);
        for client in &clients {
            let mut room = vec![0; 70_000];
            for length in [3, 0, 65_507] {
                assert_eq!(client.recv_from(&mut room).unwrap(), (length, address));
            }
        }
    }

    #[test]
    fn a_wildcard_socket_replies_from_the_address_that_the_client_used() {
        for (bind, dual, targets) in [
            ("0.0.0.0:0", DualStack::V6Only, &["127.0.0.1", "127.0.0.9"][..]),
            ("[::]:0", DualStack::V6Only, &["::1"]),
            ("[::]:0", DualStack::Both, &["::1", "127.0.0.1", "127.0.0.9"]),
        ] {
            let listener = listen_udp(bind.parse().unwrap(), dual).unwrap();
            let port = listener.local_addr().unwrap().port();
            let mut batch = Batch::default();
            for target in targets {
                let target: IpAddr = target.parse().unwrap();
                let client = client(if target.is_ipv4() { "127.0.0.1" } else { "::1" });
                client.send_to(b"question", (target, port)).unwrap();
                assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), 1);
                let (sender, local) = (batch.sender(0).unwrap(), batch.local(0));
                assert_eq!(local.map(|local| local.to_canonical()), Some(target), "{bind} {dual:?}");
                batch.address(0, sender, local);
                assert_eq!(batch.send_to(listener.as_fd(), 0..1).unwrap(), 1);
                let (length, from) = client.recv_from(&mut [0; 100]).unwrap();
                assert_eq!((length, from), (8, (target, port).into()), "{bind} {dual:?}");
            }
        }
    }

    #[test]
    fn a_connected_socket_sends_a_run_of_slots_and_hears_that_no_process_listens() {
        let listener = loopback();
        let address = listener.local_addr().unwrap();
        let backend = client("127.0.0.1");
        let connected = connect_udp(backend.local_addr().unwrap(), Outgoing::default()).unwrap();
        let sender = client("127.0.0.1");
        for datagram in ["a", "b", "c"] {
            sender.send_to(datagram.as_bytes(), address).unwrap();
        }
        let mut batch = Batch::default();
        assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), 3);
        assert_eq!(batch.send(connected.as_fd(), 1..3, b"").unwrap(), 2);
        let mut room = [0; 10];
        for expected in [b"b", b"c"] {
            let (length, from) = backend.recv_from(&mut room).unwrap();
            assert_eq!((&room[..length], from), (&expected[..], connected.local_addr().unwrap()));
        }
        // A later receive leaves the earlier slots alone.
        backend.send_to(b"reply", connected.local_addr().unwrap()).unwrap();
        assert_eq!(batch.receive(connected.as_fd(), 1..SLOTS, Addresses::Known).unwrap(), 1);
        assert_eq!((batch.datagram(0), batch.datagram(1)), (&b"a"[..], &b"reply"[..]));
        drop(backend);
        assert_eq!(batch.send(connected.as_fd(), 0..1, b"").unwrap(), 1);
        let refused = batch.receive(connected.as_fd(), 0..1, Addresses::Known).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn what_was_cut_off_is_not_sent_and_a_prefix_is_sent_before_each_datagram() {
        let listener = loopback();
        let address = listener.local_addr().unwrap();
        let backend = client("127.0.0.1");
        let connected = connect_udp(backend.local_addr().unwrap(), Outgoing::default()).unwrap();
        let sender = client("127.0.0.1");
        for datagram in ["head:a", "head:", "head:bcd"] {
            sender.send_to(datagram.as_bytes(), address).unwrap();
        }
        let mut batch = Batch::default();
        assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), 3);
        (0..3).for_each(|slot| batch.cut(slot, 5));
        batch.cut(1, 5);
        assert_eq!((batch.datagram(0), batch.datagram(1)), (&b"a"[..], &b""[..]));
        assert_eq!(batch.send(connected.as_fd(), 0..3, b"new ").unwrap(), 3);
        let mut room = [0; 10];
        for expected in [&b"new a"[..], b"new ", b"new bcd"] {
            let (length, _) = backend.recv_from(&mut room).unwrap();
            assert_eq!(&room[..length], expected);
        }
        // A slot that is used again has its whole datagram.
        sender.send_to(b"again", address).unwrap();
        assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), 1);
        assert_eq!(batch.datagram(0), b"again");
    }

    #[test]
    fn workers_share_one_address_and_the_probe_sees_them() {
        let first = loopback();
        let address = first.local_addr().unwrap();
        let second = listen_udp(address, DualStack::V6Only).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        assert_eq!(probe_udp(address, DualStack::V6Only).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop((first, second));
        probe_udp(address, DualStack::V6Only).unwrap();
    }

    #[test]
    fn addresses_of_this_machine_are_local_and_others_are_not() {
        let local = |address: &str| is_local(address.parse().unwrap());
        for address in ["127.0.0.1:53", "127.9.9.9:53", "[::1]:53", "[::ffff:127.0.0.3]:53"] {
            assert!(local(address).unwrap(), "{address}");
        }
        // TEST-NET-1 (RFC 5737): reached through a route, or not at all.
        assert!(!local("192.0.2.1:53").unwrap());
    }

    #[test]
    fn slots_that_do_not_exist_are_left_out() {
        let listener = loopback();
        let mut batch = Batch::default();
        let none = batch.receive(listener.as_fd(), SLOTS..SLOTS + 5, Addresses::Told);
        assert!(none.is_err() || none.is_ok_and(|count| count == 0));
    }

    /// A batch of datagrams of these lengths, each of another letter, that was received from `sender`.
    fn received(lengths: &[usize]) -> Batch {
        let listener = loopback();
        let sender = client("127.0.0.1");
        for (at, length) in lengths.iter().enumerate() {
            sender.send_to(&vec![b'a' + at as u8; *length], listener.local_addr().unwrap()).unwrap();
        }
        let mut batch = Batch::default();
        assert_eq!(batch.receive(listener.as_fd(), 0..SLOTS, Addresses::Told).unwrap(), lengths.len());
        batch
    }

    const MIXED: [usize; 16] = [100, 100, 100, 40, 40, 0, 40, 40, 41, 41, 41, 1, 0, 0, 30_000, 30_000];

    #[test]
    fn datagrams_that_are_sent_together_arrive_as_they_were() {
        let mut batch = received(&MIXED);
        let backend = client("127.0.0.1");
        let connected = connect_udp(backend.local_addr().unwrap(), Outgoing::default()).unwrap();
        let mut room = vec![0; 70_000];
        for prefix in [&b""[..], b"prefix"] {
            assert_eq!(batch.send(connected.as_fd(), 0..16, prefix).unwrap(), 16);
            for (at, expected) in MIXED.iter().enumerate() {
                let length = backend.recv(&mut room).unwrap();
                assert_eq!(length, prefix.len() + expected, "{at}");
                assert!(room[..length].starts_with(prefix));
                assert!(room[prefix.len()..length].iter().all(|byte| *byte == b'a' + at as u8), "{at}");
            }
        }
    }

    #[test]
    fn datagrams_for_several_receivers_are_sent_together_for_each_and_from_our_address() {
        let mut batch = received(&MIXED);
        let listener = listen_udp("0.0.0.0:0".parse().unwrap(), DualStack::V6Only).unwrap();
        let port = listener.local_addr().unwrap().port();
        let clients = [client("127.0.0.1"), client("127.0.0.2")];
        let receiver = |slot: usize| usize::from(slot % 5 == 2);
        let from: IpAddr = "127.0.0.7".parse().unwrap();
        for slot in 0..16 {
            batch.address(slot, clients[receiver(slot)].local_addr().unwrap(), Some(from));
        }
        assert_eq!(batch.send_to(listener.as_fd(), 0..16).unwrap(), 16);
        let mut room = vec![0; 70_000];
        for (at, expected) in MIXED.iter().enumerate() {
            let (length, source) = clients[receiver(at)].recv_from(&mut room).unwrap();
            assert_eq!((length, source), (*expected, (from, port).into()), "{at}");
            assert!(room[..length].iter().all(|byte| *byte == b'a' + at as u8), "{at}");
        }
    }

    #[test]
    fn datagrams_that_are_too_large_together_are_sent_in_several_messages() {
        let mut batch = received(&[30_000, 30_000, 30_000, 10_000, 10_000]);
        let backend = client("127.0.0.1");
        let connected = connect_udp(backend.local_addr().unwrap(), Outgoing::default()).unwrap();
        assert_eq!(batch.send(connected.as_fd(), 0..5, b"").unwrap(), 5);
        let mut room = vec![0; 70_000];
        for expected in [30_000, 30_000, 30_000, 10_000, 10_000] {
            assert_eq!(backend.recv(&mut room).unwrap(), expected);
        }
    }

    #[test]
    fn a_socket_that_is_used_again_has_another_port_and_nothing_of_its_former_peer() {
        let (first, second) = (client("127.0.0.1"), client("127.0.0.1"));
        let socket = connect_udp(first.local_addr().unwrap(), Outgoing::default()).unwrap();
        let mut ports = std::collections::BTreeSet::new();
        for round in 0..20 {
            let port = socket.local_addr().unwrap();
            ports.insert(port.port());
            first.send_to(b"early", port).unwrap();
            disconnect(&socket).unwrap();
            first.send_to(b"late", port).unwrap();
            drain(&socket).unwrap();
            connect_again(&socket, second.local_addr().unwrap()).unwrap();
            let mut batch = Batch::default();
            let none = batch.receive(socket.as_fd(), 0..SLOTS, Addresses::Known).unwrap_err();
            assert_eq!(none.kind(), ErrorKind::WouldBlock, "{round}");
            first.send_to(b"stranger", socket.local_addr().unwrap()).unwrap();
            second.send_to(b"peer", socket.local_addr().unwrap()).unwrap();
            assert_eq!(batch.receive(socket.as_fd(), 0..SLOTS, Addresses::Known).unwrap(), 1);
            assert_eq!(batch.datagram(0), b"peer");
            disconnect(&socket).unwrap();
            drain(&socket).unwrap();
            connect_again(&socket, first.local_addr().unwrap()).unwrap();
        }
        assert!(ports.len() > 10, "{ports:?}");
    }
}
