//! The connection of a control client: a Unix socket, or TLS over the network.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tls::plain::Plain;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_rustls::server::TlsStream;

#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tls(Box<TlsStream<Plain>>),
}

impl Stream {
    /// Appends what has arrived already; an error of the kind `WouldBlock` if nothing has.
    pub(super) fn try_read_buf(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Unix(unix) => unix.try_read_buf(into),
            Self::Tls(tls) => {
                let mut bytes = [0; 4096];
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(&mut **tls).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
                    Poll::Ready(result) => result.map(|()| {
                        into.extend_from_slice(buffer.filled());
                        buffer.filled().len()
                    }),
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }

    /// Ends TLS, so that the client knows that nothing is missing.
    pub(super) async fn close(&mut self) {
        if let Self::Tls(tls) = self {
            // The client may be gone.
            let _ = poll_fn(|cx| Pin::new(&mut **tls).poll_shutdown(cx)).await;
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, into),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, from),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(unix) => Pin::new(unix).poll_flush(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}
