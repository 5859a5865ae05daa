//! The connection below SSH: counts bytes in both directions, and can be cut at any moment, as networks and dying
//! servers do it.

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

/// A connection, as the SSH library reads and writes it.
#[derive(Debug)]
pub(super) struct Wire {
    control: Arc<Control>,
    /// Whether the proof of the host key is still to be spoilt.
    spoil: Spoil,
}

/// What is done to the signature of the key exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoil {
    Nothing,
    /// One bit of it is turned.
    Signature,
}

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
    /// A TCP reset: what was on its way is lost.
    Reset,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, spoil: Spoil, wires: &Wires) -> (Self, Arc<Control>) {
        let control = Control { stream, received: AtomicU64::new(0), sent: AtomicU64::new(0) };
        let control = Arc::new(control);
        wires.add(&control);
        (Self { control: Arc::clone(&control), spoil }, control)
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
            Cut::Reset => {
                socket.set_linger(Some(Duration::ZERO)).and_then(|()| socket.shutdown(Shutdown::Read))
            }
        };
    }

    /// Returns when the client has closed its side: how a fault hangs without holding a descriptor for ever.
    pub(super) async fn gone(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // Readable because of bytes that nobody takes while something hangs.
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
            Spoil::Nothing => None,
            Spoil::Signature => spoil_signature(bytes),
        };
        if spoilt.is_some() {
            self.spoil = Spoil::Nothing;
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

/// The same packets with a wrong signature, if they are in the clear and one of them is the server's answer in a key
/// exchange: `SSH_MSG_KEX_ECDH_REPLY` (RFC 5656 section 4) or its like, whose last field is the signature.
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
