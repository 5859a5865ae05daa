//! One connection, whatever carries it: TCP, a Unix socket, TLS over either, or one stream of an HTTP/2 connection.
//! Reads go through one scratch buffer per worker thread, so a connection without bytes in flight holds no buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::http2::rules::{Fate, Width};
use crate::http2::{Call, Side};
use crate::plain::Ended;
use crate::plain::{Parked, Plain};
use crate::tls::backend::{Endpoint, Outbound};

/// Size of the scratch buffer: what one read can bring. 64 KiB is the largest that stays in a core's second-level cache
/// beside the rest, and what one TCP receive usually holds at most.
const SCRATCH: usize = 64 * 1024;

thread_local! {
    static SCRATCH_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// A connection. One task reads and writes it, both directions at once, so the cell is never borrowed twice: each borrow
/// ends before the poll returns.
pub struct Stream(RefCell<Transport>);

enum Transport {
    Plain(Plain),
    Tls(Box<TlsStream<Plain>>),
    /// TLS to a backend.
    Outbound(Box<Outbound>),
    /// A plain connection that the runtime does not watch.
    Parked(Parked),
    /// Closed, as the runtime could not watch it again.
    Lost,
    /// HTTP/1.1 on our side, a stream of HTTP/2 on the other.
    Http2(Box<Side>),
    /// HTTP/1.1 on our side, a stream of HTTP/2 towards a backend on the other.
    Call(Box<Call>),
}

/// Whether a connection can be spliced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// Bytes on the wire are the bytes of the session.
    Plain,
    /// They are encrypted.
    Encrypted,
    /// They share a connection with other sessions.
    Multiplexed,
}

/// What a look at an idle connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Open and silent.
    Yes,
    /// Closed, broken, or it said something unasked.
    No,
}

impl Stream {
    /// Wraps a plain connection.
    pub fn plain(plain: Plain) -> Self {
        Self(RefCell::new(Transport::Plain(plain)))
    }

    /// Wraps a TLS connection after its handshake.
    pub fn tls(tls: TlsStream<Plain>) -> Self {
        Self(RefCell::new(Transport::Tls(Box::new(tls))))
    }

    /// Goes on with a connection that was parked: the runtime watches it as soon as somebody has to wait for it.
    pub fn parked(parked: Parked) -> Self {
        Self(RefCell::new(Transport::Parked(parked)))
    }

    /// Wraps a TLS connection to a backend.
    pub fn outbound(outbound: Outbound) -> Self {
        Self(RefCell::new(Transport::Outbound(Box::new(outbound))))
    }

    /// What the handshake with a backend was made with; `None` without one.
    pub fn endpoint(&self) -> Option<Arc<Endpoint>> {
        match &*self.0.borrow() {
            Transport::Outbound(outbound) => Some(outbound.endpoint().clone()),
            _ => None,
        }
    }

    /// How a connection has ended of which a read gave the end.
    pub fn ended(&self) -> Ended {
        match &*self.0.borrow() {
            Transport::Outbound(outbound) => outbound.ended(),
            _ => Ended::Whole,
        }
    }

    /// Wraps one stream of an HTTP/2 connection.
    pub fn http2(side: Side) -> Self {
        Self(RefCell::new(Transport::Http2(Box::new(side))))
    }

    /// Wraps one request to an HTTP/2 backend.
    pub fn call(call: Call) -> Self {
        Self(RefCell::new(Transport::Call(Box::new(call))))
    }

    /// What a backend has done with a request on a connection that ended without an answer.
    pub fn fate(&self) -> Fate {
        match &*self.0.borrow() {
            Transport::Call(call) => call.fate(),
            _ => Fate::Unknown,
        }
    }

    /// Whether splice(2) can be used.
    pub fn carriage(&self) -> Carriage {
        match &*self.0.borrow() {
            Transport::Tls(_) | Transport::Outbound(_) => Carriage::Encrypted,
            Transport::Http2(_) | Transport::Call(_) => Carriage::Multiplexed,
            Transport::Plain(_) | Transport::Parked(_) | Transport::Lost => Carriage::Plain,
        }
    }

    /// Reads into `into`; `Ok(0)` is the end.
    pub fn poll_read(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        ready!(self.poll_read_buffer(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Reads into `buffer`; nothing in it is the end.
    pub fn poll_read_buffer(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut transport = self.0.borrow_mut();
        let read = match transport.watched()? {
            Watched::Plain(plain) => Pin::new(plain).poll_read(cx, buffer),
            Watched::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
            Watched::Outbound(outbound) => Pin::new(outbound).poll_read(cx, buffer),
            Watched::Http2(side) => side.poll_read(cx, buffer),
            Watched::Call(call) => call.poll_read(cx, buffer),
        };
        match ready!(read) {
            Ok(()) => Poll::Ready(Ok(())),
            // A TLS peer that closes without close_notify: for what we carry (framed HTTP, or TCP whose own protocol must
            // say its end) that is an end like any other; a truncated body is noticed by its framing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Reads whatever is there, through the worker's scratch buffer, to the end of `onto`. `Ok(0)` is the end.
    pub fn poll_fill(&self, cx: &mut Context<'_>, onto: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let count = ready!(self.poll_read(cx, scratch))?;
            onto.extend_from_slice(&scratch[..count]);
            Poll::Ready(Ok(count))
        })
    }

    /// The same, but no more than may be read for `client`, which gets it.
    pub fn poll_fill_for(
        &self,
        cx: &mut Context<'_>,
        onto: &mut Vec<u8>,
        client: &Stream,
    ) -> Poll<io::Result<usize>> {
        if client.carriage() != Carriage::Multiplexed {
            return self.poll_fill(cx, onto);
        }
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let most = client.room().min(scratch.len());
            let count = ready!(self.poll_read(cx, &mut scratch[..most]))?;
            onto.extend_from_slice(&scratch[..count]);
            client.hold(count);
            Poll::Ready(Ok(count))
        })
    }

    /// How much an HTTP/2 backend may send ahead for this client.
    pub fn width(&self) -> Width {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.width(),
            _ => Width::Wide,
        }
    }

    /// How much may be read now for this client, even if it takes nothing. Only a stream of HTTP/2 limits it: many share one
    /// connection's memory.
    fn room(&self) -> usize {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.room(),
            _ => SCRATCH,
        }
    }

    /// Waits while nothing may be read for this client. What was read for it before has been handed over.
    pub fn poll_flows(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self.0.borrow_mut() {
            Transport::Http2(side) => side.poll_flows(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Counts bytes that were read for this client.
    fn hold(&self, bytes: usize) {
        if let Transport::Http2(side) = &mut *self.0.borrow_mut() {
            side.hold(bytes);
        }
    }

    /// Reads whatever is there and writes as much of it as `to` takes; the rest goes to `rest`. Gives the bytes read.
    pub fn poll_move(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<Moved>> {
        self.poll_move_up_to(cx, to, rest, SCRATCH)
    }

    /// The same, but no more than may be read for `to`, where that is a stream of HTTP/2.
    pub fn poll_move_for(
        &self,
        cx: &mut Context<'_>,
        to: &Stream,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<Moved>> {
        ready!(to.poll_flows(cx));
        let moved = ready!(self.poll_move_up_to(cx, to, rest, to.room()));
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
    ) -> Poll<io::Result<Moved>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let most = most.min(scratch.len());
            let count = match ready!(self.poll_read(cx, &mut scratch[..most])) {
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

    /// Reads what has arrived, at most `limit` bytes, to the end of `onto`. Zero is "nothing yet" or the end, which the next
    /// read shows again.
    pub async fn fill_now(&self, onto: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            SCRATCH_BUFFER.with_borrow_mut(|scratch| {
                let limit = limit.min(scratch.len());
                let count = match self.poll_read(cx, &mut scratch[..limit]) {
                    Poll::Ready(count) => count?,
                    Poll::Pending => self.read_arrived(&mut scratch[..limit])?,
                };
                onto.extend_from_slice(&scratch[..count]);
                Poll::Ready(Ok(count))
            })
        })
        .await
    }

    /// Asks the kernel, as the runtime knows nothing of a connection just accepted before its next look. With TLS there is
    /// nothing to ask for.
    fn read_arrived(&self, into: &mut [u8]) -> io::Result<usize> {
        let transport = self.0.borrow();
        let Transport::Plain(plain) = &*transport else { return Ok(0) };
        match io::Read::read(&mut &*socket2::SockRef::from(plain), into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    }

    /// Reads what has arrived, one buffer at most, and throws it away.
    pub fn discard_arrived(&self) {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            // What cannot be read now is not waited for.
            let _ = self.read_arrived(scratch);
        });
    }

    /// Writes what the kernel takes at once, and gives the count: zero with TLS, and for a connection that is not ready or
    /// has failed, which the next write shows. A connection just opened need not wait for the runtime's first look at it.
    pub fn write_now(&self, from: &[u8]) -> usize {
        let transport = self.0.borrow();
        let Transport::Plain(plain) = &*transport else { return 0 };
        match from {
            [] => 0,
            _ => socket2::SockRef::from(plain).send(from).unwrap_or(0),
        }
    }

    /// Reads to the end of `onto`.
    pub async fn fill(&self, onto: &mut Vec<u8>) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx, onto)).await
    }

    /// Writes from `parts`; `Ok(n)` is never zero for non-empty parts.
    pub fn poll_write(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut transport = self.0.borrow_mut();
        // One part goes out by send(2), which costs the kernel less than writev(2).
        let written = match (transport.watched()?, parts) {
            (Watched::Plain(plain), [part]) => Pin::new(plain).poll_write(cx, part),
            (Watched::Plain(plain), parts) => Pin::new(plain).poll_write_vectored(cx, parts),
            (Watched::Tls(tls), parts) => Pin::new(tls).poll_write_vectored(cx, parts),
            (Watched::Outbound(outbound), parts) => Pin::new(outbound).poll_write_vectored(cx, parts),
            (Watched::Http2(side), parts) => side.poll_write(cx, parts),
            (Watched::Call(call), parts) => call.poll_write(cx, parts),
        };
        match ready!(written) {
            Ok(0) if parts.iter().any(|part| !part.is_empty()) => {
                Poll::Ready(Err(io::ErrorKind::WriteZero.into()))
            }
            other => Poll::Ready(other),
        }
    }

    /// Pushes out what TLS still holds; nothing to do for plain connections.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.0.borrow_mut() {
            Transport::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
            Transport::Outbound(outbound) => Pin::new(&mut **outbound).poll_flush(cx),
            Transport::Http2(side) => side.poll_flush(cx),
            Transport::Call(call) => call.poll_flush(cx),
            Transport::Plain(_) | Transport::Parked(_) | Transport::Lost => Poll::Ready(Ok(())),
        }
    }

    /// Writes all of `first`, then all of `second`, and flushes; both shrink by what was taken.
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

    /// Writes all of `bytes` and flushes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write_all(cx, &mut bytes, &mut &[][..])).await
    }

    /// Refuses a stream of HTTP/2 before anything was done with it.
    pub fn refuse(&self) {
        if let Transport::Http2(side) = &mut *self.0.borrow_mut() {
            side.refuse();
        }
    }

    /// Ends our direction: FIN, or close_notify and FIN.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0.borrow_mut().watched()? {
            Watched::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Watched::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            Watched::Outbound(outbound) => Pin::new(outbound).poll_shutdown(cx),
            Watched::Http2(side) => side.poll_shutdown(cx),
            Watched::Call(call) => call.poll_shutdown(cx),
        }
    }

    /// Ends our direction.
    pub async fn shutdown(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    /// Looks at an idle connection through the readiness that the runtime already knows: no system call while it is
    /// silent, and no part of the task's budget, so that a sweep sees every connection.
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

    /// Asks the kernel whether an idle connection is silent and open. For requests that could not be sent again.
    pub fn is_quiet_now(&self) -> Quiet {
        let mut transport = self.0.borrow_mut();
        let plain = match &mut *transport {
            Transport::Plain(plain) => plain,
            // What TLS says to itself is taken out first: then the kernel has nothing either, or it has ended.
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

    /// Our end of a TCP connection. Costs a system call; `None` for what has no such address.
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

    /// Makes the coming close a reset: the peer must not take a cut-off answer for a whole one.
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
            // A stream whose answer is not whole is reset when it is dropped.
            Transport::Http2(_) | Transport::Call(_) => return,
        };
        // Failing means that the connection is gone already.
        let _ = sys::socket::set_linger_zero(tcp);
    }

    /// Stops watching a plain connection: nothing wakes the task on its account, neither bytes nor its end, and whoever
    /// waits for it now is forgotten. The next use that has to wait for it watches it again.
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

    /// Parks a plain connection and takes it out; gives back one that cannot be parked.
    pub fn into_parked(self) -> Result<Parked, Self> {
        self.park();
        match self.0.into_inner() {
            Transport::Parked(parked) => Ok(parked),
            other => Err(Self(RefCell::new(other))),
        }
    }

    /// Whether nobody watches it.
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
            // While there is always something to be done, nobody needs to watch.
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

/// Whether an idle connection to a backend says nothing, in which session tickets do not count. No part of the task's
/// budget, and nobody is woken.
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
    /// The connection, watched by the runtime again if it was parked.
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

/// What [`Stream::poll_move`] did.
#[derive(Debug)]
pub enum Moved {
    /// So many bytes were read; all were written or kept.
    Bytes(usize),
    /// The source has ended.
    End,
    /// The source failed; a failure of the destination is the error of the call itself.
    ReadFailed(io::Error),
}
