//! Ethernet addresses of machines on the network, from the neighbour table of the kernel (rtnetlink(7), RTM_GETNEIGH).
//!
//! The kernel finds a neighbour by ARP or neighbour discovery when something is sent to it, and asks again when its answer
//! has become old: [`Neighbours::ask`] sends an empty datagram for that, through the interface that it is told, also if
//! the routing table leads elsewhere.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{MsgFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};

mod notices;
mod route;

pub use notices::{Changed, Notices};
pub use route::Hop;

/// Port of the discard service (RFC 863): what is sent there has no meaning.
const DISCARD: u16 = 9;

/// Length of `struct nlmsghdr` and of `struct ndmsg`.
const HEADER: usize = 16;
const MESSAGE: usize = 12;

/// Attributes of a neighbour (linux/neighbour.h).
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// It was there a moment ago.
    Reachable([u8; 6]),
    /// It was there once: it should be asked.
    Old([u8; 6]),
    /// It does not answer, or was never asked.
    Unknown,
}

/// A connection to the kernel, and sockets that ask neighbours.
#[derive(Debug)]
pub struct Neighbours {
    kernel: Socket,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    sequence: u32,
}

impl Neighbours {
    pub fn open() -> io::Result<Self> {
        let kernel = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW.nonblocking(),
            Some(Protocol::from(libc::NETLINK_ROUTE)),
        )?;
        Ok(Self { kernel, v4: None, v6: None, sequence: 0 })
    }

    /// Asks neighbours on this interface from now on, also where the routing table leads to another one. To be called
    /// again when the interface was made anew.
    pub fn use_interface(&mut self, interface: &str) -> io::Result<()> {
        let open = |domain| -> io::Result<UdpSocket> {
            let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
            socket.bind_device(Some(interface.as_bytes()))?;
            Ok(socket.into())
        };
        // A kernel without one of the families has no neighbours of it.
        (self.v4, self.v6) = (None, open(Domain::IPV6).ok());
        self.v4 = Some(open(Domain::IPV4)?);
        Ok(())
    }

    /// Makes the kernel look for a neighbour on the interface, unless it is sure of it.
    pub fn ask(&self, ip: IpAddr) {
        let socket = if ip.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(socket) = socket {
            // Whether it is there is asked for later.
            let _ = socket.send_to(&[], SocketAddr::new(ip, DISCARD));
        }
    }

    /// Looks a neighbour up on an interface. The kernel answers under the lock of all changes to network interfaces (RTNL), for which
    /// this waits.
    pub fn look_up(&mut self, ip: IpAddr, interface: u32) -> io::Result<Neighbour> {
        self.sequence = self.sequence.wrapping_add(1);
        let (family, octets) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
        };
        let length = HEADER + MESSAGE + 4 + octets.len();
        let mut request = (length as u32).to_ne_bytes().to_vec();
        request.extend(libc::RTM_GETNEIGH.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([family, 0, 0, 0]);
        request.extend(interface.to_ne_bytes());
        request.extend([0; 4]);
        request.extend((4 + octets.len() as u16).to_ne_bytes());
        request.extend(NDA_DST.to_ne_bytes());
        request.extend(octets);
        send(self.kernel.as_raw_fd(), &request, MsgFlags::MSG_DONTWAIT)?;
        let mut answer = [0; 1024];
        loop {
            // The kernel has answered when the call above returns.
            let length = match recv(self.kernel.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(nix::errno::Errno::EAGAIN) => return Ok(Neighbour::Unknown),
                Err(error) => return Err(error.into()),
            };
            if let Some(neighbour) = read(&answer[..length], self.sequence) {
                return Ok(neighbour);
            }
        }
    }
}

/// Reads an answer. `None` if it belongs to an earlier question.
fn read(answer: &[u8], sequence: u32) -> Option<Neighbour> {
    if u32_at(answer, 8)? != sequence {
        return None;
    }
    if u16_at(answer, 4)? != libc::RTM_NEWNEIGH {
        return Some(Neighbour::Unknown);
    }
    let state = u16_at(answer, HEADER + 8)?;
    let mut at = HEADER + MESSAGE;
    while let (Some(length), Some(kind)) = (u16_at(answer, at), u16_at(answer, at + 2)) {
        let length = usize::from(length);
        if kind == NDA_LLADDR
            && let Some(mac) = answer.get(at + 4..at + length).and_then(|mac| mac.try_into().ok())
        {
            let is_sure = state & (libc::NUD_REACHABLE | libc::NUD_PERMANENT | libc::NUD_NOARP) != 0;
            let is_old = state & (libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE) != 0;
            return Some(match (is_sure, is_old) {
                (true, _) => Neighbour::Reachable(mac),
                (_, true) => Neighbour::Old(mac),
                _ => Neighbour::Unknown,
            });
        }
        if length < 4 {
            break;
        }
        at += length.next_multiple_of(4);
    }
    Some(Neighbour::Unknown)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_was_never_asked_is_unknown_and_any_answer_is_read_without_a_panic() {
        let mut neighbours = Neighbours::open().unwrap();
        for ip in ["192.0.2.77", "2001:db8::77"] {
            assert_eq!(neighbours.look_up(ip.parse().unwrap(), 1).unwrap(), Neighbour::Unknown);
        }
        let mut answer = vec![0; 28];
        answer[4..6].copy_from_slice(&libc::RTM_NEWNEIGH.to_ne_bytes());
        answer[24] = libc::NUD_STALE as u8;
        answer.extend([10, 0, 2, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        answer[24..26].copy_from_slice(&libc::NUD_STALE.to_ne_bytes());
        assert_eq!(read(&answer, 0), Some(Neighbour::Old([1, 2, 3, 4, 5, 6])));
        assert_eq!(read(&answer, 1), None);
        for length in 0..answer.len() {
            let expected = match length {
                // Without a number of the question, or without a state.
                0..26 => None,
                // Without an address.
                26..38 => Some(Neighbour::Unknown),
                _ => Some(Neighbour::Old([1, 2, 3, 4, 5, 6])),
            };
            assert_eq!(read(&answer[..length], 0), expected, "{length}");
        }
        answer[28] = 0;
        assert_eq!(read(&answer, 0), Some(Neighbour::Unknown), "an attribute without a length");
    }
}
