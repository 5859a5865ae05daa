//! The transport below the frame layer of a connection to a backend: counts the frames that pass.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use logic::http2::flood::{Allowances, Sender};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::counted::{Counted, ReadLimit};
use crate::connect::Link;

pub(super) struct Wire {
    link: Link,
    counted: Counted,
    writing: Writing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Works,
    /// The backend has closed the connection. What is written is discarded, so that the frame layer reads on: the backend
    /// may have answered before, for example refused a large request body. The end of reading ends the connection.
    Failed,
}

impl Wire {
    pub(super) fn new(link: Link, read_limit: Rc<ReadLimit>, allowances: Allowances) -> Self {
        let counted = Counted::new(Sender::Backend, read_limit, allowances);
        Self { link, counted, writing: Writing::Works }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { link, counted, .. } = self.get_mut();
        counted.poll_read(cx, into, |cx, into| Pin::new(&mut *link).poll_read(cx, into))
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
        let Self { link, counted, writing } = self.get_mut();
        if *writing == Writing::Works {
            match Pin::new(link).poll_write_vectored(cx, from) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(count)) => {
                    counted.sent(from, count);
                    return Poll::Ready(Ok(count));
                }
                Poll::Ready(Err(_)) => *writing = Writing::Failed,
            }
        }
        Poll::Ready(Ok(from.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { link, writing, .. } = self.get_mut();
        if *writing == Writing::Works && ready!(Pin::new(link).poll_flush(cx)).is_err() {
            *writing = Writing::Failed;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().link).poll_shutdown(cx)
    }
}
