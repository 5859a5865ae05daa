//! Gets a session a connection to a backend: chooses one, waits for a busy one, reuses an idle connection or opens one.
//! Whether a failed attempt is made again is decided by `logic/retry.rs`; the health of a backend by `logic/health.rs`.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use config::types::AllDown;
use logic::balance::{Availability, Candidate, Choice, StickyKey, Tried, WEIGHT_UNIT, slow_start_weight};
use logic::health::{Cause, Source, State as HealthState, Verdict, VerdictOutcome};
use logic::peers::Peer;
use logic::retry::Idempotence;
use sys::socket::Opening;

use crate::connect::{self, ConnectFault, Freshness, Link, Shortage};
use crate::events::Level;
use crate::http2::backend::{Asked, Asker, Asking};
use crate::lock::lock;
use crate::queue::Queue;
use crate::snapshot::{BackendPlan, PoolPlan, Snapshot};
use crate::state::{Admission, BackendState};
use crate::stream::{Quiet, Stream};
use crate::tls::backend::Endpoint;
use crate::worker::Worker;

/// Health and weights change without a word to those who wait for a busy backend: the first of them looks again this often,
/// and then the others in their order.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Two workers must not eject the last two backends of a pool at once. Taken only when a backend is about to be ejected.
static EJECTING: Mutex<()> = Mutex::new(());

/// Why a session got no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBackend {
    /// None is healthy.
    AllDown,
    /// All that are healthy were tried.
    AllTried,
    /// All are busy and the queue is full.
    QueueFull,
    /// All stayed busy.
    QueueTimeout,
}

/// A place at a backend, held until dropped.
pub struct Slot {
    backend: Arc<BackendState>,
    queue: Arc<Queue>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.backend.in_flight.fetch_sub(1, Relaxed);
        self.queue.freed();
    }
}

/// A chosen backend.
pub struct Chosen {
    /// Its place in the pool.
    pub index: usize,
    /// Its live state.
    pub backend: Arc<BackendState>,
    /// Our place there.
    pub slot: Slot,
    /// How long we waited for it; `None` if we did not.
    pub queued: Option<Duration>,
}

/// What a choice is made from.
pub struct Wanted<'a> {
    /// Who asks; what `sticky` goes by.
    pub client: Peer,
    /// Hash of what the pool's hash key names.
    pub key: u64,
    /// Backends that failed this session.
    pub tried: &'a Tried,
}

/// Chooses a backend, waiting in the pool's queue if all are at their limit.
pub async fn choose(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: Wanted<'_>,
) -> Result<Chosen, NoBackend> {
    match choose_at_once(worker, snapshot, pool, &wanted, Instant::now()) {
        Some(outcome) => outcome,
        None => wait(worker, snapshot, pool, &wanted).await,
    }
}

/// Chooses a backend if that is possible without waiting: those who wait already come first.
pub fn choose_at_once(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
    now: Instant,
) -> Option<Result<Chosen, NoBackend>> {
    match pool.queue.waiting() {
        0 => choose_now(worker, snapshot, pool, wanted, now),
        _ => None,
    }
}

/// Waits in the pool's queue. Whoever came first is called first, and nobody looks before those who came earlier did.
pub async fn wait(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
) -> Result<Chosen, NoBackend> {
    let started = Instant::now();
    let limit = pool.settings.queue_length.saturating_mul(worker.front.state.workers);
    let Some(place) = pool.queue.stand(limit) else {
        return Err(NoBackend::QueueFull);
    };
    let waiting = async {
        // A place may have become free before we stood in the queue to be told of it.
        let mut is_our_turn = place.may_look;
        loop {
            if is_our_turn {
                place.looks();
                if let Some(outcome) = choose_now(worker, snapshot, pool, wanted, Instant::now()) {
                    break outcome;
                }
                place.pass_on();
            }
            let is_called = tokio::time::timeout(LOOK_AGAIN, place.called()).await.is_ok();
            is_our_turn = is_called || place.is_first();
        }
    };
    match tokio::time::timeout(pool.settings.timeouts.queue, waiting).await {
        Ok(Ok(chosen)) => Ok(Chosen { queued: Some(started.elapsed()), ..chosen }),
        Ok(Err(none)) => Err(none),
        Err(_) => Err(NoBackend::QueueTimeout),
    }
}

/// `None`: every backend that could take it is at its limit.
fn choose_now(
    worker: &Rc<Worker>,
    snapshot: &Snapshot,
    pool: &Arc<PoolPlan>,
    wanted: &Wanted<'_>,
    now: Instant,
) -> Option<Result<Chosen, NoBackend>> {
    let mut candidates = candidates(pool, now, Mercy::None);
    if !any_available(&candidates) && pool.settings.all_down == AllDown::FailOpen {
        candidates = self::candidates(pool, now, Mercy::Everyone);
    }
    if !any_available(&candidates) {
        return Some(Err(NoBackend::AllDown));
    }
    let sticky = pool.sticky.as_ref().zip(wanted.client.ip());
    let sticky = sticky.map(|(table, ip)| (table, StickyKey::new(ip, pool.settings.sticky.ipv6_prefix)));
    if let Some((table, key)) = &sticky {
        let remembered = lock(table).lookup(*key, now).and_then(|identity| pool.identities.find(identity));
        if let Some(index) =
            remembered.filter(|index| takes(&candidates[*index]) && !wanted.tried.contains(*index))
        {
            return take(pool, index).map(Ok);
        }
    }
    loop {
        let choice = worker.with_balancer(snapshot, pool.id, |balancer| {
            balancer.pick(&candidates, &pool.identities, wanted.key, wanted.tried, fastrand::u64(..))
        });
        let index = match choice {
            Choice::Backend(index) => index,
            Choice::AllBusy => return None,
            Choice::NoneAvailable => return Some(Err(NoBackend::AllTried)),
        };
        match take(pool, index) {
            Some(chosen) => {
                if let Some((table, key)) = sticky {
                    lock(table).remember(key, chosen.backend.identity, now);
                }
                return Some(Ok(chosen));
            }
            // Another worker has taken the last place since we looked: this one is full, the others may not be.
            None => candidates[index].limit = Some(0),
        }
    }
}

/// Whether backends that are down may be chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mercy {
    None,
    Everyone,
}

fn candidates(pool: &PoolPlan, now: Instant, mercy: Mercy) -> smallvec::SmallVec<[Candidate; 8]> {
    let window = pool.settings.slow_start;
    pool.backends
        .iter()
        .map(|backend| {
            let state = &backend.state;
            let configured = state.weight_override().unwrap_or(backend.settings.weight);
            let weight = match state.up_for(now) {
                Some(up_for) if !window.is_zero() => slow_start_weight(configured, up_for, window),
                _ => configured * WEIGHT_UNIT,
            };
            let healthy = matches!(state.health_state(), HealthState::Up | HealthState::Unchecked);
            let admitted = state.admission() == Admission::Ready;
            let available = match admitted && (healthy || mercy == Mercy::Everyone) {
                true => Availability::Available,
                false => Availability::Unavailable,
            };
            Candidate {
                weight,
                in_flight: state.in_flight.load(Relaxed),
                limit: backend.settings.max_connections,
                available,
            }
        })
        .collect()
}

/// Whether a backend takes new sessions: healthy, not drained, with a weight.
fn serves(backend: &BackendPlan) -> bool {
    let weight = backend.state.weight_override().unwrap_or(backend.settings.weight);
    backend.state.is_up() && backend.state.admission() == Admission::Ready && weight > 0
}

fn any_available(candidates: &[Candidate]) -> bool {
    candidates.iter().any(|candidate| candidate.available == Availability::Available && candidate.weight > 0)
}

fn takes(candidate: &Candidate) -> bool {
    candidate.available == Availability::Available
        && candidate.weight > 0
        && candidate.limit.is_none_or(|limit| candidate.in_flight < limit)
}

/// Takes a place at a backend; `None` if the last one is gone.
fn take(pool: &PoolPlan, index: usize) -> Option<Chosen> {
    let plan = &pool.backends[index];
    let limit = plan.settings.max_connections.unwrap_or(u32::MAX);
    plan.state
        .in_flight
        .fetch_update(Relaxed, Relaxed, |in_flight| (in_flight < limit).then_some(in_flight + 1))
        .ok()?;
    let slot = Slot { backend: plan.state.clone(), queue: pool.queue.clone() };
    Some(Chosen { index, backend: plan.state.clone(), slot, queued: None })
}

/// An idle connection of the right backend, if there is one that still lives.
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
        // A connection of before a reload was made with what held then.
        if !is_same(stream.endpoint().as_ref(), plan.tls.as_ref()) {
            continue;
        }
        let quiet = match idempotence {
            Idempotence::Idempotent => stream.is_quiet(),
            // It could not be sent again: ask the kernel, not what the runtime knows.
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

/// Opens a connection to a backend within `limit`, its handshake included. `preface` goes first, in the clear. With `asking`
/// HTTP/2 is spoken: then it may be one that there is.
pub async fn connect(
    worker: &Worker,
    plan: &BackendPlan,
    asking: Option<(&Asking, Asked)>,
    opening: Opening,
    preface: &[u8],
    limit: Duration,
) -> Result<(Stream, Freshness), ConnectFault> {
    let backend = &*plan.state;
    let counters = backend.counters.of(worker.index);
    let (stream, freshness) = match open(worker, plan, asking, opening, preface, limit).await {
        Err(fault @ (ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_))) => {
            // Descriptors are short: idle connections to backends are the ones that no client needs now.
            let wanted = match fault {
                ConnectFault::NoDescriptors(Shortage::OfShare(_)) => return Err(fault),
                ConnectFault::NoDescriptors(Shortage::OfPlaces) => backend.places(),
                _ => usize::MAX,
            };
            worker.close_idle(wanted);
            open(worker, plan, asking, opening, preface, limit).await?
        }
        Err(ConnectFault::Backend(Cause::Tls(why))) => {
            // One of HTTP/2 is counted by the task that opens it.
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
    opening: Opening,
    preface: &[u8],
    limit: Duration,
) -> Result<(Stream, Freshness), ConnectFault> {
    if let Some((asking, asked)) = asking {
        return Box::pin(worker.lines.open(plan, asking, asked, limit)).await;
    }
    let began = Instant::now();
    let stream = match connect::establish(&plan.state, plan.tls.as_ref(), opening, preface, limit).await? {
        Link::Plain(plain) => Stream::plain(plain),
        Link::Tls(outbound) => Stream::outbound(*outbound),
    };
    Ok((stream, Freshness::Fresh(began.elapsed())))
}

/// Whether a backend that was not tried could take a session now, beside the one that is asked.
pub fn has_another(pool: &PoolPlan, asked: usize, tried: &Tried) -> bool {
    let candidates = candidates(pool, Instant::now(), Mercy::None);
    candidates.iter().enumerate().any(|(at, one)| at != asked && !tried.contains(at) && takes(one))
}

/// Notes that real traffic failed at a backend; ejects it when that has happened too often in a row.
pub fn note_failure(worker: &Worker, pool: &PoolPlan, index: usize, cause: Cause) {
    let backend = &pool.backends[index].state;
    backend.counters.of(worker.index).failures.add(1);
    let failures = backend.failures.fetch_add(1, Relaxed) + 1;
    let limit = pool.settings.passive.failures;
    if failures == 1 {
        if let Cause::Tls(_) = &cause {
            // Nobody can tell from a status that it is the certificate.
            worker.front.state.events.record(
                Level::Warning,
                backend.subject(),
                format!("traffic fails: {cause}"),
            );
        }
        // The first of a row: its cause is what somebody will ask for.
        backend.lock_health().note_traffic_failure(Verdict {
            at: SystemTime::now(),
            source: Source::Traffic,
            outcome: VerdictOutcome::Fail,
            cause: cause.clone(),
            took: Duration::ZERO,
        });
    }
    if limit == 0 || failures < limit || !backend.is_up() {
        return;
    }
    let _one_at_a_time = lock(&EJECTING);
    // The last one that serves stays: a bad answer is better than none, and its errors say what is wrong.
    if !pool.backends.iter().any(|other| !Arc::ptr_eq(&other.state, backend) && serves(other)) {
        if failures == limit {
            let message = format!(
                "traffic fails: {cause} ({failures} in a row); it stays, as the last one that serves"
            );
            worker.front.state.events.record(Level::Warning, backend.subject(), message);
        }
        return;
    }
    *lock(&backend.last_failure) = Some(cause);
    backend.publish_health(HealthState::Ejected, Instant::now());
    backend.wake_health.notify_one();
}

/// Notes that real traffic went well.
pub fn note_success(backend: &BackendState) {
    if backend.failures.load(Relaxed) != 0 {
        backend.failures.store(0, Relaxed);
    }
}
