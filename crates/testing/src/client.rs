//! A client that sends exactly the given bytes; every wait has a time limit.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::secs;

/// Time limit of every wait, unless a call gives another one.
pub const LIMIT: Duration = secs(20);

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An orderly close by the peer.
    Closed,
    Reset,
    /// The connection was still open at the time limit.
    Open,
}

/// A connection, with the bytes that were read but not used.
pub struct Client {
    pub stream: Stream,
    buffer: Vec<u8>,
}

/// A response. The parser is lenient; the tests check what they need.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Head as received, with its empty line.
    pub head: Vec<u8>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub complete: Complete,
}

/// Whether a body is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// Complete by its framing, or by an orderly close if the framing has no length.
    Yes,
    /// The connection ended inside the body.
    Truncated,
}

impl Response {
    /// First value of a header; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn header_lines(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Stream {
    /// Connects to `127.0.0.1:80`, `unix:/path` or `/path`.
    pub fn connect(address: &str) -> io::Result<Self> {
        match address.strip_prefix("unix:").or(address.starts_with('/').then_some(address)) {
            Some(path) => UnixStream::connect(path).map(Self::Unix),
            None => {
                // A listener on all addresses is reached over loopback.
                let address = address.replace("[::]:", "127.0.0.1:").replace("0.0.0.0:", "127.0.0.1:");
                let stream = TcpStream::connect_timeout(&address.parse().map_err(io::Error::other)?, LIMIT)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Sets the time limit of one read; `None` for no limit.
    pub fn set_read_timeout(&self, limit: Option<Duration>) {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(limit),
            Self::Unix(stream) => stream.set_read_timeout(limit),
        }
        .unwrap();
    }

    pub fn set_write_timeout(&self, limit: Option<Duration>) {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(limit),
            Self::Unix(stream) => stream.set_write_timeout(limit),
        }
        .unwrap();
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }

    /// A second handle of the same socket.
    pub fn again(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().unwrap()),
            Self::Unix(stream) => Self::Unix(stream.try_clone().unwrap()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Client {
    #[track_caller]
    pub fn connect(address: &str) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("connect to {address}: {error}"))
    }

    pub fn try_connect(address: &str) -> io::Result<Self> {
        Stream::connect(address).map(Self::over)
    }

    pub fn over(stream: Stream) -> Self {
        stream.set_write_timeout(Some(LIMIT));
        Self { stream, buffer: Vec::new() }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap_or_else(|error| panic!("send: {error}"));
    }

    /// Sends bytes. Returns an error if the peer has closed the connection.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    pub fn finish_sending(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    #[track_caller]
    pub fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Response {
        self.send(request("GET", target, headers, b""));
        self.response()
    }

    /// Sends any request, with `Content-Length` if it has a body, and reads the response.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.send(request(method, target, headers, body));
        if method == "HEAD" { self.response_to_head() } else { self.response() }
    }

    /// Reads the next response, which may be an interim response. Panics on any error.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.try_response(LIMIT).unwrap_or_else(|why| panic!("no response: {why}"))
    }

    /// Reads the response to a HEAD request, which has no body.
    #[track_caller]
    pub fn response_to_head(&mut self) -> Response {
        self.read_response(Instant::now() + LIMIT, Body::Never)
            .unwrap_or_else(|why| panic!("no response: {why}"))
    }

    /// Reads the next response; `Err` describes the failure.
    pub fn try_response(&mut self, limit: Duration) -> Result<Response, String> {
        self.read_response(Instant::now() + limit, Body::AsFramed)
    }

    fn read_response(&mut self, deadline: Instant, expected: Body) -> Result<Response, String> {
        let head = self.take_until(b"\r\n\r\n", deadline)?;
        let (status, headers) = parse_head(&head)?;
        let mut response = Response {
            status,
            head,
            headers,
            body: Vec::new(),
            trailers: Vec::new(),
            complete: Complete::Yes,
        };
        if matches!(expected, Body::Never) || status < 200 || status == 204 || status == 304 {
            return Ok(response);
        }
        if response.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            if self.read_chunks(&mut response, deadline)?.is_none() {
                response.complete = Complete::Truncated;
            }
        } else if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().map_err(|_| format!("content-length {length:?}"))?;
            while self.buffer.len() < length {
                if self.fill(deadline)? == 0 {
                    response.complete = Complete::Truncated;
                    break;
                }
            }
            response.body = self.buffer.drain(..length.min(self.buffer.len())).collect();
        } else {
            while self.fill(deadline)? > 0 {}
            response.body = std::mem::take(&mut self.buffer);
        }
        Ok(response)
    }

    fn read_chunks(&mut self, response: &mut Response, deadline: Instant) -> Result<Option<()>, String> {
        loop {
            let Ok(line) = self.take_until(b"\r\n", deadline) else { return Ok(None) };
            let text = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&text, 16).map_err(|_| format!("chunk size {text:?}"))?;
            if size == 0 {
                break;
            }
            while self.buffer.len() < size + 2 {
                if self.fill(deadline)? == 0 {
                    let left = self.buffer.len().min(size);
                    response.body.extend(self.buffer.drain(..left));
                    return Ok(None);
                }
            }
            response.body.extend(self.buffer.drain(..size));
            let end: Vec<u8> = self.buffer.drain(..2).collect();
            if end != b"\r\n" {
                return Err(format!("chunk ends with {}", show(&end)));
            }
        }
        loop {
            let Ok(line) = self.take_until(b"\r\n", deadline) else { return Ok(None) };
            if line == b"\r\n" {
                return Ok(Some(()));
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            let (name, value) = text.split_once(':').ok_or_else(|| format!("trailer {text:?}"))?;
            response.trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads up to the end of `needle`.
    pub fn take_until(&mut self, needle: &[u8], deadline: Instant) -> Result<Vec<u8>, String> {
        let mut searched = 0;
        loop {
            let from = searched;
            if let Some(at) = self.buffer[from..].windows(needle.len()).position(|window| window == needle) {
                return Ok(self.buffer.drain(..from + at + needle.len()).collect());
            }
            searched = (self.buffer.len() + 1).saturating_sub(needle.len());
            match self.fill(deadline) {
                Ok(0) => return Err(format!("closed after {}", show(&self.buffer))),
                Ok(_) => {}
                Err(why) => return Err(format!("{why} after {}", show(&self.buffer))),
            }
        }
    }

    /// Reads up to the end of `needle`; panics on any error.
    #[track_caller]
    pub fn read_until(&mut self, needle: &[u8]) -> Vec<u8> {
        self.take_until(needle, Instant::now() + LIMIT)
            .unwrap_or_else(|why| panic!("{} did not come: {why}", show(needle)))
    }

    /// Reads exactly `length` bytes; panics on any error.
    #[track_caller]
    pub fn read_exactly(&mut self, length: usize) -> Vec<u8> {
        let deadline = Instant::now() + LIMIT;
        while self.buffer.len() < length {
            match self.fill(deadline) {
                Ok(0) => {
                    panic!("closed after {} of {length} bytes: {}", self.buffer.len(), show(&self.buffer))
                }
                Ok(_) => {}
                Err(why) => panic!("{why} after {} of {length} bytes", self.buffer.len()),
            }
        }
        self.buffer.drain(..length).collect()
    }

    /// Reads to the end of the connection. Returns the bytes and how it ended.
    pub fn read_to_end(&mut self) -> (Vec<u8>, End) {
        self.read_to_end_within(LIMIT)
    }

    /// [`Self::read_to_end`] with a time limit.
    pub fn read_to_end_within(&mut self, limit: Duration) -> (Vec<u8>, End) {
        let deadline = Instant::now() + limit;
        let end = loop {
            match self.fill(deadline) {
                Ok(0) => break End::Closed,
                Ok(_) => {}
                Err(why) if why == "time" => break End::Open,
                Err(_) => break End::Reset,
            }
        };
        (std::mem::take(&mut self.buffer), end)
    }

    pub fn unused(&self) -> &[u8] {
        &self.buffer
    }

    /// Puts bytes before the bytes that were read but not used.
    pub fn put_back(&mut self, mut bytes: Vec<u8>) {
        bytes.append(&mut self.buffer);
        self.buffer = bytes;
    }

    /// Discards the bytes that were read but not used.
    pub fn forget(&mut self) {
        self.buffer.clear();
    }

    /// Reads once; 0 is the end of the stream. `Err("time")` after the deadline.
    pub fn fill(&mut self, deadline: Instant) -> Result<usize, String> {
        let mut chunk = [0; 65_536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("time".to_owned());
            }
            self.stream.set_read_timeout(Some(left));
            match self.stream.read(&mut chunk) {
                Ok(read) => {
                    self.buffer.extend_from_slice(&chunk[..read]);
                    return Ok(read);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Body {
    AsFramed,
    Never,
}

/// Bytes of a request. `Host: test` is added unless `headers` has a Host.
pub fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        bytes.push_str("Host: test\r\n");
    }
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        bytes.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Sends one GET on a new connection.
#[track_caller]
pub fn get(address: &str, target: &str) -> Response {
    Client::connect(address).get(target, &[("Connection", "close")])
}

fn parse_head(head: &[u8]) -> Result<(u16, Vec<(String, String)>), String> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| format!("status line {first:?}"))?;
    let headers = lines
        .take_while(|line| !line.is_empty())
        .map(|line| match line.split_once(':') {
            Some((name, value)) => (name.to_ascii_lowercase(), value.trim().to_owned()),
            None => (line.to_owned(), String::new()),
        })
        .collect();
    Ok((status, headers))
}

/// Bytes as text for messages, with every unprintable byte escaped.
pub fn show(bytes: &[u8]) -> String {
    let shown = bytes.len().min(600);
    let more = if bytes.len() > shown { format!(" ... ({} bytes)", bytes.len()) } else { String::new() };
    format!("\"{}\"{more}", bytes[..shown].escape_ascii())
}
