//! Makes one connection to the server, sends one ClientHello and reads the answer. A time limit holds even if the
//! server stalls.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::hello::{self, Hello};
use crate::reply::{self, Reader, Reply, ServerHello};
use crate::wire::{self, Wire};

/// Server to ask, and the time limit.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) address: SocketAddr,
    /// Server name in the ClientHello (SNI).
    pub(crate) name: Option<String>,
    /// Deadline of all connections.
    pub(crate) end: Instant,
    pub(crate) patience: Duration,
}

/// Answer of the server to a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hello(Box<ServerHello>),
    /// The server ended the handshake, with or without an alert.
    Refused(Option<u8>),
    /// The server sent bytes that are not TLS.
    Garbage,
    /// The server did not answer in time, or no connection was made.
    Silent(Silence),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The time limit passed.
    Timeout,
    Unreachable(ErrorKind),
}

impl Answer {
    pub(crate) fn hello(self) -> Option<Box<ServerHello>> {
        match self {
            Self::Hello(hello) => Some(hello),
            _ => None,
        }
    }
}

impl Asker {
    /// Connects to the server; the connection has the deadline `end`.
    pub(crate) fn connect(&self) -> Result<Wire, Silence> {
        let end = self.end.min(Instant::now() + self.patience);
        Wire::connect(self.address, end).map_err(|error| match wire::is_timeout(&error) {
            true => Silence::Timeout,
            false => Silence::Unreachable(error.kind()),
        })
    }

    /// Sends a ClientHello and reads the answer.
    pub(crate) fn say(&self, hello: &Hello<'_>) -> Answer {
        let mut wire = match self.connect() {
            Ok(wire) => wire,
            Err(silence) => return Answer::Silent(silence),
        };
        let mut reader = Reader::default();
        let mut buffer = [0; 8192];
        // The server may have closed before it read everything; the bytes it sent until then count.
        let _ = wire.write_all(&hello.record());
        loop {
            let (reply, last) = match wire.read(&mut buffer) {
                Ok(0) => (reader.so_far(), Some(Answer::Refused(None))),
                Ok(length) => (reader.feed(&buffer[..length]), None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if wire::is_timeout(&error) => {
                    (reader.so_far(), Some(Answer::Silent(Silence::Timeout)))
                }
                Err(_) => (reader.so_far(), Some(Answer::Refused(None))),
            };
            match (reply, last) {
                (Some(Reply::Hello(hello)), _) => return Answer::Hello(hello),
                (Some(Reply::Alert(alert)), _) => return Answer::Refused(Some(alert)),
                (Some(Reply::Garbage), _) => return Answer::Garbage,
                (None, Some(answer)) => return answer,
                (None, None) => {}
            }
        }
    }

    /// Tests whether the server speaks SSL 2.0.
    pub(crate) fn speaks_ssl2(&self) -> Result<bool, Silence> {
        let mut wire = self.connect()?;
        let _ = wire.write_all(&hello::ssl2());
        let (mut heard, mut buffer) = (Vec::new(), [0; 512]);
        while heard.len() < 4096 {
            match wire.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => heard.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Many servers wait for the rest of a record that will never come: they do not speak SSL 2.0.
                Err(_) => return Ok(false),
            }
            if let Some(is) = reply::is_ssl2_hello(&heard) {
                return Ok(is);
            }
        }
        Ok(false)
    }
}
