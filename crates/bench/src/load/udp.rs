//! Datagrams through a relay of UDP: questions of many clients, and one long conversation. The server sends each datagram
//! back, or many for one question; clients know the bytes to expect, and therefore detect a relay that mixes up replies.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket as BlockingSocket};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::net::UdpSocket;
use tokio::task;
use tokio::time::timeout;

use super::gauge::{Gauge, Phase};
use crate::address::Address;

/// The server behind a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub listen: Address,
    pub talk: Talk,
}

/// The clients of a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Address of the relay, or of the server itself.
    pub server: Address,
    /// Must be equal to the server's.
    pub talk: Talk,
    pub clients: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Talk {
    /// One datagram of 100 bytes from a new port, and one back: a query of the DNS. A query is a unit.
    Queries,
    /// Each client keeps its port and has [`WINDOW`] datagrams of 100 bytes on their way; each comes back. An exchange of
    /// two datagrams is a unit.
    Kept,
    /// Each client keeps its port. For each question it gets [`WINDOW`] datagrams of 1,200 bytes; each of them is a unit.
    Download,
}

/// Datagrams of a client that are on their way together.
pub const WINDOW: usize = 32;

const SMALL: usize = 100;
/// The usual size of a QUIC datagram.
const LARGE: usize = 1200;

/// Bytes asked for as the receive buffer of the server. The kernel gives at most `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Longer than any delay: the datagram was lost.
const LOST: Duration = Duration::from_secs(1);

/// Clients have an address of their own, so that their ports are not in the way of a relay's.
const CLIENTS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Ports of [`Talk::Queries`], which are used in turn. A relay that keeps a client for some time has forgotten it when
/// its port comes again.
const PORTS: std::ops::Range<u16> = 2_000..65_000;

impl Talk {
    fn question(self, number: u64) -> [u8; SMALL] {
        let mut datagram = [b'q'; SMALL];
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        datagram
    }
}

impl Server {
    pub fn bind(&self) -> io::Result<(BlockingSocket, Address)> {
        let socket = self.listen.listen()?;
        // Datagrams of all clients wait there.
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        let address = self.listen.of(&socket)?;
        Ok((socket.into(), address))
    }

    /// Answers until the process ends.
    pub fn run(&self, socket: &BlockingSocket) -> io::Result<()> {
        let mut datagram = [0; LARGE];
        loop {
            let (length, from) = match socket.recv_from(&mut datagram) {
                Ok(received) => received,
                // A client that has gone refused a datagram.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            // The client notices a datagram that is missing.
            match self.talk {
                Talk::Queries | Talk::Kept => drop(socket.send_to(&datagram[..length], from)),
                Talk::Download => (0..WINDOW).for_each(|_| drop(socket.send_to(&datagram, from))),
            }
        }
    }
}

impl Load {
    /// Starts the clients as tasks of this thread, which run until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let Address::Udp(server) = self.server else {
            return Err(io::Error::other(format!("no datagrams over {}", self.server)));
        };
        let shared = Rc::new(Shared { server, talk: self.talk, gauge: gauge.clone(), port: Cell::default() });
        // The first query reports a missing server before the measurement.
        match self.talk {
            Talk::Queries => shared.query(0).await?,
            Talk::Kept | Talk::Download => {}
        }
        for client in 0..self.clients {
            let shared = shared.clone();
            task::spawn_local(async move {
                let ended = match shared.talk {
                    Talk::Queries => shared.ask(client as u64).await,
                    Talk::Kept => shared.converse().await,
                    Talk::Download => shared.download().await,
                };
                if let Err(error) = ended {
                    shared.gauge.error(error);
                }
            });
        }
        Ok(())
    }
}

/// State shared by all clients of a load.
struct Shared {
    server: SocketAddr,
    talk: Talk,
    gauge: Rc<Gauge>,
    /// Ports that were used so far.
    port: Cell<u16>,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.gauge.phase() == Phase::Over
    }

    /// Asks from a new port each time.
    async fn ask(&self, client: u64) -> io::Result<()> {
        let mut number = client << 32;
        while !self.is_over() {
            number += 1;
            let start = Instant::now();
            match self.query(number).await {
                Ok(()) => self.gauge.unit(start, Instant::now()),
                Err(error) => self.failed(error).await,
            }
        }
        Ok(())
    }

    async fn failed(&self, error: io::Error) {
        self.gauge.error(error);
        // Limits the rate against a server that refuses every datagram.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn query(&self, number: u64) -> io::Result<()> {
        let socket = self.open()?;
        let question = self.talk.question(number);
        socket.send(&question).await?;
        let mut room = [0; LARGE];
        let length = receive(&socket, &mut room).await?;
        if room[..length] == question { Ok(()) } else { Err(mixed_up()) }
    }

    /// Makes a socket with the next port that is free.
    fn open(&self) -> io::Result<UdpSocket> {
        let many = PORTS.end - PORTS.start;
        for _ in 0..many {
            let port = self.port.get();
            self.port.set((port + 1) % many);
            match BlockingSocket::bind((CLIENTS, PORTS.start + port)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
                Ok(socket) => return self.connected(socket),
            }
        }
        Err(ErrorKind::AddrInUse.into())
    }

    fn connected(&self, socket: BlockingSocket) -> io::Result<UdpSocket> {
        socket.connect(self.server)?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    }

    async fn converse(&self) -> io::Result<()> {
        let socket = self.connected(BlockingSocket::bind((CLIENTS, 0))?)?;
        let mut room = [0; LARGE];
        // The numbers of the datagrams on their way, and when each was sent. UDP keeps their order on one machine.
        let mut sent: VecDeque<(u64, Instant)> = VecDeque::new();
        let mut number = 0;
        while !self.is_over() {
            while sent.len() < WINDOW {
                number += 1;
                socket.send(&self.talk.question(number)).await?;
                sent.push_back((number, Instant::now()));
            }
            let received = match receive(&socket, &mut room).await {
                Ok(length) => length,
                Err(error) => {
                    self.failed(error).await;
                    sent.clear();
                    continue;
                }
            };
            let answered =
                sent.iter().position(|(number, _)| room[..received] == self.talk.question(*number));
            let Some(answered) = answered else {
                self.gauge.error(mixed_up());
                continue;
            };
            for _ in 0..answered {
                sent.pop_front();
                self.gauge.error("a datagram was lost, and later ones were not");
            }
            if let Some((_, start)) = sent.pop_front() {
                self.gauge.unit(start, Instant::now());
            }
        }
        Ok(())
    }

    async fn download(&self) -> io::Result<()> {
        let socket = self.connected(BlockingSocket::bind((CLIENTS, 0))?)?;
        let mut room = [0; LARGE + 1];
        let mut number = 0;
        while !self.is_over() {
            number += 1;
            let start = Instant::now();
            let question = self.talk.question(number);
            socket.send(&question).await?;
            for _ in 0..WINDOW {
                match receive(&socket, &mut room).await {
                    Ok(LARGE) if room[..SMALL] == question => {
                        self.gauge.bytes(LARGE);
                        self.gauge.unit(start, Instant::now());
                    }
                    Ok(_) => self.gauge.error(mixed_up()),
                    Err(error) => {
                        self.failed(error).await;
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

async fn receive(socket: &UdpSocket, room: &mut [u8]) -> io::Result<usize> {
    // Most replies are there already, or come before a timer would be of use.
    match socket.try_recv(room) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        received => return received,
    }
    match timeout(LOST, socket.recv(room)).await {
        Ok(received) => received,
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, "no reply within 1 s")),
    }
}

fn mixed_up() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a reply is not the one that is due")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::runtime::Builder;
    use tokio::task::LocalSet;

    use super::*;
    use crate::load::gauge::Window;
    use crate::load::until_counted;

    #[test]
    fn every_talk_gets_its_datagrams_from_the_server_itself() {
        for (talk, clients) in [(Talk::Queries, 8), (Talk::Kept, 2), (Talk::Download, 1)] {
            let tally = until_counted(|duration| {
                let server = Server { listen: Address::Udp("127.0.0.1:0".parse().unwrap()), talk };
                let (socket, address) = server.bind().unwrap();
                thread::spawn(move || server.run(&socket));
                let gauge = Gauge::new(Window { warm_up: Duration::ZERO, duration }, Vec::new());
                let load = Load { server: address, talk, clients };
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                LocalSet::new().block_on(&runtime, async {
                    load.start(&gauge).await.unwrap();
                    gauge.run().await;
                });
                gauge.tally()
            });
            assert_eq!((tally.errors, &tally.first_error), (0, &None), "{talk:?}");
            assert!(tally.units > 0, "{talk:?}");
        }
    }
}
