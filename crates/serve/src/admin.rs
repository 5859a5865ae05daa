//! The admin listener: `/metrics` for Prometheus, `/healthz` for monitors of this process, `/status` for
//! programs. Reads only. Runs on the slow runtime, with its own limits: a client can neither disturb traffic
//! nor keep other clients from their answers. A connection is served in `admin/connection.rs`, what costs much is
//! written in `admin/page.rs`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use config::types::BindAddress;
use sys::cpu::thread_time;
use sys::socket::{DualStack, ListenUnixError, listen_tcp, listen_unix, probe_tcp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::front::Front;
use crate::listen::SocketPath;
use crate::metrics::exposition;
use crate::pace::{self, Pace, Paced};
use crate::places::{PlaceSet, Size};
use crate::report::Status;

mod connection;
mod page;

use page::Page;

/// Connections at once. A new one gets the place of the one that has asked nothing for longest.
pub(crate) const SIZE: Size = Size { places: 64, following: 0 };

/// One part in ten of a core for what clients ask, and another one for accepting them: some thousands in a
/// second.
const WORK_PART: u32 = 10;
const ACCEPT_PART: u32 = 10;

/// One part in ten of a core for writing `/metrics` and `/status`, on threads beside this one.
const PAGE_PART: u32 = 10;

/// Time for a whole connection: a reader that takes nothing must not keep its place.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// So many wait in the kernel's queue: where it is full, a client's first packet is dropped, and sent again only after a second.
const BACKLOG: u32 = 4096;

/// Permission bits of the Unix socket: the owner and its group, such as that of a metrics collector.
const UNIX_MODE: u32 = 0o660;

/// The listening socket.
#[derive(Debug)]
pub enum AdminListener {
    /// On an address.
    Tcp(std::net::TcpListener),
    /// On a path, which goes away with the listener.
    Unix(std::os::unix::net::UnixListener, SocketPath),
}

/// Why there is no admin listener.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be had.
    #[error("listen on {address} for admin")]
    Tcp {
        /// As configured.
        address: BindAddress,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The path cannot be had.
    #[error("listen on unix:{} for admin", .path.display())]
    Unix {
        /// As configured.
        path: PathBuf,
        /// What is in the way.
        source: ListenUnixError,
    },
    /// The configuration refuses sockets of systemd here.
    #[error("listen on systemd:{0} for admin: a socket of systemd can only be a listener's")]
    Systemd(String),
    /// The socket cannot be used by the runtime.
    #[error("register the admin listener")]
    Register(#[source] io::Error),
}

/// Binds the admin listener.
pub fn bind(address: &BindAddress) -> Result<AdminListener, AdminError> {
    let tcp = |socket: SocketAddr, dual: DualStack| {
        // The port is shared with nobody, so somebody who has it is an error and not a companion.
        let free = if socket.port() == 0 { Ok(()) } else { probe_tcp(socket, dual) };
        free.and_then(|()| listen_tcp(socket, dual, BACKLOG))
            .map(AdminListener::Tcp)
            .map_err(|source| AdminError::Tcp { address: address.clone(), source })
    };
    match address {
        BindAddress::Ip(socket) => tcp(*socket, DualStack::V6Only),
        BindAddress::AnyIp(port) => match tcp((Ipv6Addr::UNSPECIFIED, *port).into(), DualStack::Both) {
            Err(AdminError::Tcp { source, .. }) if source.kind() != io::ErrorKind::AddrInUse => {
                // A kernel without IPv6.
                tcp((Ipv4Addr::UNSPECIFIED, *port).into(), DualStack::V6Only)
            }
            result => result,
        },
        BindAddress::Unix(path) => listen_unix(path, UNIX_MODE)
            .map(|(listener, file)| AdminListener::Unix(listener, SocketPath(file)))
            .map_err(|source| AdminError::Unix { path: path.clone(), source }),
        BindAddress::Systemd(name) => Err(AdminError::Systemd(name.clone())),
    }
}

/// Serves until the future is dropped. Must be called on a tokio runtime with timers.
pub async fn run(listener: AdminListener, front: Arc<Front>) -> Result<(), AdminError> {
    let mut clients = Clients::new(front);
    match listener {
        AdminListener::Tcp(listener) => {
            listener.set_nonblocking(true).map_err(AdminError::Register)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(AdminError::Register)?;
            loop {
                clients.accepting.turn().await;
                match listener.accept().await {
                    Ok((stream, _)) => clients.serve(stream).await,
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        }
        // `_file` is dropped after everything made below, the socket included.
        AdminListener::Unix(listener, _file) => {
            listener.set_nonblocking(true).map_err(AdminError::Register)?;
            let listener = tokio::net::UnixListener::from_std(listener).map_err(AdminError::Register)?;
            loop {
                clients.accepting.turn().await;
                match listener.accept().await {
                    Ok((stream, _)) => clients.serve(stream).await,
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// Where clients are served, so many at a time.
struct Clients {
    router: Router,
    places: Arc<PlaceSet>,
    work: Arc<Pace>,
    accepting: pace::Client,
}

/// What the endpoints answer with.
struct Pages {
    front: Arc<Front>,
    metrics: Arc<Page>,
    status: Arc<Page>,
}

impl Clients {
    fn new(front: Arc<Front>) -> Self {
        Self {
            places: PlaceSet::new(front.state.account.size_of(SIZE), front.state.admin_evicted.clone()),
            work: Pace::one_part_in(WORK_PART),
            accepting: Pace::one_part_in(ACCEPT_PART).client(),
            router: router(front),
        }
    }

    async fn serve<S>(&mut self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let place = Arc::new(self.places.place().await);
        let start = thread_time();
        let id = place.id();
        let serve = timeout(CONNECTION_LIMIT, connection::serve(stream, self.router.clone(), place.clone()));
        let task = Paced::new(self.work.client(), serve).tells(place);
        self.places.keep(id, tokio::spawn(task).abort_handle());
        self.accepting.charge(thread_time().saturating_sub(start));
    }
}

/// All endpoints.
pub fn router(front: Arc<Front>) -> Router {
    let pages = Pace::one_part_in(PAGE_PART);
    let pages = Pages {
        front,
        metrics: Arc::new(Page::new(pages.client(), write_metrics)),
        status: Arc::new(Page::new(pages.client(), write_status)),
    };
    // GET also answers HEAD; anything else is 405.
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .fallback(async || (StatusCode::NOT_FOUND, "not found; there are /metrics, /healthz and /status\n"))
        .with_state(Arc::new(pages))
}

fn write_metrics(front: &Arc<Front>) -> Result<Bytes, String> {
    exposition::render(front).map(Bytes::from).map_err(|error| error.to_string())
}

fn write_status(front: &Arc<Front>) -> Result<Bytes, String> {
    serde_json::to_vec(&Status::read(front)).map(Bytes::from).map_err(|error| error.to_string())
}

async fn metrics(Shared(pages): Shared<Arc<Pages>>) -> Response {
    given(pages.metrics.read(&pages.front).await, exposition::CONTENT_TYPE)
}

async fn status(Shared(pages): Shared<Arc<Pages>>) -> Response {
    given(pages.status.read(&pages.front).await, "application/json")
}

fn given(written: Result<Bytes, String>, content_type: &'static str) -> Response {
    match written {
        Ok(text) => ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], text).into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("the page cannot be written: {why}\n"))
            .into_response(),
    }
}

async fn healthz(Shared(pages): Shared<Arc<Pages>>) -> Response {
    let headers = [(CACHE_CONTROL, "no-store")];
    if pages.front.state.draining.load(Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, headers, "draining\n").into_response()
    } else {
        (headers, "ok\n").into_response()
    }
}

#[cfg(test)]
mod tests;
