//! UDP sockets, and batches of datagrams: one system call receives or sends up to [`SLOTS`] of them (recvmmsg(2),
//! sendmmsg(2)).
//!
//! A batch has its memory once and for all, and a datagram stays in the slot into which it was received: a relay sends it
//! from there. A socket that is bound to every address tells to which address a datagram was sent, and sends from the
//! address that it is told (`IP_PKTINFO`, `IPV6_PKTINFO`): a client accepts replies from that address only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use socket2::{Domain, Protocol, Socket, Type};

use crate::socket::DualStack;

/// Datagrams of one batch.
pub const SLOTS: usize = 32;

/// Room of a slot: more than the largest UDP payload (65,527 bytes over IPv6), so that nothing is ever cut off.
const ROOM: usize = 65_536;

/// Distance of two slots: not a power of two, so that their first bytes do not share one set of the cache.
const STRIDE: usize = ROOM + 128;

/// Bytes asked for as the receive buffer of a listening socket. The kernel gives at most `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Binds `addr`, nonblocking and with close-on-exec, with every other socket that this function has bound there: the
/// kernel distributes the clients among them. On an unspecified address the socket tells the local address of each
/// datagram.
pub fn listen_udp(addr: SocketAddr, dual: DualStack) -> io::Result<UdpSocket> {
    let socket = bind(addr, dual, PortSharing::WithOurWorkers)?;
    // A burst waits there until the worker comes to it.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    if addr.ip().is_unspecified() {
        match addr {
            SocketAddr::V4(_) => setsockopt(&socket, Ipv4PacketInfo, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvPacketInfo, &true)?,
        }
    }
    Ok(socket.into())
}

/// Fails with [`io::ErrorKind::AddrInUse`] if a process has a UDP socket on `addr`, even one that shares its port.
pub fn probe_udp(addr: SocketAddr, dual: DualStack) -> io::Result<()> {
    bind(addr, dual, PortSharing::No).map(drop)
}

/// Opens a socket that sends to `addr` and receives from it only: nonblocking, with close-on-exec. ICMP errors of the
/// path to `addr` are errors of the next call.
pub fn connect_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.connect(&addr.into())?;
    Ok(socket.into())
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

/// Which addresses the kernel fills in when it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of the sender and of this machine.
    Told,
    /// None: the socket is connected.
    Known,
}

/// Up to [`SLOTS`] datagrams with their addresses. To be kept: its memory is two MiB, of which the kernel maps what
/// datagrams have touched.
pub struct Batch {
    bytes: Box<[u8]>,
    lengths: [usize; SLOTS],
    names: Box<[Name; SLOTS]>,
    name_lengths: [libc::socklen_t; SLOTS],
    controls: Box<[Control; SLOTS]>,
    control_lengths: [usize; SLOTS],
}

/// An address as the kernel reads and writes it. Both variants begin with the family.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// One control message: `IPV6_PKTINFO`, the largest, needs 40 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Default for Batch {
    fn default() -> Self {
        // SAFETY: both are structs of integers, for which zeroes are a value.
        let name = Name { v6: unsafe { std::mem::zeroed() } };
        Self {
            bytes: vec![0; SLOTS * STRIDE].into_boxed_slice(),
            lengths: [0; SLOTS],
            names: Box::new([name; SLOTS]),
            name_lengths: [0; SLOTS],
            controls: Box::new([Control([0; 64]); SLOTS]),
            control_lengths: [0; SLOTS],
        }
    }
}

impl Batch {
    /// Receives datagrams into the slots from `first` on, without a wait. Returns their number, which is at least one;
    /// `WouldBlock` if no datagram is there.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        first: usize,
        addresses: Addresses,
    ) -> io::Result<usize> {
        let wanted = first..SLOTS;
        let mut parts = self.parts(wanted.clone(), |_, _| ROOM);
        let mut heads = self.heads(wanted.clone(), &mut parts);
        if addresses == Addresses::Told {
            for (slot, head) in wanted.clone().zip(&mut heads) {
                head.msg_hdr.msg_name = (&raw mut self.names[slot]).cast();
                head.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
                head.msg_hdr.msg_control = (&raw mut self.controls[slot]).cast();
                head.msg_hdr.msg_controllen = size_of::<Control>() as _;
            }
        }
        // SAFETY: each head points to memory of its own slot, which lives in `self` and `parts` until the call returns,
        // with the true lengths. The number of heads is that of the array.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                heads.as_mut_ptr(),
                wanted.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (slot, head) in wanted.zip(&heads).take(count) {
            self.lengths[slot] = head.msg_len as usize;
            self.name_lengths[slot] = head.msg_hdr.msg_namelen;
            self.control_lengths[slot] = head.msg_hdr.msg_controllen as _;
        }
        Ok(count)
    }

    /// The datagram in a slot.
    pub fn datagram(&self, slot: usize) -> &[u8] {
        &self.bytes[slot * STRIDE..][..self.lengths[slot]]
    }

    /// The sender of a datagram, if its addresses were told.
    pub fn sender(&self, slot: usize) -> Option<SocketAddr> {
        let (name, length) = (&self.names[slot], self.name_lengths[slot] as usize);
        // SAFETY: the kernel or `address` has written the whole variant that the family names, as the length says; the
        // rest is zeroes or an older address, and every value of an integer is valid.
        unsafe {
            match i32::from(name.v4.sin_family) {
                libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                    let ip = Ipv4Addr::from(u32::from_be(name.v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(name.v4.sin_port)).into())
                }
                libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                    let v6 = &name.v6;
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    let port = u16::from_be(v6.sin6_port);
                    Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }

    /// Our address to which a datagram was sent, if the socket tells it.
    pub fn local(&mut self, slot: usize) -> Option<IpAddr> {
        // SAFETY: zeroes are a value of the struct, whose pointers and lengths are set below to those of the slot.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_control = (&raw mut self.controls[slot]).cast();
        head.msg_controllen = self.control_lengths[slot].min(size_of::<Control>()) as _;
        // SAFETY: `head` describes the control memory of the slot; the functions return pointers into it or null.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const head) };
        while !message.is_null() {
            // SAFETY: the pointer is not null and points to a control message within the memory of the slot. The data is
            // read without an assumption about its alignment, and only if the message is long enough for it.
            unsafe {
                let data = libc::CMSG_DATA(message);
                let length = (*message).cmsg_len as usize;
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO)
                        if length >= libc::CMSG_LEN(size_of::<libc::in_pktinfo>() as u32) as usize =>
                    {
                        // Of a broadcast this is an address of the interface, and of anything else its destination.
                        let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                        return Some(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                        if length >= libc::CMSG_LEN(size_of::<libc::in6_pktinfo>() as u32) as usize =>
                    {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(&raw const head, message);
            }
        }
        None
    }

    /// Sets where [`Self::send_to`] sends the datagram of a slot, and from which of our addresses.
    pub fn address(&mut self, slot: usize, to: SocketAddr, from: Option<IpAddr>) {
        let (name, length) = name_of(to);
        self.names[slot] = name;
        self.name_lengths[slot] = length;
        self.control_lengths[slot] = from.map_or(0, |from| write_local(&mut self.controls[slot], from));
    }

    /// Sends the datagrams of these slots on a connected socket, in order, without a wait. Returns how many were sent;
    /// an error is about the first of them.
    pub fn send(&mut self, socket: BorrowedFd<'_>, slots: Range<usize>) -> io::Result<usize> {
        let mut parts = self.parts(slots.clone(), |batch, slot| batch.lengths[slot]);
        let mut heads = self.heads(slots.clone(), &mut parts);
        send_all(socket, &mut heads[..slots.len()])
    }

    /// The same to the address of each slot.
    pub fn send_to(&mut self, socket: BorrowedFd<'_>, slots: Range<usize>) -> io::Result<usize> {
        let mut parts = self.parts(slots.clone(), |batch, slot| batch.lengths[slot]);
        let mut heads = self.heads(slots.clone(), &mut parts);
        for (slot, head) in slots.clone().zip(&mut heads) {
            head.msg_hdr.msg_name = (&raw mut self.names[slot]).cast();
            head.msg_hdr.msg_namelen = self.name_lengths[slot];
            if self.control_lengths[slot] > 0 {
                head.msg_hdr.msg_control = (&raw mut self.controls[slot]).cast();
                head.msg_hdr.msg_controllen = self.control_lengths[slot] as _;
            }
        }
        send_all(socket, &mut heads[..slots.len()])
    }

    /// One part for each slot, at the start of the array.
    fn parts(&mut self, slots: Range<usize>, length: impl Fn(&Self, usize) -> usize) -> [libc::iovec; SLOTS] {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; SLOTS];
        for (slot, part) in slots.zip(&mut parts) {
            part.iov_len = length(self, slot);
            part.iov_base = self.bytes[slot * STRIDE..][..ROOM].as_mut_ptr().cast();
        }
        parts
    }

    /// One message of one part for each slot, without addresses.
    fn heads(&self, slots: Range<usize>, parts: &mut [libc::iovec; SLOTS]) -> [libc::mmsghdr; SLOTS] {
        // SAFETY: zeroes are a value of this struct of integers and pointers: a message without any part.
        let mut heads: [libc::mmsghdr; SLOTS] = unsafe { std::mem::zeroed() };
        for ((head, part), _) in heads.iter_mut().zip(parts.iter_mut()).zip(slots) {
            head.msg_hdr.msg_iov = part;
            head.msg_hdr.msg_iovlen = 1;
        }
        heads
    }
}

fn send_all(socket: BorrowedFd<'_>, heads: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: each head points to memory of its slot and of the caller's parts, with the true lengths; the kernel only
    // reads it, and the number of heads is that of the slice.
    let count = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            heads.as_mut_ptr(),
            heads.len() as libc::c_uint,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

fn name_of(address: SocketAddr) -> (Name, libc::socklen_t) {
    // SAFETY: zeroes are a value of both variants.
    let mut name = Name { v6: unsafe { std::mem::zeroed() } };
    let length = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: zeroes are a value of this struct of integers.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            name.v4 = raw;
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: zeroes are a value of this struct of integers.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_flowinfo = v6.flowinfo();
            raw.sin6_scope_id = v6.scope_id();
            name.v6 = raw;
            size_of::<libc::sockaddr_in6>()
        }
    };
    (name, length as libc::socklen_t)
}

/// Writes the control message that makes the kernel send from `from`. Returns its length.
fn write_local(control: &mut Control, from: IpAddr) -> usize {
    match from {
        IpAddr::V4(ip) => {
            // SAFETY: zeroes are a value of this struct of integers; interface 0 is any.
            let mut info: libc::in_pktinfo = unsafe { std::mem::zeroed() };
            info.ipi_spec_dst.s_addr = u32::from(ip).to_be();
            write_control(control, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
        }
        IpAddr::V6(ip) => {
            // SAFETY: zeroes are a value of this struct of integers; interface 0 is any.
            let mut info: libc::in6_pktinfo = unsafe { std::mem::zeroed() };
            info.ipi6_addr.s6_addr = ip.octets();
            write_control(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
        }
    }
}

fn write_control<T: Copy>(control: &mut Control, level: i32, kind: i32, data: T) -> usize {
    // SAFETY: these functions only calculate with lengths.
    let (space, length) =
        unsafe { (libc::CMSG_SPACE(size_of::<T>() as u32), libc::CMSG_LEN(size_of::<T>() as u32)) };
    debug_assert!(space as usize <= size_of::<Control>());
    let head: *mut libc::cmsghdr = (&raw mut *control).cast();
    // SAFETY: the memory is aligned for the head (8 bytes) and has room for it and the data (asserted above; callers pass
    // the two structs of this module). The data is written without an assumption about its alignment.
    unsafe {
        (*head).cmsg_level = level;
        (*head).cmsg_type = kind;
        (*head).cmsg_len = length as _;
        libc::CMSG_DATA(head).cast::<T>().write_unaligned(data);
    }
    space as usize
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
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
        let none = batch.receive(listener.as_fd(), 0, Addresses::Told).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock);
        let clients = [client("127.0.0.1"), client("127.0.0.2")];
        let largest = vec![7; 65_507];
        for datagram in [&b"one"[..], b"", &largest] {
            for client in &clients {
                client.send_to(datagram, address).unwrap();
            }
        }
        assert_eq!(batch.receive(listener.as_fd(), 0, Addresses::Told).unwrap(), 6);
        for (slot, expected) in [&b"one"[..], b"one", b"", b"", &largest, &largest].into_iter().enumerate() {
            assert_eq!(batch.datagram(slot), expected);
            let client = clients[slot % 2].local_addr().unwrap();
            assert_eq!((batch.sender(slot), batch.local(slot)), (Some(client), None));
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
                assert_eq!(batch.receive(listener.as_fd(), 0, Addresses::Told).unwrap(), 1);
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
        let connected = connect_udp(backend.local_addr().unwrap()).unwrap();
        let sender = client("127.0.0.1");
        for datagram in ["a", "b", "c"] {
            sender.send_to(datagram.as_bytes(), address).unwrap();
        }
        let mut batch = Batch::default();
        assert_eq!(batch.receive(listener.as_fd(), 0, Addresses::Told).unwrap(), 3);
        assert_eq!(batch.send(connected.as_fd(), 1..3).unwrap(), 2);
        let mut room = [0; 10];
        for expected in [b"b", b"c"] {
            let (length, from) = backend.recv_from(&mut room).unwrap();
            assert_eq!((&room[..length], from), (&expected[..], connected.local_addr().unwrap()));
        }
        // A later receive leaves the earlier slots alone.
        backend.send_to(b"reply", connected.local_addr().unwrap()).unwrap();
        assert_eq!(batch.receive(connected.as_fd(), 1, Addresses::Known).unwrap(), 1);
        assert_eq!((batch.datagram(0), batch.datagram(1)), (&b"a"[..], &b"reply"[..]));
        drop(backend);
        assert_eq!(batch.send(connected.as_fd(), 0..1).unwrap(), 1);
        let refused = batch.receive(connected.as_fd(), 0, Addresses::Known).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
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
}
