//! Asks one thing at a time: a connection, a ClientHello, the answer. Each ends in time, whatever the other side does.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::hello::{self, Hello};
use crate::reply::{self, Reader, Reply, ServerHello};
use crate::wire::{self, Wire};

/// Whom to ask, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// The listener.
    pub(crate) address: SocketAddr,
    /// The name that is sent (SNI).
    pub(crate) name: Option<String>,
    /// The last moment for everything.
    pub(crate) end: Instant,
    /// For one connection.
    pub(crate) patience: Duration,
}

/// How it took a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It goes on.
    Hello(Box<ServerHello>),
    /// It ended the handshake, with an alert or without.
    Refused(Option<u8>),
    /// It said something that is not TLS.
    Garbage,
    /// It did not answer in time, or there was no connection.
    Silent(Silence),
}

/// Why there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The time was over.
    Timeout,
    /// No connection was made.
    Unreachable(ErrorKind),
}

impl Answer {
    /// The ServerHello, if there is one.
    pub(crate) fn hello(self) -> Option<Box<ServerHello>> {
        match self {
            Self::Hello(hello) => Some(hello),
            _ => None,
        }
    }
}

impl Asker {
    /// A connection that ends in time.
    pub(crate) fn connect(&self) -> Result<Wire, Silence> {
        let end = self.end.min(Instant::now() + self.patience);
        Wire::connect(self.address, end).map_err(|error| match wire::is_timeout(&error) {
            true => Silence::Timeout,
            false => Silence::Unreachable(error.kind()),
        })
    }

    /// Says hello and hears the answer.
    pub(crate) fn say(&self, hello: &Hello<'_>) -> Answer {
        let mut wire = match self.connect() {
            Ok(wire) => wire,
            Err(silence) => return Answer::Silent(silence),
        };
        let mut reader = Reader::default();
        let mut buffer = [0; 8192];
        // It may have closed before it read everything; what it said until then counts.
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

    /// Whether SSL 2.0 is spoken.
    pub(crate) fn speaks_ssl2(&self) -> Result<bool, Silence> {
        let mut wire = self.connect()?;
        let _ = wire.write_all(&hello::ssl2());
        let (mut heard, mut buffer) = (Vec::new(), [0; 512]);
        while heard.len() < 4096 {
            match wire.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => heard.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Many servers wait for the rest of a record that will never come: that is no SSL 2.0.
                Err(_) => return Ok(false),
            }
            if let Some(is) = reply::is_ssl2_hello(&heard) {
                return Ok(is);
            }
        }
        Ok(false)
    }
}
