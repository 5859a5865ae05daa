//! Responses to HTTP/1.1 requests, read to their end and not kept.
//!
//! Everything that could be taken for a fast answer but is none (another status, another protocol, a body that is cut
//! short or goes on after its end) is an error: a load that counts it measures how fast something fails.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt};

/// What becomes of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Open,
    Closed,
}

/// Reads one whole response, which must be a 200, and gives its length on the wire: head, body and what frames it.
/// [`is_unused`] tells from other failures that the server had closed the connection before it answered anything.
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

/// Whether a connection was closed or reset without a byte of a response.
pub(super) fn is_unused(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Length of the head, the body that follows, and what comes then; none if the head is not whole yet.
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
    // RFC 9112, section 9.3: HTTP/1.0 has to say that it keeps a connection.
    let mut after = if response.version == Some(1) { After::Open } else { After::Closed };
    for field in response.headers {
        if field.name.eq_ignore_ascii_case("content-length") {
            let body_length =
                number(field.value).ok_or_else(|| invalid("a Content-Length that is no number"))?;
            body = match body {
                Body::UntilClosed => Body::Length(body_length),
                Body::Length(same) if same == body_length => body,
                _ => return Err(invalid("two lengths of one body")),
            };
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(invalid("a Transfer-Encoding other than chunked"));
            }
            body = match body {
                Body::UntilClosed => Body::Chunks(Chunks::Size(None)),
                _ => return Err(invalid("two lengths of one body")),
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

/// The digits of RFC 9110, section 8.6, and nothing else: `u64::from_str` takes a plus sign too.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// What is still to come of a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks, to the last one and its trailers.
    Chunks(Chunks),
    /// All that the server sends.
    UntilClosed,
}

impl Body {
    /// Takes bytes off the body; true when it is whole. Bytes after its end are an error: nobody has asked for more.
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

    /// The server has closed the connection.
    fn end(self) -> io::Result<()> {
        match self {
            Body::UntilClosed => Ok(()),
            Body::Length(_) | Body::Chunks(_) => Err(invalid("the body is cut short")),
        }
    }
}

/// Where in chunks (RFC 9112, section 7.1) the next byte is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chunks {
    /// In a size, which is this so far.
    Size(Option<u64>),
    /// Between the size, which is this, and the end of its line: extensions, which mean nothing to us.
    Extension(u64),
    /// At the line feed after the size.
    SizeEnd(u64),
    /// In a chunk, with so many bytes left.
    Data(u64),
    /// Behind a chunk, at its carriage return.
    DataEnd,
    /// Behind a chunk, at its line feed.
    DataLineEnd,
    /// At the beginning of a line of trailers.
    Trailer,
    /// In a line of trailers.
    TrailerLine,
    /// At the line feed of a line of trailers.
    TrailerLineEnd,
    /// At the last line feed.
    LastLineEnd,
    /// Behind it all.
    Whole,
}

impl Chunks {
    /// Takes bytes off the chunks; gives how many came after their end.
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
                _ => return Err(invalid("chunks that are none")),
            };
            bytes = rest;
        }
        Ok(0)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Not the error itself: a connection that breaks within a response is not one that was [unused](is_unused).
fn broken(error: &io::Error) -> io::Error {
    invalid(&format!("the response is cut short: {error}"))
}

fn no_response(bytes: &[u8], error: httparse::Error) -> io::Error {
    let start = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    invalid(&format!("not an HTTP/1 response ({error}): it starts with \"{start}\""))
}

/// How many bytes of something that is no response are shown.
const SHOWN: usize = 32;

#[cfg(test)]
mod tests;
