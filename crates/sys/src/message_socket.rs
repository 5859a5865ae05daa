//! Whole messages with descriptors between two processes of this machine: a pair of Unix sockets without a name
//! (SOCK_SEQPACKET, unix(7)). Only processes that were given an end of the pair can send.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};

/// Longest message in bytes: the kernel's usual buffer has room for several.
pub const LONGEST: usize = 32 * 1024;

/// Most descriptors of one message.
pub const MOST_DESCRIPTORS: usize = 64;

/// The kernel's limit (SCM_MAX_FD). There is room for so many: the kernel would have opened those that do not fit, and would not
/// tell their numbers.
const MOST_OF_KERNEL: usize = 253;

/// One end of a pair.
#[derive(Debug)]
pub struct MessageSocket(OwnedFd);

/// A message that has come whole.
#[derive(Debug, Default)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// All with close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    pub whole: Whole,
}

/// Whether a message has all of its descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whole {
    #[default]
    Yes,
    /// This process may open no more: those that came are closed, and the others never came.
    NoDescriptors,
}

impl MessageSocket {
    /// Makes both ends, with close-on-exec.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(one), Self(other)))
    }

    /// Takes the end that is standard input, and puts `/dev/null` in its place: a program that is started later must not
    /// have it.
    ///
    /// # Errors
    /// Standard input is no such socket.
    pub fn take_standard_input() -> io::Result<Self> {
        let own = io::stdin().as_fd().try_clone_to_owned()?;
        let kind = socket2::SockRef::from(&own).r#type()?;
        if kind != socket2::Type::SEQPACKET {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let nothing = std::fs::File::open("/dev/null")?;
        // SAFETY: both numbers are open descriptors; the call only replaces what standard input refers to, and standard
        // input stays open.
        Errno::result(unsafe { libc::dup2(nothing.as_raw_fd(), libc::STDIN_FILENO) })?;
        Ok(Self(own))
    }

    /// Another descriptor of the same end.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Sends a message. Waits while the buffer is full, for `limit` at most.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        if bytes.len() > LONGEST || descriptors.len() > MOST_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let numbers: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let until = Instant::now() + limit;
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None) {
                Ok(_) => return Ok(()),
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT, until)?,
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next message; `None` when the other end is closed.
    ///
    /// # Errors
    /// None has come within `limit` ([`io::ErrorKind::TimedOut`]), or it is longer than allowed.
    pub fn receive(&self, limit: Duration) -> io::Result<Option<Message>> {
        let until = Instant::now() + limit;
        loop {
            let mut bytes = vec![0; LONGEST];
            let (length, flags, mut descriptors) = match receive_now(self.0.as_fd(), &mut bytes) {
                Ok(received) => received,
                Err(Errno::EAGAIN) => {
                    self.wait(PollFlags::POLLIN, until)?;
                    continue;
                }
                Err(Errno::EINTR) => continue,
                // The other process ended with messages of ours that it had not read.
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let mut whole = Whole::Yes;
            if flags.contains(MsgFlags::MSG_CTRUNC) {
                // There was room for their numbers.
                descriptors.clear();
                whole = Whole::NoDescriptors;
            }
            if flags.contains(MsgFlags::MSG_TRUNC) || descriptors.len() > MOST_DESCRIPTORS {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
            }
            if length == 0 {
                return Ok(None);
            }
            bytes.truncate(length);
            return Ok(Some(Message { bytes, descriptors, whole }));
        }
    }

    /// Waits until a message can be received, or the other end is closed. Returns false after `limit`.
    pub fn is_readable_within(&self, limit: Duration) -> io::Result<bool> {
        match self.wait(PollFlags::POLLIN, Instant::now() + limit) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait(&self, events: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up: a limit below 1 ms must not become a busy loop.
            let left = left.as_micros().div_ceil(1000);
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut watched = [PollFd::new(self.0.as_fd(), events)];
            match poll(&mut watched, timeout) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Receives a message that has come, with all descriptors that the kernel has opened for it: also those of a message of which it
/// could not open all.
fn receive_now(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, MsgFlags, Vec<OwnedFd>), Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the function only computes a length.
    let space = unsafe { libc::CMSG_SPACE((MOST_OF_KERNEL * size_of::<libc::c_int>()) as libc::c_uint) };
    // In words: the kernel and the functions below want them aligned.
    let mut control = vec![0_usize; (space as usize).div_ceil(size_of::<usize>())];
    // SAFETY: every field of a msghdr may be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = (control.len() * size_of::<usize>()) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names `bytes` and `control` with their lengths, and both live until the call has returned.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let length = usize::try_from(Errno::result(received)?).map_err(|_| Errno::EIO)?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has set the length of what it has written to `control`, and the function looks no further.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: a message that one of both functions has found is whole, in `control`, and aligned.
        let (head, data) = unsafe { (&*next, libc::CMSG_DATA(next).cast::<libc::c_int>()) };
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the function only computes a length.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            // Its type is another one with musl.
            let length: usize = head.cmsg_len as _;
            let count = length.saturating_sub(before) / size_of::<libc::c_int>();
            for at in 0..count {
                // SAFETY: the message has so many numbers. The kernel has just opened these descriptors for this process, and
                // no other part of it knows them.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(data.add(at).read_unaligned()) });
            }
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok((length, MsgFlags::from_bits_truncate(header.msg_flags), descriptors))
}

impl From<MessageSocket> for OwnedFd {
    fn from(socket: MessageSocket) -> Self {
        socket.0
    }
}

impl From<OwnedFd> for MessageSocket {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn messages_keep_their_borders_and_their_descriptors() {
        let (one, other) = MessageSocket::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"kept").unwrap();
        one.send(b"first", &[file.as_fd()], SHORT).unwrap();
        one.send(b"second", &[], SHORT).unwrap();
        let first = other.receive(SHORT).unwrap().unwrap();
        assert_eq!((&*first.bytes, first.descriptors.len()), (&b"first"[..], 1));
        let mut copy = std::fs::File::from(first.descriptors.into_iter().next().unwrap());
        copy.rewind().unwrap();
        let mut text = String::new();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept");
        assert_eq!(other.receive(SHORT).unwrap().unwrap().bytes, b"second");
        assert_eq!(other.receive(SHORT).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(!other.is_readable_within(SHORT).unwrap());
        drop(one);
        assert!(other.receive(SHORT).unwrap().is_none());
        assert!(other.send(b"x", &[], SHORT).is_err());
    }

    #[test]
    fn what_is_too_long_is_refused_on_both_sides() {
        let (one, other) = MessageSocket::pair().unwrap();
        let long = vec![b'x'; LONGEST + 1];
        assert_eq!(one.send(&long, &[], SHORT).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let flags = MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(one.0.as_raw_fd(), &[IoSlice::new(&long)], &[], flags, None).unwrap();
        assert_eq!(other.receive(SHORT).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let numbers = vec![one.0.as_raw_fd(); MOST_DESCRIPTORS + 1];
        let rights = [ControlMessage::ScmRights(&numbers)];
        sendmsg::<()>(one.0.as_raw_fd(), &[IoSlice::new(b"x")], &rights, flags, None).unwrap();
        assert_eq!(other.receive(SHORT).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
