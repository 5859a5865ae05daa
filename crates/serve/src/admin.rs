//! The admin listener: `/metrics` for Prometheus, `/healthz` for monitors of this process, `/status` for programs,
//! `/status.html` for people. It is read-only. It runs on the slow runtime with its own limits, so that an admin client can delay neither traffic nor
//! other admin clients. `admin/access.rs` lets clients in; `admin/connection.rs` serves one connection; `admin/page.rs` writes the
//! expensive pages.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use config::types::BindAddress;
use logic::acl::{AccessList, Verdict};
use logic::client_slots::Party;
use logic::peers::Peer;
use proxy::front::Front;
use state::client_slots::Size;
use sys::cpu::thread_time;
use sys::socket::ListenUnixError;
use tls::Terminator;
use tls::plain::Plain;
use tokio::time::timeout;

use crate::acceptor::{Arrival, Bound};
use crate::client_slots::ClientSlotSet;
use crate::logins::Logins;
use crate::pace::{self, Pace, Paced};
use crate::report::Status;
use crate::{exposition, report};

mod access;
mod connection;
mod page;

use self::access::{Channel, Door, Gate};
use page::Page;

/// Largest number of connections. When all slots are taken, a new connection replaces the longest idle one.
pub(crate) const SIZE: Size = Size { slots: 64, following: 0 };

/// Admin requests may use 1/10 of a core, and accepting connections another 1/10 (some thousands per second).
const WORK_PART: u32 = 10;
const ACCEPT_PART: u32 = 10;

/// Threads that write `/metrics` and `/status` may use 1/10 of a core.
const PAGE_PART: u32 = 10;

/// Time limit of a connection: a client that reads nothing must not keep its slot.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

/// Length of the kernel's accept queue. When the queue is full, the kernel drops a client's SYN, and the client repeats
/// it only after one second.
const BACKLOG: u32 = 4096;

/// Longest wait of `/metrics` for a store.
const STORE_LIMIT: Duration = Duration::from_secs(1);

/// Permission bits of the Unix socket: access for its owner and its group, such as the group of a metrics collector.
const UNIX_MODE: u32 = 0o660;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("listen on {address} for admin")]
    Tcp { address: BindAddress, source: io::Error },
    #[error("listen on unix:{} for admin", .path.display())]
    Unix { path: PathBuf, source: ListenUnixError },
    #[error("register the admin listener")]
    Register(#[source] io::Error),
}

pub fn bind(address: &BindAddress) -> Result<Bound, AdminError> {
    match address {
        BindAddress::Unix(path) => {
            Bound::unix(path, UNIX_MODE).map_err(|source| AdminError::Unix { path: path.clone(), source })
        }
        tcp => Bound::tcp(tcp, BACKLOG).map_err(|source| AdminError::Tcp { address: tcp.clone(), source }),
    }
}

/// Serves clients until the future is dropped. Must be called on a tokio runtime with timers.
pub async fn run(bound: Bound, front: Arc<Front>, logins: Arc<Logins>) -> Result<(), AdminError> {
    let acceptor = bound.register("admin", front.state.clone()).map_err(AdminError::Register)?;
    let mut clients = Clients::new(front, logins);
    loop {
        clients.accepting.turn().await;
        match acceptor.next().await {
            Arrival::Tcp(stream, peer) => {
                clients.serve(Plain::Tcp(stream), Peer::Ip(peer), Party::source(peer.ip())).await;
            }
            Arrival::Unix(stream) => {
                let party = stream.peer_cred().map_or(Party::User(u32::MAX), |peer| user(peer.uid()));
                clients.serve(Plain::Unix(stream), Peer::Unix, party).await;
            }
        }
    }
}

/// The party of a client at the Unix socket.
fn user(uid: u32) -> Party {
    let is_owner = uid == 0 || uid == nix::unistd::geteuid().as_raw();
    if is_owner { Party::Owner } else { Party::User(uid) }
}

/// The slots of admin clients and the pace of their work.
struct Clients {
    router: Router,
    slots: Arc<ClientSlotSet>,
    work: Arc<Pace>,
    accepting: pace::Client,
    front: Arc<Front>,
    /// Clients that may connect, as the last configuration with `[admin]` says.
    acl: Option<Arc<AccessList>>,
    /// TLS, as that configuration says.
    tls: Option<Terminator>,
}

struct Pages {
    front: Arc<Front>,
    gate: Gate,
    metrics: Arc<Page>,
    status: Arc<Page>,
    html: Arc<Page>,
}

impl Clients {
    fn new(front: Arc<Front>, logins: Arc<Logins>) -> Self {
        Self {
            slots: ClientSlotSet::new(front.state.account.size_of(SIZE), front.state.admin_evicted.clone()),
            work: Pace::one_part_in(WORK_PART),
            accepting: Pace::one_part_in(ACCEPT_PART).client(),
            router: router(front.clone(), logins),
            front,
            acl: None,
            tls: None,
        }
    }

    async fn serve(&mut self, stream: Plain, peer: Peer, party: Party) {
        let start = thread_time();
        if self.is_denied(peer) {
            drop(stream);
            self.front.state.admin_denied.fetch_add(1, Relaxed);
            self.accepting.charge(thread_time().saturating_sub(start));
            return;
        }
        if self.slots.turns_away(party) {
            drop(stream);
            self.accepting.charge(thread_time().saturating_sub(start));
            return;
        }
        let slot = Arc::new(self.slots.slot(party).await);
        let start = thread_time();
        let id = slot.id();
        let (tls, router, of) = (self.tls.clone(), self.router.clone(), slot.clone());
        // Clients of the Unix socket are one source.
        let from = peer.ip().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let serve = timeout(CONNECTION_LIMIT, async move {
            let Some(terminator) = tls else {
                let door = Door { from, channel: Channel::Plain };
                return connection::serve(stream, router, of, door).await;
            };
            // What is wrong is the client's: it has had its alert.
            if let Ok(established) = tls::operator::accept(&terminator, stream).await {
                let door = Door { from, channel: Channel::Tls };
                connection::serve(established.stream, router, of, door).await;
            }
        });
        let task = Paced::new(self.work.client(), serve).tells(slot);
        self.slots.keep(id, tokio::spawn(task).abort_handle());
        self.accepting.charge(thread_time().saturating_sub(start));
    }
}

impl Clients {
    fn is_denied(&mut self, peer: Peer) -> bool {
        // The listener stays as it was at the start of the process, so without `[admin]` the last list stays too.
        let snapshot = self.front.snapshot.load();
        if let Some(admin) = &snapshot.config.admin {
            self.acl.clone_from(&admin.acl);
            self.tls.clone_from(&snapshot.admin_tls);
        }
        self.acl.as_ref().is_some_and(|acl| acl.verdict(&peer) == Verdict::Deny)
    }
}

pub fn router(front: Arc<Front>, logins: Arc<Logins>) -> Router {
    let pages = Pace::one_part_in(PAGE_PART);
    let pages = Pages {
        gate: Gate::new(front.clone(), logins),
        front,
        metrics: Arc::new(Page::new(pages.client(), write_metrics)),
        status: Arc::new(Page::new(pages.client(), write_status)),
        html: Arc::new(Page::new(pages.client(), write_html)),
    };
    // GET also answers HEAD; other methods get 405.
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .route("/status.html", get(html))
        .route("/", get(root))
        .fallback(async || not_found())
        .with_state(Arc::new(pages))
}

fn write_metrics(front: &Arc<Front>) -> Result<Bytes, String> {
    exposition::render(front).map(Bytes::from).map_err(|error| error.to_string())
}

fn write_status(front: &Arc<Front>) -> Result<Bytes, String> {
    serde_json::to_vec(&Status::read(front)).map(Bytes::from).map_err(|error| error.to_string())
}

fn not_found() -> Response {
    let there = "not found; there are /metrics, /healthz, /status and /status.html\n";
    (StatusCode::NOT_FOUND, there).into_response()
}

/// Number of events on the page for people.
const EVENTS: usize = 30;

fn write_html(front: &Arc<Front>) -> Result<Bytes, String> {
    Ok(Bytes::from(report::html::page(&Status::read(front), &front.state.events.last(EVENTS))))
}

/// The page for people, for who wants HTML.
async fn root(pages: Shared<Arc<Pages>>, door: Extension<Door>, headers: HeaderMap) -> Response {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = accepts.flat_map(|value| value.split(','));
    match ranges.any(|range| {
        range.split(';').next().is_some_and(|range| range.trim().eq_ignore_ascii_case("text/html"))
    }) {
        true => html(pages, door, headers).await,
        false => not_found(),
    }
}

async fn html(Shared(pages): Shared<Arc<Pages>>, door: Extension<Door>, headers: HeaderMap) -> Response {
    if let Err(refused) = pages.gate.check(|access| access.status, *door, &headers).await {
        return refused;
    }
    let mut response = given(pages.html.read(&pages.front).await, "text/html; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(report::html::POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    response
}

async fn metrics(Shared(pages): Shared<Arc<Pages>>, door: Extension<Door>, headers: HeaderMap) -> Response {
    if let Err(refused) = pages.gate.check(|access| access.metrics, *door, &headers).await {
        return refused;
    }
    let page = pages.metrics.read(&pages.front).await;
    // What Prometheus has seen is stored first: after a crash its counters must not go backwards.
    pages.front.state.kept.stored_within(STORE_LIMIT).await;
    given(page, exposition::CONTENT_TYPE)
}

async fn status(Shared(pages): Shared<Arc<Pages>>, door: Extension<Door>, headers: HeaderMap) -> Response {
    if let Err(refused) = pages.gate.check(|access| access.status, *door, &headers).await {
        return refused;
    }
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
