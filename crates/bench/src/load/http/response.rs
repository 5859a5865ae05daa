//! HTTP/1.1 responses, read to their end and discarded.
//!
//! Every answer that is not a complete response is an error (another status, another protocol, a truncated body, bytes
//! after the body): otherwise a load would measure how fast a server fails.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt};

/// State of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Open,
    Closed,
}

/// Reads one complete response with status 200. Returns its length on the wire: head, body and chunk framing.
/// [`is_unused`] detects a connection that the server closed before any byte of the response.
pub(super) async fn receive<S: AsyncRead + Unpin>(
    stream: &mut S,
    buffer: &mut [u8],
) -> io::Result<(usize, After)> {
    let mut filled = 0;
    let (head, mut body, after) = loop {
        let count = match stream.read(&mut buffer[filled..]).await {
            Ok(0) if filled == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) if filled == buffer.len() => return Err(invalid("the head is longer than the buffer")),
            Ok(0) => return Err(invalid("the head is cut short")),
            Err(error) if filled > 0 => return Err(broken(&error)),
            result => result?,
        };
        filled += count;
        if let Some(head) = parse(&buffer[..filled])? {
            break head;
        }
    };
    let mut length = filled;
    let mut whole = body.take(&buffer[head..filled])?;
    while !whole {
        let count = stream.read(buffer).await.map_err(|error| broken(&error))?;
        if count == 0 {
            body.end()?;
            break;
        }
        length += count;
        whole = body.take(&buffer[..count])?;
    }
    Ok((length, after))
}

/// Detects a connection that was closed or reset before any byte of a response.
pub(super) fn is_unused(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Parses a head into its length, its body and the state after it. `None` if the head is incomplete.
fn parse(bytes: &[u8]) -> io::Result<Option<(usize, Body, After)>> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(no_response(bytes, error)),
    };
    if response.code != Some(200) {
        return Err(io::Error::other(format!("status {}", response.code.unwrap_or_default())));
    }
    let mut body = Body::UntilClosed;
    // RFC 9112, section 9.3: an HTTP/1.0 server must announce a persistent connection.
    let mut after = if response.version == Some(1) { After::Open } else { After::Closed };
    for field in response.headers {
        if field.name.eq_ignore_ascii_case("content-length") {
            let body_length =
                number(field.value).ok_or_else(|| invalid("a Content-Length that is no number"))?;
            body = match body {
                Body::UntilClosed => Body::Length(body_length),
                Body::Length(same) if same == body_length => body,
                _ => return Err(invalid("the response states two different lengths of its body")),
            };
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(invalid("a Transfer-Encoding other than chunked"));
            }
            body = match body {
                Body::UntilClosed => Body::Chunks(Chunks::Size(None)),
                _ => return Err(invalid("the response states two different lengths of its body")),
            };
        } else if field.name.eq_ignore_ascii_case("connection") {
            for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if option.eq_ignore_ascii_case(b"close") {
                    after = After::Closed;
                } else if option.eq_ignore_ascii_case(b"keep-alive") && response.version == Some(0) {
                    after = After::Open;
                }
            }
        }
    }
    if body == Body::UntilClosed {
        after = After::Closed;
    }
    Ok(Some((length, body, after)))
}

/// Parses digits only (RFC 9110, section 8.6): `u64::from_str` also accepts a plus sign.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// Remaining part of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Length(u64),
    /// Chunked body with its trailers.
    Chunks(Chunks),
    /// Body that ends with the connection.
    UntilClosed,
}

impl Body {
    /// Consumes bytes of the body. `true` when the body is complete. Bytes after its end are an error.
    fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let over = match self {
            Body::Length(left) => {
                let count = (*left).min(bytes.len() as u64);
                *left -= count;
                bytes.len() as u64 - count
            }
            Body::Chunks(chunks) => chunks.take(bytes)? as u64,
            Body::UntilClosed => 0,
        };
        if over > 0 {
            return Err(invalid("more bytes than the response has"));
        }
        Ok(matches!(self, Body::Length(0) | Body::Chunks(Chunks::Whole)))
    }

    /// Handles the end of the connection.
    fn end(self) -> io::Result<()> {
        match self {
            Body::UntilClosed => Ok(()),
            Body::Length(_) | Body::Chunks(_) => Err(invalid("the body is cut short")),
        }
    }
}

/// Parser state within chunks (RFC 9112, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chunks {
    /// In a chunk size, with the value so far.
    Size(Option<u64>),
    /// In the extensions after a chunk size, which are ignored.
    Extension(u64),
    /// At the line feed after a chunk size.
    SizeEnd(u64),
    /// In chunk data, with the number of bytes left.
    Data(u64),
    /// At the carriage return after chunk data.
    DataEnd,
    /// At the line feed after chunk data.
    DataLineEnd,
    /// At the start of a trailer line.
    Trailer,
    TrailerLine,
    /// At the line feed of a trailer line.
    TrailerLineEnd,
    LastLineEnd,
    Whole,
}

impl Chunks {
    /// Consumes bytes of the chunks. Returns the number of bytes after the last chunk.
    fn take(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Chunks::Data(left) = *self {
                let count = left.min(bytes.len() as u64);
                *self = if count == left { Chunks::DataEnd } else { Chunks::Data(left - count) };
                bytes = &bytes[count as usize..];
                continue;
            }
            *self = match (*self, byte) {
                (Chunks::Whole, _) => return Ok(bytes.len()),
                (Chunks::Size(size), digit) if digit.is_ascii_hexdigit() => {
                    let digit = char::from(digit).to_digit(16).map(u64::from);
                    let longer =
                        size.unwrap_or(0).checked_mul(16).zip(digit).map(|(size, digit)| size + digit);
                    Chunks::Size(Some(longer.ok_or_else(|| invalid("a chunk without bounds"))?))
                }
                (Chunks::Size(Some(size)) | Chunks::Extension(size), b'\r') => Chunks::SizeEnd(size),
                (Chunks::Size(Some(size)), b';' | b' ' | b'\t') => Chunks::Extension(size),
                (Chunks::Extension(size), other) if other != b'\n' => Chunks::Extension(size),
                (Chunks::SizeEnd(0), b'\n') => Chunks::Trailer,
                (Chunks::SizeEnd(size), b'\n') => Chunks::Data(size),
                (Chunks::DataEnd, b'\r') => Chunks::DataLineEnd,
                (Chunks::DataLineEnd, b'\n') => Chunks::Size(None),
                (Chunks::Trailer, b'\r') => Chunks::LastLineEnd,
                (Chunks::TrailerLine, b'\r') => Chunks::TrailerLineEnd,
                (Chunks::Trailer | Chunks::TrailerLine, other) if other != b'\n' => Chunks::TrailerLine,
                (Chunks::TrailerLineEnd, b'\n') => Chunks::Trailer,
                (Chunks::LastLineEnd, b'\n') => Chunks::Whole,
                _ => return Err(invalid("malformed chunks")),
            };
            bytes = rest;
        }
        Ok(0)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Wraps the error: a connection that breaks within a response is not [unused](is_unused).
fn broken(error: &io::Error) -> io::Error {
    invalid(&format!("the response is cut short: {error}"))
}

fn no_response(bytes: &[u8], error: httparse::Error) -> io::Error {
    let start = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    invalid(&format!("not an HTTP/1 response ({error}): it starts with \"{start}\""))
}

/// Largest number of bytes of an invalid response shown in an error.
const SHOWN: usize = 32;

#[cfg(test)]
mod tests;
