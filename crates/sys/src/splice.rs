//! Moves bytes between two sockets without copying them through this process (splice(2)).
//!
//! One [`Pipe`] serves one direction of a relay: fill it from one socket, empty it into the other. Nothing here
//! waits: a socket that is not ready gives [`io::ErrorKind::WouldBlock`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

/// A kernel buffer with two ends, and how much is in it. Closed, with what it holds, when dropped.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    // Atomic only so that a relay's future may move between threads; a pipe has one user at a time.
    held: AtomicUsize,
}

impl Pipe {
    /// A pipe of about `size_hint` bytes, as far as the system allows (fs.pipe-max-size, pipe-user-pages-soft).
    pub fn new(size_hint: usize) -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        // Refused to users who hold much pipe memory already (by default 64 MiB): less may be granted, or the relay works
        // with what it has.
        let _ = [size_hint, size_hint / 4].into_iter().find(|size| {
            let size = i32::try_from(*size).unwrap_or(i32::MAX);
            fcntl(&write, FcntlArg::F_SETPIPE_SZ(size)).is_ok()
        });
        let capacity = fcntl(&write, FcntlArg::F_GETPIPE_SZ)?;
        Ok(Self { read, write, capacity: usize::try_from(capacity).unwrap_or(0), held: AtomicUsize::new(0) })
    }

    /// Bytes the pipe could hold at most. Small segments fill it earlier: each takes a page.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes taken in and not yet given out.
    pub fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether everything taken in was given out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes at most `max` bytes from the socket `from`. Zero (with `max` above zero) is its end.
    ///
    /// Call it on an empty pipe: otherwise `WouldBlock` may also mean that the pipe is full, and a caller that
    /// takes it for "the socket has nothing" would wait for a readiness that is already there.
    pub fn splice_in(&self, from: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let moved = splice_once(from, self.write.as_fd(), max, SpliceFFlags::empty())?;
        self.held.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }

    /// Gives at most `max` bytes of what the pipe holds to the socket `to`, and zero only when it holds none.
    ///
    /// A peer that is gone gives `BrokenPipe`; the Rust runtime has switched SIGPIPE off.
    pub fn splice_out(&self, to: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let held = self.len();
        // "More follows" lets TCP fill its segments. Said only when it is already in the pipe: otherwise the last
        // bytes of a message would wait in the kernel for up to 200 ms.
        let more = if max < held { SpliceFFlags::SPLICE_F_MORE } else { SpliceFFlags::empty() };
        let wanted = max.min(held);
        if wanted == 0 {
            return Ok(0);
        }
        let moved = splice_once(self.read.as_fd(), to, wanted, more)?;
        self.held.fetch_sub(moved, Ordering::Relaxed);
        Ok(moved)
    }
}

fn splice_once(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    max: usize,
    more: SpliceFFlags,
) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK | more;
    loop {
        match splice(from, None, to, None, max, flags) {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn every_byte_arrives_in_order_between_tcp_and_unix_sockets() {
        let (mut client, session) = tcp_pair();
        let (upstream, mut backend) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let writer = thread::spawn(move || client.write_all(&sent).unwrap());
        let reader = thread::spawn(move || {
            let mut received = Vec::new();
            backend.read_to_end(&mut received).unwrap();
            received
        });
        // Blocking sockets: SPLICE_F_NONBLOCK concerns the pipe, so no readiness loop is needed here.
        let pipe = Pipe::new(256 * 1024).unwrap();
        while pipe.splice_in(session.as_fd(), pipe.capacity()).unwrap() > 0 {
            while !pipe.is_empty() {
                pipe.splice_out(upstream.as_fd(), 10_000).unwrap();
            }
        }
        upstream.shutdown(Shutdown::Write).unwrap();
        writer.join().unwrap();
        assert!(reader.join().unwrap() == expected, "bytes were lost or changed");
    }

    #[test]
    fn the_length_is_what_went_in_minus_what_came_out() {
        let (mut client, session) = tcp_pair();
        let (upstream, mut backend) = UnixStream::pair().unwrap();
        let pipe = Pipe::new(64 * 1024).unwrap();
        assert!(pipe.capacity() >= 64 * 1024);
        client.write_all(b"0123456789").unwrap();
        assert_eq!(pipe.splice_in(session.as_fd(), 8).unwrap(), 8);
        assert_eq!(pipe.len(), 8);
        assert_eq!(pipe.splice_out(upstream.as_fd(), 3).unwrap(), 3);
        assert_eq!(pipe.len(), 5);
        assert_eq!(pipe.splice_out(upstream.as_fd(), usize::MAX).unwrap(), 5);
        assert!(pipe.is_empty());
        assert_eq!(pipe.splice_out(upstream.as_fd(), 10).unwrap(), 0);
        let mut received = [0; 8];
        backend.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"01234567");
    }

    #[test]
    fn a_socket_without_data_would_block_and_an_ended_one_gives_zero() {
        let (client, session) = tcp_pair();
        session.set_nonblocking(true).unwrap();
        let pipe = Pipe::new(4096).unwrap();
        assert_eq!(pipe.splice_in(session.as_fd(), 100).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.shutdown(Shutdown::Write).unwrap();
        session.set_nonblocking(false).unwrap();
        assert_eq!(pipe.splice_in(session.as_fd(), 100).unwrap(), 0);
    }

    #[test]
    fn a_peer_that_is_gone_breaks_the_pipe_and_keeps_the_count() {
        let (mut client, session) = tcp_pair();
        let (upstream, backend) = UnixStream::pair().unwrap();
        let pipe = Pipe::new(4096).unwrap();
        client.write_all(b"abc").unwrap();
        pipe.splice_in(session.as_fd(), 3).unwrap();
        drop(backend);
        assert_eq!(pipe.splice_out(upstream.as_fd(), 3).unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(pipe.len(), 3);
    }
}
