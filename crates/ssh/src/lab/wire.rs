//! The connection below SSH: counts bytes in both directions, and can be cut at any moment, as networks and dying
//! servers do it.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection, as the SSH library reads and writes it.
#[derive(Debug)]
pub(super) struct Wire(Arc<Control>);

/// The same connection, for those who count and cut.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    received: AtomicU64,
    sent: AtomicU64,
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// In good order: what was sent arrives, then the end.
    Fin,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, wires: &Wires) -> (Self, Arc<Control>) {
        let control = Control { stream, received: AtomicU64::new(0), sent: AtomicU64::new(0) };
        let control = Arc::new(control);
        wires.add(&control);
        (Self(Arc::clone(&control)), control)
    }
}

impl Control {
    /// Bytes that came from the client.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes that the kernel has taken for the client.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Cuts the connection. The session notices at once; a reset goes out when it lets go of the socket.
    pub(super) fn cut(&self, cut: Cut) {
        let socket = SockRef::from(&self.stream);
        // What fails here is cut already.
        let _ = match cut {
            Cut::Fin => socket.shutdown(Shutdown::Both),
        };
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let control = &self.0;
        loop {
            ready!(control.stream.poll_read_ready(cx))?;
            match control.stream.try_read(buf.initialize_unfilled()) {
                Ok(n) => {
                    buf.advance(n);
                    control.received.fetch_add(n as u64, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let control = &self.0;
        loop {
            ready!(control.stream.poll_write_ready(cx))?;
            match control.stream.try_write(bytes) {
                Ok(n) => {
                    control.sent.fetch_add(n as u64, Ordering::Relaxed);
                    return Poll::Ready(Ok(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&self.0.stream).shutdown(Shutdown::Write))
    }
}

/// All connections of a lab that may still be open, so that its end ends them.
#[derive(Debug, Default)]
pub(super) struct Wires(Mutex<Vec<Weak<Control>>>);

impl Wires {
    fn add(&self, control: &Arc<Control>) {
        let mut wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wires.len() == wires.capacity() {
            wires.retain(|wire| wire.strong_count() > 0);
        }
        wires.push(Arc::downgrade(control));
    }

    pub(super) fn cut_all(&self) {
        for wire in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(control) = wire.upgrade() {
                control.cut(Cut::Fin);
            }
        }
    }
}
