//! The body of a message of HTTP/1.1 on its way into one stream of HTTP/2: the framing is taken off, the rest becomes DATA.
//! No more than one piece is held: what the other side's windows do not allow waits with whoever writes.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use logic::http1::chunked::{ChunkLimits, Decoder, Step};
use logic::http1::request::BodyLength;

use super::convert::{append, broken};

/// Bytes that are handed to the frame layer at once: a frame of the size that every peer takes.
const PIECE: usize = 16 * 1024;

/// Bytes in chunks that are looked through while the windows are closed: they may be the end, which needs none.
const WITHOUT_WINDOW: usize = 256;

/// Bytes that are worth reading for the other side at once, at most.
const MOST_PACE: usize = 64 * 1024;

/// One body.
pub(super) struct Outflow {
    send: SendStream<Bytes>,
    framing: Framing,
    /// Out of its framing, and waits for the other side's windows.
    piece: Bytes,
    /// Once it was asked for.
    pace: Option<usize>,
    ended: Ended,
}

/// Whether the stream has been ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By END_STREAM.
    Yes,
    /// Not yet.
    No,
}

/// Whether the flow-control windows of a stream and its connection allow DATA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// They do.
    Open,
    /// They do not.
    Closed,
}

/// How the body comes in.
enum Framing {
    Length(u64),
    Chunked(Box<Decoder>),
    /// To the end: another protocol.
    Raw,
}

impl Outflow {
    /// `None` where there is no body.
    pub(super) fn new(send: SendStream<Bytes>, body: BodyLength) -> Option<Self> {
        let framing = match body {
            BodyLength::None | BodyLength::Length(0) | BodyLength::UntilClose => return None,
            BodyLength::Length(length) => Framing::Length(length),
            BodyLength::Chunked => Framing::Chunked(Box::new(Decoder::new(ChunkLimits::default()))),
        };
        Some(Self::framed(send, framing))
    }

    /// What the far side of a tunnel says. It ends when its writer does.
    pub(super) fn tunnel(send: SendStream<Bytes>) -> Self {
        Self::framed(send, Framing::Raw)
    }

    fn framed(send: SendStream<Bytes>, framing: Framing) -> Self {
        Self { send, framing, piece: Bytes::new(), pace: None, ended: Ended::No }
    }

    /// Takes some of `part`. Waits while the piece before it waits for the other side.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, part: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_piece(cx))?;
        if self.ended == Ended::Yes {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if !matches!(self.framing, Framing::Chunked(_)) {
            // In chunks it may be the end, which needs no window.
            ready!(self.poll_window(cx))?;
        }
        // No copy of what cannot go: it would be held beside what its writer knows of.
        let room = self.room(part.len().min(PIECE));
        let count = self.take(&part[..room])?;
        // What does not go now goes with the next call, or with the flush.
        match self.poll_piece(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    /// Whether everything has been handed over.
    pub(super) fn ended(&self) -> Ended {
        self.ended
    }

    /// Waits until everything is handed over, and ends a tunnel. A message has an end of its own.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_piece(cx))?;
        if self.ended == Ended::No && matches!(self.framing, Framing::Raw) {
            self.ended = Ended::Yes;
            self.send.send_data(Bytes::new(), true).map_err(broken)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the other side to reset the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        self.send.poll_reset(cx)
    }

    /// Gives the stream up.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.send.send_reset(reason);
    }

    /// How much is worth reading for the other side at once. It is asked once and then learnt: a window is only told to those
    /// who ask for a part of it, what one stream has asked for the others do not get, and each answer wakes the task.
    pub(super) fn pace(&mut self) -> usize {
        if let Some(pace) = self.pace {
            return pace;
        }
        self.send.reserve_capacity(PIECE);
        let pace = self.send.capacity().clamp(WITHOUT_WINDOW, PIECE);
        self.send.reserve_capacity(1);
        *self.pace.insert(pace)
    }

    /// How much of `wanted` bytes may be taken.
    fn room(&mut self, wanted: usize) -> usize {
        self.send.reserve_capacity(wanted);
        let capacity = self.send.capacity();
        let Some(pace) = self.pace else { return capacity.max(WITHOUT_WINDOW).min(wanted) };
        if capacity >= wanted {
            // Much less tells nothing: there was no more to write. A little less may be for want of framing.
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

    /// Takes the framing off the front of `part`, or a piece of data. Gives how much that was.
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

    /// Whether the other side's windows are open. It asks for one byte of capacity only: what one stream reserves, the other streams
    /// do not get.
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

    /// Waits for an open window.
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

    /// Hands the piece to the frame layer as far as the other side's windows allow.
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
