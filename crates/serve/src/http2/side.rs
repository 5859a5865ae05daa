//! One HTTP/2 stream as the exchange sees it: a connection whose client speaks HTTP/1.1.
//! What is read from it is the request's body as its head announced it; what is written to it is a response of HTTP/1.1,
//! whose head becomes HEADERS and whose body becomes DATA. No more than one piece is held in either direction: the rest waits
//! in the client's flow-control windows.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use logic::http1::chunked::{ChunkLimits, Decoder, Step, write_chunk_header, write_end};
use logic::http1::request::{BodyLength, Limits, MAX_HEAD, MethodKind, Parse, RequestKind, UpgradeWish};
use logic::http1::response::{self, Progress, ResponseHead};
use logic::http2::downgrade::{self, Upload};
use logic::http2::respond;
use tokio::io::ReadBuf;

/// Bytes of a response that are handed to the frame layer at once: a frame of the size that every client takes.
const PIECE: usize = 16 * 1024;

/// One stream.
pub struct Side {
    upload: Reading,
    body: RecvStream,
    /// Read and not yet handed on.
    piece: Bytes,
    /// Its part that counts in the flow-control windows, given back once the piece was handed on.
    unreleased: usize,
    respond: SendResponse<Bytes>,
    download: Writing,
    kind: RequestKind,
}

/// How far the request's body has been read.
enum Reading {
    Length(u64),
    Chunked,
    Tunnel,
    Ended(Upload),
}

/// How far the response has been written.
enum Writing {
    /// Its head, or one of an interim response.
    Head {
        bytes: Vec<u8>,
        progress: Progress,
    },
    Body {
        send: SendStream<Bytes>,
        framing: Framing,
        piece: Bytes,
    },
    Ended,
}

/// How the body comes in.
enum Framing {
    Length(u64),
    Chunked(Box<Decoder>),
    /// To the end: another protocol.
    Raw,
}

impl Side {
    /// The stream of a request whose head was written already.
    pub(super) fn new(
        method: MethodKind,
        upload: Upload,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> Self {
        let reading = match upload {
            Upload::None => Reading::Ended(upload),
            Upload::Length(length) => Reading::Length(length),
            Upload::Chunked => Reading::Chunked,
            Upload::Tunnel => Reading::Tunnel,
        };
        let upgrade = if upload == Upload::Tunnel { UpgradeWish::Asked } else { UpgradeWish::NotAsked };
        Self {
            upload: reading,
            body,
            piece: Bytes::new(),
            unreleased: 0,
            respond,
            download: Writing::head(),
            kind: RequestKind { method, upgrade },
        }
    }

    /// Reads the request's body in its framing. A request's end is not the end of the client, who waits for the answer:
    /// from then on only a reset is told. A tunnel does end.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            if let Reading::Ended(upload) = &self.upload {
                return match upload {
                    Upload::Tunnel => Poll::Ready(Ok(())),
                    _ => self.poll_gone(cx),
                };
            }
            match ready!(self.body.poll_data(cx)) {
                Some(data) => self.take(data.map_err(broken)?)?,
                None => {
                    let trailers = ready!(self.body.poll_trailers(cx)).map_err(broken)?;
                    self.end_upload(trailers.as_ref())?;
                }
            }
        }
        let count = self.piece.len().min(into.remaining());
        into.put_slice(&self.piece[..count]);
        self.piece.advance(count);
        if self.piece.is_empty() {
            self.piece = Bytes::new();
            // A stream that is gone has given its part back already.
            let _ = self.body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: Bytes) -> io::Result<()> {
        self.unreleased = data.len();
        self.piece = match &mut self.upload {
            Reading::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                data
            }
            Reading::Chunked if data.is_empty() => data,
            Reading::Chunked => {
                let mut chunk = Vec::with_capacity(data.len() + 16);
                write_chunk_header(&mut chunk, data.len());
                chunk.extend_from_slice(&data);
                chunk.extend_from_slice(b"\r\n");
                chunk.into()
            }
            Reading::Tunnel | Reading::Ended(_) => data,
        };
        Ok(())
    }

    fn end_upload(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        let lines = trailers.into_iter().flatten();
        let lines = lines.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        let trailers =
            downgrade::trailers(lines).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.upload = match self.upload {
            Reading::Length(1..) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Reading::Chunked => {
                let mut end = Vec::new();
                write_end(&mut end, &trailers);
                self.piece = end.into();
                Reading::Ended(Upload::None)
            }
            Reading::Tunnel => Reading::Ended(Upload::Tunnel),
            Reading::Length(0) | Reading::Ended(_) => Reading::Ended(Upload::None),
        };
        Ok(())
    }

    /// Waits for the client to reset the stream, or for its connection to break.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let reset = match &mut self.download {
            Writing::Head { .. } => self.respond.poll_reset(cx),
            Writing::Body { send, .. } => send.poll_reset(cx),
            Writing::Ended => return Poll::Pending,
        };
        match ready!(reset) {
            Ok(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Err(error) => Poll::Ready(Err(broken(error))),
        }
    }

    /// Takes a piece of a response in HTTP/1.1. Waits while the piece before it waits for the client.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Poll::Ready(Ok(0)) };
        match &mut self.download {
            Writing::Ended => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Writing::Head { .. } => Poll::Ready(self.write_head(part)),
            Writing::Body { .. } => {
                ready!(self.poll_piece(cx))?;
                let count = self.take_piece(part)?;
                // What does not go now goes with the next call, or with the flush.
                match self.poll_piece(cx) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    _ => Poll::Ready(Ok(count)),
                }
            }
        }
    }

    /// Waits until the frame layer has everything.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.download {
            Writing::Body { .. } => self.poll_piece(cx),
            Writing::Head { .. } | Writing::Ended => Poll::Ready(Ok(())),
        }
    }

    /// Ends a tunnel's direction. A message has an end of its own.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        if let Writing::Body { send, framing: Framing::Raw, .. } = &mut self.download {
            let sent = send.send_data(Bytes::new(), true).map_err(broken);
            self.download = Writing::Ended;
            sent?;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives how much of `part` belongs to the head.
    fn write_head(&mut self, part: &[u8]) -> io::Result<usize> {
        let Writing::Head { bytes, progress } = &mut self.download else { return Ok(0) };
        let before = bytes.len();
        bytes.extend_from_slice(part);
        let parsed = response::resume(bytes, progress, &OUR_OWN, self.kind)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        let Parse::Complete(head) = parsed else { return Ok(part.len()) };
        let taken = head.len - before;
        let response = convert(bytes, &head)?;
        if head.is_interim() {
            self.respond.send_informational(response).map_err(broken)?;
            self.download = Writing::head();
            return Ok(taken);
        }
        let framing = match head.body {
            _ if head.status == 101 => Some(Framing::Raw),
            BodyLength::None | BodyLength::Length(0) => None,
            BodyLength::Length(length) => Some(Framing::Length(length)),
            BodyLength::Chunked => Some(Framing::Chunked(Box::new(Decoder::new(ChunkLimits::default())))),
            // Is only written for clients of HTTP/1.0.
            BodyLength::UntilClose => return Err(io::ErrorKind::InvalidData.into()),
        };
        let send = self.respond.send_response(response, framing.is_none()).map_err(broken)?;
        self.download = match framing {
            Some(framing) => Writing::Body { send, framing, piece: Bytes::new() },
            None => Writing::Ended,
        };
        Ok(taken)
    }

    /// Takes the framing off the front of `part`, or a piece of data. Gives how much that was.
    fn take_piece(&mut self, part: &[u8]) -> io::Result<usize> {
        let part = &part[..part.len().min(PIECE)];
        let Writing::Body { send, framing, piece } = &mut self.download else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        match framing {
            Framing::Raw => {
                *piece = Bytes::copy_from_slice(part);
                Ok(part.len())
            }
            Framing::Length(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(part.len());
                *piece = Bytes::copy_from_slice(&part[..len]);
                *left -= len as u64;
                Ok(len)
            }
            Framing::Chunked(decoder) => {
                match decoder
                    .decode(part)
                    .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?
                {
                    Step::Data { offset, len } => {
                        *piece = Bytes::copy_from_slice(&part[offset..offset + len]);
                        Ok(offset + len)
                    }
                    Step::NeedMore { consumed } => Ok(consumed),
                    Step::End { consumed } => {
                        let ended = match trailer_map(decoder.trailers()) {
                            Some(trailers) => send.send_trailers(trailers),
                            None => send.send_data(Bytes::new(), true),
                        };
                        self.download = Writing::Ended;
                        ended.map_err(broken)?;
                        Ok(consumed)
                    }
                }
            }
        }
    }

    /// Hands the piece to the frame layer as far as the client's windows allow.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Writing::Body { send, framing, piece } = &mut self.download else { return Poll::Ready(Ok(())) };
        while !piece.is_empty() {
            send.reserve_capacity(piece.len());
            let mut room = send.capacity();
            while room == 0 {
                match ready!(send.poll_capacity(cx)) {
                    Some(capacity) => room = capacity.map_err(broken)?,
                    None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                }
            }
            let data = piece.split_to(room.min(piece.len()));
            let is_last = piece.is_empty() && matches!(framing, Framing::Length(0));
            send.send_data(data, is_last).map_err(broken)?;
            if is_last {
                self.download = Writing::Ended;
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // An answer that is not whole must not look like one. One that is leaves the rest of the request unread, which the
        // frame layer tells by NO_ERROR (RFC 9113 section 8.1).
        match &mut self.download {
            Writing::Head { .. } => self.respond.send_reset(Reason::INTERNAL_ERROR),
            Writing::Body { send, .. } => send.send_reset(Reason::INTERNAL_ERROR),
            Writing::Ended => {}
        }
    }
}

impl Writing {
    fn head() -> Self {
        Self::Head { bytes: Vec::new(), progress: Progress::default() }
    }
}

fn convert(bytes: &[u8], head: &ResponseHead) -> io::Result<Response<()>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(respond::status(head)).map_err(|_| invalid())?;
    let headers = response.headers_mut();
    headers.try_reserve(head.headers.len()).map_err(|_| invalid())?;
    for (name, value) in respond::fields(bytes, head) {
        append(headers, name, value).ok_or_else(invalid)?;
    }
    Ok(response)
}

pub(super) fn trailer_map(trailers: &[(Vec<u8>, Vec<u8>)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in trailers {
        append(&mut map, name, value);
    }
    (!map.is_empty()).then_some(map)
}

pub(super) fn append(map: &mut HeaderMap, name: &[u8], value: &[u8]) -> Option<()> {
    let name = HeaderName::from_bytes(name).ok()?;
    let value = HeaderValue::from_bytes(value).ok()?;
    map.try_append(name, value).ok().map(|_| ())
}

pub(super) fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into());
    }
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// For heads that were written here, within the limits of what they were made from.
const OUR_OWN: Limits = Limits { head: MAX_HEAD, headers: 100_000, target: MAX_HEAD, body: None };
