//! Serves a client connection that speaks HTTP/2. The `h2` crate is the frame layer. Each stream becomes an HTTP/1.1
//! request with a task of its own, which `http.rs` serves like every other request.
//! `http2/side.rs` is a stream as the exchange sees it, `http2/wire.rs` the connection below the frame layer,
//! `http2/counted.rs` counts its frames.
//! `logic/http2` decides which requests are valid and how much one client may cost.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use config::types::{Http2, HttpSettings};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use logic::access_log::Kind;
use logic::http1::request::MethodKind;
use logic::http2::downgrade::{self, Body};
use logic::http2::flood::Allowances;
use logic::room;
use state::ending::{ClientProtocol, Ending};
use tls::linger::linger;
use tokio::task::JoinSet;

use crate::arrival::{Arrival, ClientConnection};
use crate::boxed::boxed;
use crate::http as exchange;
use crate::live::{Cut, Speaks};
use crate::outcome::Outcome;
use crate::snapshot::ListenerPlan;
use crate::snapshot::http_settings;
use crate::stream::Stream;
use crate::timer::Timer;
use crate::worker::{ConnectionHandle, Current, WaitEnd, Worker};

pub mod backend;
mod backlog;
mod convert;
mod counted;
mod outflow;
pub(crate) mod preface;
pub(crate) mod rules;
mod side;
mod waiting;
mod wire;

pub use backend::Call;
use backlog::{Admission, Backlog};
use counted::ReadLimit;
use side::BacklogShare;
pub use side::Side;
use waiting::{Arrived, Waiting};
use wire::Wire;

/// Receive window of one stream: bytes of a request body that may be in flight or wait for a slow backend. The window
/// of the connection, a limit for all streams, is larger: a backend that reads nothing stops only its own stream.
const WINDOW: u32 = 64 * 1024;

/// Bytes of one stream's response that the frame layer buffers for a client that reads nothing.
const SEND_BUFFER: usize = 32 * 1024;

/// Number of streams reset by penstock that the frame layer remembers.
const RESET_STREAMS: usize = 20;

/// Limit of streams that the client resets before they are accepted. Above `Flood::Resets`, so that budget decides.
const RESETS_WAITING: usize = 250;

/// Limit of streams reset for protocol errors of the client. They also use up `Flood::Resets`, which refills over time.
const ERROR_RESETS: usize = 500;

/// Requests that one connection may begin before other tasks of the worker run.
const TURNS: usize = 32;

/// Time that a client gets to read GOAWAY after the last stream of a closing connection has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves one connection. `current` is the snapshot of the configuration under which the connection was accepted.
pub async fn serve(
    worker: &Rc<Worker>,
    current: Current,
    plan: Arc<ListenerPlan>,
    client: ClientConnection,
    handle: &Rc<ConnectionHandle>,
) {
    handle.live.speaks.set(Speaks::Http2);
    let ClientConnection { stream, early, mut arrival } = client;
    // A stream has no socket: only the connection knows the local address.
    arrival.local = arrival.local_of(&stream);
    let Some(settings) = http_settings(&plan) else { return };
    let stream = Rc::new(stream);
    let read_limit = Rc::new(ReadLimit::default());
    let backlog = Rc::new(backlog(settings));
    let wire = Wire::new(stream.clone(), early, read_limit.clone(), backlog.clone(), allowances(settings));
    let timer = Timer::default();
    let mut handshake = builder(settings).handshake::<_, Bytes>(wire);
    let shaking_hands = poll_fn(|cx| {
        read_limit.begin_turn();
        match (Pin::new(&mut handshake).poll(cx), read_limit.flood()) {
            (Poll::Pending, Some(flood)) => Poll::Ready(Err(Ending::Flood(flood))),
            (result, _) => result.map(Ok),
        }
    });
    let ending = match timer.within(settings.timeouts.head, shaking_hands).await {
        Ok(Ok(Ok(connection))) => {
            let mut connection = Http2Connection {
                worker,
                max_requests: settings.max_requests.unwrap_or(u64::MAX),
                streams: max_streams(settings) as usize,
                first: settings.timeouts.head,
                idle: settings.timeouts.idle,
                current,
                plan: plan.clone(),
                arrival: arrival.clone(),
                handle,
                timer,
                connection,
                open: JoinSet::new(),
                served: 0,
                since: Instant::now(),
                leaving: Leaving::No,
                read_limit: read_limit.clone(),
                backlog,
                waiting: Waiting::default(),
            };
            let ending = poll_fn(|cx| connection.poll(cx)).await;
            connection.end_waiting();
            ending
        }
        Ok(Ok(Err(error))) => ending_of(&error),
        Ok(Err(flooded)) => {
            note_flood(worker, handle);
            // The handshake has sent our SETTINGS. If the socket is full, the client gets no GOAWAY.
            let _ = poll_fn(|cx| Poll::Ready(stream.poll_write(cx, &[IoSlice::new(CALM)]))).await;
            Some(flooded)
        }
        Err(_) => None,
    };
    handle.stop_waiting();
    if let Some(ending) = ending {
        if ending == Ending::FrameFlood {
            note_flood(worker, handle);
        }
        record(worker, &plan, &arrival, ending);
    }
    Box::pin(linger(&*stream)).await;
}

/// Makes the next connections of the client's address wait. To be called before the client learns that its connection
/// ends, so that its next connection is not faster.
fn note_flood(worker: &Worker, handle: &ConnectionHandle) {
    handle.share.flooded(worker.front.state.started.elapsed());
}

/// Writes the access-log record of a connection or stream that never became a request.
fn record(worker: &Rc<Worker>, plan: &ListenerPlan, arrival: &Arrival, ending: Ending) {
    let mut outcome = Outcome::new(worker, &plan.state, Kind::Http, arrival.peer, arrival.tls);
    outcome.spoken = ClientProtocol::Http2;
    outcome.end(ending);
}

fn max_streams(settings: &HttpSettings) -> u32 {
    match settings.http2 {
        Http2::On { streams, .. } => streams,
        Http2::Off => 1,
    }
}

fn receive_window(settings: &HttpSettings) -> u32 {
    match settings.http2 {
        Http2::On { receive_window, .. } => receive_window,
        Http2::Off => WINDOW,
    }
}

fn allowances(settings: &HttpSettings) -> Allowances {
    match settings.http2 {
        Http2::On { flood, .. } => flood,
        Http2::Off => Allowances::default(),
    }
}

fn stream_window(settings: &HttpSettings) -> u32 {
    match settings.http2 {
        Http2::On { stream_window, .. } => stream_window,
        Http2::Off => WINDOW,
    }
}

fn backlog(settings: &HttpSettings) -> Backlog {
    let limit = match settings.http2 {
        Http2::On { send_buffer, .. } => send_buffer,
        Http2::Off => 0,
    };
    Backlog::new(limit, settings.limits.head.saturating_mul(room::LARGE_HEADS).max(room::LEAST_OF_HEADS))
}

fn builder(settings: &HttpSettings) -> Builder {
    let streams = max_streams(settings);
    // HTTP/2 counts 32 bytes more for each field (RFC 9113 section 6.5.2). With this limit a head that is slightly too
    // large gets our own error response, not one of the frame layer.
    let header_list = settings.limits.head.saturating_add(settings.limits.headers.saturating_mul(32));
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams)
        .initial_window_size(stream_window(settings).min(MOST_WINDOW))
        .initial_connection_window_size(receive_window(settings).min(MOST_WINDOW))
        .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .reset_stream_duration(FAREWELL)
        .max_pending_accept_reset_streams(RESETS_WAITING)
        .max_local_error_reset_streams(Some(ERROR_RESETS))
        .enable_connect_protocol();
    if let Http2::On { held_heads, .. } = settings.http2 {
        builder.max_held_fields(held_heads);
    }
    builder
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// No new stream is accepted; open streams may end. Without open streams the connection is idle.
    Gracefully,
    /// GOAWAY is sent and the connection closes, at the latest at this instant.
    By(Instant),
}

struct Http2Connection<'a> {
    worker: &'a Rc<Worker>,
    max_requests: u64,
    /// Limit of concurrent streams.
    streams: usize,
    /// Timeout for the first request; `idle` is the timeout for each later one.
    first: Duration,
    idle: Duration,
    /// The newest snapshot that contains the listener; `plan` is the listener's plan in that snapshot.
    current: Current,
    plan: Arc<ListenerPlan>,
    arrival: Arrival,
    handle: &'a Rc<ConnectionHandle>,
    timer: Timer,
    connection: Connection<Wire, Bytes>,
    /// Tasks of the open streams. They are aborted when the connection is dropped.
    open: JoinSet<()>,
    served: u64,
    /// When the last request began or ended, or when the connection began.
    since: Instant,
    leaving: Leaving,
    read_limit: Rc<ReadLimit>,
    backlog: Rc<Backlog>,
    /// Requests for whose heads there is no room yet.
    waiting: Waiting,
}

impl Http2Connection<'_> {
    /// Drives the connection and joins finished stream tasks. Returns `Some` for an error to record.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ending>> {
        while let Poll::Ready(Some(_)) = self.open.poll_join_next(cx) {
            self.since = Instant::now();
        }
        if self.leaving == Leaving::No && (self.worker.is_draining() || self.served >= self.max_requests) {
            self.leave_gracefully();
        }
        if !self.waiting.is_empty() {
            self.begin_waiting(cx);
        }
        self.read_limit.begin_turn();
        for _ in 0..TURNS {
            if let Some(flood) = self.read_limit.flood()
                && !matches!(self.leaving, Leaving::By(_))
            {
                note_flood(self.worker, self.handle);
                self.leave(Reason::ENHANCE_YOUR_CALM);
                self.open.abort_all();
                tracing::debug!(client = ?self.arrival.peer, "{}", flood.reason());
            }
            match self.poll_connection(cx) {
                Poll::Ready(None) => {}
                Poll::Ready(Some(ending)) => {
                    return Poll::Ready(self.read_limit.flood().map(Ending::Flood).or(ending));
                }
                Poll::Pending
                    if self.read_limit.flood().is_some() && !matches!(self.leaving, Leaving::By(_)) => {}
                Poll::Pending => {
                    self.backlog.turned();
                    return self.poll_idle(cx);
                }
            }
        }
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Drives the frame layer. `Ready(None)`: call again; `Ready(Some(_))`: the connection has ended.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<Ending>>> {
        if self.open.len() + self.waiting.len() >= self.streams || matches!(self.leaving, Leaving::By(_)) {
            // A stream that the client has reset counts until its task has ended.
            return self
                .connection
                .poll_closed(cx)
                .map(|closed| Some(closed.err().and_then(|e| ending_of(&e))));
        }
        match self.connection.poll_accept(cx) {
            Poll::Ready(Some(Ok((request, respond)))) => {
                self.begin(cx, request, respond);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(ending_of(&error))),
            Poll::Ready(None) => Poll::Ready(Some(None)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits for the idle timeout, or for the deadline of a closing connection.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ending>> {
        if !self.open.is_empty() && !matches!(self.leaving, Leaving::By(_)) {
            self.handle.wake_for_drain(cx);
            if let Some(due) = self.waiting.due()
                && self.timer.poll_due(cx, due).is_ready()
            {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        let patience = if self.served == 0 { self.first } else { self.idle };
        let due = match self.leaving {
            Leaving::No => self.since + patience,
            Leaving::Gracefully => self.since + FAREWELL,
            Leaving::By(due) => due,
        };
        if self.leaving != Leaving::No {
            return self.timer.poll_due(cx, due).map(|()| self.read_limit.flood().map(Ending::Flood));
        }
        match self.handle.poll_idle(cx, self.since, |cx| self.timer.poll_due(cx, due)) {
            // A connection that did not allow it is not parked.
            Poll::Pending | Poll::Ready(WaitEnd::Parking) => Poll::Pending,
            Poll::Ready(WaitEnd::Closing) if self.worker.is_draining() => {
                self.handle.stop_waiting();
                self.since = Instant::now();
                self.leave_gracefully();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(WaitEnd::Closing | WaitEnd::By(())) => {
                self.handle.stop_waiting();
                self.leave(Reason::NO_ERROR);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn leave_gracefully(&mut self) {
        self.leaving = Leaving::Gracefully;
        // The client has a moment to hear of it, and to send what it had begun.
        self.since = Instant::now();
        self.connection.graceful_shutdown();
    }

    fn leave(&mut self, reason: Reason) {
        self.leaving = Leaving::By(Instant::now() + FAREWELL);
        self.end_waiting();
        self.connection.abrupt_shutdown(reason);
    }

    /// Starts the task that serves a request, or makes the request wait.
    fn begin(&mut self, cx: &mut Context<'_>, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
        self.served += 1;
        self.since = Instant::now();
        self.look_up();
        let (parts, body) = request.into_parts();
        let arrived = Arrived::new(parts, body, respond, self.since);
        let arrived = match self.waiting.is_empty() {
            true => self.try_begin(cx, arrived),
            false => Some(arrived),
        };
        if let Some(Err(mut arrived)) = arrived.map(|arrived| self.waiting.push(arrived)) {
            self.refuse(&mut arrived);
        }
    }

    /// Refuses a request for whose head there is no room. The client may repeat it (RFC 9113 section 8.7).
    fn refuse(&self, arrived: &mut Arrived) {
        arrived.respond.send_reset(Reason::REFUSED_STREAM);
        self.record(Ending::HeadsTooLarge);
    }

    /// Starts the tasks of waiting requests for which there is room now, and refuses those that have waited too long.
    fn begin_waiting(&mut self, cx: &mut Context<'_>) {
        let gone = self.waiting.drop_reset(cx);
        if gone > 0 {
            self.backlog.forget_refusal();
        }
        for _ in 0..gone {
            self.record(Ending::ClientClosed);
        }
        while let Some(mut first) = self.waiting.pop() {
            if first.due() <= Instant::now() {
                // The room that it lacked says nothing of the next one.
                self.backlog.forget_refusal();
                self.refuse(&mut first);
            } else if let Some(first) = self.try_begin(cx, first) {
                return self.waiting.put_back(first);
            }
        }
    }

    /// Records the waiting requests of a connection that ends.
    fn end_waiting(&mut self) {
        while self.waiting.pop().is_some() {
            self.record(Ending::ClientClosed);
        }
    }

    /// Starts the task that serves a request. Returns the request if there is no room for its head.
    fn try_begin(&mut self, cx: &mut Context<'_>, mut arrived: Arrived) -> Option<Arrived> {
        if arrived.respond.poll_reset(cx).is_ready() {
            // The client has reset the stream before its task began: no backend gets the request.
            self.record(Ending::ClientClosed);
            return None;
        }
        if self.backlog.is_full() {
            return Some(arrived);
        }
        let follows = if arrived.body.is_end_stream() { Body::None } else { Body::Follows };
        let fields = fields(&arrived.parts);
        let downgraded = match downgrade::request(fields.iter().copied(), follows, &web_socket_key()) {
            Ok(downgraded) => downgraded,
            Err(malformed) => {
                arrived.respond.send_reset(Reason::PROTOCOL_ERROR);
                self.record(Ending::Malformed(malformed));
                return None;
            }
        };
        drop(fields);
        if self.backlog.begin(downgraded.head.len()) == Admission::TooMuch {
            return Some(arrived);
        }
        let Arrived { parts, body, respond, .. } = arrived;
        let method = match parts.method {
            http::Method::HEAD => MethodKind::Head,
            _ => MethodKind::Other,
        };
        let own = BacklogShare::new(&self.backlog, downgraded.head.len());
        let cut = Rc::new(Cut::default());
        let stream = Stream::http2(Side::new(method, downgraded.upload, body, respond, own, cut.clone()));
        let client =
            Box::new(ClientConnection { stream, early: downgraded.head, arrival: self.arrival.clone() });
        let (worker, current) = (self.worker.clone(), self.current.clone());
        let (handle, plan) = (self.handle.clone(), self.plan.clone());
        let task = {
            let cut = cut.clone();
            boxed(|| exchange::serve_stream(worker, handle, current, plan, client, cut))
        };
        // The next size of the allocator has 1 KiB more, for each stream.
        debug_assert!(size_of_val(&*task) <= 4096, "{}", size_of_val(&*task));
        cut.task.set(Some(self.open.spawn_local(task)));
        None
    }

    fn record(&self, ending: Ending) {
        record(self.worker, &self.plan, &self.arrival, ending);
    }

    /// Switches to the newest snapshot after a reload. If the listener is gone or no longer speaks HTTP/2, the
    /// connection ends when its open streams have ended.
    fn look_up(&mut self) {
        let newest = self.worker.current();
        if Rc::ptr_eq(&newest, &self.current) {
            return;
        }
        let plan = newest.listeners.get(&self.plan.settings.name).cloned();
        match plan.filter(|plan| {
            http_settings(plan).is_some_and(|settings| matches!(settings.http2, Http2::On { .. }))
        }) {
            Some(plan) => {
                self.plan = plan;
                self.current = newest;
            }
            None => self.max_requests = 0,
        }
    }
}

/// Returns the header fields in wire order, after those pseudo-headers that the frame layer reports.
fn fields(parts: &http::request::Parts) -> Vec<(&[u8], &[u8])> {
    let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(parts.headers.len() + 5);
    let uri = &parts.uri;
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    fields.push((b":method", parts.method.as_str().as_bytes()));
    // The frame layer requires a scheme, but does not report it for a request without an authority.
    match uri.scheme_str() {
        Some(scheme) => fields.push((b":scheme", scheme.as_bytes())),
        None if parts.method == http::Method::CONNECT && protocol.is_none() => {}
        None => fields.push((b":scheme", b"http")),
    }
    if let Some(authority) = uri.authority() {
        fields.push((b":authority", authority.as_str().as_bytes()));
    }
    if let Some(path) = uri.path_and_query() {
        fields.push((b":path", path.as_str().as_bytes()));
    }
    if let Some(protocol) = protocol {
        fields.push((b":protocol", protocol.as_str().as_bytes()));
    }
    fields.extend(parts.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())));
    fields
}

/// Creates a random Sec-WebSocket-Key (RFC 6455 section 4.1): 16 bytes in base64; the last digit has two bits.
fn web_socket_key() -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key: String = (0..21).map(|_| char::from(DIGITS[fastrand::usize(..64)])).collect();
    key.push(char::from(DIGITS[fastrand::usize(..4) * 16]));
    key.push_str("==");
    key
}

/// Returns the ending to record for a connection error. `None` if the client closed or lost the connection.
fn ending_of(error: &h2::Error) -> Option<Ending> {
    match error.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_library() => Some(Ending::FrameFlood),
        Some(_) if error.is_library() => Some(Ending::Http2Fault),
        _ => None,
    }
}

/// A GOAWAY frame with ENHANCE_YOUR_CALM and last stream 0 (RFC 9113 section 6.8).
const CALM: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0b";

/// Largest flow-control window (RFC 9113 section 6.9.1).
const MOST_WINDOW: u32 = (1 << 31) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_socket_key_is_the_text_of_sixteen_bytes() {
        for _ in 0..100 {
            let key = web_socket_key();
            assert_eq!(key.len(), 24);
            assert!(key.ends_with("==") && b"AQgw".contains(&key.as_bytes()[21]), "{key}");
        }
    }
}
