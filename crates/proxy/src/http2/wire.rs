//! The transport below the frame layer of a client connection: first returns bytes that were read earlier, and counts
//! the frames that pass. `counted.rs` has what backend connections need too.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use logic::http2::flood::{Allowances, Sender};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::backlog::Backlog;
use super::counted::{Counted, ReadLimit};
use crate::stream::Stream;

pub(super) struct Wire {
    stream: Rc<Stream>,
    early: Vec<u8>,
    early_read: usize,
    counted: Counted,
    backlog: Rc<Backlog>,
}

impl Wire {
    /// `early` are bytes of the client that were read before HTTP/2 began.
    pub(super) fn new(
        stream: Rc<Stream>,
        early: Vec<u8>,
        read_limit: Rc<ReadLimit>,
        backlog: Rc<Backlog>,
        allowances: Allowances,
    ) -> Self {
        let counted = Counted::new(Sender::Client, read_limit, allowances);
        Self { stream, early, early_read: 0, counted, backlog }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, early, early_read, counted, .. } = self.get_mut();
        counted.poll_read(cx, into, |cx, into| {
            if early.is_empty() {
                return stream.poll_read_buffer(cx, into);
            }
            let rest = &early[*early_read..];
            let count = rest.len().min(into.remaining());
            into.put_slice(&rest[..count]);
            *early_read += count;
            if *early_read == early.len() {
                *early = Vec::new();
            }
            Poll::Ready(Ok(()))
        })
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
        this.counted.sent(from, count);
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
