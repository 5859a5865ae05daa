//! Whole messages with descriptors between two processes of this machine: a pair of Unix sockets without a name
//! (SOCK_SEQPACKET, unix(7)). Only processes that were given an end of the pair can send.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
    socketpair,
};

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
            let mut space = cmsg_space!([libc::c_int; MOST_OF_KERNEL]);
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags);
            let (length, flags, numbers) = match received {
                Ok(message) => {
                    let mut numbers = Vec::new();
                    for control in message.cmsgs()? {
                        if let ControlMessageOwned::ScmRights(rights) = control {
                            numbers.extend(rights);
                        }
                    }
                    (message.bytes, message.flags, numbers)
                }
                Err(Errno::EAGAIN) => {
                    self.wait(PollFlags::POLLIN, until)?;
                    continue;
                }
                Err(Errno::EINTR) => continue,
                // The other process ended with messages of ours that it had not read.
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // SAFETY: the kernel has just opened these descriptors for this process, and no other part of it knows them.
            let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
            let descriptors: Vec<OwnedFd> = numbers.into_iter().map(own).collect();
            let is_cut = flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
            if is_cut || descriptors.len() > MOST_DESCRIPTORS {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
            }
            if length == 0 {
                return Ok(None);
            }
            bytes.truncate(length);
            return Ok(Some(Message { bytes, descriptors }));
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
