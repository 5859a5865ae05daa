//! A client that sends any HTTP/2 frames, valid or not (RFC 9113 section 4).

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::secs;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Error code in GOAWAY for a client that causes too much work.
pub const ENHANCE_YOUR_CALM: u32 = 11;
pub const PROTOCOL_ERROR: u32 = 1;

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// Status of a response, if it is one byte of the static table (RFC 7541 appendix A).
    pub fn status(&self) -> Option<u16> {
        let block = self.payload.iter().find(|byte| *byte & 0xe0 != 0x20)?;
        [(0x88, 200), (0x8b, 304), (0x8c, 400), (0x8d, 404), (0x8e, 500)]
            .into_iter()
            .find_map(|(byte, status)| (byte == *block).then_some(status))
    }
}

pub struct Http2 {
    stream: TcpStream,
    buffer: Vec<u8>,
    goaway: Option<u32>,
}

impl Http2 {
    /// Connects, and sends the preface and empty SETTINGS.
    #[track_caller]
    pub fn connect(address: &str) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Begins HTTP/2 on a connection.
    pub fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream, buffer: Vec::new(), goaway: None };
        client.send_raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.send(SETTINGS, 0, 0, &[]);
        client
    }

    /// Sends bytes. Returns false if the server has closed the connection.
    pub fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_write_timeout(Some(secs(10))).unwrap();
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.send_raw(&frame(kind, flags, stream, payload))
    }

    /// Sends a request whose fields are literals.
    pub fn request(&mut self, stream: u32, flags: u8, fields: &[(&str, &str)]) -> bool {
        self.send(HEADERS, END_HEADERS | flags, stream, &block(fields))
    }

    pub fn get(&mut self, stream: u32, path: &str) -> bool {
        self.request(stream, END_STREAM, &get(path))
    }

    /// Reads the next frame; `None` at the end of the connection.
    pub fn next(&mut self, limit: Duration) -> Option<Frame> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(length) = self.buffer.get(..3) {
                let length = u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize;
                if self.buffer.len() >= 9 + length {
                    let rest = self.buffer.split_off(9 + length);
                    let whole = std::mem::replace(&mut self.buffer, rest);
                    let frame = Frame {
                        kind: whole[3],
                        flags: whole[4],
                        stream: u32::from_be_bytes(whole[5..9].try_into().unwrap()),
                        payload: whole[9..].to_vec(),
                    };
                    if frame.kind == GOAWAY {
                        self.goaway = Some(frame.code());
                    }
                    return Some(frame);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no frame came within {limit:?}");
            self.stream.set_read_timeout(Some(left)).unwrap();
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits for a frame. Acknowledges SETTINGS frames.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        let mut seen = Vec::new();
        loop {
            let Some(frame) = self.next(secs(20)) else {
                panic!("the connection ended before {what}: {seen:?}");
            };
            if frame.kind == SETTINGS && frame.flags & 1 == 0 {
                self.send(SETTINGS, 1, 0, &[]);
            }
            if wanted(&frame) {
                return frame;
            }
            seen.push((frame.kind, frame.flags, frame.stream));
        }
    }

    /// Waits for the end of a response. Returns its status (see [`Frame::status`]) and its body.
    #[track_caller]
    pub fn response(&mut self, stream: u32) -> (Option<u16>, Vec<u8>) {
        let (mut status, mut body) = (None, Vec::new());
        loop {
            let frame = self.wait_for("the end of a response", |frame| frame.stream == stream);
            match frame.kind {
                HEADERS if status.is_none() => status = frame.status(),
                DATA => body.extend_from_slice(&frame.payload),
                RST_STREAM => panic!("stream {stream} was reset with code {}", frame.code()),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                return (status, body);
            }
        }
    }

    /// Waits for the end of the connection. Returns the code of its GOAWAY.
    #[track_caller]
    pub fn end(&mut self) -> Option<u32> {
        while self.next(secs(20)).is_some() {}
        self.goaway
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Encodes fields as literals without indexing (RFC 7541 section 6.2.2); lengths are integers with a 7-bit prefix
/// (section 5.1).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            match text.len().checked_sub(127) {
                None => out.push(u8::try_from(text.len()).unwrap()),
                Some(mut rest) => {
                    out.push(127);
                    while rest >= 128 {
                        out.push(u8::try_from(rest % 128).unwrap() | 128);
                        rest /= 128;
                    }
                    out.push(u8::try_from(rest).unwrap());
                }
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub fn get(path: &str) -> Vec<(&str, &str)> {
    vec![(":method", "GET"), (":scheme", "http"), (":authority", "test"), (":path", path)]
}
