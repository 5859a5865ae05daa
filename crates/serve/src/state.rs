//! What survives a reload: health, counters, stickiness and operators' decisions, by name.
//! A [`crate::snapshot::Snapshot`] refers to entries here; workers touch them only through atomics.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::types::{BackendAddress, Sticky};
use logic::balance::StickyTable;
use logic::health::{Health, State as HealthState};
use tokio::sync::Notify;

use crate::account::Account;
use crate::acme::Board;
use crate::events::{Events, Seldom};
use crate::lock::lock;
use crate::metrics::{BackendCounters, ListenerCounters, PerWorker};
use crate::queue::Queue;
use crate::state_directory::StateDirectory;

/// Everything that outlives a snapshot.
pub struct State {
    /// When the process started, on the clock that never jumps.
    pub started: Instant,
    /// When the process started, for people.
    pub started_at: SystemTime,
    /// Worker threads.
    pub workers: usize,
    /// Descriptors that traffic holds and may hold.
    pub account: Arc<Account>,
    /// Client connections open now, over all listeners and workers.
    pub connections: AtomicUsize,
    /// Limit of [`Self::connections`].
    pub max_connections: AtomicUsize,
    /// Snapshots published so far.
    pub generation: AtomicU64,
    /// Reloads refused since the start.
    pub reloads_refused: AtomicU64,
    /// Idle client connections closed to make room for new ones.
    pub evicted: AtomicU64,
    /// Clients of the admin listener closed to make room for new ones.
    pub admin_evicted: Arc<AtomicU64>,
    /// Clients of the control socket closed to make room for new ones.
    pub control_evicted: Arc<AtomicU64>,
    /// Times that accepting paused because descriptors or connections ran out.
    pub accept_pauses: AtomicU64,
    /// Access-log lines dropped because the writer could not keep up.
    pub log_lines_dropped: AtomicU64,
    /// Access-log lines that could not be written (disk full, ...).
    pub log_lines_failed: AtomicU64,
    /// Sessions that ended in a panic.
    pub panics: AtomicU64,
    /// Set once by SIGTERM: no new sessions, connections close after their answer.
    pub draining: AtomicBool,
    /// Where things are kept that outlive the process; `None`: nothing does.
    pub directory: Option<StateDirectory>,
    /// Certificates that are ordered, and the challenges that are pending.
    pub acme: Board,
    /// What happened.
    pub events: Events,
    /// Things that do not work as configured, by subject; shown first by `status`.
    degraded: Mutex<HashMap<String, String>>,
    backends: Mutex<HashMap<BackendKey, Arc<BackendState>>>,
    listeners: Mutex<HashMap<Arc<str>, Arc<ListenerState>>>,
    sticky: Mutex<HashMap<Arc<str>, (Sticky, SharedTable)>>,
    queues: Mutex<HashMap<Arc<str>, Arc<Queue>>>,
}

/// Pool and address text of a backend.
type BackendKey = (Arc<str>, String);

/// A sticky table that all workers use.
type SharedTable = Arc<Mutex<StickyTable>>;

/// A listener's counters and addresses.
pub struct ListenerState {
    /// NAME of `[listener.NAME]`.
    pub name: Arc<str>,
    /// Addresses really bound, as text, in configuration order.
    pub bound: Mutex<Vec<String>>,
    /// Client connections open now.
    pub connections: AtomicUsize,
    /// Counters, one block per worker.
    pub counters: PerWorker<ListenerCounters>,
    /// Events about requests that go in a circle.
    pub loops_told: Seldom,
    /// Sessions by how they ended, other than well. A map per worker: hostile clients must not make workers wait for each
    /// other.
    endings: PerWorker<Mutex<HashMap<&'static str, u64>>>,
}

impl ListenerState {
    /// Counts a session that did not end well, by its word.
    pub fn count_ending(&self, worker: usize, word: &'static str) {
        *lock(self.endings.of(worker)).entry(word).or_insert(0) += 1;
    }

    /// Sessions that did not end well, over all workers.
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

/// Whether an operator lets a backend take new sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It takes its share.
    Ready,
    /// No new sessions; established ones go on.
    Draining,
}

/// A backend's live state, shared by all workers and the slow side.
pub struct BackendState {
    /// Pool it belongs to.
    pub pool: Arc<str>,
    /// Where it is.
    pub address: BackendAddress,
    /// The address as text: its name in logs, metrics and commands.
    pub name: Arc<str>,
    /// Hash of `name`, what a sticky table remembers.
    pub identity: u64,
    /// Sessions that hold a slot now. The one number that all workers write: `max-connections` must hold over all of them.
    pub in_flight: AtomicU32,
    /// Addresses to connect to: fixed for IP backends, the last look-up for names; empty while a name is unresolved.
    pub addresses: ArcSwap<Vec<SocketAddr>>,
    /// Socket of the tunnel to a backend behind SSH, while there is one.
    pub through: ArcSwapOption<std::path::PathBuf>,
    /// Counters, one block per worker.
    pub counters: PerWorker<BackendCounters>,
    /// Verdicts and rules; slow side only.
    pub health: Mutex<Health>,
    /// Wakes the task that checks this backend: rules changed, or traffic ejected it.
    pub wake_health: Notify,
    /// Failures of real traffic in a row.
    pub failures: AtomicU32,
    /// Cause word of the last traffic failure, for the verdict made from it.
    pub last_failure: Mutex<Option<logic::health::Cause>>,
    health_state: AtomicU8,
    admission: AtomicU8,
    weight_override: AtomicU32,
    /// Milliseconds after `started` since when it is up, plus one; 0 = since the start, no slow start.
    up_since: AtomicU64,
    started: Instant,
}

const NO_OVERRIDE: u32 = u32::MAX;

impl BackendState {
    /// Whether it gets sessions, as far as its health goes.
    pub fn is_up(&self) -> bool {
        matches!(self.health_state(), HealthState::Up | HealthState::Unchecked)
    }

    fn new(
        pool: &Arc<str>,
        address: &BackendAddress,
        workers: usize,
        started: Instant,
        health: Health,
    ) -> Self {
        let name: Arc<str> = address.to_string().into();
        let addresses = match address {
            BackendAddress::Ip(address) => vec![*address],
            BackendAddress::Name { .. } | BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => Vec::new(),
        };
        Self {
            pool: pool.clone(),
            address: address.clone(),
            identity: logic::balance::hash_bytes(0, name.as_bytes()),
            name,
            in_flight: AtomicU32::new(0),
            addresses: ArcSwap::from_pointee(addresses),
            through: ArcSwapOption::empty(),
            counters: PerWorker::new(workers),
            health_state: AtomicU8::new(encode(health.state())),
            health: Mutex::new(health),
            wake_health: Notify::new(),
            failures: AtomicU32::new(0),
            last_failure: Mutex::new(None),
            admission: AtomicU8::new(0),
            weight_override: AtomicU32::new(NO_OVERRIDE),
            up_since: AtomicU64::new(0),
            started,
        }
    }

    /// Places that a connection to it takes in the account: one behind SSH has a socket at either end of its tunnel here.
    pub fn places(&self) -> usize {
        if matches!(self.address, BackendAddress::Ssh { .. }) { 2 } else { 1 }
    }

    /// What events and degraded things name it by: `pool.NAME.ADDRESS`.
    pub fn subject(&self) -> String {
        format!("pool.{}.{}", self.pool, self.name)
    }

    /// Health as last published.
    pub fn health_state(&self) -> HealthState {
        match self.health_state.load(Relaxed) {
            1 => HealthState::Up,
            2 => HealthState::Down,
            3 => HealthState::Ejected,
            _ => HealthState::Unchecked,
        }
    }

    /// Publishes a health state to the workers; a backend that comes back starts its slow start at `now`.
    pub fn publish_health(&self, state: HealthState, now: Instant) {
        let before = self.health_state();
        let was_away = matches!(before, HealthState::Down | HealthState::Ejected);
        let is_here = matches!(state, HealthState::Up | HealthState::Unchecked);
        if was_away && is_here {
            let elapsed = now.saturating_duration_since(self.started).as_millis() as u64;
            self.up_since.store(elapsed + 1, Relaxed);
            self.failures.store(0, Relaxed);
        }
        self.health_state.store(encode(state), Relaxed);
    }

    /// For how long the backend has been back; `None` if it was never away.
    pub fn up_for(&self, now: Instant) -> Option<Duration> {
        let since = self.up_since.load(Relaxed).checked_sub(1)?;
        Some(now.saturating_duration_since(self.started + Duration::from_millis(since)))
    }

    /// The operator's word.
    pub fn admission(&self) -> Admission {
        if self.admission.load(Relaxed) == 0 { Admission::Ready } else { Admission::Draining }
    }

    /// Sets the operator's word.
    pub fn set_admission(&self, admission: Admission) {
        self.admission.store(u8::from(admission == Admission::Draining), Relaxed);
    }

    /// The operator's weight, if one was set since the last start.
    pub fn weight_override(&self) -> Option<u32> {
        Some(self.weight_override.load(Relaxed)).filter(|weight| *weight != NO_OVERRIDE)
    }

    /// Sets or takes back the operator's weight.
    pub fn set_weight_override(&self, weight: Option<u32>) {
        self.weight_override.store(weight.unwrap_or(NO_OVERRIDE), Relaxed);
    }

    /// The health record, for the slow side.
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
    }
}

impl State {
    /// A fresh state for a process with so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            workers,
            account: Account::new(workers),
            connections: AtomicUsize::new(0),
            max_connections: AtomicUsize::new(usize::MAX),
            generation: AtomicU64::new(0),
            reloads_refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            admin_evicted: Arc::default(),
            control_evicted: Arc::default(),
            accept_pauses: AtomicU64::new(0),
            log_lines_dropped: AtomicU64::new(0),
            log_lines_failed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            directory: None,
            acme: Board::default(),
            events: Events::default(),
            degraded: Mutex::default(),
            backends: Mutex::default(),
            listeners: Mutex::default(),
            sticky: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    /// The state of a backend, made on first sight with `health`.
    pub fn backend(
        &self,
        pool: &Arc<str>,
        address: &BackendAddress,
        health: impl FnOnce() -> Health,
    ) -> Arc<BackendState> {
        let key = (pool.clone(), address.to_string());
        lock(&self.backends)
            .entry(key)
            .or_insert_with(|| {
                Arc::new(BackendState::new(pool, address, self.workers, self.started, health()))
            })
            .clone()
    }

    /// The state of a listener, made on first sight.
    pub fn listener(&self, name: &Arc<str>) -> Arc<ListenerState> {
        lock(&self.listeners)
            .entry(name.clone())
            .or_insert_with(|| {
                Arc::new(ListenerState {
                    name: name.clone(),
                    bound: Mutex::default(),
                    connections: AtomicUsize::new(0),
                    counters: PerWorker::new(self.workers),
                    loops_told: Seldom::default(),
                    endings: PerWorker::new(self.workers),
                })
            })
            .clone()
    }

    /// The sticky table of a pool; a new one if its size or times changed.
    pub fn sticky(&self, pool: &Arc<str>, settings: Sticky) -> SharedTable {
        let mut tables = lock(&self.sticky);
        match tables.get(pool) {
            Some((before, table)) if *before == settings => table.clone(),
            _ => {
                let table = Arc::new(Mutex::new(StickyTable::new(settings.entries, settings.ttl)));
                tables.insert(pool.clone(), (settings, table.clone()));
                table
            }
        }
    }

    /// The queue of a pool.
    pub fn queue(&self, pool: &Arc<str>) -> Arc<Queue> {
        lock(&self.queues).entry(pool.clone()).or_default().clone()
    }

    /// Forgets backends, listeners and tables that `keep_*` no longer name. A listener with connections left is kept: it
    /// may come back while they count against its limit.
    pub fn retain(
        &self,
        keep_listener: impl Fn(&str) -> bool,
        keep_pool: impl Fn(&str) -> bool,
        keep_backend: impl Fn(&str, &str) -> bool,
    ) {
        lock(&self.listeners)
            .retain(|name, listener| keep_listener(name) || listener.connections.load(Relaxed) > 0);
        lock(&self.backends).retain(|(pool, backend), _| keep_backend(pool, backend));
        lock(&self.sticky).retain(|pool, _| keep_pool(pool));
        lock(&self.queues).retain(|pool, _| keep_pool(pool));
    }

    /// Says that `subject` does not work as configured, and why. Recorded as an event when it is new.
    pub fn degrade(&self, subject: &str, reason: &str) {
        let before = lock(&self.degraded).insert(subject.to_owned(), reason.to_owned());
        if before.as_deref() != Some(reason) {
            self.events.record(crate::events::Level::Warning, subject, format!("degraded: {reason}"));
        }
    }

    /// Says that `subject` works again.
    pub fn restore(&self, subject: &str) {
        if lock(&self.degraded).remove(subject).is_some() {
            self.events.record(crate::events::Level::Info, subject, "works again");
        }
    }

    /// Takes back every degraded subject that `gone` names, without an event: it is no longer configured.
    pub fn forget_degraded(&self, gone: impl Fn(&str) -> bool) {
        lock(&self.degraded).retain(|subject, _| !gone(subject));
    }

    /// Degraded subjects with their reasons, sorted.
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
        let state = State::new(2);
        let listener = state.listener(&"web".into());
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
        let listener = state.listener(&"web".into());
        listener.count_ending(0, "no-route");
        listener.connections.store(1, Relaxed);
        let forget = || state.retain(|_| false, |_| true, |_, _| true);
        forget();
        assert!(Arc::ptr_eq(&listener, &state.listener(&"web".into())));
        listener.connections.store(0, Relaxed);
        forget();
        assert!(state.listener(&"web".into()).endings().is_empty());
    }
}
