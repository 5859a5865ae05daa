//! Serves one request: decides where it goes, sends it, and retries it at another backend where that is safe.

mod answers;
mod tunnel;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use config::types::BackendHttp;
use logic::account::Refusal;
use logic::balance::view::View;
use logic::balance::{Policy, Tried};
use logic::health::Cause;
use logic::hedge;
use logic::http1::forward::{self, Trust};
use logic::http1::request::BodyLength;
use logic::peers::Peer;
use logic::retry::{self, Idempotence, Progress};
use state::ending::Ending;

use super::destination::{Arrived, Destination, RouteQuestion};
use super::failure::{self, Failure};
use super::forwarded::ForwardedHead;
use super::hold::Hold;
use super::moving::{Lost, Moving, Others};
use super::own::answer_ourselves;
use super::race::{self, Leg, Race, Raced};
use super::reply::{Attempt, Finished};
use super::session::{After, Client, RequestContext, width};
use super::{RequestId, destination, lost_race, reply};
use crate::connect::{ConnectFault, Freshness, Shortage};
use crate::fallback;
use crate::http2::backend::{Asked, Asker, Asking};
use crate::http2::rules::Rules;
use crate::outcome::Outcome;
use crate::retry_budget;
use crate::snapshot::{BackendPlan, PoolPlan};
use crate::sticky_cookie::{self, Secure, Slot};
use crate::stream::Stream;
use crate::upstream::{self, Beginning, Chosen, NoBackend, Wanted};

pub(super) use tunnel::Switched;

/// What an exchange leaves: the client's connection for further requests, or both connections for another protocol.
pub(super) type Exchanged = Result<After, Box<Switched>>;

pub(super) async fn run(
    session: &RequestContext<'_>,
    client: &mut Client,
    outcome: &mut Outcome,
) -> Exchanged {
    // By reference: else the future would hold the result and what is moved out of it, and the task of an HTTP/2 stream
    // would take more than 4 KiB.
    match &mut prepare_forwarding(session, client, outcome) {
        Ok(forwarding) => forwarding.run(client, outcome).await,
        // Boxed: a forwarded request does not hold the state of an own response.
        Err(own) => Ok(Box::pin(answer_ourselves(session, client, outcome, own)).await),
    }
}

/// Decides where a request goes. `Err` is an answer that penstock writes itself.
fn prepare_forwarding<'a>(
    session: &'a RequestContext<'a>,
    client: &mut Client,
    outcome: &mut Outcome,
) -> Result<Forwarding<'a>, Destination<'a>> {
    let received = &*session.received;
    let (head, request) = (&received.head[..], &received.request);
    let trust = match session.settings.trusted_proxies.contains(&session.arrival.peer) {
        true => Trust::TrustedProxy,
        false => Trust::Stranger,
    };
    let id_header = session.settings.request_id_header.as_deref();
    let request_id = match forward::trusted_request_id(head, request, trust, id_header) {
        Some(id) => RequestId::Trusted(id.into()),
        None => RequestId::new(),
    };
    outcome.set_request_id(request_id.clone());
    let Some(routes) = &session.plan.routes else { return Err(Destination::NoRoute) };
    let asked = RouteQuestion {
        settings: session.settings,
        routes,
        challenges: &session.worker.front.state.acme.challenges,
        validation: &session.worker.front.state.validation,
        listener: &session.plan.settings.name,
        arrived: if session.arrival.tls.is_some() { Arrived::OverTls } else { Arrived::InTheClear },
        peer: session.arrival.peer,
        standing: session.arrival.standing,
        denied_pool: session.plan.settings.denied_pool,
        head,
        request,
    };
    let count = || match session.settings.request_rate {
        Some(rate) => session.count_at_source(rate),
        None => Ok(()),
    };
    let (pool, route_edits, bandwidth) = match asked.destination(count) {
        Destination::Pool(pool, edits, bandwidth) => (pool, edits, bandwidth),
        own => return Err(own),
    };
    if let Some(bandwidth) = bandwidth.or(session.plan.settings.bandwidth.as_ref()) {
        client.stream.limit(Some(session.limits(*bandwidth)));
    }
    let pool = fallback::serving(session.worker, session.current(), session.current().pool(pool));
    outcome.pool = Some(pool.clone());
    let edits = [&session.settings.edits, route_edits];
    let local = match request.authority.is_empty() {
        true => session.arrival.local_of(&client.stream),
        false => None,
    };
    let forwarded = ForwardedHead { session, edits, request_id, trust, local, left: Vec::new() };
    let cookie = sticky_cookie::slot(pool.cookie.as_ref(), head, request);
    let key = key_for(session, pool);
    let idempotence = Idempotence::of(request.method.of(head));
    let judged = judged_by(session, pool);
    Ok(Forwarding { session, pool, head: forwarded, idempotence, judged, key, cookie, counted: Cell::new(0) })
}

/// Returns the hash of the request's key for a pool.
fn key_for(session: &RequestContext<'_>, pool: &PoolPlan) -> u64 {
    let (head, request) = (&session.received.head[..], &session.received.request);
    destination::key(&pool.settings.hash_key, session.arrival.peer, head, request)
}

/// Returns [`Wanted::judged`] for a pool.
fn judged_by(session: &RequestContext<'_>, pool: &PoolPlan) -> Option<Peer> {
    match pool.backend_acls {
        0 => Some(session.arrival.peer),
        _ => session.client_behind_proxies(),
    }
}

/// A request that is forwarded to a pool.
struct Forwarding<'a> {
    session: &'a RequestContext<'a>,
    pool: &'a Arc<PoolPlan>,
    head: ForwardedHead<'a>,
    idempotence: Idempotence,
    /// See [`Wanted::judged`].
    judged: Option<Peer>,
    key: u64,
    /// What the client's cookie says of its backend.
    cookie: Slot,
    /// See [`Attempt::counted`].
    counted: Cell<u64>,
}

/// Attempts so far.
struct EarlierAttempts {
    tried: Tried,
    failed: u32,
    reuse: Reuse,
}

impl EarlierAttempts {
    fn none(reuse: Reuse) -> Self {
        Self { tried: Tried::default(), failed: 0, reuse }
    }
}

/// Why a request leaves the backend with this index.
#[derive(Clone, Copy)]
enum Left {
    /// It was judged down while the request waited there.
    Moved(usize),
    /// The attempt failed.
    Retried(usize),
}

/// Whether idle connections may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reuse {
    Allowed,
    Forbidden,
}

/// Result of all attempts in one pool.
enum PoolEnd<'a> {
    Done(Exchanged),
    /// No backend of the pool could be connected to: the request goes to another pool.
    FallsBack(&'a Arc<PoolPlan>),
    /// The request has waited for a backend, and another snapshot is served by now.
    Follows(Box<Resumed<'a>>),
}

/// A request that goes on with its pool as it is served now.
struct Resumed<'a> {
    pool: &'a Arc<PoolPlan>,
    chosen: Chosen,
    before: EarlierAttempts,
    hold: Option<Hold<'a>>,
}

impl<'a> Forwarding<'a> {
    async fn run(&mut self, client: &mut Client, outcome: &mut Outcome) -> Exchanged {
        let mut resumed = None;
        loop {
            match self.run_in_pool(client, outcome, resumed.take()).await {
                PoolEnd::Done(exchanged) => return exchanged,
                PoolEnd::FallsBack(pool) => {
                    let left = self.enter(pool, outcome);
                    self.head.left.push(left);
                }
                PoolEnd::Follows(next) => {
                    self.enter(next.pool, outcome);
                    resumed = Some(next);
                }
            }
        }
    }

    /// Goes on with another pool. Returns the one that the request leaves.
    fn enter(&mut self, pool: &'a Arc<PoolPlan>, outcome: &mut Outcome) -> &'a Arc<PoolPlan> {
        (self.key, self.judged) = (key_for(self.session, pool), judged_by(self.session, pool));
        let received = &self.session.received;
        self.cookie = sticky_cookie::slot(pool.cookie.as_ref(), &received.head, &received.request);
        outcome.pool = Some(pool.clone());
        (outcome.backend, outcome.view) = (None, View::default());
        outcome.failed.leave_pool();
        std::mem::replace(&mut self.pool, pool)
    }

    /// Returns the pool that the request falls back to after a failure in this one, before which nothing was sent.
    fn next_pool(&self, failure: Option<&Failure>) -> Option<&'a Arc<PoolPlan>> {
        let is_sent = |failure: &Failure| match failure {
            Failure::Connect(ConnectFault::Backend(_)) | Failure::Lost { .. } => {
                failure.progress() != Progress::NothingSent
            }
            _ => true,
        };
        if self.pool.settings.fallback.is_none() || failure.is_some_and(is_sent) {
            return None;
        }
        fallback::after(self.session.current(), self.pool)
    }

    async fn run_in_pool(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        mut resumed: Option<Box<Resumed<'a>>>,
    ) -> PoolEnd<'a> {
        // A shared HTTP/2 connection takes its slots where it is opened.
        let mut hold = match self.pool.settings.http {
            BackendHttp::Http2 => None,
            BackendHttp::Http1 if resumed.as_ref().is_some_and(|resumed| resumed.hold.is_some()) => {
                resumed.as_mut().and_then(|resumed| resumed.hold.take())
            }
            BackendHttp::Http1 => match Hold::take(self.session.worker, self.session.handle) {
                Ok(hold) => Some(hold),
                Err(why) => match Box::pin(self.wait_for_hold(client, outcome, why)).await {
                    Ok(hold) => Some(hold),
                    Err(after) => return PoolEnd::Done(Ok(after)),
                },
            },
        };
        let worker = self.session.worker;
        let reuse = match self.pool.settings.connects_per_client() {
            true => Reuse::Forbidden,
            false => Reuse::Allowed,
        };
        let (mut before, mut now) = match &mut resumed {
            Some(resumed) => {
                (std::mem::replace(&mut resumed.before, EarlierAttempts::none(reuse)), Instant::now())
            }
            None => {
                retry_budget::count(worker, self.pool, self.session.now);
                (EarlierAttempts::none(reuse), self.session.now)
            }
        };
        let mut last: Option<Failure> = None;
        // The backend that the request leaves for another one.
        let mut left: Option<Left> = None;
        loop {
            let origin = match last {
                Some(Failure::Lost { lost: Lost::Moved, .. }) => upstream::Origin::DownBackend,
                _ => upstream::Origin::Client,
            };
            let wanted = Wanted {
                client: self.session.arrival.peer,
                judged: self.judged,
                key: self.key,
                cookie: self.cookie,
                tried: &before.tried,
                origin,
                remember: upstream::Remember::AtOnce,
            };
            let current = self.session.current();
            let chosen = match resumed.take() {
                Some(resumed) => Some(Ok(resumed.chosen)),
                None => match upstream::choose_at_once(worker, current, self.pool, &wanted, now) {
                    Some(chosen) => Some(chosen),
                    None => Box::pin(self.wait_for_backend(client, &wanted)).await,
                },
            };
            let mut chosen = match chosen {
                Some(Ok(chosen)) => chosen,
                Some(Err(none)) => {
                    let is_busy = matches!(none, NoBackend::QueueFull | NoBackend::QueueTimeout);
                    if !is_busy && let Some(next) = self.next_pool(last.as_ref()) {
                        if let Some(left) = left {
                            self.count_left(left, outcome);
                        }
                        return PoolEnd::FallsBack(next);
                    }
                    return PoolEnd::Done(Ok(self.answer_no_backend(client, outcome, none, last).await));
                }
                None => {
                    outcome.end(Ending::ClientClosed);
                    return PoolEnd::Done(Ok(After::Drop));
                }
            };
            if let Some(queued) = chosen.queued.take() {
                now = Instant::now();
                outcome.queued = Some(outcome.queued.unwrap_or_default() + queued);
            }
            if let Some(followed) = chosen.followed.take() {
                if let Some(left) = left {
                    self.count_left(left, outcome);
                }
                before.tried = followed.tried(self.pool, &before.tried);
                let pool = &self.session.followed.add(followed).pool;
                return PoolEnd::Follows(Box::new(Resumed { pool, chosen, before, hold: hold.take() }));
            }
            outcome.attempts += 1;
            (outcome.backend, outcome.view) = (Some(chosen.index), chosen.view);
            outcome.show_backend(&chosen.backend);
            if let Some(left) = left.take() {
                self.count_left(left, outcome);
            }
            let ended = self.attempt(client, outcome, &mut chosen, &before, now).await;
            let (failure, freshness, other) = match ended {
                AttemptEnd::Done(exchanged) => return PoolEnd::Done(exchanged),
                AttemptEnd::Failed { failure, freshness, other } => (failure, freshness, other),
            };
            if let Failure::Client(broken) = failure {
                return PoolEnd::Done(Ok(self.answer_client_fault(client, outcome, broken).await));
            }
            // The failure of a kept connection that the backend had closed says nothing about the backend and is no
            // attempt: the request is sent again on a new connection. With HTTP/2 the next one may be kept, too: then
            // the failure counts as an attempt.
            let is_stale =
                before.reuse == Reuse::Allowed && freshness.is_some_and(|fresh| failure.is_stale(fresh));
            if !is_stale {
                before.failed += 1;
                outcome.failed.note(chosen.index, failure.fault());
                // A backend may leave a connection that it has served.
                if !(failure.is_left() && freshness == Some(Freshness::Kept)) {
                    self.blame(chosen.index, &failure);
                }
            }
            let retries = self.pool.settings.retries;
            let attempts = if is_stale { 0 } else { before.failed };
            if matches!(failure, Failure::Fault { .. } | Failure::Unrepresentable(_))
                || retry::decide(self.idempotence, failure.progress(), attempts, retries)
                    == retry::Decision::GiveUp
                || !is_stale && !retry_budget::spend(worker, self.pool)
            {
                if is_stale {
                    // There is no other attempt that it could be left out for.
                    outcome.failed.note(chosen.index, failure.fault());
                }
                if let Some(next) = self.next_pool(Some(&failure)) {
                    return PoolEnd::FallsBack(next);
                }
                return PoolEnd::Done(Ok(self.answer_failure(client, outcome, &failure).await));
            }
            if is_stale {
                before.reuse = Reuse::Forbidden;
            } else {
                if !failure.is_left() {
                    before.tried.insert(chosen.index);
                }
                other.into_iter().for_each(|other| before.tried.insert(other));
                left = Some(match failure {
                    Failure::Lost { lost: Lost::Moved, .. } => Left::Moved(chosen.index),
                    _ => Left::Retried(chosen.index),
                });
            }
            last = Some(failure);
            now = Instant::now();
        }
    }

    /// Waits until another request of the client gives its backend connection back.
    async fn wait_for_hold(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        refusal: Refusal,
    ) -> Result<Hold<'a>, After> {
        let Client { stream, buffer, .. } = &mut *client;
        let (worker, handle) = (self.session.worker, self.session.handle);
        let (limit, most) = (self.pool.settings.timeouts.queue, self.pool.settings.queue_length);
        let began = Instant::now();
        let held = tokio::select! {
            biased;
            held = Hold::wait(worker, handle, refusal, limit, most) => held,
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

    /// Waits for a backend. `None` if the client closed the connection meanwhile.
    async fn wait_for_backend(
        &self,
        client: &mut Client,
        wanted: &Wanted<'_>,
    ) -> Option<Result<Chosen, NoBackend>> {
        let Client { stream, buffer, .. } = client;
        tokio::select! {
            biased;
            chosen = upstream::wait(self.session.worker, self.session.current(), self.pool, wanted) => Some(chosen),
            () = std::future::poll_fn(|cx| reply::poll_gone(cx, stream, buffer)) => None,
        }
    }

    /// Counts that another backend has got the request. Not before: there may be none.
    fn count_left(&self, left: Left, outcome: &mut Outcome) {
        let counters =
            |backend: usize| self.pool.backends[backend].state.counters.of(self.session.worker.index);
        match left {
            Left::Moved(backend) => {
                outcome.moved += 1;
                counters(backend).moved.add(1);
            }
            Left::Retried(backend) => counters(backend).retries.add(1),
        }
    }

    fn blame(&self, backend: usize, failure: &Failure) {
        match failure.blame() {
            Some(cause) => upstream::note_failure(self.session.worker, self.pool, backend, cause),
            // The backend is down already: that is not judged once more.
            None if matches!(failure, Failure::Lost { lost: Lost::TimedOut, .. }) => {
                self.pool.backends[backend].state.counters.of(self.session.worker.index).failures.add(1);
            }
            None => {
                tracing::debug!(backend = %self.pool.backends[backend].state.name, "the attempt ended: {failure:?}")
            }
        }
    }

    async fn attempt(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        chosen: &mut Chosen,
        before: &EarlierAttempts,
        now: Instant,
    ) -> AttemptEnd {
        let worker = self.session.worker;
        let request = &self.session.received.request;
        let has_body = !matches!(request.body, BodyLength::None | BodyLength::Length(0));
        let idempotence = match has_body {
            // Most bodies cannot be sent twice, so the connection is checked twice.
            true => Idempotence::NotIdempotent,
            false => self.idempotence,
        };
        if let Some(rule) = self.hedge()
            && outcome.attempts == 1
        {
            worker.with_hedging(self.session.current(), self.pool.id, |hedging| hedging.count(rule));
        }
        let kept = match before.reuse {
            Reuse::Allowed => {
                let plan = &self.pool.backends[chosen.index];
                upstream::reuse(worker, plan, self.asker(client, plan), idempotence, now)
            }
            Reuse::Forbidden => None,
        };
        let number = before.failed + 1;
        let others = Others { tried: &before.tried, judged: self.judged };
        let mut moving = Moving::new(worker, self.pool, chosen.index, others, number, self.idempotence);
        let mut began = now;
        let (mut backend, mut freshness) = match kept {
            Some(stream) => (stream, Freshness::Kept),
            None => match Box::pin(self.connect(client, outcome, &moving)).await {
                Ok(connected) => {
                    began = Instant::now();
                    connected
                }
                Err(end) => return end,
            },
        };
        let mut message = Some(self.head.write(self.pool));
        // A new connection accepts a head at once: the write need not wait for the runtime.
        let mut written = match (freshness, &message) {
            (Freshness::Fresh(_), Some(message)) => backend.write_now(message),
            _ => 0,
        };
        // In a box, like the race itself: few requests have one.
        let mut begun: Option<Box<Begun<'_>>> = None;
        let mut other = None;
        let mut is_observed = true;
        if let Some(rule) = self.hedge()
            && outcome.hedged == 0
        {
            let race = Race { session: self.session, pool: self.pool, head: &self.head, key: self.key };
            let first = Leg { stream: backend, freshness, began, message, sent: written };
            match Box::pin(race.run(rule, client, outcome, first, &moving)).await {
                Raced::First(leg, read) => {
                    is_observed = !read.is_empty();
                    (backend, message, written) = (leg.stream, leg.message, leg.sent);
                    begun = Some(Box::new(Begun { read: Cell::new(read), _hold: None }));
                }
                Raced::Second { chosen: second, leg, read, hold, loser, first_failed } => {
                    let stale = first_failed.as_ref().is_some_and(|failure| failure.is_stale(freshness));
                    if let (Some(failure), false) = (first_failed, stale) {
                        outcome.failed.note(chosen.index, failure.fault());
                        self.blame(chosen.index, &failure);
                    }
                    if !stale {
                        chosen.backend.counters.of(worker.index).sessions.add(1);
                    }
                    other = Some(chosen.index);
                    moving = Moving::new(worker, self.pool, second.index, others, number, self.idempotence);
                    let lost = std::mem::replace(chosen, second);
                    if let Some(loser) = loser {
                        lost_race::watch(worker, self.pool, lost, loser);
                    }
                    (outcome.backend, outcome.view) = (Some(chosen.index), chosen.view);
                    outcome.show_backend(&chosen.backend);
                    (backend, freshness, began) = (leg.stream, leg.freshness, leg.began);
                    (message, written) = (leg.message, leg.sent);
                    begun = Some(Box::new(Begun { read: Cell::new(read), _hold: hold }));
                }
                Raced::Failed(failure, other) => {
                    self.count_sent(chosen, freshness);
                    return AttemptEnd::Failed { failure, freshness: Some(freshness), other };
                }
                Raced::ClientGone => {
                    self.count_sent(chosen, freshness);
                    outcome.end(Ending::ClientClosed);
                    return AttemptEnd::Done(Ok(After::Drop));
                }
            }
        }
        outcome.connect = match freshness {
            Freshness::Fresh(took) => Some(took.into()),
            Freshness::Kept => None,
        };
        let set_cookie = self.set_cookie(chosen.index);
        let attempt = Attempt {
            session: self.session,
            pool: self.pool,
            edits: &self.head.edits,
            message: Cell::new(message),
            request_id: self.head.request_id.as_bytes(),
            set_cookie: set_cookie.as_deref(),
            timer: &client.timer,
            moving: &moving,
            started: outcome.started(),
            began,
            sent: Cell::new(written as u64),
            counted: &self.counted,
            early: begun.as_ref().map(|begun| &begun.read),
            place: outcome.place(),
        };
        outcome.show_socket(&backend);
        let result = attempt.run(&client.stream, &mut client.buffer, &backend, outcome).await;
        if !matches!(result, Ok(Finished::Whole { .. } | Finished::Tunnel { .. })) {
            outcome.hide_socket();
        }
        if let (Ok(_), Some(first_byte)) = (&result, outcome.first_byte)
            && (!is_observed || self.pool.settings.balance == Policy::PeakEwma)
        {
            let at = outcome.started() + first_byte;
            let took = at.saturating_duration_since(began);
            upstream::note_latency(self.pool, &chosen.backend, took, at);
            if !is_observed {
                race::observe(self.session, self.pool, took);
            }
        }
        if result.is_ok() || freshness != Freshness::Kept {
            chosen.backend.counters.of(worker.index).sessions.add(1);
        }
        match result {
            Err(failure) => {
                if self.idempotence == Idempotence::Idempotent && !hedge::may_hedge(self.method()) {
                    // It may be sent to another backend now. This backend must not take it for a request whose
                    // client waits: if it executes the request after all, that could undo a later one.
                    backend.reset_on_close();
                }
                AttemptEnd::Failed { failure, freshness: Some(freshness), other }
            }
            Ok(finished) => AttemptEnd::Done(self.finish(client, backend, chosen, outcome, finished).await),
        }
    }

    /// Rule of the pool for a second copy of this request; `None` if it is never sent twice.
    fn hedge(&self) -> Option<&hedge::Rule> {
        let request = &self.session.received.request;
        let rule = self.pool.settings.hedge.as_ref()?;
        let has_body = !matches!(request.body, BodyLength::None | BodyLength::Length(0));
        let may = !has_body && request.upgrade.is_none();
        (may && hedge::may_hedge(self.method())).then_some(rule)
    }

    fn method(&self) -> &str {
        let received = &self.session.received;
        received.request.method(&received.head)
    }

    /// Cookie that the client gets with the response of a backend.
    fn set_cookie(&self, backend: usize) -> Option<String> {
        let secure = if self.session.arrival.tls.is_some() { Secure::Yes } else { Secure::No };
        sticky_cookie::to_set(self.pool.cookie.as_ref(), self.cookie, backend, secure)
    }

    /// Counts a request without a response at its backend, if it was sent on a new connection.
    fn count_sent(&self, chosen: &Chosen, freshness: Freshness) {
        if freshness != Freshness::Kept {
            chosen.backend.counters.of(self.session.worker.index).sessions.add(1);
        }
    }

    async fn connect(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        moving: &Moving<'_>,
    ) -> Result<(Stream, Freshness), AttemptEnd> {
        let worker = self.session.worker;
        let limit = self.pool.settings.timeouts.connect;
        let plan = &self.pool.backends[moving.backend];
        if let Some(rules) = plan.http2 {
            return self.connect_http2(client, outcome, moving, rules).await;
        }
        let header = self.session.proxy_header(self.pool, &client.stream);
        let (opening, began) = (sys::socket::Opening::WeSpeak, Instant::now());
        let outgoing = plan.outgoing_for(self.session.arrival.peer);
        let beginning = Beginning { outgoing, opening, preface: &header, began };
        let connecting = upstream::connect(worker, plan, None, beginning, limit);
        connected(moving.until(&client.timer, connecting).await)
    }

    /// Gets a place on a shared HTTP/2 connection.
    async fn connect_http2(
        &self,
        client: &mut Client,
        outcome: &mut Outcome,
        moving: &Moving<'_>,
        rules: Rules,
    ) -> Result<(Stream, Freshness), AttemptEnd> {
        let plan = &self.pool.backends[moving.backend];
        let asking = self.session.worker.lines.ask(plan, rules, self.asker(client, plan));
        let Client { stream, buffer, timer } = client;
        let got = tokio::select! {
            biased;
            got = moving.until(timer, self.get_place(outcome, moving, &asking)) => got,
            () = std::future::poll_fn(|cx| reply::poll_gone(cx, stream, buffer)) => {
                outcome.end(Ending::ClientClosed);
                return Err(AttemptEnd::Done(Ok(After::Drop)));
            }
        };
        connected(got)
    }

    /// Gets a place. If the client's share allows none, another backend is tried first; at the last backend the request
    /// waits.
    async fn get_place(
        &self,
        outcome: &mut Outcome,
        moving: &Moving<'_>,
        asking: &Asking,
    ) -> Result<(Stream, Freshness), ConnectFault> {
        let (worker, handle, settings) = (self.session.worker, self.session.handle, &self.pool.settings);
        let connect = |asked| {
            let (plan, opening) = (&self.pool.backends[moving.backend], sys::socket::Opening::WeSpeak);
            let (asking, limit) = (Some((asking, asked)), settings.timeouts.connect);
            upstream::connect(
                worker,
                plan,
                asking,
                Beginning { outgoing: plan.outgoing, opening, preface: &[], began: Instant::now() },
                limit,
            )
        };
        let fault = match connect(Asked::New).await {
            Ok(connected) => return Ok(connected),
            Err(fault) => fault,
        };
        let why = match fault {
            ConnectFault::NoDescriptors(Shortage::OfShare(why)) => why,
            ConnectFault::NoDescriptors(Shortage::OfPlaces) => Refusal::NoDescriptors,
            _ => return Err(fault),
        };
        if moving.attempt <= settings.retries
            && upstream::has_another(self.pool, moving.backend, moving.tried, moving.judged)
        {
            return Err(fault);
        }
        asking.refused(why);
        let waits = handle.share.wait_for_room(&worker.slot_cache, settings.queue_length);
        let _waits = waits.ok_or(fault)?;
        let began = Instant::now();
        // Time that the request waited at other backends is subtracted.
        let left = settings.timeouts.queue.saturating_sub(outcome.queued.unwrap_or_default());
        let connected = tokio::time::timeout(left, connect(Asked::Waited)).await;
        outcome.queued = Some(outcome.queued.unwrap_or_default() + began.elapsed());
        connected.unwrap_or_else(|_| {
            let why = asking.refusal().unwrap_or(why);
            Err(ConnectFault::NoDescriptors(Shortage::OfShare(why)))
        })
    }

    /// Returns the client that asks for a place on an HTTP/2 backend connection.
    fn asker(&self, client: &Client, plan: &BackendPlan) -> Asker<'_> {
        Asker { client: self.session.handle, width: width(&client.stream, plan) }
    }

    /// Completes the exchange after the response was sent, whole or in part.
    async fn finish(
        &self,
        client: &mut Client,
        backend: Stream,
        chosen: &Chosen,
        outcome: &mut Outcome,
        finished: Finished,
    ) -> Exchanged {
        match finished {
            Finished::Cut { ending: Ending::BackendAborted, .. } => {
                upstream::note_failure(self.session.worker, self.pool, chosen.index, Cause::ClosedEarly);
            }
            Finished::Cut { ending: Ending::BadResponse, .. } => {
                upstream::note_failure(self.session.worker, self.pool, chosen.index, failure::violation());
            }
            _ => upstream::note_answer(self.session.worker, self.pool, chosen.index, outcome.status),
        }
        match finished {
            Finished::Whole { after, keep } => {
                outcome.end(Ending::Ok);
                if let Some(keep) = keep {
                    let limit = self.pool.settings.keep_alive;
                    let until = outcome.stop_clock() + keep;
                    self.session.worker.idle.give(&chosen.backend, backend, until, limit);
                }
                Ok(after)
            }
            Finished::Tunnel { rest } => {
                Box::pin(self.switch(client, backend, rest, chosen.index, outcome)).await
            }
            Finished::Cut { ending, after } => {
                outcome.end(ending);
                Ok(after)
            }
        }
    }
}

/// A response that began during a race.
struct Begun<'a> {
    read: Cell<Vec<u8>>,
    /// Descriptors of the second connection, while it is used.
    _hold: Option<Hold<'a>>,
}

/// Result of one attempt at one backend.
enum AttemptEnd {
    Done(Exchanged),
    Failed {
        failure: Failure,
        /// `None` if there was no connection.
        freshness: Option<Freshness>,
        /// Index of the other backend of a race, which had the request as well.
        other: Option<usize>,
    },
}

/// Says how an attempt ended that got no connection.
fn connected<T>(result: Result<Result<T, ConnectFault>, Lost>) -> Result<T, AttemptEnd> {
    let failure = match result {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(fault)) => Failure::Connect(fault),
        Err(lost) => Failure::Lost { lost, progress: Progress::NothingSent },
    };
    Err(AttemptEnd::Failed { failure, freshness: None, other: None })
}
