//! What the kernel says of an interface in a message of rtnetlink(7) alone (RTM_GETLINK): programs of XDP, and how long the
//! frames are that it puts together.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};

/// Lengths of `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER: usize = 16;
const MESSAGE: usize = 16;

/// Attributes of an interface (linux/if_link.h).
const GSO_MAX_SIZE: u16 = 41;
const XDP: u16 = 43;
const GRO_MAX_SIZE: u16 = 58;
const GSO_IPV4_MAX_SIZE: u16 = 63;
const GRO_IPV4_MAX_SIZE: u16 = 64;

/// Number of the program in generic mode, in the attribute of XDP.
const GENERIC_PROGRAM: u16 = 6;

/// Room for an answer: that about an interface takes some 2 KiB.
const ROOM: usize = 32 * 1024;

/// What is known of an interface beside its state and its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Number of its XDP program in generic mode.
    pub generic_program: Option<u32>,
    /// Length of the longest frame that is put together when it is received, or cut when it is sent; 0 if the kernel does not tell.
    pub longest_frame: u32,
}

/// # Errors
/// The interface is not there, or the kernel gives no answer.
pub fn details(interface: &str) -> io::Result<Details> {
    let index = if_nametoindex(interface)?;
    let kernel = Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW.nonblocking(),
        Some(Protocol::from(libc::NETLINK_ROUTE)),
    )?;
    let mut request = ((HEADER + MESSAGE) as u32).to_ne_bytes().to_vec();
    request.extend(libc::RTM_GETLINK.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Number of the question, and of the asker; family and kind.
    request.extend([0; 12]);
    request.extend(index.to_ne_bytes());
    request.extend([0; 8]);
    send(kernel.as_raw_fd(), &request, MsgFlags::MSG_DONTWAIT)?;
    let mut room = vec![0; ROOM];
    // The kernel has answered when the call above returns.
    let length = recv(kernel.as_raw_fd(), &mut room, MsgFlags::MSG_DONTWAIT)?;
    read(&room[..length])
}

fn read(answer: &[u8]) -> io::Result<Details> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = half_at(answer, 4).ok_or_else(invalid)?;
    if i32::from(kind) == libc::NLMSG_ERROR {
        let errno = number_at(answer, HEADER).ok_or_else(invalid)?.cast_signed();
        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
    }
    let all = answer.get(HEADER + MESSAGE..).ok_or_else(invalid)?;
    let mut details = Details::default();
    for (kind, value) in attributes(all) {
        match kind {
            XDP => {
                let found = attributes(value).find(|(kind, _)| *kind == GENERIC_PROGRAM);
                details.generic_program =
                    found.and_then(|(_, value)| number_at(value, 0)).filter(|number| *number != 0);
            }
            GSO_MAX_SIZE | GRO_MAX_SIZE | GSO_IPV4_MAX_SIZE | GRO_IPV4_MAX_SIZE => {
                details.longest_frame = details.longest_frame.max(number_at(value, 0).unwrap_or(0));
            }
            _ => {}
        }
    }
    Ok(details)
}

/// Kinds and values of attributes. What is cut off ends them.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half_at(bytes, 0)?);
        // The highest bits say how it is written.
        let kind = half_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
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
    fn the_loopback_interface_has_frames_of_some_length_and_a_missing_one_is_an_error() {
        let found = details("lo").unwrap();
        assert!(found.generic_program.is_none() && found.longest_frame >= 65_536, "{found:?}");
        assert!(details("no-such-card").is_err());
    }

    #[test]
    fn an_answer_is_read_and_one_that_is_cut_off_is_no_panic() {
        let mut answer = vec![0; HEADER + MESSAGE];
        answer[4] = libc::RTM_NEWLINK as u8;
        answer.extend([8, 0, 41, 0, 0, 0, 1, 0]);
        answer.extend([20, 0, 43, 0x80, 5, 0, 2, 0, 2, 0, 0, 0, 8, 0, 6, 0, 77, 0, 0, 0]);
        answer.extend([8, 0, 64, 0, 0, 0, 2, 0]);
        let whole = Details { generic_program: Some(77), longest_frame: 131_072 };
        assert_eq!(read(&answer).unwrap(), whole);
        for length in 0..answer.len() {
            assert_ne!(read(&answer[..length]).ok(), Some(whole), "{length}");
        }
        answer[HEADER + MESSAGE] = 0;
        assert_eq!(read(&answer).unwrap(), Details::default(), "an attribute without a length");
        answer[4] = libc::NLMSG_ERROR as u8;
        answer[HEADER..HEADER + 4].copy_from_slice(&(-libc::ENODEV).to_ne_bytes());
        assert_eq!(read(&answer).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
