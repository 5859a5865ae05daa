//! What the kernel tells of changes in its neighbour table (rtnetlink(7), RTM_NEWNEIGH and RTM_DELNEIGH), without a question.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recv};
use socket2::{Domain, Protocol, Socket, Type};

use super::route::address;
use super::{HEADER, MESSAGE, NDA_DST, u16_at, u32_at};

/// Messages that are read at once. Further ones wait for the next look, or are lost, which the kernel says.
const AT_ONCE: usize = 1024;

/// Neighbours whose entries have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    These(HashSet<IpAddr>),
    /// Messages were lost.
    Perhaps,
}

impl Changed {
    pub fn has(&self, ip: IpAddr) -> bool {
        match self {
            Self::These(all) => all.contains(&ip),
            Self::Perhaps => true,
        }
    }
}

/// A socket that hears of all changes in this network namespace.
#[derive(Debug)]
pub struct Notices(Socket);

impl Notices {
    pub fn open() -> io::Result<Self> {
        let kernel = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW.nonblocking(),
            Some(Protocol::from(libc::NETLINK_ROUTE)),
        )?;
        bind(kernel.as_raw_fd(), &NetlinkAddr::new(0, 1 << (libc::RTNLGRP_NEIGH - 1)))?;
        Ok(Self(kernel))
    }

    /// The neighbours on an interface whose entries have changed since the last look. This does not block.
    pub fn changed(&self, interface: u32) -> Changed {
        let mut all = HashSet::new();
        let mut room = [0; 8192];
        for _ in 0..AT_ONCE {
            match recv(self.0.as_raw_fd(), &mut room, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => read(&room[..length], interface, &mut all),
                Err(Errno::ENOBUFS) => return Changed::Perhaps,
                Err(_) => return Changed::These(all),
            }
        }
        Changed::Perhaps
    }
}

/// Reads the messages of one datagram.
fn read(mut messages: &[u8], interface: u32, all: &mut HashSet<IpAddr>) {
    while let (Some(length), Some(kind)) = (u32_at(messages, 0), u16_at(messages, 4)) {
        let length = length as usize;
        let Some(message) = messages.get(..length).filter(|_| length >= HEADER) else { return };
        if [libc::RTM_NEWNEIGH, libc::RTM_DELNEIGH].contains(&kind)
            && u32_at(message, HEADER + 4) == Some(interface)
        {
            all.extend(neighbour(message));
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn neighbour(message: &[u8]) -> Option<IpAddr> {
    let mut at = HEADER + MESSAGE;
    while let (Some(length), Some(kind)) = (u16_at(message, at), u16_at(message, at + 2)) {
        let length = usize::from(length);
        let value = message.get(at + 4..at + length)?;
        if kind == NDA_DST {
            return address(value);
        }
        at += length.next_multiple_of(4);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_an_interface_are_read_and_others_without_a_panic() {
        assert_eq!(Notices::open().unwrap().changed(999), Changed::These(HashSet::new()));
        let message = |kind: u16, interface: u32, attributes: &[u8]| {
            let length = (HEADER + MESSAGE + attributes.len()) as u32;
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend([2, 0, 0, 0]);
            bytes.extend(interface.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(attributes);
            bytes
        };
        let of = |last: u8| [8, 0, 1, 0, 10, 0, 0, last];
        let all = [
            message(libc::RTM_NEWNEIGH, 7, &of(1)),
            message(libc::RTM_NEWNEIGH, 8, &of(2)),
            message(libc::RTM_DELNEIGH, 7, &[&[6, 0, 2, 0, 1, 1, 0, 0][..], &of(3)].concat()),
            message(libc::RTM_NEWROUTE, 7, &of(4)),
        ]
        .concat();
        let mut found = HashSet::new();
        read(&all, 7, &mut found);
        assert_eq!(found, HashSet::from([[10, 0, 0, 1], [10, 0, 0, 3]].map(IpAddr::from)));
        for length in 0..all.len() {
            read(&all[..length], 7, &mut found);
        }
        read(&message(libc::RTM_NEWNEIGH, 7, &[0, 0, 1, 0]), 7, &mut found);
        read(&[0; 64], 7, &mut found);
        assert_eq!(found.len(), 2);
    }
}
