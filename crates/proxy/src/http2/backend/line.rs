//! One connection to an HTTP/2 backend, shared by requests of one worker.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Ping, SendStream};
use http::Request;
use http::uri::Scheme;
use logic::account::Refusal;
use logic::health::Cause;
use state::BackendState;
use tls::backend::Endpoint;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::super::counted::ReadLimit;
use super::super::rules::Rules;
use super::permit::{Additional, ConnectionPermit};
use super::room::Room;
use super::wire::Wire;
use crate::connect::Link;
use crate::worker::ConnectionHandle;

/// Interval of PING frames to the backend while requests are open.
const PING_EVERY: Duration = Duration::from_secs(10);

/// Timeout for the answer to a PING. After it the connection is closed.
const PING_WITHIN: Duration = Duration::from_secs(10);

/// A new transport connection to a backend.
pub(super) struct Transport {
    pub(super) link: Link,
    pub(super) backend: Arc<BackendState>,
    /// Index of the worker whose counters are updated.
    pub(super) worker: usize,
}

/// An open connection. It ends when the last `Rc` is dropped.
pub(super) struct Line {
    requests: RefCell<SendRequest<Bytes>>,
    scheme: Scheme,
    endpoint: Option<Arc<Endpoint>>,
    /// Limit of concurrent requests, even if the backend allows more.
    most: usize,
    open: Cell<usize>,
    /// When the last request ended, or when the connection was opened.
    since: Cell<Instant>,
    ended: Cell<bool>,
    /// The slots of the connection. `None` for the first connection to the backend, which needs none.
    additional: Option<Rc<Additional>>,
    room: Rc<Room>,
    /// Wakes the task that drives the connection, to close it.
    closing: Rc<Notify>,
}

impl Line {
    /// Starts HTTP/2 on a new connection and waits for the SETTINGS of the backend. They give the limit of concurrent
    /// streams and prove that the backend speaks HTTP/2; no request is sent before, so none must be sent again.
    pub(super) async fn begin(
        transport: Transport,
        endpoint: Option<&Arc<Endpoint>>,
        rules: &Rules,
        deadline: Instant,
        place: ConnectionPermit,
        room: Rc<Room>,
    ) -> Result<Rc<Self>, Cause> {
        let scheme = if endpoint.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let beginning = async {
            let read_limit = Rc::new(ReadLimit::default());
            let Transport { link, backend, worker } = transport;
            let wire = Wire::new(link, read_limit.clone(), rules.limits.flood);
            let shaken = builder(rules).handshake::<_, Bytes>(wire).await;
            let (requests, connection) = shaken.map_err(|error| words(&error))?;
            let mut connection = Turns { connection, read_limit, backend, worker };
            poll_fn(|cx| match connection.poll(cx) {
                Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
                Poll::Ready(Ok(())) => Poll::Ready(Err(CLOSED.to_owned())),
                Poll::Pending if requests.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
                Poll::Pending => Poll::Pending,
            })
            .await?;
            Ok((requests, connection))
        };
        let (requests, connection) = match timeout_at(deadline.into(), beginning).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(why)) => return Err(Cause::Http2(why)),
            Err(_) => return Err(Cause::Http2("no settings within the time for a connect".to_owned())),
        };
        let line = Rc::new(Self {
            requests: RefCell::new(requests),
            scheme,
            endpoint: endpoint.cloned(),
            most: rules.limits.streams as usize,
            open: Cell::new(0),
            since: Cell::new(Instant::now()),
            ended: Cell::new(false),
            additional: place.additional().cloned(),
            room,
            closing: Rc::default(),
        });
        tokio::task::spawn_local(drive(Rc::downgrade(&line), line.closing.clone(), connection, place));
        Ok(line)
    }

    /// Whether the connection can take one more request with the TLS settings `endpoint`.
    pub(super) fn has_room(&self, endpoint: Option<&Arc<Endpoint>>) -> bool {
        let same = match (&self.endpoint, endpoint) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let mut requests = self.requests.borrow_mut();
        // `poll_ready` fails after a GOAWAY of the backend: the connection takes no new stream.
        let mut unwatched = Context::from_waker(Waker::noop());
        if matches!(requests.poll_ready(&mut unwatched), Poll::Ready(Err(_))) {
            self.ended.set(true);
        }
        let most = requests.current_max_send_streams().min(self.most);
        same && !self.ended.get() && self.open.get() < most
    }

    /// Takes a stream for a request of `client`. An error if the share of `client` is full.
    pub(super) fn place(self: &Rc<Self>, client: &Rc<ConnectionHandle>) -> Result<StreamPermit, Refusal> {
        if let Some(additional) = &self.additional {
            additional.enter(client)?;
        }
        Ok(self.place_of_opener(client))
    }

    /// Takes a stream for the request that opened the connection, whose share already counts the slots.
    pub(super) fn place_of_opener(self: &Rc<Self>, client: &Rc<ConnectionHandle>) -> StreamPermit {
        self.open.set(self.open.get() + 1);
        StreamPermit { line: self.clone(), client: client.clone() }
    }

    /// Returns the slots in the account that closing the connection frees: 0 while it carries requests.
    pub(super) fn spare(&self) -> usize {
        match &self.additional {
            Some(additional) if !self.ended.get() => additional.spare(),
            _ => 0,
        }
    }

    /// Closes the connection, which must carry no request.
    pub(super) fn close(&self) {
        self.ended.set(true);
        self.closing.notify_one();
    }

    /// Whether the connection has ended or exceeded its idle timeout `keep_alive`.
    pub(super) fn is_over(&self, now: Instant, keep_alive: Duration) -> bool {
        self.ended.get()
            || self.open.get() == 0 && now.saturating_duration_since(self.since.get()) >= keep_alive
    }
}

/// One stream of a connection, freed when dropped.
pub(super) struct StreamPermit {
    line: Rc<Line>,
    client: Rc<ConnectionHandle>,
}

impl StreamPermit {
    /// Scheme for the `:scheme` field of each request on the connection.
    pub(super) fn scheme(&self) -> Scheme {
        self.line.scheme.clone()
    }

    /// Whether the backend takes WebSockets over HTTP/2 (RFC 8441 section 3): its SETTINGS, which were received before
    /// the connection took its first request, say so.
    pub(super) fn takes_web_sockets(&self) -> bool {
        self.line.requests.borrow().is_extended_connect_protocol_enabled()
    }

    pub(super) fn send(
        &self,
        request: Request<()>,
        end_of_stream: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut requests = self.line.requests.borrow().clone();
        let sent = requests.send_request(request, end_of_stream);
        if sent.is_err() {
            // The backend has sent GOAWAY, or the stream identifiers are used up.
            self.line.ended.set(true);
        }
        sent
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let line = &self.line;
        line.open.set(line.open.get() - 1);
        line.since.set(Instant::now());
        if let Some(additional) = &line.additional {
            additional.leave(&self.client);
            if additional.is_wanted() && line.spare() > 0 {
                line.close();
            }
        }
        line.room.freed(Some(&self.client));
    }
}

fn builder(rules: &Rules) -> Builder {
    let (window, streams) = (rules.window(), rules.limits.streams);
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        // No request is sent before the SETTINGS of the backend give its stream limit.
        .initial_max_send_streams(0)
        .initial_window_size(window)
        .initial_connection_window_size(window.saturating_mul(streams).max(DEFAULT_WINDOW))
        .max_header_list_size(rules.limits.response_head)
        .max_held_fields(rules.limits.held_heads)
        .max_interim_size(rules.limits.interim)
        .max_send_buffer_size(rules.limits.send_buffer)
        .max_concurrent_reset_streams(streams as usize)
        .reset_stream_duration(Duration::from_secs(1));
    builder
}

/// Drives the connection until it ends. Open streams report the error, so only the log gets it here.
async fn drive(line: Weak<Line>, closing: Rc<Notify>, mut connection: Turns, place: ConnectionPermit) {
    let mut pings = connection.connection.ping_pong();
    let keeping_watch = async {
        loop {
            tokio::time::sleep(PING_EVERY).await;
            let waits = line.upgrade().is_none_or(|line| line.open.get() > 0);
            let Some(pings) = pings.as_mut().filter(|_| waits) else { continue };
            if tokio::time::timeout(PING_WITHIN, pings.ping(Ping::opaque())).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        ended = poll_fn(|cx| connection.poll(cx)) => {
            if let Err(why) = ended {
                tracing::debug!("a connection to an HTTP/2 backend ended: {why}");
            }
        }
        () = closing.notified() => {}
        () = keeping_watch => tracing::debug!("an HTTP/2 backend answers no ping"),
    }
    drop((connection, place));
    if let Some(line) = line.upgrade() {
        line.ended.set(true);
        line.room.freed(None);
    }
}

/// A connection that reads a limited number of frames in one turn.
struct Turns {
    connection: Connection<Wire, Bytes>,
    read_limit: Rc<ReadLimit>,
    backend: Arc<BackendState>,
    /// Index of the worker whose counters are updated.
    worker: usize,
}

impl Turns {
    /// Ends with words for the operator if the connection broke.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        self.read_limit.begin_turn();
        let polled = Pin::new(&mut self.connection).poll(cx);
        match self.read_limit.flood() {
            Some(flood) => {
                self.backend.counters.of(self.worker).floods.add(1);
                tracing::warn!(backend = %self.backend.subject(), "ended an HTTP/2 connection: {}", flood.reason());
                Poll::Ready(Err(format!("it floods the connection ({})", flood.reason())))
            }
            None => polled.map_err(|error| words(&error)),
        }
    }
}

/// Smallest window of a connection (RFC 9113 section 6.9.2).
const DEFAULT_WINDOW: u32 = 65_535;

const CLOSED: &str = "the backend closed the connection at once: does this port speak HTTP/2?";

fn words(error: &h2::Error) -> String {
    match error.get_io() {
        Some(error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
        {
            CLOSED.to_owned()
        }
        Some(error) => format!("the connection broke: {error}"),
        None => format!("what the backend says is not HTTP/2 ({error})"),
    }
}
