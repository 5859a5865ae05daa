//! The admin listener: `/metrics` for Prometheus, `/healthz` for whoever watches this process, `/status` for programs.
//! Reads only. Runs on the slow runtime, with its own limits: whoever can reach it cannot disturb traffic.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use config::types::BindAddress;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sys::socket::{DualStack, ListenUnixError, listen_tcp, listen_unix, probe_tcp};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::front::Front;
use crate::listen::SocketFile;
use crate::metrics::exposition;
use crate::report::Status;

/// Connections at once; more of them wait in the kernel's queue.
pub(crate) const MAX_CONNECTIONS: usize = 64;

/// Time for a request's head, which is also how long an idle connection is kept.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Time for a whole connection: a reader that takes nothing must not keep its place.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

/// Pause after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

const BACKLOG: u32 = 128;

/// Permission bits of the Unix socket: the owner and its group, such as that of a metrics collector.
const UNIX_MODE: u32 = 0o660;

/// The listening socket.
#[derive(Debug)]
pub enum AdminListener {
    /// On an address.
    Tcp(std::net::TcpListener),
    /// On a path, which goes away with the listener.
    Unix(std::os::unix::net::UnixListener, SocketFile),
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
            .map(|listener| AdminListener::Unix(listener, SocketFile::new(path.clone())))
            .map_err(|source| AdminError::Unix { path: path.clone(), source }),
        BindAddress::Systemd(name) => Err(AdminError::Systemd(name.clone())),
    }
}

/// Serves until the future is dropped. Must be called on a tokio runtime with timers.
pub async fn run(listener: AdminListener, front: Arc<Front>) -> Result<(), AdminError> {
    let hall = Hall { router: router(front), places: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    match listener {
        AdminListener::Tcp(listener) => {
            listener.set_nonblocking(true).map_err(AdminError::Register)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(AdminError::Register)?;
            loop {
                let place = hall.free_place().await;
                match listener.accept().await {
                    Ok((stream, _)) => hall.serve(stream, place),
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        }
        // `_file` is dropped after everything made below, the socket included.
        AdminListener::Unix(listener, _file) => {
            listener.set_nonblocking(true).map_err(AdminError::Register)?;
            let listener = tokio::net::UnixListener::from_std(listener).map_err(AdminError::Register)?;
            loop {
                let place = hall.free_place().await;
                match listener.accept().await {
                    Ok((stream, _)) => hall.serve(stream, place),
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// All endpoints.
pub fn router(front: Arc<Front>) -> Router {
    // GET also answers HEAD; anything else is 405.
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .fallback(async || (StatusCode::NOT_FOUND, "not found; there are /metrics, /healthz and /status\n"))
        .with_state(front)
}

/// Where connections are served, so many at a time.
struct Hall {
    router: Router,
    places: Arc<Semaphore>,
}

impl Hall {
    async fn free_place(&self) -> Option<OwnedSemaphorePermit> {
        // Only a closed semaphore gives none, and this one is never closed.
        self.places.clone().acquire_owned().await.ok()
    }

    fn serve<S>(&self, stream: S, place: Option<OwnedSemaphorePermit>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(64 * 1024)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.router.clone()));
        tokio::spawn(async move {
            // Whatever a client did wrong is its own loss: there is nothing to undo here.
            let _ = timeout(CONNECTION_LIMIT, connection).await;
            drop(place);
        });
    }
}

async fn metrics(Shared(front): Shared<Arc<Front>>) -> Response {
    match exposition::render(&front) {
        Ok(text) => {
            ([(CONTENT_TYPE, exposition::CONTENT_TYPE), (CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("metrics cannot be written: {error}\n"))
            .into_response(),
    }
}

async fn healthz(Shared(front): Shared<Arc<Front>>) -> Response {
    let headers = [(CACHE_CONTROL, "no-store")];
    if front.state.draining.load(Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, headers, "draining\n").into_response()
    } else {
        (headers, "ok\n").into_response()
    }
}

async fn status(Shared(front): Shared<Arc<Front>>) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(Status::read(&front))).into_response()
}

#[cfg(test)]
mod tests;
