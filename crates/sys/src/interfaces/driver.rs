//! What the driver of an interface can do with packets of XDP programs, as the kernel tells it: family `netdev` of generic
//! netlink (linux/netdev.h), Linux 6.3.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{MsgFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};

/// Length of `struct nlmsghdr` and of `struct genlmsghdr`.
const HEADER: usize = 16;
const GENERIC: usize = 4;

/// The family of families, its command, and its attributes (linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_NUMBER: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX and NETDEV_A_DEV_XDP_FEATURES.
const GET_DEVICE: u8 = 1;
const INTERFACE: u16 = 1;
const FEATURES: u16 = 3;

/// NETDEV_XDP_ACT_NDO_XMIT
const TRANSMITS: u64 = 4;

/// Whether the driver sends frames that it is given on the way of XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// A veth whose other end has GRO on says so, too, and takes what a program redirects there; not what one on it sends back.
    Possible,
    Nothing,
}

/// A connection to the kernel that stays: a confined process opens none.
#[derive(Debug)]
pub struct DriverFeatures {
    kernel: Socket,
    family: u16,
    sequence: u32,
}

impl DriverFeatures {
    /// # Errors
    /// The kernel is older than 6.3 and does not tell the features of drivers.
    pub fn open() -> io::Result<Self> {
        let kernel = Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::RAW.nonblocking(),
            Some(Protocol::from(libc::NETLINK_GENERIC)),
        )?;
        let mut features = Self { kernel, family: CONTROL, sequence: 0 };
        let answer = features.ask(GET_FAMILY, FAMILY_NAME, b"netdev\0")?;
        let number = answer.attribute(FAMILY_NUMBER).and_then(|value| value.try_into().ok());
        features.family = u16::from_ne_bytes(number.ok_or_else(unreadable)?);
        Ok(features)
    }

    /// What the driver says of an interface.
    pub fn transmission(&mut self, interface: u32) -> io::Result<Transmission> {
        let answer = self.ask(GET_DEVICE, INTERFACE, &interface.to_ne_bytes())?;
        let features = answer.attribute(FEATURES).and_then(|value| value.try_into().ok());
        let features = u64::from_ne_bytes(features.ok_or_else(unreadable)?);
        Ok(if features & TRANSMITS != 0 { Transmission::Possible } else { Transmission::Nothing })
    }

    fn ask(&mut self, command: u8, kind: u16, value: &[u8]) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = (4 + value.len()).next_multiple_of(4);
        let mut request = ((HEADER + GENERIC + length) as u32).to_ne_bytes().to_vec();
        request.extend(self.family.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([command, 1, 0, 0]);
        request.extend((4 + value.len() as u16).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(value);
        request.resize(HEADER + GENERIC + length, 0);
        send(self.kernel.as_raw_fd(), &request, MsgFlags::MSG_DONTWAIT)?;
        let mut room = [0; 8192];
        loop {
            // The kernel has answered when the call above returns.
            let length = recv(self.kernel.as_raw_fd(), &mut room, MsgFlags::MSG_DONTWAIT)?;
            let answer = &room[..length];
            // One to an earlier question is passed over.
            if number_at(answer, 8) == Some(self.sequence) {
                return read(answer);
            }
        }
    }
}

/// Attributes of an answer.
#[derive(Debug)]
struct Answer(Vec<u8>);

fn read(answer: &[u8]) -> io::Result<Answer> {
    let kind = half_at(answer, 4).ok_or_else(unreadable)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let errno = number_at(answer, HEADER).ok_or_else(unreadable)?.cast_signed();
        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
    }
    Ok(Answer(answer.get(HEADER + GENERIC..).ok_or_else(unreadable)?.to_vec()))
}

impl Answer {
    fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        let mut at = 0;
        while let (Some(length), Some(kind)) = (half_at(&self.0, at), half_at(&self.0, at + 2)) {
            let length = usize::from(length);
            let value = self.0.get(at + 4..at + length)?;
            if kind == wanted {
                return Some(value);
            }
            at += length.next_multiple_of(4);
        }
        None
    }
}

fn unreadable() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn half_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_told_and_one_that_is_missing_is_an_error() {
        // A kernel before 6.3.
        let Ok(mut features) = DriverFeatures::open() else { return };
        assert_eq!(features.transmission(1).unwrap(), Transmission::Nothing, "it has no driver");
        assert_eq!(features.transmission(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn any_answer_is_read_without_a_panic() {
        let mut answer = vec![0; HEADER + GENERIC];
        answer[4] = 0x20;
        answer.extend([6, 0, 1, 0, 7, 0, 0, 0, 12, 0, 3, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        let read_all = |bytes: &[u8]| read(bytes).ok()?.attribute(FEATURES).map(<[u8]>::to_vec);
        assert_eq!(read_all(&answer), Some(vec![5, 0, 0, 0, 0, 0, 0, 0]));
        (0..answer.len()).for_each(|length| assert_eq!(read_all(&answer[..length]), None, "{length}"));
        answer[HEADER + GENERIC] = 0;
        assert_eq!(read_all(&answer), None, "an attribute without a length");
        answer[4] = libc::NLMSG_ERROR as u8;
        answer[HEADER..HEADER + 4].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        assert_eq!(read(&answer).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
