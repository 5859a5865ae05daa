//! Bytes over TCP and Unix sockets, with and without TLS: short connections, messages on kept connections, and endless
//! streams. Server and client know the expected bytes, and therefore detect a relay that loses or changes some.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task;

use super::connector::{Client, Connector};
use super::gauge::{Gauge, Phase};
use super::http::{Stream, connect};
use crate::address::Address;

/// The server behind a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub listen: Address,
    pub conversation: TrafficShape,
}

/// The clients of a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Address of the relay, or of the server itself.
    pub server: Address,
    /// Must be equal to the server's.
    pub conversation: TrafficShape,
    pub connections: usize,
    /// TLS settings; `None` for plain connections.
    pub tls: Option<Client>,
}

/// Traffic on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficShape {
    /// 100 bytes to the server, 100 bytes back, then the server closes. One connection is a unit. If the client closed
    /// first, its ports would stay in TIME-WAIT for a minute.
    Short,
    /// 100 bytes to the server and 100 bytes back, repeatedly. One exchange is a unit.
    Kept,
    /// The server sends endlessly. Only bytes are counted, no units.
    Download,
    /// The client sends endlessly, the server sends nothing. Only bytes are counted, no units.
    Upload,
}

impl Server {
    pub fn bind(&self) -> io::Result<(Listener, Address)> {
        let socket = self.listen.listen()?;
        socket.set_nonblocking(true)?;
        let address = self.listen.of(&socket)?;
        let listener = match self.listen {
            Address::Tcp(_) => Listener::Tcp(TcpListener::from_std(socket.into())?),
            Address::Unix(_) => Listener::Unix(UnixListener::from_std(socket.into())?),
            _ => return Err(io::Error::other(format!("no byte streams over {address}"))),
        };
        Ok((listener, address))
    }

    pub async fn run(&self, listener: Listener) -> io::Result<()> {
        let conversation = self.conversation;
        let stream: Rc<[u8]> = Pattern::chunk().into();
        loop {
            let chunk = stream.clone();
            // A client may disconnect at any time, which is not a fault of the server.
            match &listener {
                Listener::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    task::spawn_local(async move {
                        match conversation {
                            TrafficShape::Upload => take_in(stream).await,
                            other => answer(stream, other, &chunk).await,
                        }
                    });
                }
                Listener::Unix(listener) => {
                    let (stream, _) = listener.accept().await?;
                    task::spawn_local(async move { answer(stream, conversation, &chunk).await });
                }
            }
        }
    }
}

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    conversation: TrafficShape,
    chunk: &[u8],
) -> io::Result<()> {
    match conversation {
        TrafficShape::Short => serve_message(&mut stream).await,
        TrafficShape::Kept => loop {
            serve_message(&mut stream).await?;
        },
        TrafficShape::Download => loop {
            stream.write_all(chunk).await?;
        },
        TrafficShape::Upload => {
            let mut buffer = vec![0; PIECE];
            verify(&mut stream, &mut buffer).await?;
            while stream.read(&mut buffer).await? > 0 {}
            Ok(())
        }
    }
}

async fn serve_message<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    let mut message = [0; QUESTION.len()];
    stream.read_exact(&mut message).await?;
    // Close without an answer to a damaged question: the client reports the error.
    if message == QUESTION { stream.write_all(&ANSWER).await } else { Err(ErrorKind::InvalidData.into()) }
}

async fn take_in(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    verify(&mut stream, &mut buffer).await?;
    while discard(&stream, &mut buffer).await? > 0 {}
    Ok(())
}

impl Load {
    /// Starts the connections as tasks of this thread, which run until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let tls = self.tls.as_ref().map(Client::connector).transpose()?.map(Rc::new);
        let shared = Rc::new(Shared { load: self.clone(), tls, gauge: gauge.clone() });
        match self.conversation {
            TrafficShape::Short | TrafficShape::Kept => {
                // The first connection reports a missing server before the measurement.
                let mut stream = shared.connect().await?;
                exchange(&mut stream, self.conversation).await?;
                for _ in 0..self.connections {
                    let shared = shared.clone();
                    task::spawn_local(async move { shared.talk().await });
                }
            }
            TrafficShape::Download | TrafficShape::Upload => {
                for _ in 0..self.connections {
                    shared.clone().begin_stream().await?;
                }
            }
        }
        Ok(())
    }
}

/// State shared by all connections of a load.
struct Shared {
    load: Load,
    tls: Option<Rc<Connector>>,
    gauge: Rc<Gauge>,
}

impl Shared {
    async fn connect(&self) -> io::Result<Stream> {
        connect(&self.load.server, self.tls.as_deref()).await
    }

    /// Exchanges questions and answers until the window is over.
    async fn talk(&self) {
        let mut kept = None;
        while self.gauge.phase() != Phase::Over {
            let start = Instant::now();
            match self.once(&mut kept).await {
                Ok(()) => self.gauge.unit(start, Instant::now()),
                Err(error) => {
                    self.gauge.error(error);
                    // Limit the retry rate against a server that refuses every connection.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    async fn once(&self, kept: &mut Option<Stream>) -> io::Result<()> {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        exchange(&mut stream, self.load.conversation).await?;
        if self.load.conversation == TrafficShape::Kept {
            *kept = Some(stream);
        }
        Ok(())
    }

    async fn begin_stream(self: Rc<Self>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        match (&self.load.server, self.load.conversation) {
            (_, TrafficShape::Upload) => {
                let mut stream = self.connect().await?;
                task::spawn_local(async move {
                    let result = self.send(&mut stream).await;
                    self.ended(result);
                });
            }
            // Plain TCP data can be counted without copying; TLS data must be decrypted.
            (Address::Tcp(address), _) if self.tls.is_none() => {
                let mut stream = TcpStream::connect(address).await?;
                verify(&mut stream, &mut buffer).await?;
                task::spawn_local(async move {
                    let result = self.receive(async |buffer| discard(&stream, buffer).await, buffer).await;
                    self.ended(result);
                });
            }
            _ => {
                let mut stream = self.connect().await?;
                verify(&mut stream, &mut buffer).await?;
                task::spawn_local(async move {
                    let result = self.receive(async |buffer| stream.read(buffer).await, buffer).await;
                    self.ended(result);
                });
            }
        }
        Ok(())
    }

    async fn send(&self, stream: &mut Stream) -> io::Result<()> {
        let chunk = Pattern::chunk();
        while self.gauge.phase() != Phase::Over {
            let mut rest = &chunk[..];
            // A write may be partial; count its bytes immediately.
            while !rest.is_empty() {
                match stream.write(rest).await? {
                    0 => return Err(ErrorKind::WriteZero.into()),
                    count => {
                        self.gauge.bytes(count);
                        rest = &rest[count..];
                    }
                }
            }
            stream.flush().await?;
        }
        Ok(())
    }

    async fn receive(
        &self,
        mut read: impl AsyncFnMut(&mut [u8]) -> io::Result<usize>,
        mut buffer: Vec<u8>,
    ) -> io::Result<()> {
        while self.gauge.phase() != Phase::Over {
            match read(&mut buffer).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.gauge.bytes(count),
            }
        }
        Ok(())
    }

    fn ended(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.gauge.error(format!("a stream ended: {error}"));
        }
    }
}

/// Sends one question and checks its answer and, for a short connection, the close by the server.
pub(super) async fn exchange(stream: &mut Stream, conversation: TrafficShape) -> io::Result<()> {
    stream.write_all(&QUESTION).await?;
    stream.flush().await?;
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer).await?;
    if answer != ANSWER {
        return Err(io::Error::new(ErrorKind::InvalidData, "the answer is not what was sent"));
    }
    if conversation == TrafficShape::Short && stream.read(&mut answer).await? > 0 {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "received more bytes than the expected answer has",
        ));
    }
    Ok(())
}

/// Compares the beginning of a stream with the expected bytes.
async fn verify<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut [u8]) -> io::Result<()> {
    let mut pattern = Pattern::default();
    let mut left = VERIFIED;
    while left > 0 {
        let limit = left.min(buffer.len());
        match stream.read(&mut buffer[..limit]).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count if pattern.matches(&buffer[..count]) => left -= count,
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "the stream is not what was sent")),
        }
    }
    Ok(())
}

/// Discards bytes of the socket without copying them (MSG_TRUNC, tcp(7)): a copy would use the core that both ends of a
/// measured relay share, and would become the bottleneck instead of the relay.
async fn discard(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let take = || Ok(recv(stream.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC)?);
        match stream.try_io(Interest::READABLE, take) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            result => return result,
        }
    }
}

/// Expected bytes of a stream: position modulo a prime, which reveals a missing, repeated or moved part.
#[derive(Debug, Default)]
struct Pattern {
    place: usize,
}

impl Pattern {
    const PERIOD: usize = 251;

    /// A part of the stream that can be repeated without a break in the pattern.
    fn chunk() -> Vec<u8> {
        (0..Self::PERIOD * 1024).map(|place| (place % Self::PERIOD) as u8).collect()
    }

    fn matches(&mut self, bytes: &[u8]) -> bool {
        let right = bytes
            .iter()
            .enumerate()
            .all(|(index, byte)| usize::from(*byte) == (self.place + index) % Self::PERIOD);
        self.place += bytes.len();
        right
    }
}

const QUESTION: [u8; 100] = [b'q'; 100];
const ANSWER: [u8; 100] = [b'a'; 100];

/// Largest number of bytes per read.
const PIECE: usize = 256 * 1024;

/// Number of compared bytes at the beginning of each stream: enough for a relay to switch to its method for bulk data.
const VERIFIED: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::task::LocalSet;

    use super::*;
    use crate::load::gauge::Window;

    fn run_for(
        duration: Duration,
        listen: Address,
        conversation: TrafficShape,
        relay: bool,
    ) -> io::Result<crate::load::gauge::Tally> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let server = Server { listen, conversation };
            let (listener, mut address) = server.bind()?;
            task::spawn_local(async move { server.run(listener).await });
            if relay {
                address = broken_relay(address).await?;
            }
            let window = Window { warm_up: Duration::ZERO, duration };
            let gauge = Gauge::new(window, Vec::new());
            Load { server: address, conversation, connections: 2, tls: None }.start(&gauge).await?;
            gauge.run().await;
            Ok(gauge.tally())
        })
    }

    /// A relay that changes the 50th byte of each direction.
    async fn broken_relay(server: Address) -> io::Result<Address> {
        async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
            let (mut buffer, mut place) = (vec![0; 1 << 16], 0);
            loop {
                let count = from.read(&mut buffer).await?;
                if place <= 50 && place + count > 50 {
                    buffer[50 - place] ^= 1;
                }
                place += count;
                if count == 0 {
                    return to.shutdown().await;
                }
                to.write_all(&buffer[..count]).await?;
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        task::spawn_local(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Address::Tcp(server) = &server else { unreachable!("the test's server is on TCP") };
                let server = TcpStream::connect(server).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                task::spawn_local(pass(from_client, to_server));
                task::spawn_local(pass(from_server, to_client));
            }
        });
        Ok(Address::Tcp(address))
    }

    const ALL: [TrafficShape; 4] =
        [TrafficShape::Short, TrafficShape::Kept, TrafficShape::Download, TrafficShape::Upload];

    fn tcp() -> Address {
        Address::Tcp("127.0.0.1:0".parse().unwrap())
    }

    #[test]
    fn every_conversation_works_over_tcp_and_unix() {
        let directory = tempfile::tempdir().unwrap();
        for conversation in ALL {
            for listen in [tcp(), Address::Unix(directory.path().join(format!("{conversation:?}")))] {
                // Repeat with longer windows: on a busy machine a short window may count nothing.
                let counted = [20, 200, 2_000, 20_000].into_iter().any(|milliseconds| {
                    let window = Duration::from_millis(milliseconds);
                    let listen = match &listen {
                        Address::Unix(path) => Address::Unix(path.with_extension(milliseconds.to_string())),
                        tcp => tcp.clone(),
                    };
                    let tally = run_for(window, listen, conversation, false).unwrap();
                    assert_eq!(tally.first_error, None, "{conversation:?}");
                    let counted = match conversation {
                        TrafficShape::Short | TrafficShape::Kept => tally.units,
                        TrafficShape::Download | TrafficShape::Upload => tally.bytes,
                    };
                    counted > 0
                });
                assert!(counted, "{conversation:?} over {listen}");
            }
        }
    }

    #[test]
    fn a_relay_that_changes_a_byte_is_found_out() {
        for conversation in ALL {
            // Repeat with longer windows: on a busy machine it may not come to that byte in a short one.
            let noticed = [20, 200, 2_000, 20_000].into_iter().any(|milliseconds| {
                let window = Duration::from_millis(milliseconds);
                run_for(window, tcp(), conversation, true).map_or(true, |tally| tally.errors > 0)
            });
            assert!(noticed, "{conversation:?}");
        }
    }
}
