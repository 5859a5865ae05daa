//! A program behind a network card's driver on kernels without TCX: a filter of the interface's clsact qdisc (tc-bpf(8)),
//! which rtnetlink(7) makes. It stays until it is removed; so its name says whose it is.
//!
//! Filters of others are left alone, and so is a qdisc that was there before.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// A filter on an interface: its place among others, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    index: u32,
    info: u32,
    handle: u32,
}

/// What the kernel says of a filter.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    filter: Filter,
    name: Option<String>,
    /// Number of its program, if it is one of BPF.
    program: Option<u32>,
}

/// Whether the qdisc of an interface was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qdisc {
    Made,
    WasThere,
}

/// The filter with this name on an interface.
pub(super) fn find(index: u32, name: &str) -> io::Result<Option<Filter>> {
    let named = |found: Found| (found.name.as_deref() == Some(name)).then_some(found.filter);
    Ok(Kernel::open()?.filters(index, INGRESS)?.into_iter().find_map(named))
}

/// Numbers of the programs of filters where packets come in.
pub(super) fn programs(index: u32) -> io::Result<Vec<u32>> {
    let all = Kernel::open()?.filters(index, INGRESS)?;
    Ok(all.into_iter().filter_map(|found| found.program).collect())
}

/// Puts a program on an interface, behind the filters that are there.
pub(super) fn add(index: u32, name: &str, program: BorrowedFd<'_>) -> io::Result<(Filter, Qdisc)> {
    let mut kernel = Kernel::open()?;
    let exclusive = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let kind = attribute(TCA_KIND, b"clsact\0");
    let made = kernel.order(libc::RTM_NEWQDISC, exclusive, [index, QDISC, CLSACT, 0], &kind);
    let qdisc = match made {
        Ok(()) => Qdisc::Made,
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Qdisc::WasThere,
        Err(error) => return Err(error),
    };
    // Without a place the kernel would put it before the others.
    let last = kernel.filters(index, INGRESS).unwrap_or_default();
    let last = last.iter().map(|found| found.filter.info >> 16).max();
    let place = last.filter(|last| *last < 0xffff).map_or(0, |last| (last + 1).max(FIRST_CHOSEN));
    let added = kernel.order(
        libc::RTM_NEWTFILTER,
        exclusive,
        [index, 0, INGRESS, place << 16 | ALL_PROTOCOLS],
        &description(Some(name), program),
    );
    match added.and_then(|()| find(index, name)?.ok_or_else(|| Errno::ENOENT.into())) {
        Ok(filter) => Ok((filter, qdisc)),
        Err(error) => {
            leave_qdisc(&mut kernel, index, qdisc);
            Err(error)
        }
    }
}

impl Filter {
    /// Gives the filter another program, without a moment between the two.
    pub(super) fn replace(&self, name: &str, program: BorrowedFd<'_>) -> io::Result<()> {
        let at = [self.index, self.handle, INGRESS, self.info];
        let description = description(Some(name), program);
        Kernel::open()?.order(libc::RTM_NEWTFILTER, libc::NLM_F_CREATE, at, &description)
    }

    /// Removes the filter, and the qdisc if it was made for it and has no other filter.
    pub(super) fn remove(&self, qdisc: Qdisc) -> io::Result<()> {
        let mut kernel = Kernel::open()?;
        let at = [self.index, self.handle, INGRESS, self.info];
        match kernel.order(libc::RTM_DELTFILTER, 0, at, &attribute(TCA_KIND, b"bpf\0")) {
            Ok(()) => {}
            // The filter, or its interface, is already gone.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)) => {}
            Err(error) => return Err(error),
        }
        leave_qdisc(&mut kernel, self.index, qdisc);
        Ok(())
    }
}

/// Removes the qdisc of an interface that was made for a filter, unless another filter is there.
fn leave_qdisc(kernel: &mut Kernel, index: u32, qdisc: Qdisc) {
    let is_empty = |kernel: &mut Kernel, side| kernel.filters(index, side).is_ok_and(|all| all.is_empty());
    if qdisc == Qdisc::Made && is_empty(kernel, INGRESS) && is_empty(kernel, EGRESS) {
        // If it cannot be removed, it stays: an empty qdisc does nothing.
        let kind = attribute(TCA_KIND, b"clsact\0");
        let _ = kernel.order(libc::RTM_DELQDISC, 0, [index, QDISC, CLSACT, 0], &kind);
    }
}

/// Places of linux/pkt_sched.h.
const CLSACT: u32 = 0xffff_fff1;
const QDISC: u32 = 0xffff_0000;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;

/// Place that the kernel gives the first filter for which none is asked.
const FIRST_CHOSEN: u32 = 0xc000;

/// ETH_P_ALL.
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// Attributes of linux/rtnetlink.h and linux/pkt_cls.h.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
/// What the program returns is what becomes of the packet.
const DIRECT_ACTION: u32 = 1;

/// Lengths of `struct nlmsghdr` and `struct tcmsg`.
const HEADER: usize = 16;
const MESSAGE: usize = 20;

/// Buffer for one read from the netlink socket, in bytes.
const ANSWER: usize = 32 * 1024;

fn description(name: Option<&str>, program: BorrowedFd<'_>) -> Vec<u8> {
    let mut options = attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
    if let Some(name) = name {
        options.extend(attribute(TCA_BPF_NAME, &[name.as_bytes(), b"\0"].concat()));
    }
    options.extend(attribute(TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes()));
    [attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options)].concat()
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kinds and values of attributes. What is cut off ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The highest bits say how it is written.
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The messages of an answer: kind, and what is behind the header.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 4)?;
        let content = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

/// The error in an answer of this kind; `Ok` is the confirmation.
fn result(content: &[u8]) -> io::Result<()> {
    match u32_at(content, 0).map(u32::cast_signed) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

struct Kernel {
    socket: OwnedFd,
    sequence: u32,
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let route = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
        Ok(Self { socket, sequence: 0 })
    }

    fn send(&mut self, kind: u16, flags: i32, at: [u32; 4], attributes: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut request = ((HEADER + MESSAGE + attributes.len()) as u32).to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        // Family, and a gap.
        request.extend([0; 4]);
        at.iter().for_each(|word| request.extend(word.to_ne_bytes()));
        request.extend(attributes);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty())?;
        Ok(())
    }

    /// Changes something. `at` has the interface, and what linux/rtnetlink.h calls handle, parent and info.
    fn order(&mut self, kind: u16, flags: i32, at: [u32; 4], attributes: &[u8]) -> io::Result<()> {
        self.send(kind, libc::NLM_F_ACK | flags, at, attributes)?;
        let mut answer = vec![0; ANSWER];
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let of = |(kind, content)| (kind == libc::NLMSG_ERROR as u16).then(|| result(content));
            if let Some(done) = messages(&answer[..length]).find_map(of) {
                return done;
            }
        }
    }

    /// Filters on one side of the qdisc of an interface.
    fn filters(&mut self, index: u32, side: u32) -> io::Result<Vec<Found>> {
        self.send(libc::RTM_GETTFILTER, libc::NLM_F_DUMP, [index, 0, side, 0], &[])?;
        let (mut all, mut answer) = (Vec::new(), vec![0; ANSWER]);
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            for (kind, content) in messages(&answer[..length]) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(all),
                    libc::NLMSG_ERROR => return result(content).map(|()| all),
                    _ => all.extend(filter(content)),
                }
            }
        }
    }
}

/// A filter in an answer. `None`: the place of several.
fn filter(content: &[u8]) -> Option<Found> {
    let (index, handle, info) = (u32_at(content, 4)?, u32_at(content, 8)?, u32_at(content, 16)?);
    if handle == 0 {
        return None;
    }
    let options = attributes(content.get(MESSAGE..)?).find(|(kind, _)| *kind == TCA_OPTIONS)?.1;
    let name = attributes(options).find(|(kind, _)| *kind == TCA_BPF_NAME);
    let name = name.map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
    let program = attributes(options).find(|(kind, _)| *kind == TCA_BPF_ID);
    let program = program.and_then(|(_, number)| u32_at(number, 0));
    Some(Found { filter: Filter { index, info, handle }, name, program })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_with_its_name_and_what_is_cut_off_is_none() {
        let options =
            [attribute(TCA_BPF_NAME, b"penstock\0"), attribute(TCA_BPF_ID, &9_u32.to_ne_bytes())].concat();
        let mut content = [[0; 4], 7_u32.to_ne_bytes(), 1_u32.to_ne_bytes(), INGRESS.to_ne_bytes()].concat();
        content.extend(0xc000_0300_u32.to_ne_bytes());
        content.extend(attribute(TCA_KIND, b"bpf\0"));
        content.extend(attribute(TCA_OPTIONS | 1 << 15, &options));
        let expected = Filter { index: 7, info: 0xc000_0300, handle: 1 };
        let expected = Found { filter: expected, name: Some("penstock".to_owned()), program: Some(9) };
        assert_eq!(filter(&content), Some(expected));
        (0..MESSAGE + 8).for_each(|length| assert_eq!(filter(&content[..length]), None, "{length}"));
        let mut message = ((HEADER + content.len()) as u32).to_ne_bytes().to_vec();
        message.extend(44_u16.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(&content);
        let both = [message.clone(), message[..30].to_vec()].concat();
        assert_eq!(messages(&both).collect::<Vec<_>>(), [(44, &content[..])], "the second one is cut off");
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_filter() {
        let found = find(u32::MAX >> 1, "penstock");
        assert!(matches!(found, Ok(None) | Err(_)), "{found:?}");
    }
}
