//! What the kernel knows of a TCP connection, by the number of its descriptor. The caller does not own the descriptor:
//! a wrong number gives no answer, or that of another connection.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::time::Duration;

use nix::libc;

/// What the peer of a TCP connection has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Here,
    /// It sends no more. Whether it still receives is known when it is sent something.
    Ended,
    /// The connection is reset or closed.
    Gone,
}

/// State of a TCP connection (tcp(7), `TCP_INFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    pub presence: Presence,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Segments that were sent again since the connection began.
    pub retransmits: u32,
    /// Time since data was last sent or received.
    pub idle: Duration,
}

/// States of the kernel (`net/tcp_states.h`).
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// Asks the kernel. `None` if the number is that of no TCP connection.
pub fn read(descriptor: RawFd) -> Option<TcpInfo> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the kernel checks the number, and writes at most `length` bytes, for which `info` has room until the call
    // has returned.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut length),
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: all bytes were set to zero, which is a valid tcp_info: an older kernel fills only the first part.
    let info = unsafe { info.assume_init() };
    let idle = info.tcpi_last_data_recv.min(info.tcpi_last_data_sent);
    Some(TcpInfo {
        presence: match info.tcpi_state {
            CLOSE => Presence::Gone,
            CLOSE_WAIT | LAST_ACK | CLOSING => Presence::Ended,
            _ => Presence::Here,
        },
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
        retransmits: info.tcpi_total_retrans,
        idle: Duration::from_millis(idle.into()),
    })
}

/// Makes the close of a TCP connection a reset, as [`crate::socket::set_linger_zero`] does. No effect on a descriptor that is no
/// socket.
pub fn reset_on_close(descriptor: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let Ok(length) = libc::socklen_t::try_from(size_of::<libc::linger>()) else { return };
    // SAFETY: the kernel checks the number, and reads `length` bytes of `linger`, which lives until the call has returned.
    // An error means that the connection is closed already.
    let _ = unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            std::ptr::from_ref(&linger).cast(),
            length,
        )
    };
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_time_and_a_file_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"x").unwrap();
        let (mut session, _) = listener.accept().unwrap();
        session.read_exact(&mut [0; 1]).unwrap();
        let info = read(session.as_raw_fd()).unwrap();
        assert!(!info.rtt.is_zero() && info.rtt < Duration::from_secs(1), "{info:?}");
        assert!(info.idle < Duration::from_secs(10), "{info:?}");
        assert_eq!(read(std::fs::File::open("/dev/null").unwrap().as_raw_fd()), None);
        assert_eq!(read(-1), None);
        reset_on_close(-1);
        reset_on_close(session.as_raw_fd());
        drop(session);
        assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}
