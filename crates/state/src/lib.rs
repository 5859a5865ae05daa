//! State that outlives a snapshot: health, counters, stickiness and operators' decisions, by name; listening sockets,
//! the writer of the access log, the account of descriptors. A snapshot (`crates/proxy/src/snapshot.rs`) refers to
//! entries here; on the path of a request workers use atomics, and a mutex for stickiness, queues and failures.
//!
//! The lowest of the four crates of the front door: `state` <- `tls` <- `proxy` <- `serve`. It has no snapshot, no
//! connection, and no certificate except those of pending ACME challenges.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::types::{BackendAddress, Standing, Sticky};
pub use logic::balance::Admission;
use logic::balance::latency::PeakEwma;
use logic::balance::{Availability, StickyTable};
use logic::health::{Health, State as HealthState};
use logic::retry_budget::Budget;
use logic::transaction::Pending;
use logic::udp::Listening;
use tokio::sync::{Notify, watch};

pub mod access_log;
pub mod account;
pub mod acme;
pub mod bandwidth;
pub mod breaker;
pub mod capture;
pub mod claim;
pub mod client_slots;
pub mod confinement;
pub mod data_path;
pub mod dsr;
pub mod ending;
pub mod engine;
pub mod event_log;
pub mod events;
pub mod kept;
pub mod listen;
pub mod lock;
pub mod log_level;
pub mod look_up;
pub mod metrics;
mod pipe;
pub mod queue;
pub mod removed;
pub mod sources;
pub mod state_directory;
pub mod upgrade;
pub mod validation;

use crate::access_log::Allowance;
use crate::account::Account;
use crate::acme::{Board, Challenges};
use crate::bandwidth::SharedBuckets;
use crate::breaker::Breaker;
use crate::confinement::Confinement;
use crate::events::{Events, RateLimitedEvent};
use crate::lock::lock;
use crate::metrics::{BackendCounters, ListenerCounters, PerWorker};
use crate::queue::Queue;
use crate::removed::Removed;
use crate::sources::{OpenConnections, Rates};
use crate::state_directory::StateDirectory;

/// The end of a process that waits for its sessions.
#[derive(Clone, Copy, Debug)]
pub struct Stopping {
    pub since: SystemTime,
    /// The same moment.
    pub began: Instant,
    /// When the sessions that are left are cut off.
    pub deadline: Instant,
}

/// All state that outlives a snapshot.
pub struct State {
    /// Start of the process on the monotonic clock.
    pub started: Instant,
    /// Start of the process as wall-clock time.
    pub started_at: SystemTime,
    pub workers: usize,
    /// Descriptors that traffic holds and may hold.
    pub account: Arc<Account>,
    /// Open client connections, over all listeners and workers.
    pub connections: AtomicUsize,
    /// Limit of [`Self::connections`].
    pub max_connections: AtomicUsize,
    /// The `max-connections` of which the last event said that there are too few descriptors for it; 0 for none.
    pub told_too_high: AtomicUsize,
    /// Number of published snapshots.
    pub generation: AtomicU64,
    /// Number of refused reloads.
    pub reloads_refused: AtomicU64,
    /// Number of live changes that the file of the configuration does not have.
    pub unsaved_changes: AtomicUsize,
    /// A commit that waits for its confirmation, and an open transaction.
    pub pending: Mutex<Pending>,
    /// Number of idle client connections closed to make room for new ones.
    pub evicted: AtomicU64,
    /// Number of admin clients disconnected to make room for new ones.
    pub admin_evicted: Arc<AtomicU64>,
    /// Number of control clients disconnected to make room for new ones.
    pub control_evicted: Arc<AtomicU64>,
    /// Times that accepting paused because descriptors or connections ran out.
    pub accept_pauses: AtomicU64,
    /// Access-log lines dropped because the writer thread was too slow.
    pub log_lines_dropped: AtomicU64,
    /// Access-log lines that could not be written (disk full, ...).
    pub log_lines_failed: AtomicU64,
    /// Access-log lines about clients turned away that were left out, because there were too many.
    pub log_lines_left_out: AtomicU64,
    /// Admin clients that the access list denied.
    pub admin_denied: AtomicU64,
    /// Sessions that ended in a panic.
    pub panics: AtomicU64,
    /// Tells every worker that a backend became available or unavailable.
    pub health_changes: Arc<watch::Sender<()>>,
    /// Set once by SIGTERM: no new sessions; a connection closes after its response.
    pub draining: AtomicBool,
    /// Set when the process begins to wait for its sessions to end.
    pub stopping: OnceLock<Stopping>,
    /// Directory for state that outlives the process; `None` if nothing is stored.
    pub directory: Option<StateDirectory>,
    /// Rights of the process since its start.
    pub confinement: Confinement,
    /// What moves the bytes of TCP sessions.
    pub engine: engine::EngineState,
    /// State that is stored for the next process.
    pub kept: kept::board::Board,
    /// State of an earlier process for backends that the DNS has not named yet.
    pub awaited: kept::awaited::Awaited,
    /// Certificate orders and pending ACME challenges.
    pub acme: Board,
    /// The validation server of one-time passwords.
    pub validation: ArcSwapOption<validation::Validation>,
    pub upgrade: upgrade::Board,
    pub events: Events,
    /// Capture of sessions, for an operator.
    pub captures: capture::Captures,
    /// Level of the process log.
    pub log_level: log_level::LogLevel,
    /// Addresses on which this process receives datagrams.
    pub listening_for_datagrams: ArcSwap<Listening>,
    /// Services of `dsr` listeners, for operators.
    pub services: dsr::Services,
    /// Key of the hash of `dsr` listeners without a key file, chosen at random.
    pub hash_key: [u64; 2],
    /// Degraded subjects with the reason; `status` prints them first.
    degraded: Mutex<HashMap<String, String>>,
    /// Backends that are not served any more.
    pub removed: Removed,
    backends: Mutex<HashMap<BackendKey, Arc<BackendState>>>,
    listeners: Mutex<HashMap<Arc<str>, Arc<ListenerState>>>,
    sticky: Mutex<HashMap<Arc<str>, (Sticky, SharedTable)>>,
    queues: Mutex<HashMap<Arc<str>, Arc<Queue>>>,
    pools: Mutex<HashMap<Arc<str>, Arc<PoolState>>>,
}

/// State of a pool, shared by all workers.
#[derive(Debug)]
pub struct PoolState {
    /// Whether the last event said that the fallback is used.
    pub fallback_told: AtomicBool,
    /// Sessions that went to the fallback.
    pub fallback_sessions: AtomicU64,
    /// Backends that traffic would have ejected, if another one could take their sessions.
    pub ejections_stopped: AtomicU64,
    /// Requests and retries of the last seconds, if there is a limit for retries.
    pub retries: PerWorker<Mutex<Budget>>,
    /// Retries that were not made because the budget for them was spent.
    pub retries_refused: AtomicU64,
    /// Limits events about that.
    pub retries_told: RateLimitedEvent,
}

impl PoolState {
    fn new(workers: usize) -> Self {
        Self {
            fallback_told: AtomicBool::new(false),
            fallback_sessions: AtomicU64::new(0),
            ejections_stopped: AtomicU64::new(0),
            retries: PerWorker::new(workers),
            retries_refused: AtomicU64::new(0),
            retries_told: RateLimitedEvent::default(),
        }
    }
}

/// Pool and address text of a backend.
type BackendKey = (Arc<str>, String);

/// Sticky table that all workers share.
pub type SharedTable = Arc<Mutex<StickyTable>>;

/// State that a new snapshot is built from. New entries are created with the snapshot, and are not stored here.
pub struct Known {
    /// Number of published snapshots.
    pub generation: u64,
    /// Pending ACME challenges.
    pub challenges: Arc<Challenges>,
    started: Instant,
    workers: usize,
    health_changes: Arc<watch::Sender<()>>,
    backends: HashMap<BackendKey, Arc<BackendState>>,
    listeners: HashMap<Arc<str>, Arc<ListenerState>>,
    sticky: HashMap<Arc<str>, (Sticky, SharedTable)>,
    queues: HashMap<Arc<str>, Arc<Queue>>,
    pools: HashMap<Arc<str>, Arc<PoolState>>,
}

impl Known {
    /// State of a backend; a new backend starts with `health`.
    pub fn backend(
        &self,
        pool: &Arc<str>,
        address: &BackendAddress,
        health: impl FnOnce() -> Health,
    ) -> Arc<BackendState> {
        let known = self.backends.get(&(pool.clone(), address.to_string())).cloned();
        let new = || Arc::new(BackendState::new(pool, address, self, health()));
        known.unwrap_or_else(new)
    }

    pub fn listener(&self, name: &Arc<str>) -> Arc<ListenerState> {
        let new = || {
            Arc::new(ListenerState {
                name: name.clone(),
                bound: Mutex::default(),
                paths: Mutex::default(),
                connections: AtomicUsize::new(0),
                counters: PerWorker::new(self.workers),
                loops_told: RateLimitedEvent::default(),
                full_told: RateLimitedEvent::default(),
                connection_rates: Rates::default(),
                request_rates: Rates::default(),
                open_by_source: OpenConnections::default(),
                bandwidth: SharedBuckets::default(),
                turned_away_lines: Allowance::default(),
                tarpit: AtomicUsize::new(0),
                endings: PerWorker::new(self.workers),
            })
        };
        self.listeners.get(name).cloned().unwrap_or_else(new)
    }

    /// Sticky table of a pool; a new table if its size or times changed.
    pub fn sticky(&self, pool: &Arc<str>, settings: Sticky) -> SharedTable {
        let known = self.sticky.get(pool).filter(|(before, _)| *before == settings);
        known.map_or_else(
            || Arc::new(Mutex::new(StickyTable::new(settings.entries, settings.ttl))),
            |(_, table)| table.clone(),
        )
    }

    pub fn pool(&self, name: &Arc<str>) -> Arc<PoolState> {
        self.pools.get(name).cloned().unwrap_or_else(|| Arc::new(PoolState::new(self.workers)))
    }

    pub fn queue(&self, pool: &Arc<str>) -> Arc<Queue> {
        self.queues.get(pool).cloned().unwrap_or_default()
    }
}

pub struct ListenerState {
    /// NAME of `[listener.NAME]`.
    pub name: Arc<str>,
    /// Bound addresses as text, in configuration order.
    pub bound: Mutex<Vec<String>>,
    /// Where the packets of its addresses are forwarded, if it has `protocol = "dsr"`.
    pub paths: Mutex<BTreeMap<String, data_path::PathReport>>,
    /// Open client connections.
    pub connections: AtomicUsize,
    pub counters: PerWorker<ListenerCounters>,
    /// Limits events about request loops.
    pub loops_told: RateLimitedEvent,
    /// Limits events about clients above `max-connections`.
    pub full_told: RateLimitedEvent,
    /// How fast the sources connect.
    pub connection_rates: Rates,
    /// How fast the sources send requests.
    pub request_rates: Rates,
    /// Open connections of each source, if they are limited.
    pub open_by_source: OpenConnections,
    /// Bytes that sessions with a common limit may move.
    pub bandwidth: SharedBuckets,
    /// Limits access-log lines about clients that are turned away.
    pub turned_away_lines: Allowance,
    /// Denied clients that are held now.
    pub tarpit: AtomicUsize,
    /// Number of sessions by ending, for those that [`Self::count_ending`] counts. A map per worker, so that hostile clients cannot make workers wait
    /// for each other's lock.
    endings: PerWorker<Mutex<HashMap<&'static str, u64>>>,
}

impl ListenerState {
    /// Counts a session by the word of its ending, unless it ended as the configuration wants it.
    pub fn count_ending(&self, worker: usize, word: &'static str) {
        self.count_endings(worker, word, 1);
    }

    /// Counts several sessions, or datagrams without one, that ended alike.
    pub fn count_endings(&self, worker: usize, word: &'static str, count: u64) {
        *lock(self.endings.of(worker)).entry(word).or_insert(0) += count;
    }

    /// Number of counted sessions by ending, over all workers.
    pub fn endings(&self) -> BTreeMap<&'static str, u64> {
        let mut all = BTreeMap::new();
        for block in self.endings.iter() {
            for (word, count) in lock(block).iter() {
                *all.entry(*word).or_insert(0) += count;
            }
        }
        all
    }
}

/// Who has drained a backend, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The control client, as the kernel names it.
    pub by: String,
    pub at: SystemTime,
    /// When it ends by itself; `None`: when an operator ends it.
    pub until: Option<Instant>,
}

/// Longest time of a drain that ends by itself.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(30 * 24 * 3600);

/// State of a backend, shared by all workers, checks and control commands.
pub struct BackendState {
    pub pool: Arc<str>,
    pub address: BackendAddress,
    /// Address as text: the backend's name in logs, metrics and commands.
    pub name: Arc<str>,
    /// Hash of `name`, stored in sticky tables.
    pub identity: u64,
    /// Open sessions. The only number that all workers write, because `max-connections` applies to all of them
    /// together.
    pub in_flight: AtomicU32,
    /// Addresses to connect to: constant for an IP backend, the last look-up for a name; empty while the name is
    /// unresolved.
    pub addresses: ArcSwap<Vec<SocketAddr>>,
    /// Socket of the tunnel to a backend behind SSH; `None` while the tunnel is down.
    pub through: ArcSwapOption<std::path::PathBuf>,
    pub counters: PerWorker<BackendCounters>,
    /// Verdicts and rules; workers do not lock it.
    pub health: Mutex<Health>,
    /// Wakes the task that checks this backend after a change of rules or an ejection.
    pub wake_health: Notify,
    /// The bits of a [`PeakEwma`] of its responses, for pools that balance by it.
    latency: AtomicU64,
    /// Failed client sessions in a row.
    pub failures: AtomicU32,
    /// Requests that go on although their copies were answered first (`hedge`).
    pub lost_races: AtomicU32,
    /// Sessions with which the backend is tried while it is half-open.
    pub breaker: Breaker,
    /// Cause of the last failed client session, for the verdict.
    pub last_failure: Mutex<Option<logic::health::Cause>>,
    health_state: AtomicU8,
    admission: AtomicU8,
    /// Whether the DNS does not have it any more.
    leaving: AtomicBool,
    /// The last drain, while it lasts.
    drain: Mutex<Option<Drain>>,
    weight_override: AtomicU32,
    /// How often the backend became down or ejected.
    outages: AtomicU32,
    health_changes: Arc<watch::Sender<()>>,
    /// Time of the last return, in milliseconds after `started`, plus one; 0 means never down: no slow start.
    up_since: AtomicU64,
    started: Instant,
}

const NO_OVERRIDE: u32 = u32::MAX;

impl BackendState {
    /// Whether the backend's health allows sessions.
    pub fn is_up(&self) -> bool {
        self.health_state().availability() == Availability::Available
    }

    /// How often the backend became down or ejected.
    pub fn outages(&self) -> u32 {
        self.outages.load(Relaxed)
    }

    fn new(pool: &Arc<str>, address: &BackendAddress, known: &Known, health: Health) -> Self {
        let name: Arc<str> = address.to_string().into();
        let addresses = match address {
            BackendAddress::Ip(address) | BackendAddress::Discovered { address, .. } => vec![*address],
            BackendAddress::Name { .. } | BackendAddress::Dns(_) => Vec::new(),
            BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => Vec::new(),
        };
        Self {
            pool: pool.clone(),
            address: address.clone(),
            identity: logic::balance::hash_bytes(0, name.as_bytes()),
            name,
            in_flight: AtomicU32::new(0),
            addresses: ArcSwap::from_pointee(addresses),
            through: ArcSwapOption::empty(),
            counters: PerWorker::new(known.workers),
            health_state: AtomicU8::new(encode(health.state())),
            health: Mutex::new(health),
            wake_health: Notify::new(),
            latency: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            lost_races: AtomicU32::new(0),
            breaker: Breaker::default(),
            last_failure: Mutex::new(None),
            admission: AtomicU8::new(0),
            leaving: AtomicBool::new(false),
            drain: Mutex::default(),
            weight_override: AtomicU32::new(NO_OVERRIDE),
            outages: AtomicU32::new(0),
            health_changes: known.health_changes.clone(),
            up_since: AtomicU64::new(0),
            started: known.started,
        }
    }

    /// Notes how long a response took that began at `now`.
    pub fn observe_latency(&self, took: Duration, now: Instant) {
        let now = now.saturating_duration_since(self.started);
        let observed = |bits| Some(PeakEwma::from_bits(bits).observed(took, now).to_bits());
        // The closure never returns `None`.
        let _ = self.latency.fetch_update(Relaxed, Relaxed, observed);
    }

    /// Response time in microseconds, as [`PeakEwma`] has it; 0 if it is not known.
    pub fn latency(&self, now: Instant) -> u32 {
        let now = now.saturating_duration_since(self.started);
        PeakEwma::from_bits(self.latency.load(Relaxed)).micros(now)
    }

    /// Slots of one connection to the backend. A backend behind SSH takes two: this process has a socket at both ends
    /// of the tunnel.
    pub fn slots(&self) -> usize {
        if matches!(self.address, BackendAddress::Ssh { .. }) { 2 } else { 1 }
    }

    /// Subject in events and in the list of degraded subjects: `pool.NAME.ADDRESS`.
    pub fn subject(&self) -> String {
        format!("pool.{}.{}", self.pool, self.name)
    }

    /// Health state as last published.
    pub fn health_state(&self) -> HealthState {
        match self.health_state.load(Relaxed) {
            1 => HealthState::Up,
            2 => HealthState::Down,
            3 => HealthState::Ejected,
            4 => HealthState::HalfOpen,
            _ => HealthState::Unchecked,
        }
    }

    /// Publishes a health state to the workers; a backend that was down or ejected begins slow start at `now`. The
    /// sessions that wait at the backend decide anew.
    pub fn publish_health(&self, state: HealthState, now: Instant) {
        let before = self.health_state();
        let was_away = before.availability() != Availability::Available;
        let is_here = state.availability() == Availability::Available;
        if state == HealthState::HalfOpen {
            self.breaker.restart();
        } else if (was_away || before == HealthState::HalfOpen) && is_here {
            let elapsed = now.saturating_duration_since(self.started).as_millis() as u64;
            self.up_since.store(elapsed + 1, Relaxed);
            self.failures.store(0, Relaxed);
        }
        self.health_state.store(encode(state), Relaxed);
        if !was_away && !is_here {
            self.outages.fetch_add(1, Relaxed);
        }
        if was_away == is_here {
            self.health_changes.send_replace(());
        }
    }

    /// Time since the backend returned; `None` if it was never down.
    pub fn up_for(&self, now: Instant) -> Option<Duration> {
        let since = self.up_since.load(Relaxed).checked_sub(1)?;
        Some(now.saturating_duration_since(self.started + Duration::from_millis(since)))
    }

    /// Whether it gets new sessions: by the operator's setting, and as long as the DNS has it.
    pub fn admission(&self) -> Admission {
        match self.standing() {
            Standing::Here => self.asked_admission(),
            Standing::Leaving => Admission::Draining,
        }
    }

    /// The operator's setting.
    pub fn asked_admission(&self) -> Admission {
        if self.admission.load(Relaxed) == 0 { Admission::Ready } else { Admission::Draining }
    }

    /// Whether the DNS still has it; a backend that it never had is here.
    pub fn standing(&self) -> Standing {
        if self.leaving.load(Relaxed) { Standing::Leaving } else { Standing::Here }
    }

    pub fn set_standing(&self, standing: Standing) {
        self.leaving.store(standing == Standing::Leaving, Relaxed);
    }

    pub fn set_admission(&self, admission: Admission) {
        let mut drain = lock(&self.drain);
        if admission == Admission::Ready {
            *drain = None;
        }
        self.admission.store(u8::from(admission == Admission::Draining), Relaxed);
    }

    /// Drains the backend, and records who has done it.
    pub fn note_drain(&self, new: Drain) {
        let mut drain = lock(&self.drain);
        *drain = Some(new);
        self.admission.store(1, Relaxed);
    }

    /// Makes the backend ready if the time of its drain is over. Returns the drain that has ended.
    pub fn end_drain(&self, now: Instant) -> Option<Drain> {
        let mut drain = lock(&self.drain);
        let ended = drain.take_if(|drain| drain.until.is_some_and(|until| until <= now))?;
        self.admission.store(0, Relaxed);
        Some(ended)
    }

    /// Who has drained the backend; `None` if it is not draining.
    pub fn drain(&self) -> Option<Drain> {
        lock(&self.drain).clone()
    }

    /// Weight that an operator set; `None` means the configured weight.
    pub fn weight_override(&self) -> Option<u32> {
        Some(self.weight_override.load(Relaxed)).filter(|weight| *weight != NO_OVERRIDE)
    }

    /// Sets or removes the operator's weight.
    pub fn set_weight_override(&self, weight: Option<u32>) {
        self.weight_override.store(weight.unwrap_or(NO_OVERRIDE), Relaxed);
    }

    /// Locks the health record; not for workers.
    pub fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn encode(state: HealthState) -> u8 {
    match state {
        HealthState::Unchecked => 0,
        HealthState::Up => 1,
        HealthState::Down => 2,
        HealthState::Ejected => 3,
        HealthState::HalfOpen => 4,
    }
}

impl State {
    pub fn new(workers: usize) -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            workers,
            account: Account::new(workers),
            connections: AtomicUsize::new(0),
            max_connections: AtomicUsize::new(usize::MAX),
            told_too_high: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            unsaved_changes: AtomicUsize::new(0),
            pending: Mutex::default(),
            reloads_refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            admin_evicted: Arc::default(),
            control_evicted: Arc::default(),
            accept_pauses: AtomicU64::new(0),
            log_lines_dropped: AtomicU64::new(0),
            log_lines_failed: AtomicU64::new(0),
            log_lines_left_out: AtomicU64::new(0),
            admin_denied: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            health_changes: Arc::new(watch::Sender::new(())),
            draining: AtomicBool::new(false),
            stopping: OnceLock::new(),
            directory: None,
            confinement: Confinement::default(),
            engine: engine::EngineState::default(),
            kept: kept::board::Board::default(),
            awaited: kept::awaited::Awaited::default(),
            acme: Board::default(),
            validation: ArcSwapOption::default(),
            upgrade: upgrade::Board::default(),
            events: Events::default(),
            captures: capture::Captures::default(),
            log_level: log_level::LogLevel::default(),
            listening_for_datagrams: ArcSwap::default(),
            services: dsr::Services::default(),
            hash_key: [(); 2].map(|()| RandomState::new().build_hasher().finish()),
            degraded: Mutex::default(),
            removed: Removed::default(),
            backends: Mutex::default(),
            listeners: Mutex::default(),
            sticky: Mutex::default(),
            queues: Mutex::default(),
            pools: Mutex::default(),
        }
    }

    /// Copy of all state for a new snapshot.
    pub fn known(&self) -> Known {
        let (mut backends, mut queues) = (self.removed.in_use(), self.removed.queues_in_use());
        backends.extend(lock(&self.backends).clone());
        queues.extend(lock(&self.queues).clone());
        Known {
            generation: self.generation.load(Relaxed),
            started: self.started,
            workers: self.workers,
            health_changes: self.health_changes.clone(),
            backends,
            listeners: lock(&self.listeners).clone(),
            sticky: lock(&self.sticky).clone(),
            queues,
            pools: lock(&self.pools).clone(),
            challenges: self.acme.challenges.clone(),
        }
    }

    /// Keeps the state of a backend for the next snapshots.
    pub fn keep_backend(&self, backend: &Arc<BackendState>) {
        let key = (backend.pool.clone(), backend.name.to_string());
        let marks = self.removed.returns(&key, backend);
        if !marks.is_empty() {
            let message = format!("an undo has brought it back: {}", marks.join(", "));
            self.events.record(crate::events::Level::Info, backend.subject(), message);
        }
        lock(&self.backends).insert(key, backend.clone());
    }

    /// Keeps the state of a backend that is not configured, for as long as sessions of the process before are open on it: it may
    /// be configured again.
    pub fn keep_removed(&self, backend: &Arc<BackendState>) {
        self.removed.add(vec![((backend.pool.clone(), backend.name.to_string()), backend.clone())]);
    }

    /// Keeps the state of a listener for the next snapshots.
    pub fn keep_listener(&self, listener: &Arc<ListenerState>) {
        lock(&self.listeners).insert(listener.name.clone(), listener.clone());
    }

    /// Keeps the sticky table of a pool for the next snapshots with the same settings.
    pub fn keep_sticky(&self, pool: &Arc<str>, settings: Sticky, table: &SharedTable) {
        lock(&self.sticky).insert(pool.clone(), (settings, table.clone()));
    }

    /// Keeps the queue of a pool for the next snapshots.
    pub fn keep_queue(&self, pool: &Arc<str>, queue: &Arc<Queue>) {
        lock(&self.queues).insert(pool.clone(), queue.clone());
    }

    /// Keeps the state of a pool for the next snapshots.
    pub fn keep_pool(&self, name: &Arc<str>, pool: &Arc<PoolState>) {
        lock(&self.pools).insert(name.clone(), pool.clone());
    }

    /// Removes backends, listeners and tables for which the `keep_*` functions return false. A listener with open
    /// connections is kept: it may return while they count against its limit. So may a backend with open sessions.
    pub fn retain(
        &self,
        keep_listener: impl Fn(&str) -> bool,
        keep_pool: impl Fn(&str) -> bool,
        keep_backend: impl Fn(&str, &str) -> bool,
    ) {
        lock(&self.listeners)
            .retain(|name, listener| keep_listener(name) || listener.connections.load(Relaxed) > 0);
        let gone = |(pool, backend): &BackendKey| !keep_backend(pool, backend);
        self.removed.add(lock(&self.backends).extract_if(|key, _| gone(key)).collect());
        lock(&self.sticky).retain(|pool, _| keep_pool(pool));
        self.removed.add_queues(lock(&self.queues).extract_if(|pool, _| !keep_pool(pool)).collect());
        lock(&self.pools).retain(|pool, _| keep_pool(pool));
    }

    /// Marks `subject` as degraded, with the reason. A new reason is recorded as an event.
    pub fn degrade(&self, subject: &str, reason: &str) {
        let before = lock(&self.degraded).insert(subject.to_owned(), reason.to_owned());
        if before.as_deref() != Some(reason) {
            self.events.record(crate::events::Level::Warning, subject, format!("degraded: {reason}"));
        }
    }

    /// Marks `subject` as degraded without an event, which one before has said.
    pub(crate) fn degrade_unsaid(&self, subject: &str, reason: &str) {
        lock(&self.degraded).insert(subject.to_owned(), reason.to_owned());
    }

    /// Marks `subject` as working again without an event.
    pub(crate) fn restore_unsaid(&self, subject: &str) {
        lock(&self.degraded).remove(subject);
    }

    /// Marks `subject` as working again.
    pub fn restore(&self, subject: &str) {
        if lock(&self.degraded).remove(subject).is_some() {
            self.events.record(crate::events::Level::Info, subject, "works again");
        }
    }

    /// Removes the degraded subjects for which `gone` returns true, without an event: they are no longer configured.
    pub fn forget_degraded(&self, gone: impl Fn(&str) -> bool) {
        lock(&self.degraded).retain(|subject, _| !gone(subject));
    }

    pub fn is_degraded(&self, subject: &str) -> bool {
        lock(&self.degraded).contains_key(subject)
    }

    /// Degraded subjects with reasons, sorted.
    pub fn degraded(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = lock(&self.degraded).iter().map(|(a, b)| (a.clone(), b.clone())).collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_counts_an_ending_while_another_one_holds_its_own_counts() {
        let listener = State::new(2).known().listener(&"web".into());
        let held = lock(listener.endings.of(0));
        std::thread::scope(|scope| {
            let (done, counted) = std::sync::mpsc::channel();
            let listener = &listener;
            scope.spawn(move || {
                listener.count_ending(1, "no-route");
                done.send(()).unwrap();
            });
            let counted = counted.recv_timeout(Duration::from_secs(5));
            drop(held);
            counted.expect("the second worker did not wait for the first");
        });
        listener.count_ending(0, "no-route");
        assert_eq!(listener.endings(), BTreeMap::from([("no-route", 2)]));
    }

    #[test]
    fn a_listener_that_is_gone_is_forgotten_once_its_last_connection_has_ended() {
        let state = State::new(1);
        let listener = state.known().listener(&"web".into());
        state.keep_listener(&listener);
        listener.count_ending(0, "no-route");
        listener.connections.store(1, Relaxed);
        let forget = || state.retain(|_| false, |_| true, |_, _| true);
        forget();
        assert!(Arc::ptr_eq(&listener, &state.known().listener(&"web".into())));
        listener.connections.store(0, Relaxed);
        forget();
        assert!(state.known().listener(&"web".into()).endings().is_empty());
    }
}
