//! Sends the body of an HTTP/1.1 message on one HTTP/2 stream: removes the HTTP/1.1 framing and sends the data as DATA
//! frames. At most one piece is held; while the peer's flow-control windows are closed, the writer waits.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use logic::http1::chunked::{ChunkLimits, Decoder, Step};
use logic::http1::request::BodyLength;

use super::convert::{append, broken};

/// Bytes handed to the frame layer at once. Every peer accepts a frame of this size.
const PIECE: usize = 16 * 1024;

/// Bytes of a chunked body parsed while the windows are closed: the end of the body needs no window.
const WITHOUT_WINDOW: usize = 256;

/// Upper limit of [`BodySender::pace`].
const MOST_PACE: usize = 64 * 1024;

pub(super) struct BodySender {
    send: SendStream<Bytes>,
    framing: Framing,
    /// Data without its framing that waits for the peer's windows.
    piece: Bytes,
    /// The result of [`BodySender::pace`]; `None` before its first call.
    pace: Option<usize>,
    ended: Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Yes,
    No,
}

/// Whether the flow-control windows of the stream and of its connection allow DATA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    Open,
    Closed,
}

/// HTTP/1.1 framing of the body.
enum Framing {
    Length(u64),
    Chunked(Box<Decoder>),
    /// No framing: a tunnel of another protocol, up to the end of the connection.
    Raw,
}

impl BodySender {
    /// Returns `None` for a message without a body.
    pub(super) fn new(send: SendStream<Bytes>, body: BodyLength) -> Option<Self> {
        let framing = match body {
            BodyLength::None | BodyLength::Length(0) | BodyLength::UntilClose => return None,
            BodyLength::Length(length) => Framing::Length(length),
            BodyLength::Chunked => Framing::Chunked(Box::new(Decoder::new(ChunkLimits::OUR_OWN))),
        };
        Some(Self::framed(send, framing))
    }

    /// Sends the bytes of a tunnel until [`Self::poll_shutdown`].
    pub(super) fn tunnel(send: SendStream<Bytes>) -> Self {
        Self::framed(send, Framing::Raw)
    }

    fn framed(send: SendStream<Bytes>, framing: Framing) -> Self {
        Self { send, framing, piece: Bytes::new(), pace: None, ended: Ended::No }
    }

    /// Takes bytes from `part`. Waits while the peer's windows do not allow the previous piece.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_piece(cx))?;
        if self.ended == Ended::Yes {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if !matches!(self.framing, Framing::Chunked(_)) {
            // Bytes of a chunked body may be its end, which needs no window.
            ready!(self.poll_window(cx))?;
        }
        // Copies only what the windows allow: the writer does not count the copy, so its memory would not be limited.
        let room = self.room(part.len().min(PIECE));
        let count = self.take(&part[..room])?;
        // The next call or the flush sends the rest.
        match self.poll_piece(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    /// Whether the frame layer has the complete body.
    pub(super) fn ended(&self) -> Ended {
        self.ended
    }

    /// Waits until the frame layer has the piece, and ends the stream of a tunnel. Other bodies end by their framing.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_piece(cx))?;
        if self.ended == Ended::No && matches!(self.framing, Framing::Raw) {
            self.ended = Ended::Yes;
            self.send.send_data(Bytes::new(), true).map_err(broken)?;
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        self.send.poll_reset(cx)
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        self.send.send_reset(reason);
    }

    /// Returns how many bytes to read for the peer at once. The value is measured at the first call and then adapted by
    /// `room`: h2 shows the window only to a stream that reserves capacity, which others cannot use, and wakes it.
    pub(super) fn pace(&mut self) -> usize {
        if let Some(pace) = self.pace {
            return pace;
        }
        self.send.reserve_capacity(PIECE);
        let pace = self.send.capacity().clamp(WITHOUT_WINDOW, PIECE);
        self.send.reserve_capacity(1);
        *self.pace.insert(pace)
    }

    /// Returns how many of `wanted` bytes may be taken, and adapts the pace.
    fn room(&mut self, wanted: usize) -> usize {
        self.send.reserve_capacity(wanted);
        let capacity = self.send.capacity();
        let Some(pace) = self.pace else { return capacity.max(WITHOUT_WINDOW).min(wanted) };
        if capacity >= wanted {
            // A write much smaller than the pace proves nothing. Up to one eighth may be framing.
            if wanted + wanted / 8 >= pace.min(PIECE) {
                self.pace = Some((2 * pace.max(wanted)).min(MOST_PACE));
            }
            return wanted;
        }
        if capacity > 0 {
            self.pace = Some((pace / 2).max(WITHOUT_WINDOW));
        }
        capacity.max(WITHOUT_WINDOW).min(wanted)
    }

    /// Removes framing from the start of `part`, or moves data to `piece`. Returns the number of bytes used.
    fn take(&mut self, part: &[u8]) -> io::Result<usize> {
        match &mut self.framing {
            Framing::Raw => {
                self.piece = Bytes::copy_from_slice(part);
                Ok(part.len())
            }
            Framing::Length(left) => {
                let len = usize::try_from(*left).unwrap_or(usize::MAX).min(part.len());
                self.piece = Bytes::copy_from_slice(&part[..len]);
                *left -= len as u64;
                Ok(len)
            }
            Framing::Chunked(decoder) => {
                let step = decoder
                    .decode(part)
                    .map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
                match step {
                    Step::Data { offset, len } => {
                        self.piece = Bytes::copy_from_slice(&part[offset..offset + len]);
                        Ok(offset + len)
                    }
                    Step::NeedMore { consumed } => Ok(consumed),
                    Step::End { consumed } => {
                        self.ended = Ended::Yes;
                        match trailer_map(decoder.trailers()) {
                            Some(trailers) => self.send.send_trailers(trailers),
                            None => self.send.send_data(Bytes::new(), true),
                        }
                        .map_err(broken)?;
                        Ok(consumed)
                    }
                }
            }
        }
    }

    /// Whether the peer's windows are open. Reserves only one byte, as other streams cannot use the reserved capacity.
    pub(super) fn window(&mut self) -> Window {
        if self.send.capacity() > 0 {
            return Window::Open;
        }
        if self.piece.is_empty() && self.ended == Ended::No {
            self.send.reserve_capacity(1);
        }
        match self.send.capacity() {
            0 => Window::Closed,
            _ => Window::Open,
        }
    }

    fn poll_window(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.window() == Window::Open {
            return Poll::Ready(Ok(()));
        }
        while self.send.capacity() == 0 {
            match ready!(self.send.poll_capacity(cx)) {
                Some(capacity) => drop(capacity.map_err(broken)?),
                None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Hands the piece to the frame layer as far as the peer's windows allow.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.piece.is_empty() {
            self.send.reserve_capacity(self.piece.len());
            let mut room = self.send.capacity();
            while room == 0 {
                match ready!(self.send.poll_capacity(cx)) {
                    Some(capacity) => room = capacity.map_err(broken)?,
                    None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                }
            }
            let data = self.piece.split_to(room.min(self.piece.len()));
            let is_last = self.piece.is_empty() && matches!(self.framing, Framing::Length(0));
            self.send.send_data(data, is_last).map_err(broken)?;
            if is_last {
                self.ended = Ended::Yes;
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn trailer_map(trailers: &[(Vec<u8>, Vec<u8>)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in trailers {
        append(&mut map, name, value);
    }
    (!map.is_empty()).then_some(map)
}
