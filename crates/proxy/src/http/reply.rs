//! One attempt at one backend: sends the request and forwards the response, both at once. A backend may answer before
//! it has read the whole request. If the client's connection breaks, the attempt ends; if the client only ends its
//! sending direction, it still gets its response.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use config::types::BackendHttp;
use logic::grpc;
use logic::http1::forward::{self, Answer, ResponseFraming};
use logic::http1::request::{BodyLength, Parse, Persistence, Version};
use logic::http1::response::{self, Progress as HeadProgress, ResponseFault, ResponseHead};
use logic::retry::{Idempotence, Progress};
use logic::route::HeaderEdits;
use state::ending::Ending;

use super::answer;
use super::body::{self, Broken, Framing, Reader, Transfer};
use super::failure::{Answered, Failure};
use super::heads::HeadBuffer;
use super::kept_body::{Keeping, KeptBody};
use super::moving::Moving;
use super::session::{After, RequestContext, persistence};
use crate::http2::rules::Processing;
use crate::live::Totals;
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::stream::Stream;
use crate::timer::Timer;

/// Bytes that are read at most from a client that sends before it has its response.
const READ_AHEAD: usize = 4 * 1024;

/// A response that was sent.
pub(super) enum Finished {
    /// Sent whole. `keep` is the time for which the backend's connection may be kept.
    Whole { after: After, keep: Option<Duration> },
    /// The backend switched protocols; `rest` holds its first bytes of the new protocol.
    Tunnel { rest: Vec<u8> },
    /// The response was cut short.
    Cut { ending: Ending, after: After },
}

pub(super) struct Attempt<'a, 'm> {
    pub(super) session: &'a RequestContext<'a>,
    pub(super) pool: &'a PoolPlan,
    pub(super) edits: &'a [&'a HeaderEdits; 2],
    /// The request head, until it is sent whole. Freed then.
    pub(super) message: Cell<Option<HeadBuffer>>,
    pub(super) request_id: &'a [u8],
    /// Cookie by which the client keeps the backend.
    pub(super) set_cookie: Option<&'a str>,
    pub(super) timer: &'a Timer,
    pub(super) moving: &'a Moving<'m>,
    /// Start of the session, then of this attempt.
    pub(super) started: Instant,
    pub(super) began: Instant,
    /// Bytes sent to the backend, including those sent before the attempt started.
    pub(super) sent: Cell<u64>,
    /// Bytes of the request body that earlier attempts counted, and that are read again.
    pub(super) counted: &'a Cell<u64>,
    /// First bytes of the response, if some were read before the attempt started.
    pub(super) early: Option<&'a Cell<Vec<u8>>>,
    /// Entry of the session in the worker's table of open sessions.
    pub(super) place: Option<u32>,
}

/// A backend's response: its parsed head, and the bytes of the head with the bytes read after it.
struct Message {
    response: ResponseHead,
    bytes: Vec<u8>,
}

/// State that the two directions of an attempt share; holds the outcome afterwards.
#[derive(Default)]
struct Shared {
    /// What was read of the request body, while it may be sent again.
    kept: KeptBody,
    /// The request body has been sent whole, or there is none.
    request_sent: Cell<bool>,
    /// The backend no longer reads the request body.
    request_cut: Cell<bool>,
    /// The backend read no byte of the request body for `timeouts.body`.
    has_stalled: Cell<bool>,
    /// When the body was sent whole or cut off. `None` meanwhile, and without a body.
    body_ended: Cell<Option<Instant>>,
    /// Bytes of bodies that were read so far, from the client and from the backend. Only messages with a body that is not
    /// small have it.
    bodies: OnceCell<Rc<Totals>>,
    status: Cell<u16>,
    grpc_status: Cell<Option<u8>>,
    answered: Cell<bool>,
    first_byte: Cell<Option<Duration>>,
    to_client: Cell<u64>,
}

/// Tells the outcome of the session what the attempt did, when it is dropped: also if an operator, or the end of the
/// process, ends the session meanwhile.
struct Record<'r, 'a, 'm> {
    attempt: &'r Attempt<'a, 'm>,
    shared: &'r Shared,
    outcome: &'r mut Outcome,
}

impl Drop for Record<'_, '_, '_> {
    fn drop(&mut self) {
        let Self { attempt, shared, outcome } = self;
        let up = shared.bodies.get().map_or(0, |bodies| bodies.up.get());
        outcome.bytes_in += up.saturating_sub(attempt.counted.get());
        outcome.bytes_out += shared.to_client.get();
        outcome.first_byte = shared.first_byte.get();
        // The first attempt begins with the session, usually: then there is nothing to subtract.
        let before = match attempt.began == attempt.started {
            true => Duration::ZERO,
            false => attempt.began.saturating_duration_since(attempt.started),
        };
        outcome.response_time = outcome.first_byte.map(|first_byte| first_byte.saturating_sub(before).into());
        if shared.answered.get() {
            outcome.status = shared.status.get();
            outcome.grpc_status = shared.grpc_status.get();
            outcome.note_answered();
        }
    }
}

impl Attempt<'_, '_> {
    /// Sends the request and forwards the response.
    pub(super) async fn run(
        &self,
        client: &Stream,
        ahead: &mut Vec<u8>,
        backend: &Stream,
        outcome: &mut Outcome,
    ) -> Result<Finished, Failure> {
        let shared = Shared::default();
        // Reading ahead of the response only detects a closed client; the bytes are kept.
        let reading_ahead = RefCell::new(std::mem::take(ahead));
        let record = Record { attempt: self, shared: &shared, outcome };
        let result = self.exchange(client, &reading_ahead, backend, &shared).await;
        drop(record);
        *ahead = reading_ahead.into_inner();
        if let (Some(body), Err(_)) = (shared.kept.into_bytes(), &result) {
            // The next attempt reads it again.
            self.counted.set(body.len() as u64);
            ahead.splice(..0, body);
        }
        result
    }

    async fn exchange(
        &self,
        client: &Stream,
        ahead: &RefCell<Vec<u8>>,
        backend: &Stream,
        shared: &Shared,
    ) -> Result<Finished, Failure> {
        if self.send_head(backend).await.is_err() {
            // The backend may have sent a reason before it closed; without a body there is nothing more to send.
            shared.request_cut.set(true);
        }
        // Boxed: most requests have no body, and all would hold the state of sending one.
        let mut sending = match Reader::new(self.session.received.request.body, &self.session.settings.limits)
        {
            Some(_) if shared.request_cut.get() => None,
            Some(reader) => Some(Box::pin(self.send_body(client, ahead, reader, backend, shared))),
            None => {
                shared.request_sent.set(true);
                None
            }
        };
        let mut responding = std::pin::pin!(self.respond(client, ahead, backend, shared));
        std::future::poll_fn(|cx| {
            if let Some(Poll::Ready(sent)) = sending.as_mut().map(|sending| sending.as_mut().poll(cx)) {
                sending = None;
                shared.body_ended.set(Some(Instant::now()));
                match sent {
                    Ok(()) => shared.request_sent.set(true),
                    // The backend may have answered early and closed: its response is on the way.
                    Err(Broken::DestinationClosed) => shared.request_cut.set(true),
                    // One that answers early and reads no more has had all of that time to answer.
                    Err(Broken::DestinationTimeout) => {
                        shared.request_cut.set(true);
                        shared.has_stalled.set(true);
                    }
                    // The client has received at least a part of the response: the rest of the request is not needed.
                    Err(_) if shared.answered.get() => shared.request_cut.set(true),
                    Err(why) => return Poll::Ready(Err(Failure::Client(why))),
                }
            }
            if let Poll::Ready(responded) = responding.as_mut().poll(cx) {
                return Poll::Ready(responded);
            }
            if shared.has_stalled.get() && !shared.answered.get() {
                let after = self.pool.settings.timeouts.body;
                return Poll::Ready(Err(Failure::TimedOut { after, progress: self.progress(shared) }));
            }
            if !shared.answered.get()
                && let Poll::Ready(lost) = self.moving.poll_lost(cx, self.timer, || self.progress(shared))
            {
                return Poll::Ready(Err(Failure::Lost { lost, progress: self.progress(shared) }));
            }
            if sending.is_none() && poll_gone(cx, client, &mut ahead.borrow_mut()).is_ready() {
                return Poll::Ready(Ok(Finished::Cut { ending: Ending::ClientClosed, after: After::Drop }));
            }
            Poll::Pending
        })
        .await
    }

    /// Sends what is not sent yet of the request head.
    async fn send_head(&self, backend: &Stream) -> Result<(), Broken> {
        let Some(message) = self.message.take() else { return Ok(()) };
        let sent = usize::try_from(self.sent.get()).unwrap_or(message.len());
        let rest = message.get(sent..).unwrap_or_default();
        body::write(self.timer, backend, rest, &[], self.pool.settings.timeouts.body, &self.sent).await
    }

    /// Whether the request may be sent again after its body has begun: one that may be executed twice, and to an HTTP/2
    /// backend, which can say that it did not process it, any.
    fn keeping(&self) -> Keeping {
        match (self.moving.idempotence, self.pool.settings.http) {
            (Idempotence::Idempotent, _) | (_, BackendHttp::Http2) => Keeping::Yes,
            (Idempotence::NotIdempotent, BackendHttp::Http1) => Keeping::No,
        }
    }

    async fn send_body(
        &self,
        client: &Stream,
        ahead: &RefCell<Vec<u8>>,
        reader: Reader,
        backend: &Stream,
        shared: &Shared,
    ) -> Result<(), Broken> {
        let settings = self.session.settings;
        let chunked = matches!(reader, Reader::Chunked(_));
        let (mut buffer, read) = (ahead.take(), &self.bodies(shared).up);
        if let BodyLength::Length(length) = self.session.received.request.body
            && let Ok(length) = usize::try_from(length)
            && length < buffer.len()
        {
            // An attempt that ends meanwhile must not take the next request with it.
            ahead.replace(buffer.split_off(length));
        }
        shared.kept.begin(self.keeping(), &buffer);
        read.set(read.get() + buffer.len() as u64);
        let transfer = Transfer {
            timer: self.timer,
            from: client,
            buffer,
            reader,
            to: backend,
            framing: if chunked { Framing::Chunked } else { Framing::Raw },
            prefix: None,
            coded: None,
            limit: settings.limits.body,
            withheld: settings.request_id_header.as_deref(),
            read_timeout: self.idle_of_rpc().unwrap_or(settings.timeouts.body),
            whole_by: None,
            write_timeout: self.pool.settings.timeouts.body,
            read,
            kept: Some(&shared.kept),
            written: &self.sent,
            grpc_status: None,
        };
        let (sent, behind) = transfer.run().await;
        match sent {
            // What follows the body belongs to the next request.
            Ok(()) if !behind.is_empty() => {
                read.set(read.get().saturating_sub(behind.len() as u64));
                shared.kept.leave_out(behind.len());
                ahead.replace(behind);
            }
            // What was not sent is lost with the rest of the request.
            Err(_) if shared.kept.is_lost() => {
                read.set(read.get().saturating_sub(behind.len() as u64));
            }
            Ok(()) | Err(_) => {}
        }
        sent
    }

    /// Reads the backend's response and forwards it. `ahead` holds what the client sent after its request.
    async fn respond(
        &self,
        client: &Stream,
        ahead: &RefCell<Vec<u8>>,
        backend: &Stream,
        shared: &Shared,
    ) -> Result<Finished, Failure> {
        let mut bytes = self.early.map(Cell::take).unwrap_or_default();
        let (mut interim, mut interim_bytes) = (0, 0);
        if !bytes.is_empty() {
            shared.first_byte.set(Some(self.started.elapsed()));
        }
        loop {
            let response = self.read_head(&mut bytes, client, backend, shared).await?;
            if response.is_interim() {
                interim += 1;
                interim_bytes += response.len;
                let limits = &self.session.settings.limits;
                if interim > limits.interim || interim_bytes > limits.head {
                    return Err(self.fault(ResponseFault::Interim, shared));
                }
                if self.session.received.request.version == Version::Http11 {
                    let mut out = Vec::new();
                    forward::write_interim(&mut out, &bytes, &response);
                    if self.write_to_client(client, &out, shared).await.is_err() {
                        return Ok(Finished::Cut { ending: Ending::ClientClosed, after: After::Drop });
                    }
                }
                bytes.drain(..response.len);
                continue;
            }
            let mut message = Message { response, bytes };
            return self.pass_on(client, ahead, backend, &mut message, shared).await;
        }
    }

    async fn read_head(
        &self,
        buffer: &mut Vec<u8>,
        client: &Stream,
        backend: &Stream,
        shared: &Shared,
    ) -> Result<ResponseHead, Failure> {
        let received = &self.session.received;
        let kind = received.request.kind(&received.head);
        let mut progress = HeadProgress::default();
        let limit = self.pool.settings.timeouts.response;
        let mut wait_from = self.began;
        // A head that has begun gets the time limit once more, however slowly it arrives.
        let mut whole_by = None;
        loop {
            if !buffer.is_empty() {
                match response::resume(buffer, &mut progress, &self.session.settings.limits, kind) {
                    Ok(Parse::Complete(response)) => return Ok(response),
                    Ok(Parse::Incomplete) => {
                        whole_by.get_or_insert_with(|| Instant::now() + limit);
                    }
                    Err(fault) => return Err(self.fault(fault, shared)),
                }
            }
            let deadline = whole_by.unwrap_or_else(|| wait_from + limit);
            // Nearly always the response has not come yet: the first look is the cheapest one.
            let mut is_first = true;
            let filling = std::future::poll_fn(|cx| {
                if std::mem::take(&mut is_first) {
                    ready!(backend.poll_readable(cx));
                }
                backend.poll_fill_for(cx, buffer, client)
            });
            match self.timer.until(deadline, filling).await {
                Ok(Ok(count)) if count > 0 => {
                    if shared.first_byte.get().is_none() {
                        shared.first_byte.set(Some(self.started.elapsed()));
                    }
                }
                Ok(_) => {
                    let answered = if buffer.is_empty() { Answered::Nothing } else { Answered::Started };
                    let processing = match backend.processing() {
                        // It has begun to respond before it said so, which is no proof.
                        Processing::NotProcessed(_) if shared.first_byte.get().is_some() => {
                            Processing::Unknown
                        }
                        other => other,
                    };
                    return Err(Failure::closed(processing, answered, self.progress(shared)));
                }
                Err(_) => {
                    // The time limit of a response starts at the request's end; until then the client's limits apply.
                    let is_sent = shared.request_sent.get() || shared.request_cut.get();
                    let from = match (is_sent, shared.body_ended.get()) {
                        (true, ended) => ended.unwrap_or(wait_from),
                        (false, _) => Instant::now(),
                    };
                    if whole_by.is_some() || from <= wait_from {
                        return Err(Failure::TimedOut { after: limit, progress: self.progress(shared) });
                    }
                    wait_from = from;
                }
            }
        }
    }

    /// Forwards a response. Borrows the message, because moving it is expensive.
    async fn pass_on(
        &self,
        client: &Stream,
        ahead: &RefCell<Vec<u8>>,
        backend: &Stream,
        message: &mut Message,
        shared: &Shared,
    ) -> Result<Finished, Failure> {
        let Message { response, bytes: buffer } = message;
        let response = &*response;
        let request = &self.session.received.request;
        let framing = forward::response_framing(response, request.version);
        let request_is_whole = shared.request_sent.get();
        let persistence = match framing {
            ResponseFraming::UntilClose => Persistence::Close,
            // The unread rest of this request must never be read as another request.
            _ if !request_is_whole => Persistence::Close,
            _ => persistence(self.session, &ahead.borrow()),
        };
        let mut out = HeadBuffer::take();
        self.write_head(&mut out, buffer, response, framing, persistence);
        shared.status.set(response.status);
        shared.answered.set(true);
        // The request is not sent again.
        shared.kept.forget();
        let is_rpc = self.idle_of_rpc().is_some();
        if is_rpc {
            // A response without messages has its status in the head.
            let fields = response.headers.iter().map(|line| (line.name.of(buffer), line.value.of(buffer)));
            shared.grpc_status.set(grpc::status(fields));
        }
        let written_before = shared.to_client.get();
        if response.status == 101 {
            buffer.drain(..response.len);
            return Ok(match self.write_to_client(client, &out, shared).await {
                Ok(()) => Finished::Tunnel { rest: std::mem::take(buffer) },
                Err(_) => Finished::Cut { ending: Ending::ClientClosed, after: After::Drop },
            });
        }
        let body = small_body(response, &buffer[response.len..]);
        let moved = match (body, Reader::new(response.body, &self.session.settings.limits)) {
            (None, Some(reader)) => {
                buffer.drain(..response.len);
                let bodies = self.bodies(shared);
                bodies.down.set(bodies.down.get() + buffer.len() as u64);
                let transfer = Transfer {
                    timer: self.timer,
                    from: backend,
                    buffer: std::mem::take(buffer),
                    reader,
                    to: client,
                    framing: match framing {
                        ResponseFraming::Chunked => Framing::Chunked,
                        _ => Framing::Raw,
                    },
                    prefix: Some(out),
                    coded: None,
                    limit: None,
                    withheld: None,
                    read_timeout: self.idle_of_rpc().unwrap_or(self.pool.settings.timeouts.body),
                    whole_by: self.pool.settings.timeouts.transfer.map(|limit| Instant::now() + limit),
                    write_timeout: self.session.settings.timeouts.write,
                    read: &bodies.down,
                    kept: None,
                    written: &shared.to_client,
                    grpc_status: is_rpc.then_some(&shared.grpc_status),
                };
                // Boxed: a response that is complete already does not hold the state of moving a body.
                let (moved, behind) = Box::pin(transfer.run()).await;
                *buffer = behind;
                moved
            }
            (body, _) => {
                let body = body.unwrap_or_default();
                out.extend_from_slice(body);
                let len = response.len + body.len();
                buffer.drain(..len);
                match client.limits() {
                    None => self.write_to_client(client, &out, shared).await,
                    Some(_) => Box::pin(self.write_in_turn(client, &out, shared)).await,
                }
            }
        };
        Ok(match moved {
            Ok(()) => {
                let after = match (persistence, request.persistence) {
                    (Persistence::KeepAlive, _) => After::KeepAlive,
                    (Persistence::Close, Persistence::Close)
                        if request_is_whole && ahead.borrow().is_empty() =>
                    {
                        After::HangUp
                    }
                    (Persistence::Close, _) => After::Close,
                };
                // Bytes after the response belong to no request: the connection is not reused.
                let reusable =
                    response.persistence == Persistence::KeepAlive && buffer.is_empty() && request_is_whole;
                Finished::Whole { after, keep: self.keep(response).filter(|_| reusable) }
            }
            // Nothing was forwarded yet: the client gets an error page.
            Err(Broken::SourceFault(fault)) if shared.to_client.get() == written_before => {
                shared.answered.set(false);
                return Err(self.fault(ResponseFault::Body(fault), shared));
            }
            Err(Broken::DestinationClosed) => {
                Finished::Cut { ending: Ending::ClientClosed, after: After::Drop }
            }
            Err(Broken::DestinationTimeout) => {
                client.reset_on_close();
                Finished::Cut { ending: Ending::ClientTimeout, after: After::Drop }
            }
            Err(_) => {
                // If the end of the connection marks the end of the body, only a TCP reset shows that the body was cut
                // short.
                if framing == ResponseFraming::UntilClose {
                    client.reset_on_close();
                }
                let ending = match backend.processing() {
                    Processing::Violated => Ending::BadResponse,
                    _ => Ending::BackendAborted,
                };
                Finished::Cut { ending, after: After::Drop }
            }
        })
    }

    /// Counts what is read of the bodies, where operators see it.
    fn bodies<'s>(&self, shared: &'s Shared) -> &'s Totals {
        shared.bodies.get_or_init(|| {
            let totals = Rc::new(Totals::default());
            if let Some(place) = self.place {
                let shown = totals.clone();
                self.session.worker.running.change(place, |entry| entry.totals = Some(shown));
            }
            totals
        })
    }

    fn write_head(
        &self,
        out: &mut Vec<u8>,
        head: &[u8],
        response: &ResponseHead,
        framing: ResponseFraming,
        persistence: Persistence,
    ) {
        let answer = Answer {
            persistence,
            client: self.session.received.request.version,
            framing,
            hsts: answer::hsts(self.session.settings, self.session.arrival),
            request_id: self
                .session
                .settings
                .request_id_header
                .as_deref()
                .map(|name| (name, self.request_id)),
        };
        forward::write_response(out, head, response, &answer, self.edits);
        if let Some(cookie) = self.set_cookie {
            forward::append_field(out, "Set-Cookie", cookie);
        }
    }

    /// Time for which the backend's connection may be kept: ours, or a second less than the backend announces.
    fn keep(&self, response: &ResponseHead) -> Option<Duration> {
        if self.pool.settings.connects_per_client() {
            return None;
        }
        let ours = self.pool.settings.timeouts.keep_alive;
        let theirs =
            response.keep_alive_timeout.map(|timeout| timeout.saturating_sub(Duration::from_secs(1)));
        Some(theirs.map_or(ours, |theirs| theirs.min(ours))).filter(|keep| !keep.is_zero())
    }

    /// Timeout between two reads of a body, if the request is gRPC. Such a stream may be silent for long.
    fn idle_of_rpc(&self) -> Option<Duration> {
        let received = &self.session.received;
        if self.pool.settings.http == BackendHttp::Http1 {
            return None;
        }
        let kind = received.request.header(&received.head, "content-type")?;
        grpc::is_content_type(kind).then_some(self.pool.settings.timeouts.grpc)
    }

    async fn write_to_client(&self, client: &Stream, out: &[u8], shared: &Shared) -> Result<(), Broken> {
        let limit = self.session.settings.timeouts.write;
        body::write(self.timer, client, out, &[], limit, &shared.to_client).await
    }

    /// Writes when the limit of the client allows it.
    async fn write_in_turn(&self, client: &Stream, out: &[u8], shared: &Shared) -> Result<(), Broken> {
        let limit = self.session.settings.timeouts.write;
        let rest = body::wait_for_turn(self.timer, client, out, limit, &shared.to_client).await?;
        self.write_to_client(client, rest, shared).await
    }

    fn fault(&self, fault: ResponseFault, shared: &Shared) -> Failure {
        Failure::Fault { fault, progress: self.progress(shared) }
    }

    fn progress(&self, shared: &Shared) -> Progress {
        let is_gone = Reader::new(self.session.received.request.body, &self.session.settings.limits)
            .is_some()
            && shared.kept.is_lost();
        match (shared.answered.get(), is_gone && self.sent.get() > 0, self.sent.get()) {
            (true, _, _) => Progress::ResponseStarted,
            (_, true, _) => Progress::BodyConsumed,
            (_, _, 0) => Progress::NothingSent,
            _ => Progress::RequestSent,
        }
    }
}

/// Returns the body of a response if it is small and completely read: `behind` holds the bytes read after the head.
fn small_body<'a>(response: &ResponseHead, behind: &'a [u8]) -> Option<&'a [u8]> {
    let len = match response.body {
        BodyLength::None => 0,
        BodyLength::Length(len) => usize::try_from(len).ok().filter(|len| *len <= body::SMALL)?,
        BodyLength::Chunked | BodyLength::UntilClose => return None,
    };
    behind.get(..len)
}

/// Reads ahead, up to [`READ_AHEAD`], until the client's connection breaks. A client that has only ended its sending
/// direction still waits for its response.
pub(super) fn poll_gone(cx: &mut Context<'_>, client: &Stream, ahead: &mut Vec<u8>) -> Poll<()> {
    while ahead.len() < READ_AHEAD {
        if client.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        match client.poll_fill(cx, ahead) {
            Poll::Ready(Ok(0)) | Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(()),
        }
    }
    Poll::Pending
}
