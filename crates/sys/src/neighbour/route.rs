//! The next machine on the way to another one, from the routing table of the kernel (rtnetlink(7), RTM_GETROUTE).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{MsgFlags, recv, send};

use super::{HEADER, Neighbours, u16_at, u32_at};

/// Length of `struct rtmsg`.
const MESSAGE: usize = 12;

/// Attributes of a route (linux/rtnetlink.h).
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_VIA: u16 = 18;

/// A route to one machine (RTN_UNICAST).
const UNICAST: u8 = 1;

/// The way to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The machine that packets are handed to: a router, or the one itself.
    pub next: IpAddr,
    /// The address of ours that packets on this way have.
    pub from: IpAddr,
}

impl Neighbours {
    /// The way to a machine through an interface. `None`: the routing table has none.
    pub fn route(&mut self, to: IpAddr, interface: u32) -> io::Result<Option<Hop>> {
        self.sequence = self.sequence.wrapping_add(1);
        let (family, octets) = match to {
            IpAddr::V4(ip) => (libc::AF_INET as u8, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6 as u8, ip.octets().to_vec()),
        };
        let mut request = ((HEADER + MESSAGE + 4 + octets.len() + 8) as u32).to_ne_bytes().to_vec();
        request.extend(libc::RTM_GETROUTE.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([family, octets.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.extend((4 + octets.len() as u16).to_ne_bytes());
        request.extend(RTA_DST.to_ne_bytes());
        request.extend(octets);
        request.extend(8_u16.to_ne_bytes());
        request.extend(RTA_OIF.to_ne_bytes());
        request.extend(interface.to_ne_bytes());
        send(self.kernel.as_raw_fd(), &request, MsgFlags::MSG_DONTWAIT)?;
        let mut answer = [0; 2048];
        loop {
            // The kernel has answered when the call above returns.
            let length = match recv(self.kernel.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let answer = &answer[..length];
            if u32_at(answer, 8) == Some(self.sequence) {
                return Ok(read(answer, to, interface));
            }
        }
    }
}

/// Reads an answer. `None` if it is an error, or leads to no machine through this interface.
fn read(answer: &[u8], to: IpAddr, interface: u32) -> Option<Hop> {
    if u16_at(answer, 4)? != libc::RTM_NEWROUTE || *answer.get(HEADER + 7)? != UNICAST {
        return None;
    }
    let (mut next, mut from, mut through) = (to, None, None);
    let mut at = HEADER + MESSAGE;
    while let (Some(length), Some(kind)) = (u16_at(answer, at), u16_at(answer, at + 2)) {
        let length = usize::from(length);
        let value = answer.get(at + 4..at + length)?;
        match kind {
            RTA_OIF => through = u32_at(value, 0),
            RTA_GATEWAY => next = address(value)?,
            RTA_PREFSRC => from = address(value),
            // The family of the address, in two bytes, is before it.
            RTA_VIA => next = address(value.get(2..)?)?,
            _ => {}
        }
        at += length.next_multiple_of(4);
    }
    (through == Some(interface)).then_some(Hop { next, from: from? })
}

pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(|octets| Ipv4Addr::from(octets).into());
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(|octets| Ipv6Addr::from(octets).into())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [&(4 + value.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_route_of_the_kernel_and_any_other_answer_is_read_without_a_panic() {
        let to: IpAddr = "192.0.2.7".parse().unwrap();
        let mut neighbours = Neighbours::open().unwrap();
        assert_eq!(neighbours.route("127.0.0.1".parse().unwrap(), 1).unwrap(), None, "it is this machine");
        let mut head = [0; HEADER + MESSAGE];
        head[4..6].copy_from_slice(&libc::RTM_NEWROUTE.to_ne_bytes());
        head[HEADER + 7] = UNICAST;
        let through = attribute(RTA_OIF, &2_u32.to_ne_bytes());
        let own = attribute(RTA_PREFSRC, &[10, 0, 0, 1]);
        let from: IpAddr = [10, 0, 0, 1].into();
        let near = [&head[..], &through, &own].concat();
        assert_eq!(read(&near, to, 2), Some(Hop { next: to, from }));
        assert_eq!(read(&near, to, 3), None, "through another interface");
        let far = [&near[..], &attribute(RTA_GATEWAY, &[10, 0, 0, 254])].concat();
        assert_eq!(read(&far, to, 2), Some(Hop { next: [10, 0, 0, 254].into(), from }));
        let router: Ipv6Addr = "fe80::1".parse().unwrap();
        let other = [&near[..], &attribute(RTA_VIA, &[&[10, 0][..], &router.octets()].concat())].concat();
        assert_eq!(read(&other, to, 2), Some(Hop { next: router.into(), from }));
        (0..near.len()).for_each(|length| assert_eq!(read(&near[..length], to, 2), None, "{length}"));
        let wrong = [&near[..], &[0, 0, 9, 0]].concat();
        assert_eq!(read(&wrong, to, 2), None, "an attribute without a length");
    }
}
