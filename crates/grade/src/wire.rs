//! A TCP connection with a deadline for all reads and writes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) struct Wire {
    stream: TcpStream,
    end: Instant,
}

impl Wire {
    /// Connects; all operations on the connection end at `end`.
    pub(crate) fn connect(address: SocketAddr, end: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, left(end)?)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, end })
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.end)?))?;
        self.stream.read(buffer)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.end)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Returns true if the system reports a timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Time left until `end`. A timeout error if no time is left, because the system does not accept a zero timeout.
fn left(end: Instant) -> io::Result<Duration> {
    match end.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}
