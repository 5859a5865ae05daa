//! Messages between two processes over a bare socket, the smallest possible measurement. Blocking and single-threaded,
//! like the simplest program.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use super::gauge::{Gauge, Phase};
use crate::address::Address;

/// Answers with messages of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub listen: Address,
    pub exchange: Exchange,
    /// Size of a message in bytes.
    pub size: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    pub peer: Peer,
    pub exchange: Exchange,
    /// Size of a message in bytes.
    pub size: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Listens(Address),
    /// A child process at the other end of a socketpair(2), on these cores.
    Child(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// One connection per message: connect, receive, close.
    Connection,
    /// One connection for all messages: a byte requests each one.
    Kept,
}

impl Server {
    /// Listens. Returns the socket with its actual address.
    pub fn bind(&self) -> io::Result<(Socket, Address)> {
        let listener = self.listen.listen()?;
        let address = self.listen.of(&listener)?;
        Ok((listener, address))
    }

    /// Serves one client after another, forever.
    pub fn run(&self, listener: &Socket) -> io::Result<()> {
        let buffer = vec![b'x'; self.size.min(RECORD)];
        loop {
            let (socket, _) = listener.accept()?;
            // A client may disconnect at any time, which is not a fault of the server.
            let _ = match self.exchange {
                Exchange::Connection => send(&socket, &buffer, self.size),
                Exchange::Kept => self.listen.tune(&socket).and_then(|()| serve_kept(&socket, self.size)),
            };
        }
    }
}

impl Client {
    /// Receives messages until the window is over.
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
                // Closing the connection ends the child.
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
        sys::child::end_with_parent(&mut command, cores)?;
        command.spawn()
    }
}

/// Answers on the socket that is this process's standard input, until it is closed.
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
            // `advance` has read the meters: start the clock of the unit again.
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

/// Largest number of bytes per write or read. A message over SOCK_SEQPACKET is sent in packets of this size, because
/// one packet must fit into the socket buffer (212,992 bytes, net.core.wmem_default).
const RECORD: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::load::gauge::Window;

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
