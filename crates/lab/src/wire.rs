//! The TCP connection below SSH: counts bytes in both directions, and can be cut at any time, as by a network failure
//! or a crash of the server.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct Wire {
    control: Arc<Control>,
    /// Whether the next signature of a key exchange is still to be corrupted.
    spoil: SignatureFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureFault {
    Nothing,
    /// One bit of the signature is flipped.
    Signature,
}

/// The same connection, for the code that counts bytes and cuts it.
#[derive(Debug)]
pub(crate) struct Control {
    stream: TcpStream,
    received: AtomicU64,
    sent: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// An orderly close: all sent bytes arrive.
    Fin,
    /// A TCP reset: bytes that have not arrived are lost.
    Reset,
}

impl Wire {
    pub(crate) fn new(
        stream: TcpStream,
        spoil: SignatureFault,
        wires: &OpenConnections,
    ) -> (Self, Arc<Control>) {
        let control = Control { stream, received: AtomicU64::new(0), sent: AtomicU64::new(0) };
        let control = Arc::new(control);
        wires.add(&control);
        (Self { control: Arc::clone(&control), spoil }, control)
    }
}

impl Control {
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Bytes to the client that the kernel has accepted.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Cuts the connection. The session sees the end at once; a reset is sent when the session closes its socket.
    pub(crate) fn cut(&self, cut: Cut) {
        let socket = SockRef::from(&self.stream);
        // An error means that the connection has ended already.
        let _ = match cut {
            Cut::Fin => socket.shutdown(Shutdown::Both),
            Cut::Reset => {
                socket.set_linger(Some(Duration::ZERO)).and_then(|()| socket.shutdown(Shutdown::Read))
            }
        };
    }

    /// Waits until the client has closed its side, so that a fault that hangs does not hold a descriptor without a
    /// limit.
    pub(crate) async fn gone(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // The socket stays readable while no task reads it, so the loop pauses.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let control = &self.control;
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let spoilt = match self.spoil {
            SignatureFault::Nothing => None,
            SignatureFault::Signature => spoil_signature(bytes),
        };
        if spoilt.is_some() {
            self.spoil = SignatureFault::Nothing;
        }
        let bytes = spoilt.as_deref().unwrap_or(bytes);
        let control = &self.control;
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
        Poll::Ready(SockRef::from(&self.control.stream).shutdown(Shutdown::Write))
    }
}

/// The packets with a corrupted signature, if they are not encrypted and contain the server's reply of a key exchange:
/// `SSH_MSG_KEX_ECDH_REPLY` (RFC 5656 section 4) or a similar message, whose last field is the signature.
fn spoil_signature(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    loop {
        let packet = bytes.get(at..)?;
        let (length, rest) = packet.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let (padding, kind) = (usize::from(*rest.first()?), *rest.get(1)?);
        if kind == 31 {
            let mut spoilt = bytes.to_vec();
            let last = (at + 4 + length).checked_sub(padding + 1)?;
            *spoilt.get_mut(last)? ^= 1;
            return Some(spoilt);
        }
        at = at.checked_add(4 + length)?;
    }
}

/// All connections of a lab that may be open, which the end of the lab closes.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections(Mutex<Vec<Weak<Control>>>);

impl OpenConnections {
    fn add(&self, control: &Arc<Control>) {
        let mut wires = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if wires.len() == wires.capacity() {
            wires.retain(|wire| wire.strong_count() > 0);
        }
        wires.push(Arc::downgrade(control));
    }

    pub(crate) fn cut_all(&self) {
        for wire in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(control) = wire.upgrade() {
                control.cut(Cut::Fin);
            }
        }
    }
}
