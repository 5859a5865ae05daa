//! Listens for the programs on this side, and moves bytes between them and the host. The end of one direction is passed on
//! and leaves the other open. Each connection holds two buffers of [`BUFFER`] bytes, and a forward has at most
//! [`MOST_CONNECTIONS`] of them: others wait to be accepted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::tunnel::plan::{Endpoint, Listen};
use sys::socket::SocketFile;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::awake::within;
use super::engine::{Boxed, Duplex, Link, failure, said};
use super::socks;
use super::status::{Board, Meter};

/// The link that stands now, if one does.
pub(crate) type Links = watch::Receiver<Option<Arc<dyn Link>>>;

const BUFFER: usize = 32 * 1024;
const MOST_CONNECTIONS: usize = 512;
/// A program that connects while the link is being made anew is not turned away at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// A host that was asked to connect answers in this time, or has not connected.
const OPENING: Duration = Duration::from_secs(10);
/// How often it is looked whether somebody who waits for that is still there.
const LOOK: Duration = Duration::from_millis(250);

/// What `To::Announced` says first when the host has connected: everything after it is the service's.
pub const READY: u8 = b'+';
/// What it says when the host has not. Why follows, up to the end.
pub const FAILED: u8 = b'-';

/// A program's end of a connection.
pub(crate) trait Near: Duplex + Sync {
    /// Whether nobody is there any more. A program that has only ended its direction still is, and a TCP one that has closed
    /// cannot be told from that.
    fn is_gone(&self) -> Boxed<'_, bool>;
}

impl Near for TcpStream {
    fn is_gone(&self) -> Boxed<'_, bool> {
        // It can be written to, so this does not wait.
        Box::pin(async { self.ready(Interest::WRITABLE).await.is_ok_and(|ready| ready.is_write_closed()) })
    }
}

impl Near for UnixStream {
    fn is_gone(&self) -> Boxed<'_, bool> {
        Box::pin(async { self.ready(Interest::WRITABLE).await.is_ok_and(|ready| ready.is_write_closed()) })
    }
}

/// A listener on this side.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens. Sockets are for their owner only.
    pub(crate) fn bind(at: &Listen) -> Result<Self, Failure> {
        let refused = |error: String| {
            let advice = match at {
                Listen::Tcp(_) => "name another port, or let the kernel choose a free one: without `listen`",
                Listen::Unix(_) => "name a path in a directory of your own where nothing is",
            };
            failure(Phase::Queued, Reason::Local, format!("cannot listen on {at}: {error}"), Some(advice))
        };
        match at {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                });
                listener.map(Self::Tcp).map_err(|error| refused(error.to_string()))
            }
            Listen::Unix(path) => {
                let (listener, file) =
                    sys::socket::listen_unix(path, 0o600).map_err(|error| refused(causes(&error)))?;
                let listener =
                    UnixListener::from_std(listener).map_err(|error| refused(error.to_string()))?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// Where it listens in the end.
    pub(crate) fn at(&self) -> Listen {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => Listen::Tcp(address),
                Err(_) => Listen::Tcp(([0, 0, 0, 0], 0).into()),
            },
            Self::Unix(_, file) => Listen::Unix(file.path().to_owned()),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Near>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(listener, ..) => Box::new(listener.accept().await?.0),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, file) = self {
            file.remove();
        }
    }
}

/// Where the connections of a listener go.
#[derive(Clone)]
pub(crate) enum To {
    Fixed(Endpoint),
    /// The same, and whoever connects is told first whether the host has connected: [`READY`] or [`FAILED`].
    Announced(Endpoint),
    Socks,
}

/// Accepts for ever. The connections end with this.
pub(crate) async fn serve(listener: Listener, to: To, links: Links, board: Arc<Board>, at: usize) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                board.meters[at].failed(format!("cannot accept: {error}"));
                // Descriptors have run out, as a rule; they come back with time.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (to, links, board) = (to.clone(), links.clone(), Arc::clone(&board));
        tasks.spawn(async move {
            let meter = &board.meters[at];
            meter.open.fetch_add(1, Relaxed);
            meter.total.fetch_add(1, Relaxed);
            let carried = match to {
                To::Fixed(endpoint) => carry(stream, &endpoint, links, meter).await,
                To::Announced(endpoint) => announce(stream, &endpoint, links, meter).await,
                To::Socks => socks::carry(stream, links, meter).await,
            };
            if let Err(why) = carried {
                meter.failed(why);
            }
            meter.open.fetch_sub(1, Relaxed);
            drop(place);
        });
    }
}

/// Hands connections that the host has accepted to a service here.
pub(crate) async fn receive(stream: Box<dyn Duplex>, to: &Endpoint, meter: &Meter) {
    meter.open.fetch_add(1, Relaxed);
    meter.total.fetch_add(1, Relaxed);
    match dial(to).await {
        Ok(here) => copy(stream, here, meter).await,
        Err(error) => meter.failed(format!("cannot connect to {to}: {error}")),
    }
    meter.open.fetch_sub(1, Relaxed);
}

/// Connects on this side.
pub(crate) async fn dial(to: &Endpoint) -> io::Result<Box<dyn Duplex>> {
    let limit = Duration::from_secs(10);
    let dialled = within(limit, async {
        Ok::<Box<dyn Duplex>, io::Error>(match to {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    });
    dialled.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn carry(stream: Box<dyn Near>, to: &Endpoint, links: Links, meter: &Meter) -> Result<(), String> {
    let far = open(&*stream, to, links).await.map_err(|why| said(&why))?;
    copy(stream, far, meter).await;
    Ok(())
}

async fn announce(
    mut stream: Box<dyn Near>,
    to: &Endpoint,
    links: Links,
    meter: &Meter,
) -> Result<(), String> {
    // Whoever reads this knows where else to go, and need not wait for the next link.
    let link = links.borrow().clone();
    let far = match link {
        Some(link) => open_on(&*link, &*stream, to).await.map_err(|why| said(&why)),
        None => Err("there is no connection to the host".to_owned()),
    };
    match far {
        Ok(far) => {
            // Whoever has hung up is found by the copying.
            let _ = stream.write_all(&[READY]).await;
            copy(stream, far, meter).await;
            Ok(())
        }
        Err(why) => {
            let mut word = vec![FAILED];
            word.extend_from_slice(why.as_bytes());
            let _ = stream.write_all(&word).await;
            Err(why)
        }
    }
}

/// A stream to `to` on the link that stands, or comes back in time, for `near`.
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
        failure(Phase::Start, Reason::Lost, detail, None)
    })?;
    // Whoever did not want to wait has perhaps asked elsewhere by now: what was asked here is not done late.
    if near.is_gone().await {
        return Err(hung_up(to));
    }
    open_on(&*link, near, to).await
}

async fn open_on(link: &dyn Link, near: &dyn Near, to: &Endpoint) -> Result<Box<dyn Duplex>, Failure> {
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
    let detail = format!("whoever wanted to go to {to} hung up before the host had connected");
    failure(Phase::Start, Reason::Stopped, detail, None)
}

/// Waits until nobody is there any more.
async fn gone(near: &dyn Near) {
    loop {
        tokio::time::sleep(LOOK).await;
        if near.is_gone().await {
            return;
        }
    }
}

/// Moves bytes until both directions have ended, or one has broken.
pub(crate) async fn copy(near: Box<dyn Duplex>, far: Box<dyn Duplex>, meter: &Meter) {
    meter.carried();
    let mut near = Metered { stream: near, read: &meter.sent };
    let mut far = Metered { stream: far, read: &meter.received };
    // How a connection of others breaks is theirs to know: both sides see it closed.
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

/// An error and its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
