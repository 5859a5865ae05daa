//! The connection under HTTP/2: gives the frame layer what was read before it, and counts the frames that pass.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use logic::http2::flood::{Budget, Flood};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::stream::Stream;

/// What the frame layer reads and writes.
pub(super) struct Wire {
    stream: Rc<Stream>,
    early: Vec<u8>,
    early_read: usize,
    budget: Budget,
    flood: Rc<Cell<Option<Flood>>>,
}

impl Wire {
    /// `early` is what the client said already. `flood` is set when one of its budgets is exhausted.
    pub(super) fn new(stream: Rc<Stream>, early: Vec<u8>, flood: Rc<Cell<Option<Flood>>>) -> Self {
        Self { stream, early, early_read: 0, budget: Budget::new(Instant::now()), flood }
    }

    fn count(&mut self, bytes: &[u8]) {
        if let Err(flood) = self.budget.receive(bytes, Instant::now()) {
            self.flood.set(self.flood.get().or(Some(flood)));
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.flood.get().is_some() {
            // Nothing more is read of such a client. Whoever set this ends the connection.
            return Poll::Pending;
        }
        let before = into.filled().len();
        if this.early.is_empty() {
            ready!(this.stream.poll_read_buffer(cx, into))?;
        } else {
            let rest = &this.early[this.early_read..];
            let count = rest.len().min(into.remaining());
            into.put_slice(&rest[..count]);
            this.early_read += count;
            if this.early_read == this.early.len() {
                this.early = Vec::new();
            }
        }
        this.count(&into.filled()[before..]);
        Poll::Ready(Ok(()))
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
        let count = ready!(this.stream.poll_write(cx, from))?;
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
