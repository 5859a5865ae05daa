//! Accepts clients on this machine, and copies each connection to the host. A forward has at most [`MOST_CONNECTIONS`]
//! connections: further clients wait in the listener's queue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::tunnel::plan::{Endpoint, Listen};
use sys::socket::SocketFile;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::awake::within;
use super::connection::{Links, Near, copy, open, open_on};
use super::engine::{Duplex, failure, said};
use super::socks;
use super::status::{Board, Meter};

const MOST_CONNECTIONS: usize = 512;

/// First byte of `To::Announced` after the host has connected. The bytes of the service follow.
pub const READY: u8 = b'+';
/// First byte of `To::Announced` after a failure. The reason follows, up to the end of the stream.
pub const FAILED: u8 = b'-';

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Listens. A Unix socket has mode 0600.
    pub(crate) fn bind(at: &Listen) -> Result<Self, Failure> {
        let refused = |error: String| {
            let advice = match at {
                Listen::Tcp(_) => "name another port, or let the kernel choose a free one: without `listen`",
                Listen::Unix(_) => "name an unused path in a directory of your own",
            };
            failure(
                Phase::Queued,
                Reason::LocalError,
                format!("cannot listen on {at}: {error}"),
                Some(advice),
            )
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

    /// The address with the port that the kernel chose.
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

/// Destination of a listener's connections.
#[derive(Clone)]
pub(crate) enum To {
    Fixed(Endpoint),
    /// An endpoint; the client first reads whether the host has connected: [`READY`] or [`FAILED`].
    Announced(Endpoint),
    Socks,
}

/// Accepts clients until the future is dropped, which also ends their connections.
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
                // Usually the descriptors have run out; other connections that close free some.
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

/// Copies a connection that the host has accepted to a service on this machine.
pub(crate) async fn receive(stream: Box<dyn Duplex>, to: &Endpoint, meter: &Meter) {
    meter.open.fetch_add(1, Relaxed);
    meter.total.fetch_add(1, Relaxed);
    match dial(to).await {
        Ok(here) => copy(stream, here, meter).await,
        Err(error) => meter.failed(format!("cannot connect to {to}: {error}")),
    }
    meter.open.fetch_sub(1, Relaxed);
}

/// Connects to a service on this machine.
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
    // The client that reads this byte has other backends, so it does not wait for a new link.
    let link = links.borrow().clone();
    let far = match link {
        Some(link) => open_on(&*link, &*stream, to).await.map_err(|why| said(&why)),
        None => Err("there is no connection to the host".to_owned()),
    };
    match far {
        Ok(far) => {
            // If the client has closed its connection, the copy ends at once.
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
