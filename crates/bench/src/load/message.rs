//! Messages between two processes over a bare socket: the smallest thing that can be measured, and what the first of
//! the questions is about. Blocking and single-threaded, as the simplest program would do it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use super::{Gauge, Phase};
use crate::address::Address;

/// Answers with messages of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    /// Where it listens.
    pub listen: Address,
    /// How it deals with a connection.
    pub exchange: Exchange,
    /// Size of a message in bytes.
    pub size: usize,
}

/// Receives messages as fast as they come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Where from.
    pub peer: Peer,
    /// What makes a message.
    pub exchange: Exchange,
    /// Size of a message in bytes.
    pub size: usize,
}

/// The other end of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// A server that listens.
    Listens(Address),
    /// A child of the client on the other end of a socketpair(2), on these cores.
    Child(Vec<usize>),
}

/// What makes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Connect, receive, close: each message has a connection of its own.
    Connection,
    /// One byte asks, the message is the answer; the connection stays.
    Kept,
}

impl Server {
    /// Listens; the address is the one that it really got.
    pub fn bind(&self) -> io::Result<(Socket, Address)> {
        let listener = self.listen.listen()?;
        let address = self.listen.of(&listener)?;
        Ok((listener, address))
    }

    /// Serves one client after the other, for ever.
    pub fn run(&self, listener: &Socket) -> io::Result<()> {
        let buffer = vec![b'x'; self.size.min(RECORD)];
        loop {
            let (socket, _) = listener.accept()?;
            // A client that goes away in the middle is not a fault of the server.
            let _ = match self.exchange {
                Exchange::Connection => send(&socket, &buffer, self.size),
                Exchange::Kept => self.listen.tune(&socket).and_then(|()| serve_kept(&socket, self.size)),
            };
        }
    }
}

impl Client {
    /// Receives until the window is over.
    pub fn run(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let mut buffer = vec![0; self.size.clamp(32, RECORD)];
        match (&self.peer, self.exchange) {
            (Peer::Listens(address), Exchange::Connection) => repeat(gauge, || {
                let socket = address.connect()?;
                receive(&socket, &mut buffer, self.size)
            }),
            (Peer::Listens(address), Exchange::Kept) => self.ask(gauge, &address.connect()?, &mut buffer),
            (Peer::Child(cores), _) => {
                let (socket, theirs) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
                let mut child = self.start_child(theirs, cores)?;
                let result = self.ask(gauge, &socket, &mut buffer);
                // End of the connection ends the child.
                drop(socket);
                child.wait()?;
                result
            }
        }
    }

    fn ask(&self, gauge: &Rc<Gauge>, socket: &Socket, buffer: &mut [u8]) -> io::Result<()> {
        repeat(gauge, || {
            send(socket, b"?", 1)?;
            receive(socket, buffer, self.size)
        })
    }

    fn start_child(&self, socket: Socket, cores: &[usize]) -> io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench-load", "--answer", &self.size.to_string()]);
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(socket))).stdout(Stdio::null());
        sys::child::leash(&mut command, cores)?;
        command.spawn()
    }
}

/// Answers on the socket that is this process's standard input until it ends.
pub fn answer_on_stdin(size: usize) -> io::Result<()> {
    serve_kept(&Socket::from(io::stdin().as_fd().try_clone_to_owned()?), size)
}

fn serve_kept(socket: &Socket, size: usize) -> io::Result<()> {
    let buffer = vec![b'x'; size.min(RECORD)];
    let mut question = [0; 1];
    loop {
        match { socket }.read(&mut question) {
            Ok(0) => return Ok(()),
            Ok(_) => send(socket, &buffer, size)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn repeat(gauge: &Rc<Gauge>, mut once: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    let mut now = Instant::now();
    let mut phase = gauge.phase();
    loop {
        let mut start = now;
        let next = gauge.advance(now);
        if next != phase {
            // The meters were read meanwhile.
            (phase, start) = (next, Instant::now());
        }
        if phase == Phase::Over {
            return Ok(());
        }
        let count = once()?;
        now = Instant::now();
        gauge.unit(start, now);
        gauge.bytes(count);
    }
}

fn send(mut socket: &Socket, buffer: &[u8], size: usize) -> io::Result<()> {
    let mut left = size;
    while left > 0 {
        let piece = &buffer[..left.min(buffer.len())];
        socket.write_all(piece)?;
        left -= piece.len();
    }
    Ok(())
}

fn receive(mut socket: &Socket, buffer: &mut [u8], size: usize) -> io::Result<usize> {
    let mut left = size;
    while left > 0 {
        match socket.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => left = left.saturating_sub(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(size)
}

/// The largest piece that is written or read at once; a message of sequenced packets travels in packets of this size,
/// because one packet must fit into the socket's buffer (212,992 bytes, net.core.wmem_default).
const RECORD: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::load::Window;

    #[test]
    fn messages_of_every_size_arrive_whole_over_every_kind_of_socket() {
        let directory = tempfile::tempdir().unwrap();
        let mut number = 0;
        for size in [1, 12, RECORD, RECORD + 1, 1 << 20] {
            for exchange in [Exchange::Connection, Exchange::Kept] {
                number += 1;
                let path = |kind: &str| directory.path().join(format!("{kind}{number}"));
                let tcp = Address::Tcp("127.0.0.1:0".parse().unwrap());
                for listen in [tcp, Address::Unix(path("u")), Address::Seqpacket(path("q"))] {
                    let server = Server { listen, exchange, size };
                    let (listener, address) = server.bind().unwrap();
                    thread::spawn(move || server.run(&listener));
                    let window = Window { warm_up: Duration::ZERO, duration: Duration::from_millis(5) };
                    let gauge = Gauge::new(window, Vec::new());
                    let client = Client { peer: Peer::Listens(address), exchange, size };
                    client.run(&gauge).unwrap();
                    let tally = gauge.tally();
                    assert!(tally.units > 0);
                    assert_eq!(tally.bytes, tally.units * size as u64);
                }
            }
        }
    }
}
