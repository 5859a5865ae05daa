//! Reads and writes of a connection after its handshake.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::ServerConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::alert;
use crate::plain::Plain;

/// Reads, and sends what rustls answers itself, such as no_renegotiation. If the client breaks the protocol, it gets an
/// alert.
#[inline]
pub fn poll_read(
    tls: &mut TlsStream<Plain>,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let read = Pin::new(&mut *tls).poll_read(cx, buffer);
    if let Poll::Ready(Err(_)) = read {
        alert::queue(tls.get_mut().1);
    }
    let (plain, connection) = tls.get_mut();
    if connection.wants_write() {
        send_now(connection, plain);
    }
    read
}

/// Writes. If the client broke the protocol before, it gets an alert.
#[inline]
pub fn poll_write(
    tls: &mut TlsStream<Plain>,
    cx: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let written = Pin::new(&mut *tls).poll_write_vectored(cx, parts);
    if let Poll::Ready(Err(_)) = written {
        let (plain, connection) = tls.get_mut();
        alert::queue(connection);
        send_now(connection, plain);
    }
    written
}

/// Ends the write direction after close_notify, or after an alert if the client broke the protocol.
pub fn poll_shutdown(tls: &mut TlsStream<Plain>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    alert::queue(tls.get_mut().1);
    Pin::new(tls).poll_shutdown(cx)
}

/// Whether the client broke the protocol: the connection carries nothing more, and the client gets an alert.
pub fn is_broken(tls: &mut TlsStream<Plain>) -> bool {
    // rustls returns the error again, and reads nothing more.
    tls.get_mut().1.process_new_packets().is_err()
}

/// Sends as much as the kernel takes. The next write sends the rest and meets any error, and its waker stays in place.
#[cold]
fn send_now(connection: &mut ServerConnection, plain: &Plain) {
    while connection.wants_write()
        && connection.write_tls(&mut WithoutWaiting(plain)).is_ok_and(|sent| sent > 0)
    {}
}

/// A connection that is written to without waiting.
struct WithoutWaiting<'a>(&'a Plain);

impl Write for WithoutWaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0 {
            Plain::Tcp(tcp) => tcp.try_write(bytes),
            Plain::Unix(unix) => unix.try_write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0 {
            Plain::Tcp(tcp) => tcp.try_write_vectored(parts),
            Plain::Unix(unix) => unix.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
