//! One connection over any transport: TCP, a Unix socket, TLS over either, or one stream of an HTTP/2 connection. Reads
//! use one scratch buffer per worker thread, so a connection without bytes in flight holds no buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use state::capture::Tap;
use tls::backend::{Endpoint, Outbound};
use tls::established;
use tls::linger::{LINGER, LINGER_BYTES, Lingering};
use tls::plain::Ended;
use tls::plain::{Parked, Plain};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::bandwidth::Limits;
use crate::http2::rules::{Processing, Width};
use crate::http2::{Call, Side};

mod limited;
mod plain;

/// Size of the scratch buffer, the limit of one read. 64 KiB is the largest size that fits into the level-2 cache of a
/// core beside other data, and the usual maximum of one TCP receive.
const SCRATCH: usize = 64 * 1024;

thread_local! {
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// A connection. One task polls both directions, and each borrow of the cell ends before the poll returns.
pub struct Stream(RefCell<Transport>, Option<Box<Extras>>);

/// What few streams have.
#[derive(Default)]
struct Extras {
    /// There while an operator captures it.
    tap: Option<RefCell<Tap>>,
    /// Limits of bytes a second of the session. Only the stream of a client has them.
    limits: Option<Limits>,
}

enum Transport {
    Plain(Plain),
    Tls(Box<TlsStream<Plain>>),
    Outbound(Box<Outbound>),
    /// A plain connection that the runtime does not watch.
    Parked(Parked),
    /// Closed, because the runtime could not watch the connection again.
    Lost,
    /// An HTTP/2 stream of a client, converted from and to HTTP/1.1.
    Http2(Box<Side>),
    /// An HTTP/2 stream to a backend, converted from and to HTTP/1.1.
    Call(Box<Call>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// Bytes on the wire are the bytes of the session, so splice(2) can be used.
    Plain,
    Encrypted,
    /// The connection is shared with other sessions.
    Multiplexed,
}

/// State of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    Yes,
    /// The connection is closed or broken, or the peer has sent unexpected bytes.
    No,
}

impl Stream {
    pub fn plain(plain: Plain) -> Self {
        Self(RefCell::new(Transport::Plain(plain)), None)
    }

    pub fn tls(tls: Box<TlsStream<Plain>>) -> Self {
        Self(RefCell::new(Transport::Tls(tls)), None)
    }

    /// Wraps a parked connection. The runtime watches it again when a task must wait for it.
    pub fn parked(parked: Parked) -> Self {
        Self(RefCell::new(Transport::Parked(parked)), None)
    }

    pub fn outbound(outbound: Outbound) -> Self {
        Self(RefCell::new(Transport::Outbound(Box::new(outbound))), None)
    }

    /// Lets an operator see what is read and written, if there is a tap.
    pub fn tapped(self, tap: Option<Tap>) -> Self {
        Self(self.0, tap.map(|tap| Box::new(Extras { tap: Some(RefCell::new(tap)), limits: None })))
    }

    #[inline]
    fn tap(&self) -> Option<&RefCell<Tap>> {
        self.1.as_ref()?.tap.as_ref()
    }

    /// TLS settings of the handshake with a backend; `None` for other transports.
    pub fn endpoint(&self) -> Option<Arc<Endpoint>> {
        match &*self.0.borrow() {
            Transport::Outbound(outbound) => Some(outbound.endpoint().clone()),
            _ => None,
        }
    }

    /// Whether a backend ended its TLS connection with close_notify. [`Ended::Whole`] for other transports.
    pub fn ended(&self) -> Ended {
        match &*self.0.borrow() {
            Transport::Outbound(outbound) => outbound.ended(),
            _ => Ended::Whole,
        }
    }

    pub fn http2(side: Side) -> Self {
        Self(RefCell::new(Transport::Http2(Box::new(side))), None)
    }

    pub fn call(call: Call) -> Self {
        Self(RefCell::new(Transport::Call(Box::new(call))), None)
    }

    /// Whether a backend processed a request on a connection that ended without a response.
    pub fn processing(&self) -> Processing {
        match &*self.0.borrow() {
            Transport::Call(call) => call.processing(),
            _ => Processing::Unknown,
        }
    }

    pub fn carriage(&self) -> Carriage {
        match &*self.0.borrow() {
            Transport::Tls(_) | Transport::Outbound(_) => Carriage::Encrypted,
            Transport::Http2(_) | Transport::Call(_) => Carriage::Multiplexed,
            // splice(2) would lead bytes past a tap and past limits.
            Transport::Plain(_) | Transport::Parked(_) | Transport::Lost if self.1.is_some() => {
                Carriage::Encrypted
            }
            Transport::Plain(_) | Transport::Parked(_) | Transport::Lost => Carriage::Plain,
        }
    }

    /// Reads into `into`; `Ok(0)` is the end.
    pub fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Transport::Plain(plain) = &*self.0.borrow() {
            let count = ready!(plain::poll_read(plain, cx, into))?;
            return Poll::Ready(Ok(self.tapped_read(into, count)));
        }
        let mut buffer = ReadBuf::new(into);
        ready!(self.poll_read_buffer(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Waits until a plain connection may have bytes, its end or an error. Others are ready at once: their next read
    /// waits.
    #[inline]
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &*self.0.borrow() {
            // The next read returns an error as well.
            Transport::Plain(plain) => plain::poll_readable(plain, cx).map(|_| ()),
            _ => Poll::Ready(()),
        }
    }

    /// Like [`Self::poll_read`], after [`Self::poll_readable`]: the runtime is not asked once more.
    #[inline]
    fn poll_read_readable(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Transport::Plain(plain) = &*self.0.borrow() {
            match plain::read(plain, into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|count| self.tapped_read(into, count))),
            }
        }
        self.poll_read(cx, into)
    }

    #[inline]
    fn tapped_read(&self, into: &[u8], count: usize) -> usize {
        if let Some(tap) = self.tap() {
            tap.borrow_mut().read(&into[..count]);
        }
        count
    }

    /// Reads into `buffer`; an empty `buffer` is the end.
    pub fn poll_read_buffer(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let mut transport = self.0.borrow_mut();
        let read = match transport.watched()? {
            Watched::Plain(plain) => Pin::new(plain).poll_read(cx, buffer),
            Watched::Tls(tls) => established::poll_read(tls, cx, buffer),
            Watched::Outbound(outbound) => Pin::new(outbound).poll_read(cx, buffer),
            Watched::Http2(side) => side.poll_read(cx, buffer),
            Watched::Call(call) => call.poll_read(cx, buffer),
        };
        if let Some(tap) = self.tap() {
            tap.borrow_mut().read(&buffer.filled()[before..]);
        }
        match ready!(read) {
            Ok(()) => Poll::Ready(Ok(())),
            // A TLS peer closed without close_notify. That is a normal end for what penstock carries: HTTP framing
            // detects a truncated body, and over TCP the protocol inside must mark its own end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Appends the bytes that have arrived to `onto`, through the scratch buffer. `Ok(0)` is the end.
    pub fn poll_fill(&self, cx: &mut Context<'_>, onto: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let count = ready!(self.poll_read(cx, scratch))?;
            onto.extend_from_slice(&scratch[..count]);
            Poll::Ready(Ok(count))
        })
    }

    /// Like [`Self::poll_fill`], but reads no more bytes than `client`, the receiver, allows.
    pub fn poll_fill_for(
        &self,
        cx: &mut Context<'_>,
        onto: &mut Vec<u8>,
        client: &Stream,
    ) -> Poll<io::Result<usize>> {
        if client.carriage() != Carriage::Multiplexed && self.is_unlimited(client) {
            return self.poll_fill(cx, onto);
        }
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let most = client.room().min(self.piece(client)).min(scratch.len());
            let count = ready!(self.poll_read(cx, &mut scratch[..most]))?;
            onto.extend_from_slice(&scratch[..count]);
            client.hold(count);
            Poll::Ready(Ok(count))
        })
    }

    /// Flow-control window of an HTTP/2 backend for this client.
    pub fn width(&self) -> Width {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.width(),
            _ => Width::Wide,
        }
    }

    /// How many bytes may be read for this client now. Limited only for an HTTP/2 stream, as the streams of one
    /// connection share its memory limit.
    fn room(&self) -> usize {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.room(),
            _ => SCRATCH,
        }
    }

    /// Waits while nothing may be read for this client. Bytes read before must have been written to it.
    pub fn poll_flows(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.poll_flows(cx),
            _ => Poll::Ready(()),
        }
    }

    fn hold(&self, bytes: usize) {
        if let Transport::Http2(side) = &mut *self.0.borrow_mut() {
            side.hold(bytes);
        }
    }

    /// Reads from this connection and writes to `to`. Bytes that `to` does not take are appended to `rest`.
    pub fn poll_move(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<Moved>> {
        self.poll_move_up_to(cx, to, rest, SCRATCH, Self::poll_read)
    }

    /// Like [`Self::poll_move`], after [`Self::poll_readable`].
    pub fn poll_move_readable(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<Moved>> {
        self.poll_move_up_to(cx, to, rest, SCRATCH, Self::poll_read_readable)
    }

    /// Like [`Self::poll_move`], but reads no more bytes than an HTTP/2 stream `to` allows.
    pub fn poll_move_for(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<Moved>> {
        ready!(to.poll_flows(cx));
        let moved = ready!(self.poll_move_up_to(cx, to, rest, to.room(), Self::poll_read));
        if let Ok(Moved::Bytes(count)) = moved {
            to.hold(count);
        }
        Poll::Ready(moved)
    }

    #[inline]
    fn poll_move_up_to(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
        most: usize,
        read: impl FnOnce(&Self, &mut Context<'_>, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Moved>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let most = most.min(scratch.len());
            let count = match ready!(read(self, cx, &mut scratch[..most])) {
                Ok(count) => count,
                Err(error) => return Poll::Ready(Ok(Moved::ReadFailed(error))),
            };
            if count == 0 {
                return Poll::Ready(Ok(Moved::End));
            }
            let mut sent = 0;
            while sent < count {
                match to.poll_write(cx, &[IoSlice::new(&scratch[sent..count])]) {
                    Poll::Ready(written) => sent += written?,
                    Poll::Pending => break,
                }
            }
            rest.extend_from_slice(&scratch[sent..count]);
            Poll::Ready(Ok(Moved::Bytes(count)))
        })
    }

    /// Appends at most `limit` bytes that have arrived to `onto`, without waiting. `Ok(0)` means nothing has arrived or
    /// the end, which the next read returns again.
    pub async fn fill_now(&self, onto: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            SCRATCH_BUFFER.with_borrow_mut(|scratch| {
                let limit = limit.min(scratch.len());
                let is_plain = matches!(&*self.0.borrow(), Transport::Plain(_));
                let count = match is_plain {
                    true => self.read_arrived(&mut scratch[..limit])?,
                    false => match self.poll_read(cx, &mut scratch[..limit]) {
                        Poll::Ready(count) => count?,
                        // One that was parked is watched from now on.
                        Poll::Pending => self.read_arrived(&mut scratch[..limit])?,
                    },
                };
                onto.extend_from_slice(&scratch[..count]);
                Poll::Ready(Ok(count))
            })
        })
        .await
    }

    /// Reads by a system call: the runtime may not yet know whether a new connection is readable. 0 with TLS.
    fn read_arrived(&self, into: &mut [u8]) -> io::Result<usize> {
        let transport = self.0.borrow();
        let Transport::Plain(plain) = &*transport else { return Ok(0) };
        match plain::read_now(plain, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            read => read.map(|count| self.tapped_read(into, count)),
        }
    }

    /// Discards bytes that have arrived, one buffer at most.
    pub fn discard_arrived(&self) {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            // An error means that nothing can be read now.
            let _ = self.read_arrived(scratch);
        });
    }

    /// Writes what the kernel takes at once, without waiting for the runtime's first poll of a new connection. Returns
    /// the number of bytes: 0 with TLS, or if the connection is not ready or has failed.
    pub fn write_now(&self, from: &[u8]) -> usize {
        let transport = self.0.borrow();
        let Transport::Plain(plain) = &*transport else { return 0 };
        let sent = match from {
            [] => 0,
            _ => socket2::SockRef::from(plain).send(from).unwrap_or(0),
        };
        if let Some(tap) = self.tap() {
            tap.borrow_mut().wrote(&[IoSlice::new(from)], sent);
        }
        sent
    }

    /// Waits for bytes and appends them to `onto`. `Ok(0)` is the end.
    pub async fn fill(&self, onto: &mut Vec<u8>) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx, onto)).await
    }

    /// Writes from `parts`. Returns `Ok(0)` only if all parts are empty.
    pub fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut transport = self.0.borrow_mut();
        // One part is sent with send(2), which costs the kernel less than writev(2).
        let written = match (transport.watched()?, parts) {
            (Watched::Plain(plain), [part]) => plain::poll_write(plain, cx, part),
            (Watched::Plain(plain), parts) => Pin::new(plain).poll_write_vectored(cx, parts),
            (Watched::Tls(tls), parts) => established::poll_write(tls, cx, parts),
            (Watched::Outbound(outbound), parts) => Pin::new(outbound).poll_write_vectored(cx, parts),
            (Watched::Http2(side), parts) => side.poll_write(cx, parts),
            (Watched::Call(call), parts) => call.poll_write(cx, parts),
        };
        match ready!(written) {
            Ok(0) if parts.iter().any(|part| !part.is_empty()) => {
                Poll::Ready(Err(io::ErrorKind::WriteZero.into()))
            }
            Ok(count) => {
                if let Some(tap) = self.tap() {
                    tap.borrow_mut().wrote(parts, count);
                }
                Poll::Ready(Ok(count))
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Sends bytes that TLS or HTTP/2 still buffers.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.borrow_mut() {
            Transport::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
            Transport::Outbound(outbound) => Pin::new(&mut **outbound).poll_flush(cx),
            Transport::Http2(side) => side.poll_flush(cx),
            Transport::Call(call) => call.poll_flush(cx),
            Transport::Plain(_) | Transport::Parked(_) | Transport::Lost => Poll::Ready(Ok(())),
        }
    }

    /// Writes all of `first`, then all of `second`, and flushes. Removes written bytes from both slices.
    pub fn poll_write_all(
        &self,
        cx: &mut Context<'_>,
        first: &mut &[u8],
        second: &mut &[u8],
    ) -> Poll<io::Result<()>> {
        while !first.is_empty() || !second.is_empty() {
            let count = if first.is_empty() {
                ready!(self.poll_write(cx, &[IoSlice::new(second)]))?
            } else if second.is_empty() {
                ready!(self.poll_write(cx, &[IoSlice::new(first)]))?
            } else {
                ready!(self.poll_write(cx, &[IoSlice::new(first), IoSlice::new(second)]))?
            };
            let from_first = count.min(first.len());
            *first = &first[from_first..];
            *second = &second[count - from_first..];
        }
        self.poll_flush(cx)
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_all(cx, &mut bytes, &mut &[][..])).await
    }

    /// Refuses an HTTP/2 stream that was not processed. No effect on other transports.
    pub fn refuse(&self) {
        if let Transport::Http2(side) = &mut *self.0.borrow_mut() {
            side.refuse();
        }
    }

    /// Lets the client of an HTTP/2 stream end its request after the response, within limits: some take the reset that
    /// follows for a failure of their request (curl 7.88).
    pub async fn linger_upload(&self) {
        let mut room = LINGER_BYTES;
        let discarding = poll_fn(|cx| match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.poll_discard(cx, &mut room),
            _ => Poll::Ready(()),
        });
        let _ = tokio::time::timeout(LINGER, discarding).await;
    }

    /// Ends the write direction: with FIN, after close_notify with TLS.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.borrow_mut().watched()? {
            Watched::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Watched::Tls(tls) => established::poll_shutdown(tls, cx),
            Watched::Outbound(outbound) => Pin::new(outbound).poll_shutdown(cx),
            Watched::Http2(side) => side.poll_shutdown(cx),
            Watched::Call(call) => call.poll_shutdown(cx),
        }
    }

    /// Whether a TLS client broke the protocol. Its connection must linger, or a TCP reset could overtake the alert.
    pub fn is_broken(&self) -> bool {
        match &mut *self.0.borrow_mut() {
            Transport::Tls(tls) => established::is_broken(tls),
            _ => false,
        }
    }

    pub async fn shutdown(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    /// Checks an idle connection by the readiness that the runtime knows: without a system call while the peer is
    /// silent, and without the task's budget in tokio, so that one sweep can check every connection.
    pub fn is_quiet(&self) -> Quiet {
        let mut byte = [0; 1];
        let read = match &mut *self.0.borrow_mut() {
            Transport::Outbound(outbound) => return look_into(outbound),
            Transport::Plain(Plain::Tcp(tcp)) => tcp.try_read(&mut byte),
            Transport::Plain(Plain::Unix(unix)) => unix.try_read(&mut byte),
            Transport::Tls(_)
            | Transport::Http2(_)
            | Transport::Call(_)
            | Transport::Parked(_)
            | Transport::Lost => return Quiet::No,
        };
        match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Quiet::Yes,
            _ => Quiet::No,
        }
    }

    /// Checks with a system call that an idle connection is silent and open. For a request that must not be retried.
    pub fn is_quiet_now(&self) -> Quiet {
        let mut transport = self.0.borrow_mut();
        let plain = match &mut *transport {
            Transport::Plain(plain) => plain,
            // Reads pending TLS records first, such as session tickets; any further bytes in the kernel are unexpected.
            Transport::Outbound(outbound) => match look_into(outbound) {
                Quiet::Yes => outbound.plain(),
                Quiet::No => return Quiet::No,
            },
            _ => return Quiet::No,
        };
        let mut byte = [std::mem::MaybeUninit::uninit(); 1];
        match socket2::SockRef::from(plain).peek(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Quiet::Yes,
            _ => Quiet::No,
        }
    }

    /// Our address of a TCP connection, by a system call; `None` for other transports.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &*self.0.borrow() {
            Transport::Plain(Plain::Tcp(tcp)) => tcp.local_addr().ok(),
            Transport::Tls(tls) => match tls.get_ref().0 {
                Plain::Tcp(tcp) => tcp.local_addr().ok(),
                Plain::Unix(_) => None,
            },
            Transport::Outbound(outbound) => match outbound.plain() {
                Plain::Tcp(tcp) => tcp.local_addr().ok(),
                Plain::Unix(_) => None,
            },
            Transport::Plain(Plain::Unix(_)) | Transport::Http2(_) | Transport::Call(_) => None,
            Transport::Parked(_) | Transport::Lost => None,
        }
    }

    /// Number of the descriptor, for questions about the connection; 0 for a stream of a shared connection.
    pub fn descriptor(&self) -> RawFd {
        match &*self.0.borrow() {
            Transport::Plain(plain) => plain.as_fd().as_raw_fd(),
            Transport::Parked(parked) => parked.as_fd().as_raw_fd(),
            Transport::Tls(tls) => tls.get_ref().0.as_fd().as_raw_fd(),
            Transport::Outbound(outbound) => outbound.plain().as_fd().as_raw_fd(),
            Transport::Http2(_) | Transport::Call(_) | Transport::Lost => 0,
        }
    }

    /// Makes the close of the connection a reset, so that the peer does not take a cut-off response for a complete one.
    pub fn reset_on_close(&self) {
        let transport = self.0.borrow();
        let tcp = match &*transport {
            Transport::Plain(Plain::Tcp(tcp)) => tcp.as_fd(),
            Transport::Parked(Parked::Tcp(tcp)) => tcp.as_fd(),
            Transport::Tls(tls) => match tls.get_ref().0 {
                Plain::Tcp(tcp) => tcp.as_fd(),
                Plain::Unix(_) => return,
            },
            Transport::Outbound(outbound) => match outbound.plain() {
                Plain::Tcp(tcp) => tcp.as_fd(),
                Plain::Unix(_) => return,
            },
            Transport::Plain(Plain::Unix(_)) | Transport::Parked(Parked::Unix(_)) | Transport::Lost => return,
            // An HTTP/2 stream is reset when dropped before its end.
            Transport::Http2(_) | Transport::Call(_) => return,
        };
        // An error means that the connection is already closed.
        let _ = sys::socket::set_linger_zero(tcp);
    }

    /// Stops watching a plain connection: neither bytes nor its end wake a task, and registered wakers are dropped. The
    /// next operation that must wait watches the connection again.
    pub fn park(&self) {
        let mut transport = self.0.borrow_mut();
        let plain = match std::mem::replace(&mut *transport, Transport::Lost) {
            Transport::Plain(plain) => plain,
            other => {
                *transport = other;
                return;
            }
        };
        let parked = match plain {
            Plain::Tcp(tcp) => tcp.into_std().map(Parked::Tcp),
            Plain::Unix(unix) => unix.into_std().map(Parked::Unix),
        };
        if let Ok(parked) = parked {
            *transport = Transport::Parked(parked);
        }
    }

    /// Parks a plain connection and returns it. An error returns the connection that cannot be parked.
    pub fn into_parked(self) -> Result<Parked, Self> {
        if self.1.is_some() {
            return Err(self);
        }
        self.park();
        match self.0.into_inner() {
            Transport::Parked(parked) => Ok(parked),
            other => Err(Self(RefCell::new(other), None)),
        }
    }

    #[cfg(test)]
    pub fn is_parked(&self) -> bool {
        matches!(&*self.0.borrow(), Transport::Parked(_))
    }

    /// Runs `io` on the descriptor when the socket is ready to read. Only for plain connections.
    pub fn poll_splice_from<T>(
        &self,
        cx: &mut Context<'_>,
        io: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.poll_descriptor(cx, Way::Read, io)
    }

    /// Runs `io` on the descriptor when the socket is ready to write. Only for plain connections.
    pub fn poll_splice_to<T>(
        &self,
        cx: &mut Context<'_>,
        io: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.poll_descriptor(cx, Way::Write, io)
    }

    fn poll_descriptor<T>(
        &self,
        cx: &mut Context<'_>,
        way: Way,
        mut io: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let mut transport = self.0.borrow_mut();
        if let Transport::Parked(parked) = &*transport {
            // A parked connection stays unwatched as long as `io` does not block.
            match io(parked.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
        let Watched::Plain(plain) = transport.watched()? else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        loop {
            ready!(match (&*plain, way) {
                (Plain::Tcp(tcp), Way::Read) => tcp.poll_read_ready(cx),
                (Plain::Tcp(tcp), Way::Write) => tcp.poll_write_ready(cx),
                (Plain::Unix(unix), Way::Read) => unix.poll_read_ready(cx),
                (Plain::Unix(unix), Way::Write) => unix.poll_write_ready(cx),
            })?;
            let interest = match way {
                Way::Read => Interest::READABLE,
                Way::Write => Interest::WRITABLE,
            };
            let tried = match plain {
                Plain::Tcp(tcp) => tcp.try_io(interest, || io(tcp.as_fd())),
                Plain::Unix(unix) => unix.try_io(interest, || io(unix.as_fd())),
            };
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

impl AsyncRead for &Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_buffer(cx, into)
    }
}

impl AsyncWrite for &Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write(&self, cx, &[IoSlice::new(from)])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_flush(&self, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_shutdown(&self, cx)
    }
}

impl Lingering for &Stream {
    fn poll_discard(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Transport::Tls(tls) = &mut *self.0.borrow_mut() {
            return tls.get_mut().0.poll_discard(cx, buffer);
        }
        self.poll_read_buffer(cx, buffer)
    }
}

/// Checks that an idle TLS connection is silent, session tickets excepted. Wakes no task.
fn look_into(outbound: &mut Outbound) -> Quiet {
    let mut byte = [0; 1];
    let reading = poll_fn(|cx| Pin::new(&mut *outbound).poll_read(cx, &mut ReadBuf::new(&mut byte)));
    let reading = std::pin::pin!(tokio::task::unconstrained(reading));
    match reading.poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Pending => Quiet::Yes,
        Poll::Ready(_) => Quiet::No,
    }
}

enum Watched<'a> {
    Plain(&'a mut Plain),
    Tls(&'a mut TlsStream<Plain>),
    Outbound(&'a mut Outbound),
    Http2(&'a mut Side),
    Call(&'a mut Call),
}

impl Transport {
    /// Returns the connection. If it was parked, the runtime watches it again.
    #[inline]
    fn watched(&mut self) -> io::Result<Watched<'_>> {
        if let Self::Parked(_) = self {
            self.watch_again()?;
        }
        match self {
            Self::Plain(plain) => Ok(Watched::Plain(plain)),
            Self::Tls(tls) => Ok(Watched::Tls(tls)),
            Self::Outbound(outbound) => Ok(Watched::Outbound(outbound)),
            Self::Http2(side) => Ok(Watched::Http2(side)),
            Self::Call(call) => Ok(Watched::Call(call)),
            Self::Parked(_) | Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    #[cold]
    fn watch_again(&mut self) -> io::Result<()> {
        if let Self::Parked(parked) = std::mem::replace(self, Self::Lost) {
            *self = Self::Plain(match parked {
                Parked::Tcp(tcp) => Plain::Tcp(TcpStream::from_std(tcp)?),
                Parked::Unix(unix) => Plain::Unix(UnixStream::from_std(unix)?),
            });
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

#[derive(Debug)]
pub enum Moved {
    /// Number of bytes read; each was written or appended to `rest`.
    Bytes(usize),
    End,
    /// The source failed. A failure of the destination is the error of the call.
    ReadFailed(io::Error),
}
