//! Clients that make a proxy hold as much as they can: HTTP/2 connections full of requests that never end.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use socket2::{Domain, Socket, Type};

use super::client::request;
use super::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, block, frame};
use super::peers::Process;
use super::{Client, eventually, millis, secs, tools};

/// What keeps the requests from ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client's window is zero.
    ZeroWindow,
    /// The client's windows take little, and then nothing.
    TinyWindow,
    /// The body never ends, and the backend does not read it.
    OpenPosts,
    /// The backend never answers.
    SlowBackend,
    /// They are WebSockets without messages.
    WebSockets,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::ZeroWindow, Self::OpenPosts, Self::SlowBackend, Self::WebSockets];

    fn path(self) -> &'static str {
        match self {
            Self::ZeroWindow | Self::TinyWindow => "/held/big",
            Self::OpenPosts => "/held/post",
            Self::SlowBackend => "/held/slow",
            Self::WebSockets => "/held/socket",
        }
    }
}

/// Requests on each connection: as many as a listener allows by default.
pub const STREAMS: u32 = 100;

const BACKEND: &str = r#"
import socket, select, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
big = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000000
small = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" \
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(4096)
listener.setblocking(False)
print("port", listener.getsockname()[1], flush=True)
poll = select.epoll()
poll.register(listener.fileno(), select.EPOLLIN)
held = {}
while True:
    for fd, _ in poll.poll():
        if fd == listener.fileno():
            for _ in range(256):
                try:
                    one, _ = listener.accept()
                except OSError:
                    break
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)
                held[one.fileno()] = one
                poll.register(one.fileno(), select.EPOLLIN)
            continue
        one = held[fd]
        try:
            data = one.recv(65536)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        if not data:
            poll.unregister(fd)
            del held[fd]
            one.close()
            continue
        try:
            if data.startswith(b"POST"):
                poll.modify(fd, 0)
            elif b"/held/big" in data:
                one.send(big)
            elif b"/held/socket" in data:
                one.send(switched)
            elif b"/held/" not in data:
                one.send(small)
        except OSError:
            pass
"#;

/// A backend that answers `/` and keeps those of [`Kind`] open.
pub fn backend() -> Process {
    let mut process = Process::start(Command::new(tools::program("python3")).args(["-u", "-c", BACKEND]));
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

/// Connections that hold what they can for as long as they live.
pub struct Attack {
    connections: Vec<TcpStream>,
}

impl Attack {
    /// So many connections, each from an address of its own.
    pub fn from_many(address: &str, kind: Kind, connections: usize) -> Self {
        Self::from_each(address, kind, (0..connections).map(|n| format!("127.1.{}.{}", n / 250, n % 250 + 1)))
    }

    /// So many connections from `source` (an address of this machine), each full of requests. Those that the server refuses
    /// count as well.
    pub fn begin(address: &str, source: &str, kind: Kind, connections: usize) -> Self {
        Self::from_each(address, kind, std::iter::repeat_n(source.to_owned(), connections))
    }

    fn from_each(address: &str, kind: Kind, sources: impl Iterator<Item = String>) -> Self {
        let bytes = preface(kind);
        let connections = sources
            .filter_map(|source| {
                let mut stream = connect_from(&source, address).ok()?;
                stream.set_nonblocking(true).ok()?;
                // What does not fit at once is not waited for.
                let _ = stream.write(&bytes);
                Some(stream)
            })
            .collect();
        Self { connections }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.connections.len()
    }
}

/// Connects from an address of this machine.
pub fn connect_from(source: &str, address: &str) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let source: SocketAddr = format!("{source}:0").parse().unwrap();
    socket.bind(&source.into())?;
    let address: SocketAddr = address.parse().unwrap();
    socket.connect_timeout(&address.into(), secs(5))?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn preface(kind: Kind) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // It does not matter to most kinds.
    let window = if kind == Kind::TinyWindow { 300_u16 } else { 0 };
    let [high, low] = window.to_be_bytes();
    bytes.extend(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, high, low]));
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        let path = kind.path();
        let (method, ends) = match kind {
            Kind::ZeroWindow | Kind::TinyWindow | Kind::SlowBackend => ("GET", END_STREAM),
            Kind::OpenPosts => ("POST", 0),
            Kind::WebSockets => ("CONNECT", 0),
        };
        let mut fields =
            vec![(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path)];
        if kind == Kind::WebSockets {
            fields.insert(1, (":protocol", "websocket"));
            fields.push(("sec-websocket-version", "13"));
        }
        bytes.extend(frame(HEADERS, END_HEADERS | ends, stream, &block(&fields)));
        if kind == Kind::OpenPosts && number < 4 {
            // Within the window that a connection has before the other side says more (RFC 9113 section 6.9.2).
            bytes.extend(frame(DATA, 0, stream, &[b'x'; 16_000]));
        }
    }
    bytes
}

/// How requests from outside the attack were answered.
#[derive(Debug)]
pub struct Answers {
    /// Answered as they should be.
    pub good: usize,
    /// Everything else.
    pub failures: Vec<String>,
    /// In milliseconds.
    pub p99: u128,
}

/// Asks for `/` on new connections from `source`, one after the other, so many times.
pub fn ask(address: &str, source: &str, count: usize) -> Answers {
    let (mut failures, mut took) = (Vec::new(), Vec::new());
    let bytes = request("GET", "/", &[("Connection", "close")], b"");
    for _ in 0..count {
        let began = std::time::Instant::now();
        let answer =
            connect_from(source, address).map_err(|error| format!("connect: {error}")).and_then(|stream| {
                let mut client = Client::over(super::client::Stream::Tcp(stream));
                client.try_send(&bytes).map_err(|error| format!("send: {error}"))?;
                client.try_response(secs(10))
            });
        match answer {
            Ok(answer) if answer.status == 200 => {}
            Ok(answer) => failures.push(format!("status {}", answer.status)),
            Err(why) => failures.push(why),
        }
        took.push(began.elapsed().as_millis());
        // Not a wait for anything: so that a measurement takes long enough to meet what goes on beside it.
        std::thread::sleep(millis(5));
    }
    took.sort_unstable();
    Answers { good: count - failures.len(), failures, p99: took[count * 99 / 100] }
}
