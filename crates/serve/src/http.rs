//! A client connection that speaks HTTP/1.1: reads one request after the other and has each answered.
//! `http/exchange.rs` forwards a request, `http/body.rs` moves bodies, `http/answer.rs` writes our own answers.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::{Http2, HttpSettings};
use logic::access_log::Kind;
use logic::http1::refusal::Refusal;
use logic::http1::request::{self, Parse, Progress};

use crate::arrival::{Arrival, Guest};
use crate::ending::{Ending, Received, Spoken};
use crate::http2::preface;
use crate::linger::{LINGER, linger};
use crate::outcome::Outcome;
use crate::snapshot::{ListenerPlan, http_settings};
use crate::stream::Carriage;
use crate::timer::Timer;
use crate::worker::{Control, Current, Woken, Worker};

mod answer;
mod body;
mod exchange;
mod heads;
mod hold;
mod reply;
mod request_id;
mod session;

pub use request_id::RequestId;
use session::{After, Client, Session, Turn};

/// While the process ends, who was let in and has not asked anything yet (a TLS handshake went on) may do so for so long.
const FIRST_REQUEST_OF_DRAIN: Duration = Duration::from_secs(1);

/// A client that knew that we speak HTTP/2 (RFC 9113 section 3.3), and began with it.
pub struct Http2Client {
    /// The newest snapshot that knows the listener.
    pub current: Current,
    /// The listener there.
    pub plan: Arc<ListenerPlan>,
    /// The client, with what it has sent.
    pub guest: Guest,
}

/// Serves a connection, beginning with the snapshot that accepted it. Gives it back if it is one of HTTP/2.
pub async fn serve(
    worker: &Rc<Worker>,
    current: Current,
    plan: Arc<ListenerPlan>,
    guest: Guest,
    control: &Rc<Control>,
) -> Option<Box<Http2Client>> {
    let Guest { stream, early, arrival } = guest;
    let client = Client { stream, buffer: early, timer: Timer::default() };
    let mut visit = Visit::new(worker, control, current, plan, arrival, client);
    let after = loop {
        match visit.wait_for_request().await {
            Waited::Arrived => {}
            Waited::Ended => break After::Close,
            Waited::ClientEnded => break After::HangUp,
            Waited::Evicted => break After::Drop,
        }
        if visit.served == 0 && visit.may_be_http2() && Box::pin(visit.read_preface()).await {
            let Visit { current, plan, arrival, client: Client { stream, buffer, .. }, .. } = visit;
            let guest = Guest { stream, early: buffer, arrival };
            return Some(Box::new(Http2Client { current, plan, guest }));
        }
        // Boxed, so that a connection between two requests does not hold the state of an exchange.
        match Box::pin(visit.answer_request()).await {
            After::KeepAlive => {}
            after => break after,
        }
    };
    match after {
        After::Close => Box::pin(linger(&visit.client.stream)).await,
        // TLS has a last word to say; without it the close says all.
        After::HangUp if visit.client.stream.carriage() == Carriage::Encrypted => {
            let _ = tokio::time::timeout(LINGER, visit.client.stream.shutdown()).await;
        }
        After::HangUp | After::KeepAlive | After::Drop => {}
    }
    None
}

/// Serves the one request of an HTTP/2 stream. The guest's early bytes are its head, in HTTP/1.1.
pub(crate) async fn serve_stream(
    worker: Rc<Worker>,
    control: Rc<Control>,
    current: Current,
    plan: Arc<ListenerPlan>,
    guest: Guest,
) {
    let Guest { stream, early, arrival } = guest;
    let client = Client { stream, buffer: early, timer: Timer::default() };
    let mut visit = Visit::new(&worker, &control, current, plan, arrival, client);
    visit.spoken = Spoken::Http2;
    visit.answer_request().await;
}

/// What a connection holds between two requests.
struct Visit<'a> {
    worker: &'a Rc<Worker>,
    control: &'a Rc<Control>,
    /// The newest snapshot that knows the listener, and its plan there.
    current: Current,
    plan: Arc<ListenerPlan>,
    arrival: Arrival,
    client: Client,
    spoken: Spoken,
    /// Requests so far.
    served: u64,
    /// End of the last request, or the start.
    waiting_since: Instant,
}

impl<'a> Visit<'a> {
    fn new(
        worker: &'a Rc<Worker>,
        control: &'a Rc<Control>,
        current: Current,
        plan: Arc<ListenerPlan>,
        arrival: Arrival,
        client: Client,
    ) -> Self {
        let (spoken, waiting_since) = (Spoken::Http1, Instant::now());
        Self { worker, control, current, plan, arrival, client, spoken, served: 0, waiting_since }
    }

    /// Whether the first bytes are those of an HTTP/2 client that knows that we speak it (RFC 9113 section 3.3).
    fn may_be_http2(&self) -> bool {
        preface::may_begin(&self.client.buffer)
            && self.plan.tls.is_none()
            && http_settings(&self.plan).is_some_and(|settings| settings.http2 != Http2::Off)
    }

    /// Reads on until it is clear what the client speaks. Gives whether it is HTTP/2.
    async fn read_preface(&mut self) -> bool {
        let Some(settings) = http_settings(&self.plan) else { return false };
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

    /// Waits for the first byte of a request, holding no buffer. A connection that ends here has lost nothing.
    async fn wait_for_request(&mut self) -> Waited {
        if !self.client.buffer.is_empty() {
            return Waited::Arrived;
        }
        self.client.buffer = Vec::new();
        let Some(settings) = http_settings(&self.plan) else { return Waited::Ended };
        let mut patience = if self.served == 0 { settings.timeouts.head } else { settings.timeouts.idle };
        match (self.worker.is_draining(), self.served) {
            (false, _) => {}
            (true, 0) => patience = patience.min(FIRST_REQUEST_OF_DRAIN),
            (true, _) => self.control.close_when_idle(),
        }
        let Client { stream, buffer, timer } = &mut self.client;
        let (since, control) = (self.waiting_since, self.control);
        let arriving =
            std::future::poll_fn(|cx| control.poll_idle(cx, since, |cx| stream.poll_fill(cx, buffer)));
        match timer.until(since + patience, arriving).await {
            Ok(Woken::By(Ok(0))) => Waited::ClientEnded,
            Ok(Woken::By(Ok(_))) => Waited::Arrived,
            Ok(Woken::Closing) if !self.worker.is_draining() => Waited::Evicted,
            _ => {
                control.stop_waiting();
                Waited::Ended
            }
        }
    }

    async fn answer_request(&mut self) -> After {
        // The configuration that is current when a request begins is the one that answers it. A reload that removed the
        // listener does not fail the request that was on its way: it gets its answer, and is the last.
        let newest = self.worker.current();
        let mut is_last = self.worker.is_draining();
        if !Rc::ptr_eq(&newest, &self.current) {
            match newest.listeners.get(&self.plan.settings.name).filter(|plan| http_settings(plan).is_some())
            {
                Some(plan) => {
                    self.plan = plan.clone();
                    self.current = newest;
                }
                None => is_last = true,
            }
        }
        let plan = &*self.plan;
        let Some(settings) = http_settings(plan) else { return After::Close };
        let mut outcome =
            Outcome::new(self.worker, &plan.state, Kind::Http, self.arrival.peer, self.arrival.tls);
        outcome.spoken = self.spoken;
        let (received, now) = match read_head(&mut self.client, settings, &mut outcome).await {
            Ok(read) => read,
            Err(fault) => {
                let hsts = plan.tls.as_ref().and(settings.hsts.as_deref());
                return Box::pin(answer_fault(settings, hsts, &self.client, fault, &mut outcome)).await;
            }
        };
        outcome.bytes_in = received.head.len() as u64;
        outcome.received = Some(received.clone());
        self.served += 1;
        is_last |= settings.max_requests.is_some_and(|most| self.served >= most);
        let turn = if is_last { Turn::Last } else { Turn::More };
        let (worker, control, arrival) = (self.worker, self.control, &self.arrival);
        let session =
            Session { worker, control, current: &self.current, plan, settings, arrival, received, now, turn };
        let after = exchange::run(&session, &mut self.client, &mut outcome).await;
        self.waiting_since = outcome.stop_clock();
        after
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Arrived,
    Ended,
    /// The client has closed, or ended its direction.
    ClientEnded,
    /// Its place is wanted: somebody waits for it.
    Evicted,
}

/// Why no request could be read.
enum HeadFault {
    Refused(Refusal),
    Timeout,
    Closed,
}

/// Reads a head, and says when it was there.
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
