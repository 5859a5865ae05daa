//! One connection through a tunnel: the host connects to the service, and bytes are copied until both directions have
//! ended. The end of one direction is passed on, and the other direction stays open. Memory: two buffers of [`BUFFER`]
//! bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::tunnel::plan::Endpoint;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::awake::within;
use super::engine::{Boxed, Duplex, Link, failure};
use super::status::Meter;

/// The current link. `None` while the connection is lost.
pub(crate) type Links = watch::Receiver<Option<Arc<dyn Link>>>;

const BUFFER: usize = 32 * 1024;

/// A client that connects while the connection is lost waits for a new connection for this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time limit for the host's connection to a service.
const OPENING: Duration = Duration::from_secs(10);

/// Interval between two checks whether a waiting client has closed its connection.
const LOOK: Duration = Duration::from_millis(250);

/// The client's side of a connection.
pub(crate) trait Near: Duplex + Sync {
    /// Whether the client has closed its connection. A client that has only ended its sending direction counts as
    /// connected, and so does a TCP client that has closed both, since the kernel does not tell the two apart.
    fn is_gone(&self) -> Boxed<'_, bool>;
}

impl Near for TcpStream {
    fn is_gone(&self) -> Boxed<'_, bool> {
        // The socket is writable, so `ready` returns at once.
        Box::pin(async { self.ready(Interest::WRITABLE).await.is_ok_and(|ready| ready.is_write_closed()) })
    }
}

impl Near for UnixStream {
    fn is_gone(&self) -> Boxed<'_, bool> {
        Box::pin(async { self.ready(Interest::WRITABLE).await.is_ok_and(|ready| ready.is_write_closed()) })
    }
}

/// Opens a stream to `to` for `near`, on the current link or on a new one within [`PATIENCE`].
pub(crate) async fn open(
    near: &dyn Near,
    to: &Endpoint,
    mut links: Links,
) -> Result<Box<dyn Duplex>, Failure> {
    let standing = links.borrow().clone();
    if let Some(link) = standing {
        return open_on(&*link, near, to).await;
    }
    let link = tokio::select! {
        link = within(PATIENCE, async { links.wait_for(Option::is_some).await.ok()?.clone() }) => link,
        () = gone(near) => return Err(hung_up(to)),
    };
    let link = link.ok().flatten();
    let link = link.ok_or_else(|| {
        let detail = format!("no connection within {} s", PATIENCE.as_secs());
        failure(Phase::Start, Reason::ConnectionLost, detail, None)
    })?;
    // A client that gave up may have sent its request elsewhere, so its request must not be sent here late.
    if near.is_gone().await {
        return Err(hung_up(to));
    }
    open_on(&*link, near, to).await
}

pub(crate) async fn open_on(
    link: &dyn Link,
    near: &dyn Near,
    to: &Endpoint,
) -> Result<Box<dyn Duplex>, Failure> {
    let failed = |reason, detail: String| Err(failure(Phase::Start, reason, detail, None));
    tokio::select! {
        opened = within(OPENING, link.open(to)) => opened.unwrap_or_else(|_| {
            let detail = format!("the host did not connect to {to} within {} s", OPENING.as_secs());
            failed(Reason::TimedOut, detail)
        }),
        () = gone(near) => Err(hung_up(to)),
    }
}

fn hung_up(to: &Endpoint) -> Failure {
    let detail =
        format!("the client that asked for {to} closed its connection before the host had connected");
    failure(Phase::Start, Reason::Stopped, detail, None)
}

/// Waits until the client has closed its connection.
async fn gone(near: &dyn Near) {
    loop {
        tokio::time::sleep(LOOK).await;
        if near.is_gone().await {
            return;
        }
    }
}

/// Copies bytes until both directions have ended or one has failed.
pub(crate) async fn copy(near: Box<dyn Duplex>, far: Box<dyn Duplex>, meter: &Meter) {
    meter.carried();
    let mut near = Metered { stream: near, read: &meter.sent };
    let mut far = Metered { stream: far, read: &meter.received };
    // An error needs no report: both sides see that the connection is closed.
    let _ = copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER).await;
}

struct Metered<'a> {
    stream: Box<dyn Duplex>,
    read: &'a AtomicU64,
}

impl AsyncRead for Metered<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = into.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, into);
        this.read.fetch_add((into.filled().len() - before) as u64, Relaxed);
        polled
    }
}

impl AsyncWrite for Metered<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
