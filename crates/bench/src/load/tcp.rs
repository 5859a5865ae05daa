//! Bytes over TCP and Unix sockets, with and without TLS: short connections, messages on kept ones, and streams that
//! do not end. Server and client know the bytes that have to arrive, so a relay that loses or changes some is found
//! out.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task;

use super::http::{Stream, connect};
use super::tls::{Client, Connector};
use super::{Gauge, Phase};
use crate::address::Address;

/// The end behind a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    /// Where it listens.
    pub listen: Address,
    /// What passes on each connection.
    pub conversation: Conversation,
}

/// The end before a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Where the relay, or the server itself, is.
    pub server: Address,
    /// What passes on each connection; the same as the server's.
    pub conversation: Conversation,
    /// Connections at once.
    pub connections: usize,
    /// Speak TLS.
    pub tls: Option<Client>,
}

/// What passes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conversation {
    /// 100 bytes there, 100 bytes back, and the server closes. A unit is such a connection. The client must not be
    /// the one who closes first: its ports would be taken for a minute, by connections in TIME-WAIT.
    Short,
    /// 100 bytes there and 100 bytes back, again and again. A unit is one time.
    Kept,
    /// The server sends and does not end. There are no units, only bytes.
    Download,
    /// The client sends and the server does not answer. There are no units, only bytes.
    Upload,
}

impl Server {
    /// Opens its listener.
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

    /// Serves for ever.
    pub async fn run(&self, listener: Listener) -> io::Result<()> {
        let conversation = self.conversation;
        let stream: Rc<[u8]> = Pattern::chunk().into();
        loop {
            let chunk = stream.clone();
            // Clients that go away in the middle are no fault of the server.
            match &listener {
                Listener::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    task::spawn_local(async move {
                        match conversation {
                            Conversation::Upload => take_in(stream).await,
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

/// A listener that is open.
#[derive(Debug)]
pub enum Listener {
    /// For TCP.
    Tcp(TcpListener),
    /// For a Unix stream socket.
    Unix(UnixListener),
}

async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    conversation: Conversation,
    chunk: &[u8],
) -> io::Result<()> {
    match conversation {
        Conversation::Short => serve_message(&mut stream).await,
        Conversation::Kept => loop {
            serve_message(&mut stream).await?;
        },
        Conversation::Download => loop {
            stream.write_all(chunk).await?;
        },
        Conversation::Upload => {
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
    // A question that arrived broken gets no answer: the client reports it.
    if message == QUESTION { stream.write_all(&ANSWER).await } else { Err(ErrorKind::InvalidData.into()) }
}

async fn take_in(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    verify(&mut stream, &mut buffer).await?;
    while discard(&stream, &mut buffer).await? > 0 {}
    Ok(())
}

impl Load {
    /// Starts its connections as tasks of this thread; they go on until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let tls = self.tls.as_ref().map(Client::connector).transpose()?.map(Rc::new);
        let shared = Rc::new(Shared { load: self.clone(), tls, gauge: gauge.clone() });
        match self.conversation {
            Conversation::Short | Conversation::Kept => {
                // The first one tells, before anything is measured, whether there is a server at all.
                let mut stream = shared.connect().await?;
                exchange(&mut stream, self.conversation).await?;
                for _ in 0..self.connections {
                    let shared = shared.clone();
                    task::spawn_local(async move { shared.talk().await });
                }
            }
            Conversation::Download | Conversation::Upload => {
                for _ in 0..self.connections {
                    shared.clone().begin_stream().await?;
                }
            }
        }
        Ok(())
    }
}

/// What all connections of a load share.
struct Shared {
    load: Load,
    tls: Option<Rc<Connector>>,
    gauge: Rc<Gauge>,
}

impl Shared {
    async fn connect(&self) -> io::Result<Stream> {
        connect(&self.load.server, self.tls.as_deref()).await
    }

    /// Question and answer, to the end of the window.
    async fn talk(&self) {
        let mut kept = None;
        while self.gauge.phase() != Phase::Over {
            let start = Instant::now();
            match self.once(&mut kept).await {
                Ok(()) => self.gauge.unit(start, Instant::now()),
                Err(error) => {
                    self.gauge.error(error);
                    // A server that refuses everybody must not be asked a million times a second.
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
        if self.load.conversation == Conversation::Kept {
            *kept = Some(stream);
        }
        Ok(())
    }

    async fn begin_stream(self: Rc<Self>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        match (&self.load.server, self.load.conversation) {
            (_, Conversation::Upload) => {
                let mut stream = self.connect().await?;
                task::spawn_local(async move {
                    let result = self.send(&mut stream).await;
                    self.ended(result);
                });
            }
            // What TLS encrypted must be decrypted to be counted; other bytes need not be copied.
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
            // The stream goes on where it is: what was written is counted when it was.
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

/// One question and its answer; then, if it is a short connection, its end.
pub(super) async fn exchange(stream: &mut Stream, conversation: Conversation) -> io::Result<()> {
    stream.write_all(&QUESTION).await?;
    stream.flush().await?;
    let mut answer = [0; ANSWER.len()];
    stream.read_exact(&mut answer).await?;
    if answer != ANSWER {
        return Err(io::Error::new(ErrorKind::InvalidData, "the answer arrived changed"));
    }
    if conversation == Conversation::Short && stream.read(&mut answer).await? > 0 {
        return Err(io::Error::new(ErrorKind::InvalidData, "more bytes than the answer has"));
    }
    Ok(())
}

/// Reads the beginning of a stream and compares it.
async fn verify<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut [u8]) -> io::Result<()> {
    let mut pattern = Pattern::default();
    let mut left = VERIFIED;
    while left > 0 {
        let limit = left.min(buffer.len());
        match stream.read(&mut buffer[..limit]).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count if pattern.matches(&buffer[..count]) => left -= count,
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "the stream arrived changed")),
        }
    }
    Ok(())
}

/// Takes bytes out of the socket without copying them (MSG_TRUNC, tcp(7)): the copy would be made on the core that
/// both ends of a measured relay share, and would keep it from being the limit.
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

/// The bytes of a stream: their place, modulo a prime, so that a piece that is missing, doubled or moved shows.
#[derive(Debug, Default)]
struct Pattern {
    place: usize,
}

impl Pattern {
    const PERIOD: usize = 251;

    /// A piece that can be repeated.
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

/// The largest piece that is read at once.
const PIECE: usize = 256 * 1024;

/// So much of the beginning of each stream is compared, which is long enough for a relay to have changed to the way
/// in which it moves bulk.
const VERIFIED: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::task::LocalSet;

    use super::*;
    use crate::load::Window;

    fn run(listen: Address, conversation: Conversation, relay: bool) -> io::Result<crate::load::Tally> {
        run_for(Duration::from_millis(20), listen, conversation, relay)
    }

    fn run_for(
        duration: Duration,
        listen: Address,
        conversation: Conversation,
        relay: bool,
    ) -> io::Result<crate::load::Tally> {
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

    /// Passes everything on, but the 50th byte of each direction changed.
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

    const ALL: [Conversation; 4] =
        [Conversation::Short, Conversation::Kept, Conversation::Download, Conversation::Upload];

    fn tcp() -> Address {
        Address::Tcp("127.0.0.1:0".parse().unwrap())
    }

    #[test]
    fn every_conversation_works_over_tcp_and_unix() {
        let directory = tempfile::tempdir().unwrap();
        for conversation in ALL {
            for listen in [tcp(), Address::Unix(directory.path().join(format!("{conversation:?}")))] {
                // A busy machine may do nothing else for the whole of a short window: then a longer one tells.
                let counted = [20, 200, 2_000, 20_000].into_iter().any(|milliseconds| {
                    let window = Duration::from_millis(milliseconds);
                    let listen = match &listen {
                        Address::Unix(path) => Address::Unix(path.with_extension(milliseconds.to_string())),
                        tcp => tcp.clone(),
                    };
                    let tally = run_for(window, listen, conversation, false).unwrap();
                    assert_eq!(tally.first_error, None, "{conversation:?}");
                    let counted = match conversation {
                        Conversation::Short | Conversation::Kept => tally.units,
                        Conversation::Download | Conversation::Upload => tally.bytes,
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
            let noticed = match run(tcp(), conversation, true) {
                Ok(tally) => tally.errors > 0,
                Err(_) => true,
            };
            assert!(noticed, "{conversation:?}");
        }
    }
}
