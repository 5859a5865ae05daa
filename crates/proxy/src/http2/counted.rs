//! Counts the frames of one connection, and limits how many are read in one turn.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use logic::http2::flood::{Allowances, Budget, Flood, Sender};
use tokio::io::ReadBuf;

/// State that a connection shares with its transport.
#[derive(Debug, Default)]
pub(in crate::http2) struct ReadLimit {
    flood: Cell<Option<Flood>>,
    /// Frames that may be read before the next turn of the connection.
    frames: Cell<u64>,
}

impl ReadLimit {
    /// Returns the budget that the peer has exceeded. Penstock then reads no more from the peer, the frame layer
    /// does not get the bytes that exceeded the budget, and the connection ends.
    pub(in crate::http2) fn flood(&self) -> Option<Flood> {
        self.flood.get()
    }

    /// Starts a turn of the connection: its limit of frames applies anew.
    pub(in crate::http2) fn begin_turn(&self) {
        self.frames.set(FRAMES);
    }
}

/// Frames that one turn of a connection reads; one read may exceed the limit. Other connections of the worker do not wait
/// until thousands of small frames of one peer are read (`bench/flood_latency.py`).
const FRAMES: u64 = 64;

/// Size of the first read, and of reads from a peer that sends small frames.
const FEW_BYTES: usize = 2048;

/// Number of frames in one read from which they count as small.
const SMALL_FRAMES: u64 = 16;

pub(in crate::http2) struct Counted {
    budget: Budget,
    /// Whether the last read contained many frames; true before the first read.
    small_frames: bool,
    read_limit: Rc<ReadLimit>,
}

impl Counted {
    pub(in crate::http2) fn new(sender: Sender, read_limit: Rc<ReadLimit>, allowances: Allowances) -> Self {
        read_limit.begin_turn();
        let budget = Budget::new(sender, Instant::now(), allowances);
        Self { budget, small_frames: true, read_limit }
    }

    /// Reads bytes of the peer with `read`, and counts their frames.
    pub(in crate::http2) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
        mut read: impl FnMut(&mut Context<'_>, &mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.read_limit.flood().is_some() {
            return Poll::Pending;
        }
        if self.read_limit.frames.get() == 0 {
            // `yield_now` lets other tasks run and the runtime poll its sockets first; waking directly would not.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let counted = if self.small_frames {
            let mut few = [0; FEW_BYTES];
            let most = FEW_BYTES.min(into.remaining());
            let mut few = ReadBuf::new(&mut few[..most]);
            ready!(read(cx, &mut few))?;
            into.put_slice(few.filled());
            self.count(few.filled())
        } else {
            let before = into.filled().len();
            ready!(read(cx, into))?;
            self.count(&into.filled()[before..])
        };
        match counted {
            Ok(()) => Poll::Ready(Ok(())),
            Err(flood) => {
                self.read_limit.flood.set(Some(flood));
                Poll::Pending
            }
        }
    }

    /// Counts the frames in the first `count` bytes of `from`, which were sent.
    pub(in crate::http2) fn sent(&mut self, from: &[IoSlice<'_>], count: usize) {
        let mut left = count;
        for part in from {
            let written = left.min(part.len());
            self.budget.send(&part[..written]);
            left -= written;
        }
    }

    /// Counts the frames in `bytes`. An error if they exceed a budget.
    fn count(&mut self, bytes: &[u8]) -> Result<(), Flood> {
        let before = self.budget.frames();
        let counted = self.budget.receive(bytes, Instant::now());
        let frames = self.budget.frames() - before;
        self.small_frames = frames >= SMALL_FRAMES;
        self.read_limit.frames.set(self.read_limit.frames.get().saturating_sub(frames));
        counted
    }
}
