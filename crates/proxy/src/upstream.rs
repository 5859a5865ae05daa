//! Gets a backend connection for a session: chooses a backend, waits for a busy one, reuses an idle connection or opens
//! one. `crates/logic/src/retry.rs` and `crates/proxy/src/http/exchange.rs` decide on retries, `crates/logic/src/health.rs` on health.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use config::types::SourceAddress;
use logic::acl;
use logic::balance::turn::{self, Coming, Line, Turn};
use logic::balance::view::View;
use logic::balance::{
    AllDown, Availability, Candidate, Candidates, Policy, Question, Remembered, Selection, Standing,
    StickyKey, Tried, WEIGHT_UNIT, priority, slow_start_weight,
};
use logic::health::{Cause, Source, State as HealthState, Verdict, VerdictOutcome};
use logic::peers::Peer;
use logic::retry::{Elsewhere, Idempotence};
use state::BackendState;
use state::events::Level;
use state::lock::lock;
use state::queue::Queue;
use sys::socket::{Opening, Outgoing, Owner};
use tls::backend::Endpoint;

use crate::connect::{self, ConnectFault, Freshness, Link, Shortage, TimeLimit};
use crate::ejection;
use crate::http2::backend::{Asked, Asker, Asking};
use crate::snapshot::{BackendPlan, PoolPlan, Snapshot};
use crate::sticky_cookie::Slot;
use crate::stream::{Quiet, Stream};
use crate::worker::Worker;

mod followed;

pub use followed::{Chain, Followed};

/// Interval at which the first waiting session checks again, and after it the others in order: changes of health and
/// weights do not notify them.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Response time that a failure counts as.
const FAILURE_COST: Duration = Duration::from_secs(1);

/// Reason why a session got no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBackend {
    Unavailable,
    /// The access lists of all available backends deny the client.
    Denied,
    /// All healthy backends were tried.
    AllTried,
    /// All backends are busy and the queue is full.
    QueueFull,
    QueueTimeout,
}

/// Permit of one session at a backend, given back when dropped.
pub struct InFlight {
    backend: Arc<BackendState>,
    queue: Arc<Queue>,
}

impl InFlight {
    /// Counts a session that has its backend already, also above the limit.
    pub(crate) fn adopt(pool: &PoolPlan, index: usize) -> Self {
        let backend = pool.backends[index].state.clone();
        backend.in_flight.fetch_add(1, Relaxed);
        Self { backend, queue: pool.queue.clone() }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Relaxed);
        self.queue.freed();
    }
}

/// One of the sessions with which a half-open backend is tried, until it is dropped. It is not a part of [`InFlight`]: every
/// open session has one of these.
pub struct Trial(Arc<BackendState>);

impl Trial {
    fn begin(backend: &Arc<BackendState>, most: u32) -> Option<Self> {
        backend.breaker.begin(most).then(|| Self(backend.clone()))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.breaker.end();
    }
}

pub struct Chosen {
    /// Index of the backend in the pool.
    pub index: usize,
    pub backend: Arc<BackendState>,
    pub slot: InFlight,
    /// Present if the backend is half-open; to be kept until it has answered.
    pub trial: Option<Trial>,
    /// What the choice saw.
    pub view: View,
    /// Time that the session waited for the permit; `None` if it did not wait.
    pub queued: Option<Duration>,
    /// The snapshot with which the session goes on, if another one came while it waited: `index` is of its pool.
    pub followed: Option<Box<Followed>>,
}

/// Inputs of the choice of a backend.
pub struct Wanted<'a> {
    /// Address of the client, used by `sticky`.
    pub client: Peer,
    /// The client that access lists of backends judge; `None` if its address is not known: they deny it.
    pub judged: Option<Peer>,
    /// Hash of the value that the pool's hash key names.
    pub key: u64,
    /// Backends that failed in this session.
    pub tried: &'a Tried,
    /// Backend that the client's cookie names, if the pool has a cookie.
    pub cookie: Slot,
    pub origin: Origin,
    pub remember: Remember,
}

/// When `sticky` remembers the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    AtOnce,
    /// The client's address may be forged: the caller calls [`remember`] when a backend has replied.
    AfterReply,
}

/// Where a session comes from that needs a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It has no backend yet, or its backend failed.
    Client,
    /// It left a backend that is down, because the queue had room. Other workers may have filled the queue since: a full
    /// queue does not refuse it, so the queue can exceed its limit by about one session for each worker.
    DownBackend,
    /// It is of datagrams, which do not wait: their client sends them again.
    Datagram,
}

/// Number of sessions that may wait in the queue of a pool when one comes from there.
pub(crate) fn most_waiting(pool: &PoolPlan, workers: usize, origin: Origin) -> usize {
    match origin {
        Origin::Client => pool.settings.queue_length.saturating_mul(workers),
        Origin::DownBackend => usize::MAX,
        Origin::Datagram => 0,
    }
}

/// The queue of a pool as a session finds it.
#[inline]
pub(crate) fn line(pool: &PoolPlan) -> Line {
    Line { waiting: pool.queue.waiting(), soft_limits: pool.soft_limits }
}

/// Chooses a backend; waits in the pool's queue if all are at their limit.
pub async fn choose(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: Wanted<'_>,
    now: Instant,
) -> Result<Chosen, NoBackend> {
    match choose_at_once(worker, snapshot, pool, &wanted, now) {
        Some(outcome) => outcome,
        // Boxed: few sessions have to wait.
        None => Box::pin(wait(worker, snapshot, pool, &wanted)).await,
    }
}

/// Chooses a backend. `None` if the session has to wait, behind those that wait already.
pub fn choose_at_once(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
    now: Instant,
) -> Option<Result<Chosen, NoBackend>> {
    let most = || most_waiting(pool, worker.front.state.workers, wanted.origin);
    let coming = turn::come(line(pool), most, |turn| match turn {
        Turn::Any => choose_now(worker, snapshot, pool, wanted, now),
        Turn::Known => choose_known(pool, wanted, now).map(Ok),
    });
    match coming {
        Coming::Chose(outcome) => Some(outcome),
        Coming::Waits => None,
        Coming::QueueFull => Some(Err(NoBackend::QueueFull)),
    }
}

/// Waits in the pool's queue, first in, first out. A session goes on with the snapshot that is served when it gets a backend,
/// and waits for as long as that one says.
pub async fn wait(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
) -> Result<Chosen, NoBackend> {
    let started = Instant::now();
    let limit = most_waiting(pool, worker.front.state.workers, wanted.origin);
    let Some(place) = pool.queue.stand(limit) else {
        return Err(NoBackend::QueueFull);
    };
    // A permit may have become free before this session entered the queue.
    let mut is_our_turn = place.may_look;
    let mut followed: Option<Box<Followed>> = None;
    loop {
        let current = worker.current();
        let known = followed.as_ref().map_or(snapshot.generation, |followed| followed.current.generation);
        if current.generation != known
            && let Some(served) = Followed::find(current, pool)
        {
            followed = Some(served);
        }
        let served = followed.as_ref().map_or(pool, |followed| &followed.pool);
        if is_our_turn {
            place.looks();
            let now = Instant::now();
            let outcome = match &followed {
                None => choose_now(worker, snapshot, pool, wanted, now),
                Some(followed) => {
                    let (tried, cookie) =
                        (&followed.tried(pool, wanted.tried), followed.cookie(pool, wanted.cookie));
                    choose_now(worker, &followed.current, served, &Wanted { tried, cookie, ..*wanted }, now)
                }
            };
            if let Some(outcome) = outcome {
                // A backend that came back, or whose limit was raised, has room for more than one.
                if outcome.is_ok() && pool.queue.waiting() > 1 && has_room(served, wanted.judged, now) {
                    place.pass_on();
                }
                return outcome.map(|chosen| Chosen { queued: Some(started.elapsed()), followed, ..chosen });
            }
            place.pass_on();
        }
        let left = served.settings.timeouts.queue.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(NoBackend::QueueTimeout);
        }
        let is_called = tokio::time::timeout(left.min(LOOK_AGAIN), place.wait_for_turn()).await.is_ok();
        is_our_turn = is_called || place.is_first();
    }
}

/// Whether a backend that is available has room for one more session.
fn has_room(pool: &PoolPlan, judged: Option<Peer>, now: Instant) -> bool {
    candidates(pool, judged, now, AllDown::ErrorPage).iter().any(Candidate::takes)
}

/// Chooses a backend. `None` if every possible backend is at its limit.
fn choose_now(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
    now: Instant,
) -> Option<Result<Chosen, NoBackend>> {
    let mut candidates = Candidates::new();
    let standings = || standings(pool, wanted.judged, now);
    logic::balance::gather(&mut candidates, standings, pool.settings.all_down);
    let remembered = remembered(pool, wanted, now);
    loop {
        if pool.tiers > 1 {
            let priority = |index: usize| pool.backends[index].settings.priority;
            priority::keep_lowest(&mut candidates, priority, wanted.tried);
        }
        let question = question(pool, &candidates, remembered, wanted);
        let select = |balancer: &mut _| question.select(balancer, fastrand::u64(..));
        let selection = worker.with_balancer(snapshot, pool.id, select);
        let view = View::of(&question, selection);
        let index = match selection {
            Selection::Remembered(index) => {
                return take(pool, index, pool.backends[index].settings.max_connections, view).map(Ok);
            }
            Selection::Picked(index) => index,
            Selection::AllBusy => return None,
            Selection::AllTried => return Some(Err(NoBackend::AllTried)),
            Selection::Unavailable => return Some(Err(NoBackend::Unavailable)),
            Selection::Denied => return Some(Err(NoBackend::Denied)),
        };
        match take(pool, index, candidates[index].limit, view) {
            Some(chosen) => {
                if wanted.remember == Remember::AtOnce {
                    remember(pool, wanted.client, &chosen.backend, now);
                }
                return Some(Ok(chosen));
            }
            // Another worker has taken this backend's last permit since the check; other backends may have one.
            None => candidates[index].limit = Some(0),
        }
    }
}

/// Chooses the backend that has served the client before, if it has room for it.
fn choose_known(pool: &PoolPlan, wanted: &Wanted<'_>, now: Instant) -> Option<Chosen> {
    let remembered = remembered(pool, wanted, now)?;
    let all_down = Turn::Known.all_down(pool.settings.all_down);
    let candidates = candidates(pool, wanted.judged, now, all_down);
    let question = question(pool, &candidates, Some(remembered), wanted);
    let index = question.known()?;
    let view = View::of(&question, Selection::Remembered(index));
    take(pool, index, pool.backends[index].settings.max_connections, view)
}

fn question<'a>(
    pool: &'a PoolPlan,
    candidates: &'a Candidates,
    remembered: Option<Remembered>,
    wanted: &Wanted<'a>,
) -> Question<'a> {
    let Wanted { key, tried, .. } = *wanted;
    Question { candidates, identities: &pool.identities, key, remembered, tried }
}

/// Returns the backend that the sticky table has for the client, or its cookie.
fn remembered(pool: &PoolPlan, wanted: &Wanted<'_>, now: Instant) -> Option<Remembered> {
    let backend = match (&pool.cookie, wanted.cookie) {
        (Some(_), Slot::Backend(backend)) => backend,
        (Some(_), Slot::Absent | Slot::Unknown) => return None,
        (None, _) => {
            let (table, key) = pool.sticky.as_ref().zip(sticky_key(pool, wanted.client))?;
            let identity = lock(table).lookup(key, now)?;
            pool.identities.find(identity)?
        }
    };
    Some(Remembered { backend, limit: pool.backends[backend].settings.max_connections })
}

/// Remembers the backend of a client in the pool's sticky table, if it has one.
pub fn remember(pool: &PoolPlan, client: Peer, backend: &BackendState, now: Instant) {
    if let Some((table, key)) = pool.sticky.as_ref().zip(sticky_key(pool, client)) {
        lock(table).remember(key, backend.identity, now);
    }
}

/// Key of a client in the sticky table. `None` if the pool has none, or the client no address.
pub(crate) fn sticky_key(pool: &PoolPlan, client: Peer) -> Option<StickyKey> {
    pool.sticky.as_ref()?;
    client.ip().map(|ip| StickyKey::new(ip, pool.settings.sticky.ipv6_prefix))
}

fn candidates(pool: &PoolPlan, judged: Option<Peer>, now: Instant, all_down: AllDown) -> Candidates {
    logic::balance::candidates(|| standings(pool, judged, now), all_down).0
}

/// Reads what the choice of a backend depends on, for a client that access lists judge.
pub(crate) fn standings(
    pool: &PoolPlan,
    judged: Option<Peer>,
    now: Instant,
) -> impl Iterator<Item = Standing> {
    let window = pool.settings.slow_start;
    let by_latency = pool.settings.balance == Policy::PeakEwma;
    let trials = pool.settings.passive.trials;
    pool.backends.iter().map(move |backend| {
        let state = &backend.state;
        let configured = state.weight_override().unwrap_or(backend.settings.weight);
        let full_weight = configured * WEIGHT_UNIT;
        let weight = match state.up_for(now) {
            Some(up_for) if !window.is_zero() => slow_start_weight(configured, up_for, window),
            _ => full_weight,
        };
        Standing {
            health: state.health_state(),
            admission: state.admission(),
            weight,
            full_weight,
            in_flight: state.in_flight.load(Relaxed),
            limit: backend.settings.max_connections,
            soft_limit: backend.settings.soft_max_connections,
            verdict: verdict(backend, judged),
            priority: backend.settings.priority,
            latency: if by_latency { state.latency(now) } else { 0 },
            trials: state.breaker.free(trials),
        }
    })
}

/// Returns what the access list of a backend says of the client.
fn verdict(backend: &BackendPlan, judged: Option<Peer>) -> acl::Verdict {
    match (&backend.settings.acl, judged) {
        (None, _) => acl::Verdict::Permit,
        (Some(acl), Some(client)) => acl.verdict(&client),
        (Some(_), None) => acl::Verdict::Deny,
    }
}

/// Takes a permit at a backend with fewer sessions than `limit`. `None` if no permit is free.
fn take(pool: &PoolPlan, index: usize, limit: Option<u32>, view: View) -> Option<Chosen> {
    let plan = &pool.backends[index];
    let limit = limit.unwrap_or(u32::MAX);
    let trial = match plan.state.health_state() {
        HealthState::HalfOpen => Some(Trial::begin(&plan.state, pool.settings.passive.trials)?),
        _ => None,
    };
    plan.state
        .in_flight
        .fetch_update(Relaxed, Relaxed, |in_flight| (in_flight < limit).then_some(in_flight + 1))
        .ok()?;
    let slot = InFlight { backend: plan.state.clone(), queue: pool.queue.clone() };
    Some(Chosen { index, backend: plan.state.clone(), slot, trial, view, queued: None, followed: None })
}

/// Returns an idle connection to the backend that is still open, if there is one.
pub fn reuse(
    worker: &Worker,
    plan: &BackendPlan,
    asker: Asker<'_>,
    idempotence: Idempotence,
    now: Instant,
) -> Option<Stream> {
    let backend = &plan.state;
    if plan.http2.is_some() {
        let call = worker.lines.take(plan, asker)?;
        backend.counters.of(worker.index).reused.add(1);
        return Some(call);
    }
    while let Some(stream) = worker.idle.take(backend, now) {
        // A connection from before a reload was made under the old TLS settings.
        if !is_same(stream.endpoint().as_ref(), plan.tls.as_ref()) {
            continue;
        }
        let quiet = match idempotence {
            Idempotence::Idempotent => stream.is_quiet(),
            // The request could not be sent again: ask the kernel, because the runtime's knowledge may be old.
            Idempotence::NotIdempotent => stream.is_quiet_now(),
        };
        if quiet == Quiet::Yes {
            backend.counters.of(worker.index).reused.add(1);
            return Some(stream);
        }
    }
    None
}

fn is_same(one: Option<&Arc<Endpoint>>, other: Option<&Arc<Endpoint>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// How a connection to a backend begins.
#[derive(Clone, Copy)]
pub struct Beginning<'a> {
    pub outgoing: Outgoing,
    pub opening: Opening,
    /// Sent first, unencrypted.
    pub preface: &'a [u8],
    pub began: Instant,
}

/// Opens a connection to a backend within `limit`, including its handshake. With `asking` the connection is HTTP/2 and may
/// be an existing one.
pub async fn connect(
    worker: &Worker,
    plan: &BackendPlan,
    asking: Option<(&Asking, Asked)>,
    beginning: Beginning<'_>,
    limit: Duration,
) -> Result<(Stream, Freshness), ConnectFault> {
    let backend = &*plan.state;
    let counters = backend.counters.of(worker.index);
    let (stream, freshness) = match open(worker, plan, asking, beginning, limit).await {
        // The address of a client that cannot be used, or a missing capability: no closed connection helps.
        Err(ConnectFault::Ours(error)) if beginning.outgoing.owner == Owner::Client => {
            return Err(ConnectFault::Ours(error));
        }
        Err(fault @ (ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_))) => {
            // Descriptors are short: idle backend connections are closed first, because no client needs them now.
            let wanted = match fault {
                ConnectFault::NoDescriptors(Shortage::OfShare(_)) => return Err(fault),
                ConnectFault::NoDescriptors(Shortage::OfPlaces) => backend.slots(),
                _ => usize::MAX,
            };
            worker.close_idle(wanted);
            let beginning = Beginning { began: Instant::now(), ..beginning };
            open(worker, plan, asking, beginning, limit).await?
        }
        Err(ConnectFault::Backend(Cause::Tls(why))) => {
            // The task that opens an HTTP/2 connection counts it.
            if asking.is_none() {
                counters.tls_failures.add(1);
            }
            return Err(ConnectFault::Backend(Cause::Tls(why)));
        }
        result => result?,
    };
    match freshness {
        Freshness::Kept => counters.reused.add(1),
        Freshness::Fresh(_) if asking.is_none() => counters.connects.add(1),
        Freshness::Fresh(_) => {}
    }
    Ok((stream, freshness))
}

async fn open(
    worker: &Worker,
    plan: &BackendPlan,
    asking: Option<(&Asking, Asked)>,
    beginning: Beginning<'_>,
    limit: Duration,
) -> Result<(Stream, Freshness), ConnectFault> {
    if let Some((asking, asked)) = asking {
        return Box::pin(worker.lines.open(plan, asking, asked, limit)).await;
    }
    let Beginning { outgoing, opening, preface, began } = beginning;
    let time = TimeLimit { began, limit };
    let stream =
        match connect::establish(&plan.state, plan.tls.as_ref(), outgoing, opening, preface, time).await? {
            Link::Plain(plain) => Stream::plain(plain),
            Link::Tls(outbound) => Stream::outbound(*outbound),
        };
    Ok((stream, Freshness::Fresh(began.elapsed())))
}

/// Waits for a connection to a backend that the kernel opens already. It is TCP, without TLS.
pub async fn finish(
    worker: &Worker,
    plan: &BackendPlan,
    socket: OwnedFd,
    time: TimeLimit,
) -> Result<(Stream, Freshness), ConnectFault> {
    let plain = connect::finish(&plan.state, socket, time).await?;
    plan.state.counters.of(worker.index).connects.add(1);
    Ok((Stream::plain(plain), Freshness::Fresh(time.began.elapsed())))
}

/// Returns whether another backend that was not tried takes sessions, at once or after a wait in the queue.
pub fn elsewhere(
    worker: &Worker,
    pool: &PoolPlan,
    asked: usize,
    tried: &Tried,
    judged: Option<Peer>,
    now: Instant,
) -> Elsewhere {
    let candidates = candidates(pool, judged, now, AllDown::ErrorPage);
    let mut others = candidates
        .iter()
        .enumerate()
        .filter(|(at, one)| *at != asked && !tried.contains(*at) && one.weight > 0)
        .map(|(_, one)| one)
        .filter(|one| one.available == Availability::Available)
        .peekable();
    let queue = pool.settings.queue_length.saturating_mul(worker.front.state.workers);
    let waiting = pool.queue.waiting();
    let has_room = others.peek().is_some() && waiting < queue || waiting == 0 && others.any(Candidate::takes);
    if has_room { Elsewhere::Room } else { Elsewhere::NoRoom }
}

/// Returns true if another backend that was not tried could take a session now.
pub fn has_another(pool: &PoolPlan, asked: usize, tried: &Tried, judged: Option<Peer>) -> bool {
    let candidates = candidates(pool, judged, Instant::now(), AllDown::ErrorPage);
    candidates.iter().enumerate().any(|(at, one)| at != asked && !tried.contains(at) && one.takes())
}

/// Records a failure of real traffic at a backend; ejects the backend after too many in a row.
pub fn note_failure(worker: &Worker, pool: &PoolPlan, index: usize, cause: Cause) {
    let backend = &pool.backends[index].state;
    let counters = backend.counters.of(worker.index);
    counters.failures.add(1);
    counters.errors.add(1);
    if pool.settings.balance == Policy::PeakEwma {
        // A backend that fails at once must not look fast.
        backend.observe_latency(FAILURE_COST, Instant::now());
    }
    if pool.settings.source_address == SourceAddress::Client && matches!(cause, Cause::ConnectTimeout { .. })
    {
        // The backend's answer may have gone to the client past us, if they share a network: such a client must not take
        // the backend out.
        return;
    }
    let failures = backend.failures.fetch_add(1, Relaxed) + 1;
    if failures == 1 {
        if let Cause::Tls(_) = &cause {
            // A status code does not show that the certificate is the cause.
            worker.front.state.events.record(
                Level::Warning,
                backend.subject(),
                format!("traffic fails: {cause}"),
            );
        }
        // Records the first failure of a row, whose cause the operator needs.
        backend.lock_health().note_traffic_failure(Verdict {
            at: SystemTime::now(),
            source: Source::Traffic,
            outcome: VerdictOutcome::Fail,
            cause: cause.clone(),
            took: Duration::ZERO,
        });
    }
    match backend.health_state() {
        HealthState::HalfOpen => ejection::note_trial(worker, pool, index, Some(cause)),
        _ => ejection::note_failures(worker, pool, index, failures, cause),
    }
}

/// Notes how long a backend took to respond, if its pool balances by that.
pub fn note_latency(pool: &PoolPlan, backend: &BackendState, took: Duration, now: Instant) {
    if pool.settings.balance == Policy::PeakEwma {
        backend.observe_latency(took, now);
    }
}

/// Records an answer of real traffic. `status` is 0 without HTTP.
pub fn note_answer(worker: &Worker, pool: &PoolPlan, index: usize, status: u16) {
    let backend = &*pool.backends[index].state;
    let failures = backend.failures.load(Relaxed);
    if failures != 0 {
        backend.failures.store(0, Relaxed);
        if failures >= pool.settings.passive.failures {
            // Its pool may be degraded for that.
            backend.wake_health.notify_one();
        }
    }
    let counters = backend.counters.of(worker.index);
    let counter = if status >= 500 { &counters.errors } else { &counters.passes };
    counter.add(1);
    if backend.health_state() == HealthState::HalfOpen {
        // Statuses count only where there is a limit for them.
        let is_failure = status >= 500 && pool.settings.passive.outlier.errors.is_some();
        ejection::note_trial(worker, pool, index, is_failure.then_some(Cause::HttpStatus(status)));
    }
}
