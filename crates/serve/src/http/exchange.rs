//! One request: decides where it goes, sends it there, tries again elsewhere where that is safe.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use config::types::{BackendHttp, RedirectToHttps};
use logic::account::Refusal;
use logic::balance::{HashKey, Tried, client_key, hash_bytes};
use logic::health::Cause;
use logic::http1::forward::{self, Scheme, Trust, Via};
use logic::http1::request::BodyLength;
use logic::retry::{self, Idempotence, Progress};
use logic::route::{Action, Decision, Facts, HeaderEdits, Location, PathAmbiguity, PoolId, RedirectStatus};

use super::heads::HeadBuffer;
use super::hold::Hold;
use super::reply::{Attempt, Failure, Finished};
use super::session::{After, Client, Session};
use super::{RequestId, answer, body, reply};
use crate::arrival::Arrival;
use crate::connect::{ConnectFault, Freshness, Shortage};
use crate::ending::{Ending, Spoken};
use crate::events::Level;
use crate::http2::backend::{Asked, Asker, Asking};
use crate::http2::rules::{Rules, Width};
use crate::outcome::Outcome;
use crate::snapshot::{BackendPlan, PoolPlan};
use crate::stream::Stream;
use crate::tcp::{no_backend, proxy_header};
use crate::upstream::{self, Chosen, NoBackend, Wanted};

/// Answers one request.
pub(super) async fn run(session: &Session<'_>, client: &mut Client, outcome: &mut Outcome) -> After {
    match direct(session, client, outcome) {
        Ok(forwarding) => forwarding.run(client, outcome).await,
        // Boxed: a request that is forwarded does not carry the state of our own answers.
        Err(own) => Box::pin(answer_ourselves(session, client, outcome, own)).await,
    }
}

/// Why a request goes to no backend.
enum Own<'a> {
    /// An authority looks whether a name is ours.
    AcmeChallenge(Arc<str>),
    /// To this port.
    RedirectToHttps(u16),
    Redirect(RedirectStatus, &'a Location),
    NoRoute,
    Ambiguous(PathAmbiguity),
    /// It has passed through Penstock, this process or another, too often.
    Loop(&'a Arc<PoolPlan>),
    /// The listener serves no HTTP.
    Nothing,
}

/// Decides where a request goes, and writes the head that goes there.
fn direct<'a>(
    session: &'a Session<'a>,
    client: &Client,
    outcome: &mut Outcome,
) -> Result<Forwarding<'a>, Own<'a>> {
    let received = &*session.received;
    let (head, request) = (&received.head[..], &received.request);
    let trust = match session.settings.trusted_proxies.contains(&session.arrival.peer) {
        true => Trust::TrustedProxy,
        false => Trust::Stranger,
    };
    let id_header = &session.settings.request_id_header;
    let request_id = match forward::trusted_request_id(head, request, trust, id_header) {
        Some(id) => RequestId::Trusted(id.into()),
        None => RequestId::new(),
    };
    outcome.request_id = request_id.clone();
    if session.arrival.tls.is_none()
        && let Some(answer) = session.worker.front.state.acme.challenges.answer(request.path(head))
    {
        return Err(Own::AcmeChallenge(answer));
    }
    if let RedirectToHttps::Port(port) = session.settings.redirect_to_https {
        return Err(Own::RedirectToHttps(port));
    }
    let (pool, route_edits) = route(session)?;
    let pool = session.current.pool(pool);
    outcome.pool = Some(pool.clone());
    if request.hops.count() >= session.settings.hops {
        return Err(Own::Loop(pool));
    }
    let edits = [&session.settings.edits, route_edits];
    let scheme = if session.arrival.tls.is_some() { Scheme::Https } else { Scheme::Http };
    let local = match request.authority.is_empty() {
        true => session.arrival.local_of(&client.stream),
        false => None,
    };
    let mut message = HeadBuffer::take();
    let identity = session.arrival.session.as_ref().and_then(|session| session.identity.as_ref());
    let via = Via {
        peer: session.arrival.peer,
        local,
        scheme,
        trust,
        request_id: request_id.as_bytes(),
        request_id_header: id_header,
        client_certificate: identity.map_or(&[], |identity| &identity.fields),
    };
    forward::write_request(&mut message, head, request, &via, &edits);
    let key = match &pool.settings.hash_key {
        HashKey::Client => session.arrival.peer.ip().map_or(0, client_key),
        HashKey::Host => hash_bytes(0, lower(text(request.host.of(head))).as_bytes()),
        HashKey::Path => hash_bytes(0, request.path(head).as_bytes()),
        HashKey::Header(name) => request.header(head, name).map_or(0, |value| hash_bytes(0, value)),
    };
    let idempotence = Idempotence::of(request.method(head));
    Ok(Forwarding { session, pool, edits, message, request_id, idempotence, key })
}

/// The pool that a request goes to, and what the route changes of its head.
fn route<'a>(session: &'a Session<'a>) -> Result<(PoolId, &'a HeaderEdits), Own<'a>> {
    static NO_EDITS: HeaderEdits = HeaderEdits { request: Vec::new(), response: Vec::new() };
    let Some(routes) = &session.plan.routes else { return Err(Own::Nothing) };
    if let (&[], Some(pool)) = (routes.routes(), routes.fallback()) {
        return Ok((pool, &NO_EDITS)); // nothing to decide, and nothing to be known for it
    }
    let received = &*session.received;
    let (head, request) = (&received.head[..], &received.request);
    let host = lower(text(request.host.of(head)));
    let lookup = request.lookup(head);
    let facts =
        Facts { host: &host, path: request.path(head), method: request.method(head), headers: &lookup };
    match routes.decide(&facts) {
        Decision::Route(route) => match &route.action {
            Action::Pool(pool) => Ok((*pool, &route.edits)),
            Action::Redirect { status, location } => Err(Own::Redirect(*status, location)),
        },
        Decision::Fallback(pool) => Ok((pool, &NO_EDITS)),
        Decision::NoRoute => Err(Own::NoRoute),
        Decision::Ambiguous(ambiguity) => Err(Own::Ambiguous(ambiguity)),
    }
}

async fn answer_ourselves(
    session: &Session<'_>,
    client: &Client,
    outcome: &mut Outcome,
    own: Own<'_>,
) -> After {
    let received = &*session.received;
    let (head, request) = (&received.head[..], &received.request);
    match own {
        Own::AcmeChallenge(answer) => {
            outcome.end(Ending::AcmeChallenge);
            answer::give(session, client, outcome, &answer).await
        }
        Own::RedirectToHttps(port) => {
            let host = lower(text(request.host.of(head)));
            redirect_to_https(session, client, outcome, &host, port).await
        }
        Own::Redirect(status, location) => {
            let query = (!request.query.is_empty()).then(|| text(request.query.of(head)));
            let authority = text(request.authority.of(head));
            let location = location.expand(authority, request.path(head), query);
            outcome.end(Ending::Redirected);
            answer::redirect(session, client, outcome, status.code(), &location).await
        }
        Own::NoRoute => {
            outcome.end(Ending::NoRoute);
            let detail = "Nothing is served under this address.";
            answer::refuse(session, client, outcome, 404, detail, &[]).await
        }
        Own::Ambiguous(ambiguity) => {
            outcome.end(Ending::AmbiguousPath);
            let detail = format!("The request was refused: {ambiguity}.");
            answer::refuse(session, client, outcome, 400, &detail, &[]).await
        }
        Own::Loop(pool) => {
            outcome.end(Ending::Loop);
            tell_of_loop(session, pool);
            let detail =
                "The request goes in a circle: it has come through the same kind of proxy too often.";
            answer::refuse(session, client, outcome, 508, detail, &[]).await
        }
        Own::Nothing => After::Drop,
    }
}

/// An operator must hear of it, but clients can write the header too: they must not fill the events.
fn tell_of_loop(session: &Session<'_>, pool: &PoolPlan) {
    let state = &session.worker.front.state;
    if session.plan.state.loops_told.may(session.now.duration_since(state.started)) {
        let message = format!(
            "requests go in a circle: one that had come through Penstock {} times was to go to pool {} and got 508; \
             see whether a backend of that pool leads back here (or the client has forged CDN-Loop)",
            session.received.request.hops.count(),
            pool.settings.name,
        );
        state.events.record(Level::Warning, format!("listener.{}", session.plan.settings.name), message);
    }
}

async fn redirect_to_https(
    session: &Session<'_>,
    client: &Client,
    outcome: &mut Outcome,
    host: &str,
    port: u16,
) -> After {
    let received = &session.received;
    let request = &received.request;
    if host.is_empty() {
        outcome.end(Ending::NoRoute);
        let detail = "This address speaks https only, and the request names no host to redirect to.";
        return answer::refuse(session, client, outcome, 400, detail, &[]).await;
    }
    let origin = text(request.origin.of(&received.head));
    let origin =
        if origin.starts_with('/') { Cow::Borrowed(origin) } else { Cow::Owned(format!("/{origin}")) };
    let location = match port {
        443 => format!("https://{host}{origin}"),
        port => format!("https://{host}:{port}{origin}"),
    };
    outcome.end(Ending::Redirected);
    answer::redirect(session, client, outcome, RedirectStatus::PermanentRedirect.code(), &location).await
}

/// A request on its way to a pool.
struct Forwarding<'a> {
    session: &'a Session<'a>,
    pool: &'a Arc<PoolPlan>,
    edits: [&'a HeaderEdits; 2],
    /// The head as backends get it.
    message: HeadBuffer,
    request_id: RequestId,
    idempotence: Idempotence,
    key: u64,
}

/// What was tried so far.
struct Attempts {
    /// Backends that failed.
    tried: Tried,
    /// How often one did.
    failed: u32,
    reuse: Reuse,
}

/// Whether idle connections may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reuse {
    Allowed,
    Forbidden,
}

impl Forwarding<'_> {
    async fn run(&self, client: &mut Client, outcome: &mut Outcome) -> After {
        // A connection that many requests share takes its places where it is opened.
        let _hold = match self.pool.settings.http {
            BackendHttp::Http2 => None,
            BackendHttp::Http1 => match Hold::take(self.session.worker, self.session.control) {
                Ok(hold) => Some(hold),
                Err(why) => match Box::pin(self.wait_for_hold(client, outcome, why)).await {
                    Ok(hold) => Some(hold),
                    Err(after) => return after,
                },
            },
        };
        let worker = self.session.worker;
        let reuse = match self.pool.settings.send_proxy {
            // The header belongs to a connection: it must not tell one client's address for another's request.
            Some(_) => Reuse::Forbidden,
            None => Reuse::Allowed,
        };
        let mut before = Attempts { tried: Tried::default(), failed: 0, reuse };
        let mut now = self.session.now;
        let mut last: Option<Failure> = None;
        loop {
            let wanted = Wanted { client: self.session.arrival.peer, key: self.key, tried: &before.tried };
            let current = self.session.current;
            let chosen = match upstream::choose_at_once(worker, current, self.pool, &wanted, now) {
                Some(chosen) => Some(chosen),
                None => Box::pin(self.wait_for_backend(client, &wanted)).await,
            };
            let chosen = match chosen {
                Some(Ok(chosen)) => chosen,
                Some(Err(none)) => return self.answer_no_backend(client, outcome, none, last).await,
                None => {
                    outcome.end(Ending::ClientClosed);
                    return After::Drop;
                }
            };
            if let Some(queued) = chosen.queued {
                now = Instant::now();
                outcome.queued = Some(outcome.queued.unwrap_or_default() + queued);
            }
            outcome.attempts += 1;
            outcome.backend = Some(chosen.index);
            let (failure, freshness) = match self.attempt(client, outcome, &chosen, &before, now).await {
                AttemptEnd::Done(after) => return after,
                AttemptEnd::Failed(failure, freshness) => (failure, freshness),
            };
            if let Failure::Client(broken) = failure {
                return self.answer_client_fault(client, outcome, broken).await;
            }
            // A kept connection that the backend had closed meanwhile says nothing about the backend, and is no attempt:
            // it is made again there, on a fresh connection. With HTTP/2 that may be a kept one again: then it is an attempt.
            let is_stale = freshness == Some(Freshness::Kept)
                && before.reuse == Reuse::Allowed
                && matches!(failure, Failure::Closed { answered: reply::Answered::Nothing, .. });
            if !is_stale {
                before.failed += 1;
                self.blame(chosen.index, &failure);
            }
            let retries = self.pool.settings.retries;
            let attempts = if is_stale { 0 } else { before.failed };
            if matches!(failure, Failure::Fault { .. } | Failure::Unsayable)
                || retry::decide(self.idempotence, failure.progress(), attempts, retries)
                    == retry::Decision::GiveUp
            {
                return self.answer_failure(client, outcome, &failure).await;
            }
            if is_stale {
                before.reuse = Reuse::Forbidden;
            } else {
                before.tried.insert(chosen.index);
                chosen.backend.counters.of(worker.index).retries.add(1);
            }
            last = Some(failure);
            now = Instant::now();
        }
    }

    /// Waits until another request of the client gives back its connection to a backend.
    async fn wait_for_hold(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        refusal: Refusal,
    ) -> Result<Hold<'_>, After> {
        let Client { stream, buffer, .. } = &mut *client;
        let (worker, control) = (self.session.worker, self.session.control);
        let (limit, most) = (self.pool.settings.timeouts.queue, self.pool.settings.queue_length);
        let began = Instant::now();
        let held = tokio::select! {
            biased;
            held = Hold::wait(worker, control, refusal, limit, most) => held,
            () = std::future::poll_fn(|cx| reply::poll_gone(cx, stream, buffer)) => {
                outcome.end(Ending::ClientClosed);
                return Err(After::Drop);
            }
        };
        outcome.queued = Some(began.elapsed());
        match held {
            Ok(hold) => Ok(hold),
            Err(why) => Err(self.answer_no_descriptors(client, outcome, why).await),
        }
    }

    /// A stream of HTTP/2 is reset with REFUSED_STREAM, which says that nothing was done with it (RFC 9113 section 8.7);
    /// a client of HTTP/1.1 gets an error page.
    async fn answer_no_descriptors(&self, client: &Client, outcome: &mut Outcome, why: Refusal) -> After {
        self.session.worker.place_cache.account().count(why);
        outcome.end(Ending::NoDescriptors(why));
        if outcome.spoken == Spoken::Http2 {
            client.stream.refuse();
            return After::Drop;
        }
        let detail = "Too much is going on at once. Please try again shortly.";
        answer::refuse(self.session, client, outcome, 503, detail, &[("Retry-After", "5")]).await
    }

    /// `None`: the client has gone meanwhile.
    async fn wait_for_backend(
        &self,
        client: &mut Client,
        wanted: &Wanted<'_>,
    ) -> Option<Result<Chosen, NoBackend>> {
        let Client { stream, buffer, .. } = client;
        tokio::select! {
            biased;
            chosen = upstream::wait(self.session.worker, self.session.current, self.pool, wanted) => Some(chosen),
            () = std::future::poll_fn(|cx| reply::poll_gone(cx, stream, buffer)) => None,
        }
    }

    fn blame(&self, backend: usize, failure: &Failure) {
        match failure.blame() {
            Some(cause) => upstream::note_failure(self.session.worker, self.pool, backend, cause),
            None => {
                tracing::debug!(backend = %self.pool.backends[backend].state.name, "cannot connect: {failure:?}")
            }
        }
    }

    async fn attempt(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        chosen: &Chosen,
        before: &Attempts,
        now: Instant,
    ) -> AttemptEnd {
        let worker = self.session.worker;
        let request = &self.session.received.request;
        let counters = chosen.backend.counters.of(worker.index);
        let has_body = !matches!(request.body, BodyLength::None | BodyLength::Length(0));
        let idempotence = match has_body {
            // A body cannot be sent twice: look twice at the connection.
            true => Idempotence::NotIdempotent,
            false => self.idempotence,
        };
        let kept = match before.reuse {
            Reuse::Allowed => {
                let plan = &self.pool.backends[chosen.index];
                upstream::reuse(worker, plan, self.asker(client, plan), idempotence, now)
            }
            Reuse::Forbidden => None,
        };
        let mut began = now;
        let (backend, freshness) = match kept {
            Some(stream) => (stream, Freshness::Kept),
            None => match Box::pin(self.connect(client, outcome, chosen, before)).await {
                Ok(connected) => {
                    began = Instant::now();
                    connected
                }
                Err(end) => return end,
            },
        };
        outcome.connect = match freshness {
            Freshness::Fresh(took) => Some(took),
            Freshness::Kept => None,
        };
        // A connection just opened takes a head at once: it need not wait for the runtime's first look at it.
        let written = match freshness {
            Freshness::Fresh(_) => backend.write_now(&self.message),
            Freshness::Kept => 0,
        };
        let attempt = Attempt {
            session: self.session,
            pool: self.pool,
            edits: &self.edits,
            message: &self.message[written..],
            request_id: self.request_id.as_bytes(),
            timer: &client.timer,
            started: outcome.started(),
            began,
            sent: Cell::new(written as u64),
        };
        let result = attempt.run(&client.stream, &mut client.buffer, &backend, outcome).await;
        if result.is_ok() || freshness != Freshness::Kept {
            counters.sessions.add(1);
        }
        match result {
            Err(failure) => AttemptEnd::Failed(failure, Some(freshness)),
            Ok(finished) => AttemptEnd::Done(self.finish(client, backend, chosen, outcome, finished).await),
        }
    }

    async fn connect(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        chosen: &Chosen,
        before: &Attempts,
    ) -> Result<(Stream, Freshness), AttemptEnd> {
        let worker = self.session.worker;
        let limit = self.pool.settings.timeouts.connect;
        let plan = &self.pool.backends[chosen.index];
        if let Some(rules) = plan.http2 {
            return self.connect_http2(client, outcome, chosen, before, rules).await;
        }
        let header = match self.pool.settings.send_proxy {
            Some(version) => {
                let arrival = self.session.arrival;
                let arrival = Arrival { local: arrival.local_of(&client.stream), ..arrival.clone() };
                proxy_header(version, &arrival)
            }
            None => Vec::new(),
        };
        let opening = sys::socket::Opening::WeSpeak;
        upstream::connect(worker, plan, None, opening, &header, limit)
            .await
            .map_err(|fault| AttemptEnd::Failed(Failure::Connect(fault), None))
    }

    /// A place on a connection that many requests share.
    async fn connect_http2(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        chosen: &Chosen,
        before: &Attempts,
        rules: Rules,
    ) -> Result<(Stream, Freshness), AttemptEnd> {
        let plan = &self.pool.backends[chosen.index];
        let asking = self.session.worker.lines.ask(plan, rules, self.asker(client, plan));
        let Client { stream, buffer, .. } = client;
        let connected = tokio::select! {
            biased;
            connected = self.get_place(outcome, chosen, before, &asking) => connected,
            () = std::future::poll_fn(|cx| reply::poll_gone(cx, stream, buffer)) => {
                outcome.end(Ending::ClientClosed);
                return Err(AttemptEnd::Done(After::Drop));
            }
        };
        connected.map_err(|fault| AttemptEnd::Failed(Failure::Connect(fault), None))
    }

    /// Where the share of the client allows none, another backend is tried first; at the last one the request waits.
    async fn get_place(
        &self,
        outcome: &mut Outcome,
        chosen: &Chosen,
        before: &Attempts,
        asking: &Asking,
    ) -> Result<(Stream, Freshness), ConnectFault> {
        let (worker, control, settings) = (self.session.worker, self.session.control, &self.pool.settings);
        let connect = |asked| {
            let (plan, opening) = (&self.pool.backends[chosen.index], sys::socket::Opening::WeSpeak);
            upstream::connect(worker, plan, Some((asking, asked)), opening, &[], settings.timeouts.connect)
        };
        let fault = match connect(Asked::New).await {
            Ok(connected) => return Ok(connected),
            Err(fault) => fault,
        };
        let why = match fault {
            ConnectFault::NoDescriptors(Shortage::OfShare(why)) => why,
            ConnectFault::NoDescriptors(Shortage::OfPlaces) => Refusal::Full,
            _ => return Err(fault),
        };
        if before.failed < settings.retries && upstream::has_another(self.pool, chosen.index, &before.tried) {
            return Err(fault);
        }
        asking.refused(why);
        let waits = control.share.wait_for_room(&worker.place_cache, settings.queue_length);
        let _waits = waits.ok_or(fault)?;
        let began = Instant::now();
        // Also if it has waited at another backend.
        let left = settings.timeouts.queue.saturating_sub(outcome.queued.unwrap_or_default());
        let connected = tokio::time::timeout(left, connect(Asked::Waited)).await;
        outcome.queued = Some(outcome.queued.unwrap_or_default() + began.elapsed());
        connected.unwrap_or_else(|_| {
            let why = asking.refusal().unwrap_or(why);
            Err(ConnectFault::NoDescriptors(Shortage::OfShare(why)))
        })
    }

    /// Who asks for a place on a connection to a backend of HTTP/2.
    fn asker(&self, client: &Client, plan: &BackendPlan) -> Asker<'_> {
        Asker { client: self.session.control, width: width(client, plan) }
    }

    /// The answer went out, whole or not.
    async fn finish(
        &self,
        client: &mut Client,
        backend: Stream,
        chosen: &Chosen,
        outcome: &mut Outcome,
        finished: Finished,
    ) -> After {
        match finished {
            Finished::Cut { ending: Ending::BackendAborted, .. } => {
                upstream::note_failure(self.session.worker, self.pool, chosen.index, Cause::ClosedEarly);
            }
            _ => upstream::note_success(&chosen.backend),
        }
        match finished {
            Finished::Whole { after, keep } => {
                outcome.end(Ending::Ok);
                if let Some(keep) = keep {
                    let limit = self.pool.settings.keep_alive;
                    let until = outcome.stop_clock() + keep;
                    self.session.worker.idle.give(&chosen.backend, backend, until, limit);
                }
                after
            }
            Finished::Tunnel { rest } => {
                Box::pin(reply::tunnel(client, &backend, rest, self.pool, outcome)).await
            }
            Finished::Cut { ending, after } => {
                outcome.end(ending);
                after
            }
        }
    }

    async fn answer_no_backend(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        none: NoBackend,
        last: Option<Failure>,
    ) -> After {
        if let (NoBackend::AllTried | NoBackend::AllDown, Some(failure)) = (none, &last) {
            return self.answer_failure(client, outcome, failure).await;
        }
        outcome.end(no_backend(none));
        let detail = match none {
            NoBackend::AllDown | NoBackend::AllTried => "No server is available for this request right now.",
            NoBackend::QueueFull | NoBackend::QueueTimeout => {
                "All servers are busy. Please try again shortly."
            }
        };
        answer::refuse(self.session, client, outcome, 503, detail, &[("Retry-After", "5")]).await
    }

    async fn answer_failure(&self, client: &Client, outcome: &mut Outcome, failure: &Failure) -> After {
        if let Failure::Connect(ConnectFault::NoDescriptors(shortage)) = failure {
            let why = match shortage {
                Shortage::OfShare(why) => *why,
                Shortage::OfPlaces | Shortage::OfKernel => Refusal::Full,
            };
            return self.answer_no_descriptors(client, outcome, why).await;
        }
        let (status, detail, ending) = failure.answer();
        outcome.end(ending);
        if failure.progress() == Progress::ResponseStarted {
            return After::Drop;
        }
        answer::refuse(self.session, client, outcome, status, detail, &[]).await
    }

    async fn answer_client_fault(
        &self,
        client: &Client,
        outcome: &mut Outcome,
        broken: body::Broken,
    ) -> After {
        let (status, detail, ending) = match broken {
            body::Broken::TooLarge => {
                (413, "The body of the request is larger than allowed.", Ending::BodyTooLarge)
            }
            body::Broken::SourceFault => {
                (400, "The body of the request breaks the chunked coding.", Ending::BodyFault)
            }
            body::Broken::SourceTimeout => {
                (408, "The body of the request did not arrive in time.", Ending::ClientTimeout)
            }
            _ => {
                outcome.end(Ending::ClientClosed);
                return After::Drop;
            }
        };
        outcome.end(ending);
        answer::refuse(self.session, client, outcome, status, detail, &[]).await
    }
}

/// What came of one attempt at one backend.
enum AttemptEnd {
    Done(After),
    Failed(Failure, Option<Freshness>),
}

/// Of the backend's connection, where it is one of HTTP/2.
fn width(client: &Client, plan: &BackendPlan) -> Width {
    match plan.http2 {
        Some(_) => client.stream.width(),
        None => Width::Wide,
    }
}

/// Hosts and paths are visible ASCII once parsed.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

fn lower(host: &str) -> Cow<'_, str> {
    match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}
