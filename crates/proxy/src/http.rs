//! A client connection that speaks HTTP/1.1: reads one request after the other and has each answered.
//! `http/exchange.rs` chooses the backend and retries, `http/reply.rs` sends the request and passes the answer on,
//! `http/body.rs` moves bodies, `http/answer.rs` writes our own answers.

use std::rc::Rc;
use std::sync::Arc;
use std::task::ready;
use std::time::{Duration, Instant};

use config::types::{Http2, HttpSettings};
use logic::access_log::Kind;
use logic::http1::refusal::Refusal;
use logic::http1::request::{self, Parse, Progress};
use state::ending::{ClientProtocol, Ending, Received};
use tls::linger::{LINGER, linger};
use tls::plain::Parked;

use crate::admission::Admitted;
use crate::arrival::ClientConnection;
use crate::boxed::boxed;
use crate::http2::preface;
use crate::idle_sessions::{IdleConnection, IdleSession};
use crate::live::Cut;
use crate::outcome::Outcome;
use crate::relay::Early;
use crate::snapshot::{ListenerPlan, http_settings};
use crate::stream::{Carriage, Stream};
use crate::tap;
use crate::tcp::{self, Upgraded};
use crate::timer::Timer;
use crate::upstream::Chain;
use crate::worker::{ConnectionHandle, Current, WaitEnd, Worker};

mod answer;
mod body;
pub mod destination;
mod exchange;
mod failure;
mod forwarded;
mod heads;
mod hold;
mod kept_body;
mod lost_race;
mod moving;
mod own;
mod race;
mod reply;
mod request_id;
mod session;
mod waiting;

use exchange::Switched;
pub use request_id::RequestId;
use session::{After, Client, MoreRequests, RequestContext};
use waiting::Waiting;

/// Time limit of the first request of a client that was still in its TLS handshake when draining began.
const FIRST_REQUEST_OF_DRAIN: Duration = Duration::from_secs(1);

/// A client that starts HTTP/2 without negotiation (RFC 9113 section 3.3).
pub struct Http2Client {
    /// Newest snapshot with the listener.
    pub current: Current,
    pub plan: Arc<ListenerPlan>,
    /// The client, with the bytes that were read from it.
    pub client: ClientConnection,
}

/// What became of a connection.
pub enum Served {
    Ended,
    /// The client speaks HTTP/2.
    Http2(Box<Http2Client>),
    /// The client has sent no request for a while: [`park`] keeps its connection without a task.
    Parked(Box<ParkedClient>),
    /// Client and backend have switched to another protocol: [`tcp::go_on`] relays its bytes.
    Upgraded(Box<Upgraded>),
}

/// A client between two requests, with its stream.
pub struct ParkedClient {
    waiting: Waiting,
    stream: Parked,
}

/// Serves a connection, starting with the snapshot it was accepted under.
pub async fn serve(
    worker: &Rc<Worker>,
    current: Current,
    plan: Arc<ListenerPlan>,
    client: ClientConnection,
    handle: &Rc<ConnectionHandle>,
) -> Served {
    let ClientConnection { stream, early, arrival } = client;
    let client = Client { stream, buffer: early, timer: Timer::default() };
    serve_requests(Http1Connection::new(worker, handle, Waiting::new(current, plan, arrival), client)).await
}

async fn serve_requests(mut connection: Http1Connection<'_>) -> Served {
    let after = loop {
        match connection.wait_for_request().await {
            Waited::Arrived => {}
            Waited::Ended => break After::Close,
            Waited::ClientEnded => break After::HangUp,
            Waited::Evicted => break After::Drop,
            Waited::ParkAsked => {
                let Http1Connection { waiting, client: Client { stream, .. }, .. } = connection;
                return match stream.into_parked() {
                    Ok(stream) => Served::Parked(Box::new(ParkedClient { waiting, stream })),
                    // The kernel cannot say any more when the client sends.
                    Err(_) => Served::Ended,
                };
            }
        }
        if connection.waiting.served == 0
            && connection.may_be_http2()
            && Box::pin(connection.read_preface()).await
        {
            let Http1Connection { waiting, client: Client { stream, buffer, .. }, .. } = connection;
            let Waiting { current, plan, arrival, .. } = waiting;
            let client = ClientConnection { stream, early: buffer, arrival };
            return Served::Http2(Box::new(Http2Client { current, plan, client }));
        }
        // Boxed, so that a connection between two requests does not hold the state of an exchange.
        match boxed(|| connection.answer_request()).await {
            Ok(After::KeepAlive) => {}
            Ok(after) => break after,
            Err(upgraded) => {
                let (outcome, Switched { backend, slot, rest, idle }) = *upgraded;
                let Client { stream: client, buffer, .. } = connection.client;
                let early = Early { up: buffer, down: rest, reset: None };
                let upgraded = Upgraded { outcome, slot, idle, client, backend, early };
                return Served::Upgraded(Box::new(upgraded));
            }
        }
    };
    match after {
        After::Close => Box::pin(linger(&connection.client.stream)).await,
        _ if connection.client.stream.is_broken() => Box::pin(linger(&connection.client.stream)).await,
        // TLS sends close_notify; without TLS, closing the socket is enough.
        After::HangUp if connection.client.stream.carriage() == Carriage::Encrypted => {
            let _ = tokio::time::timeout(LINGER, connection.client.stream.shutdown()).await;
        }
        After::HangUp | After::KeepAlive | After::Drop => {}
    }
    Served::Ended
}

/// Leaves a connection to the worker, which gives it a task again when the client sends something.
pub fn park(worker: Rc<Worker>, admitted: Admitted, parked: ParkedClient) {
    let ParkedClient { waiting, stream } = parked;
    let connection = Box::new(ParkedConnection { worker: worker.clone(), admitted, waiting });
    worker.idle_sessions.park(IdleSession::Http { connection, client: stream });
}

/// A connection without its stream, while the worker has it.
struct ParkedConnection {
    worker: Rc<Worker>,
    admitted: Admitted,
    waiting: Waiting,
}

impl IdleConnection for ParkedConnection {
    fn due(&self) -> Instant {
        self.waiting.since + self.waiting.patience()
    }

    fn note_key(&self, key: usize) {
        self.admitted.handle().parked(key);
    }

    fn wake(self: Box<Self>, client: Parked) {
        let handle = self.admitted.handle().clone();
        handle.resumed();
        let task = tokio::task::spawn_local(async move {
            let Self { worker, admitted, waiting } = *self;
            let Waiting { plan, arrival, .. } = &waiting;
            let stream = tap::attach_again(&worker, plan, arrival, Stream::parked(client));
            let mut buffer = Vec::new();
            // A request that has arrived is answered, also after the idle timeout or when the connection is to close.
            // The runtime does not know of it yet. An error or the end is met again by the wait for a request.
            let _ = stream.fill_now(&mut buffer, usize::MAX).await;
            let client = Client { stream, buffer, timer: Timer::default() };
            let connection = Http1Connection::new(&worker, admitted.handle(), waiting, client);
            match serve_requests(connection).await {
                Served::Parked(parked) => park(worker, admitted, *parked),
                Served::Upgraded(upgraded) => boxed(|| tcp::go_on(admitted, *upgraded)).await,
                // HTTP/2 can begin only with the first bytes of a connection.
                Served::Ended | Served::Http2(_) => {}
            }
        });
        handle.live.served_by(task.abort_handle());
    }
}

/// Serves the one request of an HTTP/2 stream. `early` is the request head in HTTP/1.1. The future would hold `client` a second
/// time for as long as it lives, if it were not in a box: with that it is beyond 4096 bytes, a size of the allocator.
pub(crate) async fn serve_stream(
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    current: Current,
    plan: Arc<ListenerPlan>,
    client: Box<ClientConnection>,
    cut: Rc<Cut>,
) {
    let ClientConnection { stream, early, arrival } = *client;
    let client = Client { stream, buffer: early, timer: Timer::default() };
    let waiting = Waiting::new(current, plan, arrival);
    let mut connection = Http1Connection::new(&worker, &handle, waiting, client);
    connection.spoken = ClientProtocol::Http2;
    connection.cut = Some(cut);
    if matches!(connection.answer_request().await, Ok(After::Close)) {
        // Boxed: few requests are answered before they have ended.
        Box::pin(connection.client.stream.linger_upload()).await;
    }
}

struct Http1Connection<'a> {
    worker: &'a Rc<Worker>,
    handle: &'a Rc<ConnectionHandle>,
    waiting: Waiting,
    client: Client,
    spoken: ClientProtocol,
    /// Ends the one request of an HTTP/2 stream.
    cut: Option<Rc<Cut>>,
}

impl<'a> Http1Connection<'a> {
    fn new(
        worker: &'a Rc<Worker>,
        handle: &'a Rc<ConnectionHandle>,
        waiting: Waiting,
        client: Client,
    ) -> Self {
        Self { worker, handle, waiting, client, spoken: ClientProtocol::Http1, cut: None }
    }

    /// Returns true if the first bytes may be those of HTTP/2 without negotiation (RFC 9113 section 3.3).
    fn may_be_http2(&self) -> bool {
        preface::may_begin(&self.client.buffer)
            && self.waiting.plan.tls.is_none()
            && self.waiting.settings().is_some_and(|settings| settings.http2 != Http2::Off)
    }

    /// Reads until the protocol is known. Returns true for HTTP/2.
    async fn read_preface(&mut self) -> bool {
        let Some(settings) = self.waiting.settings() else { return false };
        let deadline = Instant::now() + settings.timeouts.head;
        let Client { stream, buffer, timer } = &mut self.client;
        while preface::may_begin(buffer) && !preface::begins(buffer) {
            match timer.until(deadline, stream.fill(buffer)).await {
                Ok(Ok(count)) if count > 0 => {}
                _ => return false,
            }
        }
        preface::begins(buffer)
    }

    /// Waits for the first byte of a request without holding a buffer. Closing the connection during the wait loses no
    /// request.
    async fn wait_for_request(&mut self) -> Waited {
        if !self.client.buffer.is_empty() {
            self.handle.go_on();
            return Waited::Arrived;
        }
        self.client.buffer = Vec::new();
        let mut patience = self.waiting.patience();
        match (self.worker.closes_idle(), self.waiting.served) {
            (false, 0) => {}
            (false, _) if self.client.stream.carriage() == Carriage::Plain => self.handle.may_park(),
            (false, _) => {}
            (true, 0) => patience = patience.min(FIRST_REQUEST_OF_DRAIN),
            (true, _) => self.handle.close_when_idle(),
        }
        let Client { stream, buffer, timer } = &mut self.client;
        let (since, handle) = (self.waiting.since, self.handle);
        // Nearly always the next request has not come yet: the first look is the cheapest one.
        let mut is_first = true;
        let arriving = std::future::poll_fn(|cx| {
            handle.poll_idle(cx, since, |cx| {
                if std::mem::take(&mut is_first) {
                    ready!(stream.poll_readable(cx));
                }
                stream.poll_fill(cx, buffer)
            })
        });
        match timer.until(since + patience, arriving).await {
            Ok(WaitEnd::By(Ok(0))) => Waited::ClientEnded,
            Ok(WaitEnd::By(Ok(_))) => Waited::Arrived,
            Ok(WaitEnd::Parking) => Waited::ParkAsked,
            Ok(WaitEnd::Closing) if !self.worker.closes_idle() => Waited::Evicted,
            _ => {
                handle.stop_waiting();
                Waited::Ended
            }
        }
    }

    /// Answers the next request. `Err`: client and backend go on without it, in another protocol.
    async fn answer_request(&mut self) -> Result<After, Box<(Outcome, Switched)>> {
        // A request is served under the configuration that is current when it begins. If a reload removed the listener
        // meanwhile, the request is still answered, as the connection's last one.
        let newest = self.worker.current();
        let mut is_last = self.worker.is_draining();
        let waiting = &mut self.waiting;
        if !Rc::ptr_eq(&newest, &waiting.current) {
            let listener = newest.listeners.get(&waiting.plan.settings.name);
            match listener.filter(|plan| http_settings(plan).is_some()) {
                Some(plan) => {
                    waiting.plan = plan.clone();
                    waiting.current = newest;
                }
                None => is_last = true,
            }
        }
        let Waiting { current, plan, arrival, served, since } = waiting;
        let (current, plan, arrival) = (&*current, &**plan, &*arrival);
        let Some(settings) = http_settings(plan) else { return Ok(After::Close) };
        let mut outcome = Outcome::new(self.worker, &plan.state, Kind::Http, arrival.peer, arrival.tls);
        outcome.belong(self.handle);
        if let Some(cut) = self.cut.take() {
            outcome.can_be_cut(cut);
        }
        outcome.spoken = self.spoken;
        let (received, now) = match read_head(&mut self.client, settings, &mut outcome).await {
            Ok(read) => read,
            Err(fault) => {
                let hsts = answer::hsts(settings, arrival);
                return Ok(Box::pin(answer_fault(settings, hsts, &self.client, fault, &mut outcome)).await);
            }
        };
        outcome.bytes_in = received.head.len() as u64;
        outcome.received = Some(received.clone());
        *served += 1;
        is_last |= settings.max_requests.is_some_and(|most| *served >= most);
        let turn = if is_last { MoreRequests::Last } else { MoreRequests::More };
        let (worker, handle) = (self.worker, self.handle);
        let session = RequestContext {
            worker,
            handle,
            first: current,
            followed: Chain::default(),
            plan,
            settings,
            arrival,
            received,
            now,
            turn,
        };
        match exchange::run(&session, &mut self.client, &mut outcome).await {
            Ok(after) => {
                self.client.stream.limit(None);
                *since = outcome.stop_clock();
                Ok(after)
            }
            Err(switched) => Err(Box::new((outcome, *switched))),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Arrived,
    Ended,
    /// The client closed the connection or its sending direction.
    ClientEnded,
    /// The connection is closed to make room for another client.
    Evicted,
    /// The worker wants the connection, to keep it without a task.
    ParkAsked,
}

/// Reason why no request could be read.
enum HeadFault {
    Refused(Refusal),
    Timeout,
    Closed,
}

/// Reads a request head and returns it with the time when it was complete.
async fn read_head(
    client: &mut Client,
    settings: &HttpSettings,
    outcome: &mut Outcome,
) -> Result<(Rc<Received>, Instant), HeadFault> {
    let mut now = outcome.started();
    let deadline = now + settings.timeouts.head;
    let mut progress = Progress::default();
    loop {
        match request::resume(&client.buffer, &mut progress, &settings.limits) {
            Ok(Parse::Complete(request)) => {
                let mut head = std::mem::take(&mut client.buffer);
                client.buffer = head.split_off(request.len);
                return Ok((Rc::new(Received { head, request }), now));
            }
            Ok(Parse::Incomplete) => {}
            Err(refusal) => {
                outcome.bytes_in = client.buffer.len() as u64;
                return Err(HeadFault::Refused(refusal));
            }
        }
        let Client { stream, buffer, timer } = &mut *client;
        match timer.until(deadline, stream.fill(buffer)).await {
            Ok(Ok(count)) if count > 0 => now = Instant::now(),
            Ok(_) => return Err(HeadFault::Closed),
            Err(_) => return Err(HeadFault::Timeout),
        }
    }
}

async fn answer_fault(
    settings: &HttpSettings,
    hsts: Option<&str>,
    client: &Client,
    fault: HeadFault,
    outcome: &mut Outcome,
) -> After {
    let (status, detail, ending) = match fault {
        HeadFault::Closed => {
            outcome.end(Ending::ClientClosed);
            return After::Drop;
        }
        HeadFault::Timeout => (408, "The request did not arrive in time.".to_owned(), Ending::ClientTimeout),
        HeadFault::Refused(refusal) => {
            (refusal.status(), format!("The request was refused: {refusal}."), Ending::Refused(refusal))
        }
    };
    outcome.end(ending);
    let page = answer::Page { status, detail: &detail, ..answer::Page::closing() };
    answer::write_page(settings, client, &page, None, hsts, outcome).await
}
