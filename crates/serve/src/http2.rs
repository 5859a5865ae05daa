//! A client connection that speaks HTTP/2: the frame layer is the `h2` crate's, each stream becomes a request of HTTP/1.1 with
//! a task of its own and goes the way of every request (`http.rs`).
//! `http2/side.rs` is a stream as the exchange sees it, `http2/wire.rs` the connection below; what a request may be and what a
//! client may cost is decided in `logic/http2`.

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
use tokio::task::JoinSet;

use crate::arrival::{Arrival, Guest};
use crate::ending::{Ending, Spoken};
use crate::http as exchange;
use crate::linger::linger;
use crate::outcome::Outcome;
use crate::snapshot::ListenerPlan;
use crate::snapshot::http_settings;
use crate::stream::Stream;
use crate::timer::Timer;
use crate::worker::{Control, Current, Woken, Worker};

pub mod backend;
mod backlog;
mod convert;
mod outflow;
pub(crate) mod preface;
pub(crate) mod rules;
mod side;
mod wire;

pub use backend::Call;
use backlog::{Admission, Backlog};
use side::Own;
pub use side::Side;
use wire::{Gate, Wire};

/// Bytes of a request's body that may be on their way or waiting for a slow backend, for each stream. The connection's window is
/// larger, so that one backend that takes nothing does not stop the streams of others, and limits what all streams hold.
const WINDOW: u32 = 64 * 1024;

/// Bytes of a response that the frame layer takes ahead of a client that reads nothing, for each stream.
const SEND_BUFFER: usize = 32 * 1024;

/// The heads of the open requests of a connection may together be so many times the largest head.
const LARGE_HEADS: usize = 8;

/// The same in bytes, where the largest head is small: a page with a hundred requests whose cookies have 8 KiB fits.
const LEAST_OF_HEADS: usize = 1024 * 1024;

/// Streams that we have reset and still know.
const RESET_STREAMS: usize = 20;

/// Streams that the client has reset before they were looked at. More than [`Flood::Resets`] allows at once, which decides.
const RESETS_WAITING: usize = 250;

/// Streams that a client may make us reset by breaking the protocol. Beside [`Flood::Resets`], which also forgives.
const ERROR_RESETS: usize = 500;

/// Requests that one connection may begin before others of the worker get their turn.
const TURNS: usize = 32;

/// Once the connection is to end and no stream is open, so long for the client to see it.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves a connection, beginning with the snapshot that accepted it.
pub async fn serve(
    worker: &Rc<Worker>,
    current: Current,
    plan: Arc<ListenerPlan>,
    guest: Guest,
    control: &Rc<Control>,
) {
    let Guest { stream, early, mut arrival } = guest;
    // The streams cannot ask for it.
    arrival.local = arrival.local_of(&stream);
    let Some(settings) = http_settings(&plan) else { return };
    let stream = Rc::new(stream);
    let gate = Rc::new(Gate::default());
    let backlog = Rc::new(backlog(settings));
    let wire = Wire::new(stream.clone(), early, gate.clone(), backlog.clone());
    let timer = Timer::default();
    let mut handshake = builder(settings).handshake::<_, Bytes>(wire);
    let shaking_hands = poll_fn(|cx| {
        gate.begin_turn();
        match (Pin::new(&mut handshake).poll(cx), gate.flood()) {
            (Poll::Pending, Some(flood)) => Poll::Ready(Err(Ending::Flood(flood))),
            (result, _) => result.map(Ok),
        }
    });
    let ending = match timer.within(settings.timeouts.head, shaking_hands).await {
        Ok(Ok(Ok(connection))) => {
            let mut visit = Visit {
                worker,
                max_requests: settings.max_requests.unwrap_or(u64::MAX),
                streams: max_streams(settings) as usize,
                first: settings.timeouts.head,
                idle: settings.timeouts.idle,
                current,
                plan: plan.clone(),
                arrival: arrival.clone(),
                control,
                timer,
                connection,
                open: JoinSet::new(),
                served: 0,
                since: Instant::now(),
                leaving: Leaving::No,
                gate: gate.clone(),
                backlog,
            };
            poll_fn(|cx| visit.poll(cx)).await
        }
        Ok(Ok(Err(error))) => ending_of(&error),
        Ok(Err(flooded)) => {
            // Our settings have been sent by the handshake. A client that does not take this either is told nothing.
            let _ = poll_fn(|cx| Poll::Ready(stream.poll_write(cx, &[IoSlice::new(CALM)]))).await;
            Some(flooded)
        }
        Err(_) => None,
    };
    control.stop_waiting();
    if let Some(ending) = ending {
        record(worker, &plan, &arrival, ending);
    }
    Box::pin(linger(&stream)).await;
}

/// The record of what never became a request.
fn record(worker: &Rc<Worker>, plan: &ListenerPlan, arrival: &Arrival, ending: Ending) {
    let mut outcome = Outcome::new(worker, &plan.state, Kind::Http, arrival.peer, arrival.tls);
    outcome.spoken = Spoken::Http2;
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

fn backlog(settings: &HttpSettings) -> Backlog {
    let limit = match settings.http2 {
        Http2::On { send_buffer, .. } => send_buffer,
        Http2::Off => 0,
    };
    Backlog::new(limit, settings.limits.head.saturating_mul(LARGE_HEADS).max(LEAST_OF_HEADS))
}

fn builder(settings: &HttpSettings) -> Builder {
    let streams = max_streams(settings);
    // As HTTP/2 counts: 32 bytes more for each field (RFC 9113 section 6.5.2). What is only a little too large gets our own
    // answer this way.
    let header_list = settings.limits.head.saturating_add(settings.limits.headers.saturating_mul(32));
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(streams)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(receive_window(settings).min(MOST_WINDOW))
        .max_header_list_size(u32::try_from(header_list).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .reset_stream_duration(FAREWELL)
        .max_pending_accept_reset_streams(RESETS_WAITING)
        .max_local_error_reset_streams(Some(ERROR_RESETS))
        .enable_connect_protocol();
    builder
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Not yet.
    No,
    /// Open streams may end; since when there are none, it counts as idle.
    Gracefully,
    /// At once, at the latest then.
    By(Instant),
}

/// A connection after its handshake.
struct Visit<'a> {
    worker: &'a Rc<Worker>,
    max_requests: u64,
    /// Most streams at once.
    streams: usize,
    /// Time for the first request, and for every other.
    first: Duration,
    idle: Duration,
    /// The newest snapshot that knows the listener, and its plan there.
    current: Current,
    plan: Arc<ListenerPlan>,
    arrival: Arrival,
    control: &'a Rc<Control>,
    timer: Timer,
    connection: Connection<Wire, Bytes>,
    /// The tasks of open streams; they end with the connection.
    open: JoinSet<()>,
    /// Requests so far.
    served: u64,
    /// End of the last request, or the start.
    since: Instant,
    leaving: Leaving,
    gate: Rc<Gate>,
    backlog: Rc<Backlog>,
}

impl Visit<'_> {
    /// Moves everything. Gives why the connection ended, if somebody must be told.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ending>> {
        while let Poll::Ready(Some(_)) = self.open.poll_join_next(cx) {
            self.since = Instant::now();
        }
        if self.leaving == Leaving::No && (self.worker.is_draining() || self.served >= self.max_requests) {
            self.leave_gracefully();
        }
        self.gate.begin_turn();
        for _ in 0..TURNS {
            if let Some(flood) = self.gate.flood()
                && !matches!(self.leaving, Leaving::By(_))
            {
                self.leave(Reason::ENHANCE_YOUR_CALM);
                self.open.abort_all();
                tracing::debug!(client = ?self.arrival.peer, "{}", flood.reason());
            }
            match self.poll_connection(cx) {
                Poll::Ready(None) => {}
                Poll::Ready(Some(ending)) => {
                    return Poll::Ready(self.gate.flood().map(Ending::Flood).or(ending));
                }
                Poll::Pending if self.gate.flood().is_some() && !matches!(self.leaving, Leaving::By(_)) => {}
                Poll::Pending => {
                    self.backlog.turned();
                    return self.poll_idle(cx);
                }
            }
        }
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Drives the frame layer. Ready with `None`: there is more to do; with `Some`: it has ended.
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Option<Option<Ending>>> {
        if self.open.len() >= self.streams || matches!(self.leaving, Leaving::By(_)) {
            // Nobody else is let in until a stream has ended, also one that the client has given up.
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

    /// Waits for the next request while no stream is open, or for the end.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Ending>> {
        if !self.open.is_empty() && !matches!(self.leaving, Leaving::By(_)) {
            self.control.wake_for_drain(cx);
            return Poll::Pending;
        }
        let patience = if self.served == 0 { self.first } else { self.idle };
        let due = match self.leaving {
            Leaving::No => self.since + patience,
            Leaving::Gracefully => self.since + FAREWELL,
            Leaving::By(due) => due,
        };
        if self.leaving != Leaving::No {
            return self.timer.poll_due(cx, due).map(|()| self.gate.flood().map(Ending::Flood));
        }
        match self.control.poll_idle(cx, self.since, |cx| self.timer.poll_due(cx, due)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Woken::Closing) if self.worker.is_draining() => {
                self.control.stop_waiting();
                self.since = Instant::now();
                self.leave_gracefully();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Woken::Closing | Woken::By(())) => {
                self.control.stop_waiting();
                self.leave(Reason::NO_ERROR);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn leave_gracefully(&mut self) {
        self.leaving = Leaving::Gracefully;
        self.connection.graceful_shutdown();
    }

    fn leave(&mut self, reason: Reason) {
        self.leaving = Leaving::By(Instant::now() + FAREWELL);
        self.connection.abrupt_shutdown(reason);
    }

    /// Begins the task of a request.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) {
        self.served += 1;
        self.since = Instant::now();
        self.look_up();
        if respond.poll_reset(cx).is_ready() {
            // Given up before it was begun: no backend hears of it.
            return self.record(Ending::ClientClosed);
        }
        let (parts, body) = request.into_parts();
        let follows = if body.is_end_stream() { Body::None } else { Body::Follows };
        let downgraded = downgrade::request(fields(&parts).iter().copied(), follows, &web_socket_key());
        match downgraded {
            Ok(downgraded) => {
                let method = match parts.method {
                    http::Method::HEAD => MethodKind::Head,
                    _ => MethodKind::Other,
                };
                if self.backlog.begin(downgraded.head.len()) == Admission::TooMuch {
                    respond.send_reset(Reason::REFUSED_STREAM);
                    return self.record(Ending::HeadsTooLarge);
                }
                let own = Own::new(&self.backlog, downgraded.head.len());
                let stream = Stream::http2(Side::new(method, downgraded.upload, body, respond, own));
                let guest = Guest { stream, early: downgraded.head, arrival: self.arrival.clone() };
                let (worker, current) = (self.worker.clone(), self.current.clone());
                let (control, plan) = (self.control.clone(), self.plan.clone());
                self.open.spawn_local(exchange::serve_stream(worker, control, current, plan, guest));
            }
            Err(malformed) => {
                respond.send_reset(Reason::PROTOCOL_ERROR);
                self.record(Ending::Malformed(malformed));
            }
        }
    }

    fn record(&self, ending: Ending) {
        record(self.worker, &self.plan, &self.arrival, ending);
    }

    /// Follows a reload: a listener that is gone, or speaks HTTP/2 no more, ends its connections as soon as their streams
    /// have ended.
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

/// The fields in the order of the wire, with the pseudo-headers as far as the frame layer shows them.
fn fields(parts: &http::request::Parts) -> Vec<(&[u8], &[u8])> {
    let mut fields: Vec<(&[u8], &[u8])> = Vec::with_capacity(parts.headers.len() + 5);
    let uri = &parts.uri;
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    fields.push((b":method", parts.method.as_str().as_bytes()));
    // The frame layer has seen that there is a scheme, and hides it where there is no authority.
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

/// A fresh Sec-WebSocket-Key (RFC 6455 section 4.1): base64 of 16 bytes, of which the last character tells two bits.
fn web_socket_key() -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key: String = (0..21).map(|_| char::from(DIGITS[fastrand::usize(..64)])).collect();
    key.push(char::from(DIGITS[fastrand::usize(..4) * 16]));
    key.push_str("==");
    key
}

/// What the end of a connection is called; `None` where the client only left.
fn ending_of(error: &h2::Error) -> Option<Ending> {
    match error.reason() {
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_library() => Some(Ending::FrameFlood),
        Some(_) if error.is_library() => Some(Ending::Http2Fault),
        _ => None,
    }
}

/// GOAWAY with ENHANCE_YOUR_CALM, before any stream (RFC 9113 section 6.8).
const CALM: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0b";

/// RFC 9113 section 6.9.1.
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
