//! Packet sockets (packet(7)): Ethernet frames of one network interface, as they come and go.
//!
//! Each frame travels with the header of virtio-net (`PACKET_VNET_HDR`), which says what the kernel has left for a network
//! card to do: a checksum that is not calculated yet, segments that are still one frame of up to 64 KiB. A frame that is
//! sent with the header that it was received with loses neither; without it, frames of virtual interfaces would have wrong
//! checksums, and large ones could not be sent at all.
//!
//! The socket is opened with CAP_NET_RAW, and needs no right afterwards. `crates/sys/src/packet/batch.rs` receives and sends.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::libc;
use nix::net::if_::if_nametoindex;
use socket2::{Domain, SockFilter, Socket, Type};

mod batch;
mod port;
mod ring;

pub use batch::{FrameBatch, SLOTS, receive_frame, send_frame, send_frames};
pub use port::{PortKind, ReservedPort, own_address, reserve};

/// Bytes asked for as the buffers of a socket: a few hundred large frames. Without CAP_NET_ADMIN the kernel gives at most
/// `net.core.rmem_max` and `net.core.wmem_max`.
const BUFFER: libc::c_int = 32 << 20;

/// Header of virtio-net before each frame (linux/virtio_net.h).
pub const HEADER: usize = 10;

/// One instruction of a filter, as `struct sock_filter` has it.
pub type Instruction = (u16, u8, u8, u32);

/// Network interface that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub mac: [u8; 6],
}

/// Why frames of an interface cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    #[error("there is no network interface \"{0}\": `ip link` shows them")]
    NoInterface(String),
    #[error("{0} is no Ethernet interface: name one that `ip link` shows with link/ether")]
    NotEthernet(String),
    #[error(
        "the kernel gives no packet socket: {0}; it needs CAP_NET_RAW at the start of the process: of root, by AmbientCapabilities=CAP_NET_RAW in its unit of systemd, or by `setcap cap_net_raw+ep` on its program"
    )]
    NotPermitted(#[source] io::Error),
    #[error(
        "the kernel gives no packet socket: {0}; under systemd, RestrictAddressFamilies= of the unit must name AF_PACKET"
    )]
    NoFamily(#[source] io::Error),
    #[error("Ethernet addresses of backends cannot be asked for on {0}: {1}")]
    Asks(String, #[source] io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A socket for frames, nonblocking and with close-on-exec.
#[derive(Debug)]
pub struct PacketSocket(Socket);

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PacketSocket {
    /// Opens a socket that receives nothing yet.
    pub fn new() -> Result<Self, PacketError> {
        let socket =
            Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::PermissionDenied => PacketError::NotPermitted(error),
                    _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => PacketError::NoFamily(error),
                    _ => PacketError::Io(error),
                }
            })?;
        let socket = Self(socket);
        socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        // What this machine sends is not for a service of it.
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        for (force, ask) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if socket.set(libc::SOL_SOCKET, force, BUFFER).is_err() {
                socket.set(libc::SOL_SOCKET, ask, BUFFER)?;
            }
        }
        Ok(socket)
    }

    /// Receives frames of this interface that the filter accepts, instead of others that it received before. Frames that
    /// came in between may still wait in it.
    pub fn bind(&self, interface: &str, filter: &[Instruction]) -> Result<Interface, PacketError> {
        let index = index_of(interface).ok_or_else(|| PacketError::NoInterface(interface.to_owned()))?;
        let filter: Vec<_> =
            filter.iter().map(|&(code, jt, jf, k)| SockFilter::new(code, jt, jf, k)).collect();
        self.0.attach_filter(&filter)?;
        // SAFETY: zeroes are a value of this struct of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = i32::try_from(index).unwrap_or(0);
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives until the call returns, with its true length.
        check(unsafe { libc::bind(self.as_raw_fd(), (&raw const address).cast(), length) })?;
        self.interface()?.ok_or_else(|| PacketError::NotEthernet(interface.to_owned()))
    }

    /// Lets the interface receive what is sent to any group, as long as the socket is open.
    pub fn receive_all_groups(&self, interface: u32) -> io::Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: i32::try_from(interface).unwrap_or(0),
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let length = size_of::<libc::packet_mreq>() as libc::socklen_t;
        // SAFETY: the membership lives until the call returns, with its true length.
        check(unsafe {
            libc::setsockopt(
                self.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const membership).cast(),
                length,
            )
        })
    }

    /// The interface that the socket is bound to; `None` if it is gone, or no Ethernet interface.
    pub fn interface(&self) -> io::Result<Option<Interface>> {
        // SAFETY: zeroes are a value of this struct of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into the address, and its true length into `length`.
        check(unsafe { libc::getsockname(self.as_raw_fd(), (&raw mut address).cast(), &raw mut length) })?;
        let index = u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0);
        let is_ethernet = address.sll_hatype == libc::ARPHRD_ETHER && address.sll_halen == 6;
        let [a, b, c, d, e, f, ..] = address.sll_addr;
        Ok(index.filter(|_| is_ethernet).map(|index| Interface { index, mac: [a, b, c, d, e, f] }))
    }

    /// Number of frames that found no room in the socket or its ring since the last call.
    pub fn lost(&self) -> io::Result<u32> {
        // `struct tpacket_stats`: frames, and those among them that were lost.
        let mut statistics = [0_u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into the array.
        check(unsafe {
            libc::getsockopt(
                self.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        })?;
        Ok(statistics[1])
    }

    /// An error that the kernel keeps for the next call, such as that the interface is down.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value lives until the call returns, with its true length.
        check(unsafe { libc::setsockopt(self.as_raw_fd(), level, option, (&raw const value).cast(), length) })
    }
}

/// linux/if_packet.h
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Index of an interface, if it exists.
pub fn index_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    if_nametoindex(name.as_c_str()).ok()
}

/// A socket whose interface receives what is sent to an IPv6 group, as long as it is open.
pub fn join(group: Ipv6Addr, interface: u32) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    socket.join_multicast_v6(&group, interface)?;
    Ok(socket)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
