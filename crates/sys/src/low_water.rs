//! The low-water mark of a socket's receive buffer: the number of bytes from which on the kernel wakes the reader.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;

/// Makes the kernel wake the reader of a TCP socket only when `bytes` bytes have arrived, or when the peer has ended
/// its stream (SO_RCVLOWAT, socket(7), tcp(7)). A mark below the number of bytes in the buffer wakes the reader at
/// once. The kernel makes the buffer large enough for the mark.
///
/// # Errors
/// The descriptor is not a socket.
pub fn set_low_water(socket: &impl AsFd, bytes: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads `size` bytes at the address of `bytes`,
    // an i32 that lives until the call has returned.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn a_reader_is_woken_by_enough_or_when_less_is_enough() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut reader, _) = listener.accept().unwrap();
        let readable = |limit: u16| {
            let mut waiting = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
            poll(&mut waiting, PollTimeout::from(limit)).unwrap() > 0
        };
        set_low_water(&reader, 1000).unwrap();
        sender.write_all(&[1; 10]).unwrap();
        assert!(!readable(20));
        set_low_water(&reader, 1).unwrap();
        assert!(readable(5000));
        set_low_water(&reader, 1000).unwrap();
        sender.write_all(&[1; 1000]).unwrap();
        assert!(readable(5000));
        assert_eq!(reader.read(&mut [0; 4096]).unwrap(), 1010);
    }
}
