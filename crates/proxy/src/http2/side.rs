//! One HTTP/2 stream of a client. The exchange uses it like the connection of an HTTP/1.1 client: the exchange reads
//! the request body in HTTP/1.1 framing and writes an HTTP/1.1 response, whose head becomes HEADERS and whose body
//! becomes DATA. Each direction holds at most one piece; the rest waits in the flow-control windows of the client.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Response, StatusCode};
use logic::http1::chunked::write_end;
use logic::http1::request::{BodyLength, MethodKind, Parse, RequestKind, UpgradeWish};
use logic::http1::response::{self, Progress, ResponseHead};
use logic::http2::downgrade::{self, Upload};
use logic::http2::respond;
use tokio::io::ReadBuf;

use super::backlog::{self, Backlog, Turn};
use super::convert::{OUR_OWN, append, broken, chunk};
use super::outflow::{BodySender, Ended, Window};
use super::rules::Width;
use crate::live::{Cut, Killed};

pub struct Side {
    upload: Reading,
    body: RecvStream,
    /// Bytes of the request that were received and not yet read by the exchange.
    piece: Bytes,
    /// Bytes of `piece` that count in the flow-control windows, released when the exchange asks for more.
    unreleased: usize,
    respond: SendResponse<Bytes>,
    download: Writing,
    kind: RequestKind,
    own: BacklogShare,
    cut: Rc<Cut>,
}

/// What one stream uses of the [`Backlog`] of its connection.
pub(super) struct BacklogShare {
    backlog: Rc<Backlog>,
    head: usize,
    held: usize,
    turn: Turn,
    /// `None` until the request is sent to an HTTP/2 backend.
    width: Option<Width>,
}

impl BacklogShare {
    /// `head` is the size that was passed to [`Backlog::begin`].
    pub(super) fn new(backlog: &Rc<Backlog>, head: usize) -> Self {
        Self { backlog: backlog.clone(), head, held: 0, turn: Turn::default(), width: None }
    }

    fn poll_flows(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.backlog.poll_flows(&mut self.turn, cx)
    }

    fn let_go(&mut self) {
        self.backlog.let_go(std::mem::take(&mut self.held));
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        self.let_go();
        self.backlog.forget(&self.turn);
        self.backlog.end(self.head);
        if let Some(width) = self.width {
            self.backlog.give_width(width);
        }
    }
}

enum Reading {
    Length(u64),
    Chunked,
    Tunnel,
    Ended(Upload),
}

enum Writing {
    /// The head of the response or of an interim response.
    Head {
        bytes: Vec<u8>,
        progress: Progress,
    },
    Body(BodySender),
    Ended,
}

impl Side {
    pub(super) fn new(
        method: MethodKind,
        upload: Upload,
        body: RecvStream,
        respond: SendResponse<Bytes>,
        own: BacklogShare,
        cut: Rc<Cut>,
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
            own,
            cut,
        }
    }

    /// Reads the request body in HTTP/1.1 framing. After the end of the request only a reset by the client or a broken
    /// connection is returned, as the client waits for the response. Only a tunnel returns the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.piece.is_empty() && self.unreleased > 0 {
            // The call fails if the stream has ended, which has released the bytes.
            let _ = self.body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
        }
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
            Reading::Chunked => chunk(&data),
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

    /// Reads and throws away what the client still sends of its request, at most `room` bytes. `Ready` at the end of the
    /// request, and when the stream has ended.
    pub(crate) fn poll_discard(&mut self, cx: &mut Context<'_>, room: &mut usize) -> Poll<()> {
        self.piece = Bytes::new();
        while !matches!(self.upload, Reading::Ended(_)) && *room > 0 {
            // The call fails if the stream has ended, which has released the bytes.
            let _ = self.body.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
            match ready!(self.body.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.unreleased = data.len();
                    *room = room.saturating_sub(data.len());
                }
                Some(Err(_)) | None => self.upload = Reading::Ended(Upload::None),
            }
        }
        // A client that still sends is let go when its time is over.
        if *room > 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the client resets the stream or the connection breaks.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let reset = match &mut self.download {
            Writing::Head { .. } => self.respond.poll_reset(cx),
            Writing::Body(body) => body.poll_reset(cx),
            Writing::Ended => return Poll::Pending,
        };
        match ready!(reset) {
            Ok(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Err(error) => Poll::Ready(Err(broken(error))),
        }
    }

    /// Writes a part of the HTTP/1.1 response. Waits while the client's windows do not allow the previous part.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(part) = parts.iter().find(|part| !part.is_empty()) else { return Poll::Ready(Ok(0)) };
        match &mut self.download {
            Writing::Ended => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Writing::Head { .. } => {
                ready!(self.own.poll_flows(cx));
                self.own.backlog.queue(part.len());
                Poll::Ready(self.write_head(part))
            }
            Writing::Body(body) => {
                let written = ready!(body.poll_write(cx, part));
                self.own.backlog.queue(written.as_ref().copied().unwrap_or(0));
                self.end_download();
                Poll::Ready(written)
            }
        }
    }

    /// Waits until the frame layer has taken all written bytes.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Writing::Body(body) = &mut self.download {
            ready!(body.poll_piece(cx))?;
            self.end_download();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the response direction of a tunnel. Other responses end by their framing.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Writing::Body(body) = &mut self.download {
            let shut = ready!(body.poll_shutdown(cx));
            self.end_download();
            shut?;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns how many bytes may be read for the client now. While the client's window is closed, a few bytes: they
    /// may be the end of the body, which needs no window.
    pub(crate) fn room(&mut self) -> usize {
        match &mut self.download {
            Writing::Body(body) => match body.window() {
                Window::Closed => backlog::LEAST_WITHOUT_WINDOW,
                Window::Open => {
                    let BacklogShare { backlog, turn, .. } = &self.own;
                    backlog.room().min(backlog.left(turn)).min(body.pace())
                }
            },
            Writing::Head { .. } | Writing::Ended => self.own.backlog.room_of_head(),
        }
    }

    /// Waits while the client's socket is full and the backlog has reached its limit. To be called only when the frame
    /// layer has taken all bytes of this stream.
    pub(crate) fn poll_flows(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.own.let_go();
        if let Writing::Body(body) = &mut self.download
            && body.window() == Window::Closed
        {
            let BacklogShare { backlog, turn, .. } = &mut self.own;
            ready!(backlog.poll_sent(turn, cx));
        }
        self.own.poll_flows(cx)
    }

    pub(crate) fn hold(&mut self, bytes: usize) {
        let BacklogShare { backlog, held, turn, .. } = &mut self.own;
        *held += bytes;
        backlog.hold(turn, bytes);
    }

    /// Returns the window for the response of an HTTP/2 backend. The value does not change while the stream lives.
    pub(crate) fn width(&mut self) -> Width {
        let BacklogShare { backlog, width, .. } = &mut self.own;
        *width.get_or_insert_with(|| backlog.take_width())
    }

    /// Refuses the stream unprocessed: the client may send the request again (RFC 9113 section 8.7).
    pub(crate) fn refuse(&mut self) {
        self.respond.send_reset(Reason::REFUSED_STREAM);
        self.download = Writing::Ended;
    }

    fn end_download(&mut self) {
        if matches!(&self.download, Writing::Body(body) if body.ended() == Ended::Yes) {
            self.download = Writing::Ended;
        }
    }

    /// Returns how many bytes of `part` belong to the head.
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
        let is_tunnel = head.status == 101;
        if !is_tunnel && head.body == BodyLength::UntilClose {
            // penstock writes such a body only for HTTP/1.0 clients.
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ends = !is_tunnel && matches!(head.body, BodyLength::None | BodyLength::Length(0));
        let send = self.respond.send_response(response, ends).map_err(broken)?;
        let body = if is_tunnel { Some(BodySender::tunnel(send)) } else { BodySender::new(send, head.body) };
        self.download = body.map_or(Writing::Ended, Writing::Body);
        Ok(taken)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The reset tells the client that the response is incomplete. After a complete response the frame layer resets
        // with NO_ERROR if the request was not read to its end (RFC 9113 section 8.1).
        let reason = match self.cut.killed.get() {
            Killed::Yes => Reason::CANCEL,
            Killed::No => Reason::INTERNAL_ERROR,
        };
        match &mut self.download {
            Writing::Head { .. } => self.respond.send_reset(reason),
            Writing::Body(body) => body.reset(reason),
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
