//! Lets rustls, which reads and writes without waiting, use a connection that may have to wait.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::plain::Plain;

/// Gives the bytes that have arrived to rustls. `Ok(0)` is the end.
pub(crate) fn poll_read(
    connection: &mut ServerConnection,
    plain: &mut Plain,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    poll(connection.read_tls(&mut Wire { plain, cx }))
}

/// Sends bytes that rustls has queued.
pub(crate) fn poll_write(
    connection: &mut ServerConnection,
    plain: &mut Plain,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    poll(connection.write_tls(&mut Wire { plain, cx }))
}

/// Makes `WouldBlock`, by which rustls says that it cannot go on, the wait of a task.
pub(crate) fn poll(done: io::Result<usize>) -> Poll<io::Result<usize>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}

/// A connection that returns `WouldBlock` instead of waiting.
pub(crate) struct Wire<'a, 'c> {
    pub(crate) plain: &'a mut Plain,
    pub(crate) cx: &'a mut Context<'c>,
}

impl Read for Wire<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut bytes = ReadBuf::new(bytes);
        match Pin::new(&mut *self.plain).poll_read(self.cx, &mut bytes) {
            Poll::Ready(read) => read.map(|()| bytes.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.plain).poll_write_vectored(self.cx, parts) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
