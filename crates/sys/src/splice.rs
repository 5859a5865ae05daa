//! Moves bytes between two sockets without a copy through this process (splice(2)).
//!
//! One [`Pipe`] serves one direction of a relay: the relay fills the pipe from one socket and empties it into the
//! other. No function waits: for a socket that is not ready, it returns [`io::ErrorKind::WouldBlock`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

/// A pipe(2) of the kernel and the number of bytes in it. On drop, the pipe is closed and its bytes are lost.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    // Atomic only because a relay's future may move between threads: one task at a time uses a pipe.
    held: AtomicUsize,
}

impl Pipe {
    /// Creates a pipe of about `size_hint` bytes, within the limits of the system (fs.pipe-max-size,
    /// pipe-user-pages-soft).
    pub fn new(size_hint: usize) -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC)?;
        // The kernel refuses the size to a user who has much pipe memory already (by default 64 MiB). Then a quarter
        // may be allowed; if not, the relay uses the default size.
        let _ = [size_hint, size_hint / 4].into_iter().find(|size| {
            let size = i32::try_from(*size).unwrap_or(i32::MAX);
            fcntl(&write, FcntlArg::F_SETPIPE_SZ(size)).is_ok()
        });
        let capacity = fcntl(&write, FcntlArg::F_GETPIPE_SZ)?;
        Ok(Self { read, write, capacity: usize::try_from(capacity).unwrap_or(0), held: AtomicUsize::new(0) })
    }

    /// Maximum number of bytes in the pipe. Small segments fill the pipe with fewer bytes: each segment uses a page.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of bytes in the pipe.
    pub fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves at most `max` bytes from the socket `from` into the pipe. Zero (with `max` above zero) means end of
    /// stream. The pipe must be empty: otherwise `WouldBlock` may also mean that the pipe is full. A caller that takes
    /// this for "the socket has no data" would wait for a readiness that is already there.
    pub fn splice_in(&self, from: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let moved = splice_once(from, self.write.as_fd(), max, SpliceFFlags::empty())?;
        self.held.fetch_add(moved, Ordering::Relaxed);
        Ok(moved)
    }

    /// Moves at most `max` bytes from the pipe to the socket `to`. Zero only if the pipe is empty. If the peer has
    /// closed the connection, the error is `BrokenPipe`; the Rust runtime ignores SIGPIPE.
    pub fn splice_out(&self, to: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let held = self.len();
        // SPLICE_F_MORE lets TCP fill its segments. The flag is set only if more bytes are already in the pipe:
        // otherwise the last bytes of a message would wait in the kernel for up to 200 ms.
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
        // The sockets block: SPLICE_F_NONBLOCK applies to the pipe only, so the test needs no readiness loop.
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
