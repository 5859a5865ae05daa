//! The connection under HTTP/2: gives the frame layer what was read before it, and counts the frames that pass.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use logic::http2::flood::{Budget, Flood};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::backlog::Backlog;
use crate::stream::Stream;

/// What a connection and its [`Wire`] tell each other.
#[derive(Debug, Default)]
pub(super) struct Gate {
    flood: Cell<Option<Flood>>,
    /// Frames that may still be read in this turn of the connection.
    frames: Cell<u64>,
}

impl Gate {
    /// The budget that the client has exhausted. Nothing more is read of such a client, and what exhausted it was not given to
    /// the frame layer. Whoever sees this ends the connection.
    pub(super) fn flood(&self) -> Option<Flood> {
        self.flood.get()
    }

    /// Begins a turn of the connection among those of its worker.
    pub(super) fn begin_turn(&self) {
        self.frames.set(FRAMES);
    }
}

/// Frames that are read in one turn of a connection, as far as one read does not hold more: clients beside one that sends
/// thousands of small frames do not wait for all of them (`bench/flood_latency.py`).
const FRAMES: u64 = 64;

/// Bytes that are read at once of a client that sends small frames, and at first.
const FEW_BYTES: usize = 2048;

/// Frames in one read that make them small.
const SMALL_FRAMES: u64 = 16;

/// What the frame layer reads and writes.
pub(super) struct Wire {
    stream: Rc<Stream>,
    early: Vec<u8>,
    early_read: usize,
    budget: Budget,
    /// The last read held many frames, or there was none yet.
    small_frames: bool,
    gate: Rc<Gate>,
    backlog: Rc<Backlog>,
}

impl Wire {
    /// `early` is what the client said already.
    pub(super) fn new(stream: Rc<Stream>, early: Vec<u8>, gate: Rc<Gate>, backlog: Rc<Backlog>) -> Self {
        gate.begin_turn();
        let budget = Budget::new(Instant::now());
        Self { stream, early, early_read: 0, budget, small_frames: true, gate, backlog }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return self.stream.poll_read_buffer(cx, into);
        }
        let rest = &self.early[self.early_read..];
        let count = rest.len().min(into.remaining());
        into.put_slice(&rest[..count]);
        self.early_read += count;
        if self.early_read == self.early.len() {
            self.early = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Counts what was read. An error if it exhausts a budget.
    fn count(&mut self, bytes: &[u8]) -> Result<(), Flood> {
        let before = self.budget.frames();
        let counted = self.budget.receive(bytes, Instant::now());
        let frames = self.budget.frames() - before;
        self.small_frames = frames >= SMALL_FRAMES;
        self.gate.frames.set(self.gate.frames.get().saturating_sub(frames));
        counted
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gate.flood().is_some() {
            return Poll::Pending;
        }
        if this.gate.frames.get() == 0 {
            // After the others, and after a look at the sockets: a waker that is woken here would come before that look.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let counted = if this.small_frames {
            let mut few = [0; FEW_BYTES];
            let most = FEW_BYTES.min(into.remaining());
            let mut few = ReadBuf::new(&mut few[..most]);
            ready!(this.poll_bytes(cx, &mut few))?;
            into.put_slice(few.filled());
            this.count(few.filled())
        } else {
            let before = into.filled().len();
            ready!(this.poll_bytes(cx, into))?;
            this.count(&into.filled()[before..])
        };
        match counted {
            Ok(()) => Poll::Ready(Ok(())),
            Err(flood) => {
                this.gate.flood.set(Some(flood));
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(from)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Poll::Ready(written) = this.stream.poll_write(cx, from) else {
            this.backlog.block();
            return Poll::Pending;
        };
        let count = written?;
        this.backlog.written(count);
        let mut left = count;
        for part in from {
            let written = left.min(part.len());
            this.budget.send(&part[..written]);
            left -= written;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_shutdown(cx)
    }
}
