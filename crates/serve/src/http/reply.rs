//! One attempt: the request to one backend, and the backend's answer to the client, both at once.
//! A backend may answer before it has read the whole request. A client whose connection breaks gives its backend free; one
//! that only ends its direction still gets its answer.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use logic::health::Cause;
use logic::http1::forward::{self, Answer, ResponseFraming};
use logic::http1::refusal::Refusal;
use logic::http1::request::{BodyLength, Parse, Persistence, Version};
use logic::http1::response::{self, Progress as HeadProgress, ResponseFault, ResponseHead};
use logic::retry::Progress;
use logic::route::HeaderEdits;

use super::answer;
use super::body::{self, Broken, Framing, Reader, Transfer};
use super::heads::HeadBuffer;
use super::session::{After, Client, Session, persistence};
use crate::connect::ConnectFault;
use crate::ending::Ending;
use crate::http2::rules::Fate;
use crate::outcome::Outcome;
use crate::relay::{self, Early};
use crate::snapshot::PoolPlan;
use crate::stream::Stream;
use crate::timer::Timer;

/// Interim responses (1xx) that one final response may have in front.
const MOST_INTERIM: u32 = 32;

/// Beyond so many bytes a client that sends ahead of its answer is not read any further.
const READ_AHEAD: usize = 4 * 1024;

/// Whether the client has seen bytes of the final response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Nothing,
    Started,
}

/// Why an attempt gave the client no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection.
    Connect(ConnectFault),
    /// The backend closed before its answer was there.
    Closed { answered: Answered, progress: Progress },
    /// The backend did not answer in time.
    TimedOut { after: Duration, progress: Progress },
    /// The backend's answer is not HTTP as it must be.
    Fault { fault: ResponseFault, progress: Progress },
    /// The client's request body could not be read to its end, and there is no answer yet.
    Client(Broken),
    /// The client's request cannot be said in HTTP/2.
    Unsayable,
}

impl Failure {
    /// How far the attempt had come.
    pub(super) fn progress(&self) -> Progress {
        match self {
            Self::Connect(_) | Self::Unsayable => Progress::NothingSent,
            Self::Closed { progress, .. }
            | Self::TimedOut { progress, .. }
            | Self::Fault { progress, .. } => *progress,
            Self::Client(_) => Progress::BodyConsumed,
        }
    }

    /// What it says about the backend; `None` if it says nothing.
    pub(super) fn blame(&self) -> Option<Cause> {
        match self {
            Self::Connect(ConnectFault::Backend(cause)) => Some(cause.clone()),
            Self::Connect(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_))
            | Self::Client(_)
            | Self::Unsayable => None,
            Self::Closed { .. } => Some(Cause::ClosedEarly),
            Self::TimedOut { after, .. } => Some(Cause::NoAnswer { after: *after }),
            Self::Fault { fault, .. } => Some(Cause::BadResponse(fault.to_string())),
        }
    }

    /// Status, sentence and ending for the client.
    pub(super) fn answer(&self) -> (u16, &'static str, Ending) {
        match self {
            Self::Connect(ConnectFault::Backend(Cause::ConnectTimeout { .. })) => {
                (504, "The server behind this address could not be reached in time.", Ending::ConnectFailed)
            }
            Self::Connect(_) => {
                (502, "The server behind this address could not be reached.", Ending::ConnectFailed)
            }
            Self::Closed { .. } => (
                502,
                "The server behind this address closed the connection without an answer.",
                Ending::BackendClosed,
            ),
            Self::TimedOut { .. } => {
                (504, "The server behind this address did not answer in time.", Ending::BackendTimeout)
            }
            Self::Fault { .. } => (
                502,
                "The server behind this address gave an answer that cannot be passed on.",
                Ending::BackendBad,
            ),
            Self::Client(_) => (400, "The request broke off.", Ending::ClientClosed),
            Self::Unsayable => (
                400,
                "The target of the request holds characters that no address may hold: write them as %XX.",
                Ending::Refused(Refusal::TargetSyntax),
            ),
        }
    }
}

/// An answer that went out.
pub(super) enum Finished {
    /// To its end. `keep`: for how long the backend's connection may be kept.
    Whole { after: After, keep: Option<Duration> },
    /// The backend switched protocols; `rest` is what it said already.
    Tunnel { rest: Vec<u8> },
    /// It broke off on the way.
    Cut { ending: Ending, after: After },
}

/// A request for one backend.
pub(super) struct Attempt<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) pool: &'a PoolPlan,
    pub(super) edits: &'a [&'a HeaderEdits; 2],
    /// What is still to be sent of the request's head.
    pub(super) message: &'a [u8],
    pub(super) request_id: &'a [u8],
    pub(super) timer: &'a Timer,
    /// When the session began, and this attempt.
    pub(super) started: Instant,
    pub(super) began: Instant,
    /// Bytes that went to the backend, those that went before this began included.
    pub(super) sent: Cell<u64>,
}

/// A backend's answer: what its head means, and the bytes of the head with what was read behind it.
struct Message {
    response: ResponseHead,
    bytes: Vec<u8>,
}

/// What the two directions of an attempt tell each other, and the outcome afterwards.
#[derive(Default)]
struct Shared {
    /// The request's body has been sent whole, or there is none.
    request_sent: Cell<bool>,
    /// The backend no longer takes the request's body.
    request_cut: Cell<bool>,
    body_read: Cell<u64>,
    status: Cell<u16>,
    answered: Cell<bool>,
    first_byte: Cell<Option<Duration>>,
    to_client: Cell<u64>,
}

impl Attempt<'_> {
    /// Sends the request and passes the answer on.
    pub(super) async fn run(
        &self,
        client: &Stream,
        ahead: &mut Vec<u8>,
        backend: &Stream,
        outcome: &mut Outcome,
    ) -> Result<Finished, Failure> {
        let shared = Shared::default();
        // The client is read ahead of its request only to see it go; what comes is kept for later.
        let reading_ahead = RefCell::new(std::mem::take(ahead));
        let result = self.exchange(client, &reading_ahead, backend, &shared).await;
        *ahead = reading_ahead.into_inner();
        outcome.bytes_in += shared.body_read.get();
        outcome.bytes_out += shared.to_client.get();
        outcome.first_byte = shared.first_byte.get();
        if shared.answered.get() {
            outcome.status = shared.status.get();
            outcome.answered_by = outcome.backend;
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
        let write_limit = self.pool.settings.timeouts.body;
        if body::write(self.timer, backend, self.message, &[], write_limit, &self.sent).await.is_err() {
            // The backend may have said why before it closed; without a body there is nothing more to send anyway.
            shared.request_cut.set(true);
        }
        // Boxed, because most requests have no body and all would carry the state of sending one.
        let mut sending = match Reader::new(self.session.received.request.body) {
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
                match sent {
                    Ok(()) => shared.request_sent.set(true),
                    // It may have answered early and closed its ear: the answer is on its way.
                    Err(Broken::DestinationClosed | Broken::DestinationTimeout) => {
                        shared.request_cut.set(true)
                    }
                    // The client has its answer already, or a part of it: it need not send the rest.
                    Err(_) if shared.answered.get() => shared.request_cut.set(true),
                    Err(why) => return Poll::Ready(Err(Failure::Client(why))),
                }
            }
            if let Poll::Ready(responded) = responding.as_mut().poll(cx) {
                return Poll::Ready(responded);
            }
            if sending.is_none() && poll_gone(cx, client, &mut ahead.borrow_mut()).is_ready() {
                return Poll::Ready(Ok(Finished::Cut { ending: Ending::ClientClosed, after: After::Drop }));
            }
            Poll::Pending
        })
        .await
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
        let transfer = Transfer {
            timer: self.timer,
            from: client,
            buffer: ahead.take(),
            reader,
            to: backend,
            framing: if chunked { Framing::Chunked } else { Framing::Raw },
            prefix: None,
            limit: settings.limits.body,
            withheld: Some(&settings.request_id_header),
            read_timeout: settings.timeouts.body,
            write_timeout: self.pool.settings.timeouts.body,
            read: &shared.body_read,
            written: &self.sent,
        };
        let (sent, behind) = transfer.run().await;
        ahead.replace(behind);
        sent
    }

    /// Reads the backend's answer and passes it on. `ahead` is what the client sent behind its request.
    async fn respond(
        &self,
        client: &Stream,
        ahead: &RefCell<Vec<u8>>,
        backend: &Stream,
        shared: &Shared,
    ) -> Result<Finished, Failure> {
        let mut bytes = Vec::new();
        let mut interim = 0;
        loop {
            let response = self.read_head(&mut bytes, client, backend, shared).await?;
            if response.is_interim() {
                interim += 1;
                if interim > MOST_INTERIM {
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
        // A head that has begun has the same time once more to become whole, however it drips.
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
            let was_sent = shared.request_sent.get() || shared.request_cut.get();
            let deadline = whole_by.unwrap_or_else(|| wait_from + limit);
            let filling = std::future::poll_fn(|cx| backend.poll_fill_for(cx, buffer, client));
            match self.timer.until(deadline, filling).await {
                Ok(Ok(count)) if count > 0 => {
                    if shared.first_byte.get().is_none() {
                        shared.first_byte.set(Some(self.started.elapsed()));
                    }
                }
                Ok(_) => {
                    let answered = if buffer.is_empty() { Answered::Nothing } else { Answered::Started };
                    let has_body = Reader::new(self.session.received.request.body).is_some();
                    let progress = match backend.fate() {
                        Fate::Unsayable => return Err(Failure::Unsayable),
                        Fate::Refused if !has_body => Progress::NothingSent,
                        _ => self.progress(shared),
                    };
                    return Err(Failure::Closed { answered, progress });
                }
                // The time for an answer runs from the request's end; until then the client's own limits hold.
                Err(_) if !was_sent && whole_by.is_none() => wait_from = Instant::now(),
                Err(_) => return Err(Failure::TimedOut { after: limit, progress: self.progress(shared) }),
            }
        }
    }

    /// The message is lent, since it is large to hand over.
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
            // What the client still sends of this request must never be read as another one.
            _ if !request_is_whole => Persistence::Close,
            _ => persistence(self.session, &ahead.borrow()),
        };
        let mut out = HeadBuffer::take();
        self.write_head(&mut out, buffer, response, framing, persistence);
        shared.status.set(response.status);
        shared.answered.set(true);
        let written_before = shared.to_client.get();
        if response.status == 101 {
            buffer.drain(..response.len);
            return Ok(match self.write_to_client(client, &out, shared).await {
                Ok(()) => Finished::Tunnel { rest: std::mem::take(buffer) },
                Err(_) => Finished::Cut { ending: Ending::ClientClosed, after: After::Drop },
            });
        }
        let body = small_body(response, &buffer[response.len..]);
        let moved = match (body, Reader::new(response.body)) {
            (None, Some(reader)) => {
                buffer.drain(..response.len);
                let from_backend = Cell::new(0);
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
                    limit: None,
                    withheld: None,
                    read_timeout: self.pool.settings.timeouts.body,
                    write_timeout: self.session.settings.timeouts.write,
                    read: &from_backend,
                    written: &shared.to_client,
                };
                // Boxed: a response that is there as a whole does not carry the state of moving a body.
                let (moved, behind) = Box::pin(transfer.run()).await;
                *buffer = behind;
                moved
            }
            (body, _) => {
                let body = body.unwrap_or_default();
                out.extend_from_slice(body);
                let len = response.len + body.len();
                buffer.drain(..len);
                self.write_to_client(client, &out, shared).await
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
                // Bytes behind the answer belong to nobody: such a connection is never used again.
                let reusable =
                    response.persistence == Persistence::KeepAlive && buffer.is_empty() && request_is_whole;
                Finished::Whole { after, keep: self.keep(response).filter(|_| reusable) }
            }
            // Nothing was passed on yet: the client gets an answer after all.
            Err(Broken::SourceFault) if shared.to_client.get() == written_before => {
                shared.answered.set(false);
                return Err(self.fault(ResponseFault::Body, shared));
            }
            Err(Broken::DestinationClosed) => {
                Finished::Cut { ending: Ending::ClientClosed, after: After::Drop }
            }
            Err(Broken::DestinationTimeout) => {
                client.reset_on_close();
                Finished::Cut { ending: Ending::ClientTimeout, after: After::Drop }
            }
            Err(_) => {
                // Where the end of the connection is the end of the body, only a reset tells that it was cut.
                if framing == ResponseFraming::UntilClose {
                    client.reset_on_close();
                }
                Finished::Cut { ending: Ending::BackendAborted, after: After::Drop }
            }
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
            hsts: answer::hsts(self.session),
            request_id: Some((&self.session.settings.request_id_header, self.request_id)),
        };
        forward::write_response(out, head, response, &answer, self.edits);
    }

    /// For how long the backend's connection may be kept: ours, or a second less than the backend says it keeps it.
    fn keep(&self, response: &ResponseHead) -> Option<Duration> {
        if self.pool.settings.send_proxy.is_some() {
            return None;
        }
        let ours = self.pool.settings.timeouts.keep_alive;
        let theirs =
            response.keep_alive_timeout.map(|timeout| timeout.saturating_sub(Duration::from_secs(1)));
        Some(theirs.map_or(ours, |theirs| theirs.min(ours))).filter(|keep| !keep.is_zero())
    }

    async fn write_to_client(&self, client: &Stream, out: &[u8], shared: &Shared) -> Result<(), Broken> {
        let limit = self.session.settings.timeouts.write;
        body::write(self.timer, client, out, &[], limit, &shared.to_client).await
    }

    fn fault(&self, fault: ResponseFault, shared: &Shared) -> Failure {
        Failure::Fault { fault, progress: self.progress(shared) }
    }

    fn progress(&self, shared: &Shared) -> Progress {
        let has_body = Reader::new(self.session.received.request.body).is_some();
        match (shared.answered.get(), has_body && self.sent.get() > 0, self.sent.get()) {
            (true, _, _) => Progress::ResponseStarted,
            (_, true, _) => Progress::BodyConsumed,
            (_, _, 0) => Progress::NothingSent,
            _ => Progress::RequestSent,
        }
    }
}

/// The body of a response, if it is small and all of it has been read: `behind` is what was read behind the head.
fn small_body<'a>(response: &ResponseHead, behind: &'a [u8]) -> Option<&'a [u8]> {
    let len = match response.body {
        BodyLength::None => 0,
        BodyLength::Length(len) => usize::try_from(len).ok().filter(|len| *len <= body::SMALL)?,
        BodyLength::Chunked | BodyLength::UntilClose => return None,
    };
    behind.get(..len)
}

/// Reads ahead, up to [`READ_AHEAD`], until the client's connection breaks. A client that has only ended its direction still
/// waits for its answer.
pub(super) fn poll_gone(cx: &mut Context<'_>, client: &Stream, ahead: &mut Vec<u8>) -> Poll<()> {
    while ahead.len() < READ_AHEAD {
        match client.poll_fill(cx, ahead) {
            Poll::Ready(Ok(0)) | Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(()),
        }
    }
    Poll::Pending
}

/// Carries the bytes of another protocol after a 101, until both sides have ended.
pub(super) async fn tunnel(
    client: &mut Client,
    backend: &Stream,
    rest: Vec<u8>,
    pool: &PoolPlan,
    outcome: &mut Outcome,
) -> After {
    let totals = &outcome.relayed;
    let early = Early { up: std::mem::take(&mut client.buffer), down: rest };
    totals.up.set(early.up.len() as u64);
    totals.down.set(early.down.len() as u64);
    let (limit, pipes) = (pool.settings.timeouts.tunnel, &outcome.worker().pipes);
    let end = relay::run(&client.stream, backend, early, limit, totals, pipes).await;
    outcome.end(end.settle(&client.stream, backend));
    After::Drop
}
