//! The connection of a control client: the Unix socket of a server, or TLS over the network.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tls::control_client::Connection;

#[derive(Debug)]
pub(super) enum Link {
    Unix(UnixStream),
    Tls(Connection),
}

impl Link {
    pub(super) fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(unix) => unix.set_read_timeout(limit),
            Self::Tls(tls) => tls.tcp().set_read_timeout(limit),
        }
    }

    pub(super) fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(unix) => unix.set_write_timeout(limit),
            Self::Tls(tls) => tls.tcp().set_write_timeout(limit),
        }
    }
}

impl Read for Link {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(unix) => unix.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Link {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(unix) => unix.write(from),
            Self::Tls(tls) => tls.write(from).and_then(|written| tls.flush().map(|()| written)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(unix) => unix.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
