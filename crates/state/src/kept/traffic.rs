//! Counters, health memory of backends, and the marks that operators set on them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use config::types::{BackendAddress, DnsName};
use logic::health::{
    Cause, EjectedFor, Memory, SeenByChecks, Source, State as HealthState, Verdict, VerdictOutcome,
};
use serde::{Deserialize, Serialize};

use super::awaited::Mark;
use super::counts::{self, Counts, Histogram};
use super::{Clock, Millis, millis};
use crate::ending::Ending;
use crate::events::Level;
use crate::lock::lock;
use crate::{Admission, BackendState, Drain, LONGEST_DRAIN, ListenerState, PoolState, State};

/// Largest weight of an operator.
const MOST_WEIGHT: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    pub at: Millis,
    process: Counts,
    listeners: BTreeMap<String, KeptListener>,
    pools: BTreeMap<String, KeptPool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptListener {
    counts: Counts,
    endings: Counts,
    latency: Option<Histogram>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptPool {
    fallback_sessions: u64,
    ejections_stopped: u64,
    retries_refused: u64,
    backends: BTreeMap<String, KeptBackend>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptBackend {
    counts: Counts,
    latency: Option<Histogram>,
    drain: Option<KeptDrain>,
    weight: Option<u32>,
    health: Option<KeptHealth>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptDrain {
    by: String,
    at: Millis,
    /// An earlier version does not know it, and reads files without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptHealth {
    state: KeptState,
    since: Millis,
    ejected: Option<Millis>,
    /// Ejected for its error rate or response time.
    for_outlier: bool,
    ejections: u32,
    checks_failed: bool,
    verdicts: Vec<KeptVerdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KeptState {
    /// Takes sessions; kept for the number of its ejections.
    Serving,
    Down,
    Ejected,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptVerdict {
    at: Millis,
    source: KeptSource,
    passed: bool,
    cause: String,
    took_micros: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KeptSource {
    Probe,
    Traffic,
    Resolver,
    Tunnel,
}

/// What a start has taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub drained: usize,
    pub weights: usize,
    /// Backends that are down or ejected.
    pub out: usize,
}

impl Traffic {
    /// Reads the state as it is now. Locks health records one after the other; workers never wait for it.
    pub fn gather(state: &State) -> Self {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let listeners: Vec<_> = lock(&state.listeners).values().cloned().collect();
        let listeners = listeners.iter().map(|it| (it.name.to_string(), KeptListener::gather(it))).collect();
        let known = lock(&state.pools);
        let mut pools: BTreeMap<String, KeptPool> =
            known.iter().map(|(name, pool)| (name.to_string(), KeptPool::gather(pool))).collect();
        drop(known);
        let backends: Vec<_> = lock(&state.backends).values().cloned().collect();
        for backend in backends {
            let pool = pools.entry(backend.pool.to_string()).or_default();
            pool.backends.insert(backend.name.to_string(), KeptBackend::gather(&backend, wall, now));
        }
        state.awaited.each(|pool, backend, kept| {
            let pool = pools.entry(pool.to_owned()).or_default();
            if let Ok(kept) = KeptBackend::deserialize(kept) {
                pool.backends.entry(backend.to_owned()).or_insert(kept);
            }
        });
        Self { at: millis(wall), process: counts::gather_process(state), listeners, pools }
    }

    /// Gives the listeners, pools and backends that are configured what the file knows of them. What it knows of backends
    /// that the DNS may name later waits for them. Must be called before the workers run.
    pub fn restore(&self, state: &State, clock: &Clock) -> Restored {
        counts::restore_process(&self.process, state);
        for (name, listener) in &*lock(&state.listeners) {
            if let Some(kept) = self.listeners.get(&**name) {
                kept.restore(listener);
            }
        }
        for (name, pool) in &*lock(&state.pools) {
            if let Some(kept) = self.pools.get(&**name) {
                kept.restore(pool);
            }
        }
        let mut restored = Restored::default();
        let backends = lock(&state.backends);
        for ((pool, name), backend) in &*backends {
            if let Some(kept) = self.pools.get(&**pool).and_then(|pool| pool.backends.get(name)) {
                kept.restore(backend, clock, &mut restored);
            }
        }
        for (pool, name) in backends.values().filter_map(|backend| Some((&backend.pool, dns_name(backend)?)))
        {
            let known = self.pools.get(&**pool).into_iter().flat_map(|pool| &pool.backends);
            for (backend, kept) in known.filter(|(backend, _)| name.may_have(backend)) {
                if !backends.contains_key(&(pool.clone(), backend.clone()))
                    && let Ok(kept) = serde_json::to_value(kept)
                {
                    state.awaited.add(pool, backend, Mark { written: self.at, backend: kept });
                }
            }
        }
        restored
    }
}

/// Gives a backend that no worker uses yet what is waiting for it.
pub fn resume(state: &State, backend: &BackendState) {
    let Some(mark) = state.awaited.take(&backend.pool, &backend.name) else { return };
    let Ok(kept) = KeptBackend::deserialize(&mark.backend) else { return };
    let mut restored = Restored::default();
    kept.restore(backend, &Clock::now(mark.written), &mut restored);
    let Restored { drained, weights, out } = restored;
    let marks = [(drained, "drained"), (weights, "weight of an operator"), (out, "down or ejected")];
    let marks = marks.iter().filter(|(count, _)| *count > 0).map(|(_, what)| *what);
    let marks: Vec<&str> = ["counters"].into_iter().chain(marks).collect();
    let message = format!("taken over from before the last start: {}", marks.join(", "));
    state.events.record(Level::Info, backend.subject(), message);
}

/// The name in the DNS that a backend stands for, or that has it.
fn dns_name(backend: &BackendState) -> Option<&DnsName> {
    match &backend.address {
        BackendAddress::Dns(name) => Some(name),
        BackendAddress::Discovered { name, .. } => Some(name),
        BackendAddress::Ip(_)
        | BackendAddress::Name { .. }
        | BackendAddress::Unix(_)
        | BackendAddress::Ssh { .. } => None,
    }
}

impl Traffic {
    /// What was counted since `earlier`, and nothing else: no marks and no health. `None` if it is nothing.
    pub fn counted_since(&self, earlier: &Self) -> Option<Self> {
        let no_listener = KeptListener { counts: Counts::new(), endings: Counts::new(), latency: None };
        let listeners = self.listeners.iter().map(|(name, listener)| {
            let before = earlier.listeners.get(name).unwrap_or(&no_listener);
            let counted = KeptListener {
                counts: counts::difference(&listener.counts, &before.counts),
                endings: counts::difference(&listener.endings, &before.endings),
                latency: Histogram::difference(listener.latency.as_ref(), before.latency.as_ref()),
            };
            (name.clone(), counted)
        });
        let no_pool = KeptPool::default();
        let pools = self.pools.iter().map(|(name, pool)| {
            (name.clone(), pool.counted_since(earlier.pools.get(name).unwrap_or(&no_pool)))
        });
        let counted = Self {
            at: self.at,
            process: counts::difference(&self.process, &earlier.process),
            listeners: listeners.filter(|(_, listener)| *listener != no_listener).collect(),
            pools: pools.filter(|(_, pool)| *pool != no_pool).collect(),
        };
        let is_nothing =
            counted.process.is_empty() && counted.listeners.is_empty() && counted.pools.is_empty();
        (!is_nothing).then_some(counted)
    }

    /// Adds what was counted elsewhere. To be called on the thread of the first worker, whose counters they are added to.
    pub fn add(&self, state: &State) {
        counts::restore_process(&self.process, state);
        for (name, listener) in &*lock(&state.listeners) {
            if let Some(counted) = self.listeners.get(&**name) {
                counted.restore(listener);
            }
        }
        for (name, pool) in &*lock(&state.pools) {
            if let Some(counted) = self.pools.get(&**name) {
                counted.restore(pool);
            }
        }
        for ((pool, name), backend) in &*lock(&state.backends) {
            if let Some(counted) = self.pools.get(&**pool).and_then(|pool| pool.backends.get(name)) {
                counted.add(backend);
            }
        }
    }
}

impl KeptListener {
    fn gather(listener: &ListenerState) -> Self {
        Self {
            counts: counts::gather(&listener.counters, counts::of_listener),
            endings: listener.endings().into_iter().map(|(word, count)| (word.into(), count)).collect(),
            latency: Histogram::of(&listener.counters.sum_latency(|block| &block.latency)),
        }
    }

    fn restore(&self, listener: &ListenerState) {
        counts::restore(&self.counts, &listener.counters, counts::of_listener);
        for (word, _) in Ending::meanings() {
            if let Some(count) = self.endings.get(word) {
                listener.count_endings(0, word, counts::bounded(*count));
            }
        }
        if let Some(sum) = self.latency.as_ref().and_then(Histogram::sum) {
            listener.counters.of(0).latency.add(&sum);
        }
    }
}

impl KeptBackend {
    fn gather(backend: &BackendState, wall: SystemTime, now: Instant) -> Self {
        let drain = (backend.asked_admission() == Admission::Draining).then(|| {
            let unknown = || Drain { by: "unknown".to_owned(), at: wall, until: None };
            let Drain { by, at, until } = backend.drain().unwrap_or_else(unknown);
            let until = until.map(|until| millis(wall + until.saturating_duration_since(now)));
            KeptDrain { by, at: millis(at), until }
        });
        let health = backend.lock_health().memory(now).map(|memory| KeptHealth::of(memory, wall));
        Self {
            counts: counts::gather(&backend.counters, counts::of_backend),
            latency: Histogram::of(&backend.counters.sum_latency(|block| &block.latency)),
            drain,
            weight: backend.weight_override(),
            health,
        }
    }

    fn counted_since(&self, earlier: Option<&Self>) -> Self {
        let none = Counts::new();
        Self {
            counts: counts::difference(&self.counts, earlier.map_or(&none, |earlier| &earlier.counts)),
            latency: Histogram::difference(
                self.latency.as_ref(),
                earlier.and_then(|earlier| earlier.latency.as_ref()),
            ),
            drain: None,
            weight: None,
            health: None,
        }
    }

    fn add(&self, backend: &BackendState) {
        counts::restore(&self.counts, &backend.counters, counts::of_backend);
        if let Some(sum) = self.latency.as_ref().and_then(Histogram::sum) {
            backend.counters.of(0).latency.add(&sum);
        }
    }

    fn restore(&self, backend: &BackendState, clock: &Clock, restored: &mut Restored) {
        self.add(backend);
        if let Some(KeptDrain { by, at, until }) = &self.drain {
            let left = until.map(|until| clock.ahead(until).min(LONGEST_DRAIN));
            // It ended while no process ran.
            if left != Some(Duration::ZERO) {
                let until = left.map(|left| clock.monotonic + left);
                backend.note_drain(Drain { by: by.clone(), at: clock.wall(*at), until });
                restored.drained += 1;
            }
        }
        if let Some(weight) = self.weight.filter(|weight| *weight <= MOST_WEIGHT) {
            backend.set_weight_override(Some(weight));
            restored.weights += 1;
        }
        if let Some(health) = &self.health {
            let state = {
                let mut record = backend.lock_health();
                record.resume(health.memory(clock), clock.monotonic);
                record.state()
            };
            if state != backend.health_state() {
                backend.publish_health(state, clock.monotonic);
                restored.out += 1;
            }
        }
    }
}

impl KeptPool {
    fn gather(pool: &PoolState) -> Self {
        // Every field, so that a new counter does not compile before its author decides whether it is kept.
        let PoolState {
            fallback_told: _,
            fallback_sessions,
            ejections_stopped,
            retries: _,
            retries_refused,
            retries_told: _,
        } = pool;
        Self {
            fallback_sessions: fallback_sessions.load(Relaxed),
            ejections_stopped: ejections_stopped.load(Relaxed),
            retries_refused: retries_refused.load(Relaxed),
            backends: BTreeMap::new(),
        }
    }

    fn counted_since(&self, earlier: &Self) -> Self {
        let backends = self.backends.iter().filter_map(|(name, backend)| {
            let counted = backend.counted_since(earlier.backends.get(name));
            (!counted.counts.is_empty() || counted.latency.is_some()).then(|| (name.clone(), counted))
        });
        Self {
            fallback_sessions: self.fallback_sessions.saturating_sub(earlier.fallback_sessions),
            ejections_stopped: self.ejections_stopped.saturating_sub(earlier.ejections_stopped),
            retries_refused: self.retries_refused.saturating_sub(earlier.retries_refused),
            backends: backends.collect(),
        }
    }

    fn restore(&self, pool: &PoolState) {
        pool.fallback_sessions.fetch_add(counts::bounded(self.fallback_sessions), Relaxed);
        pool.ejections_stopped.fetch_add(counts::bounded(self.ejections_stopped), Relaxed);
        pool.retries_refused.fetch_add(counts::bounded(self.retries_refused), Relaxed);
    }
}

impl KeptHealth {
    fn of(memory: Memory, wall: SystemTime) -> Self {
        let at = |ago: Duration| millis(wall.checked_sub(ago).unwrap_or(wall));
        Self {
            state: match memory.state {
                HealthState::Down => KeptState::Down,
                HealthState::Ejected => KeptState::Ejected,
                HealthState::Up | HealthState::Unchecked | HealthState::HalfOpen => KeptState::Serving,
            },
            since: at(memory.since),
            ejected: memory.ejected.map(at),
            for_outlier: memory.ejected_for == EjectedFor::Outlier,
            ejections: memory.ejections,
            checks_failed: memory.seen_by_checks == SeenByChecks::Yes,
            verdicts: memory.verdicts.iter().map(KeptVerdict::of).collect(),
        }
    }

    fn memory(&self, clock: &Clock) -> Memory {
        Memory {
            state: match self.state {
                KeptState::Serving => HealthState::Unchecked,
                KeptState::Down => HealthState::Down,
                KeptState::Ejected => HealthState::Ejected,
            },
            since: clock.ago(self.since),
            ejected: self.ejected.map(|at| clock.ago(at)),
            ejected_for: if self.for_outlier { EjectedFor::Outlier } else { EjectedFor::Failures },
            ejections: self.ejections,
            seen_by_checks: if self.checks_failed { SeenByChecks::Yes } else { SeenByChecks::No },
            verdicts: self.verdicts.iter().map(|verdict| verdict.verdict(clock)).collect(),
        }
    }
}

impl KeptVerdict {
    fn of(verdict: &Verdict) -> Self {
        Self {
            at: millis(verdict.at),
            source: match verdict.source {
                Source::Probe => KeptSource::Probe,
                Source::Traffic => KeptSource::Traffic,
                Source::Resolver => KeptSource::Resolver,
                Source::Tunnel => KeptSource::Tunnel,
            },
            passed: verdict.outcome == VerdictOutcome::Pass,
            cause: match &verdict.cause {
                // It is written as it is: a second round of escapes would change it.
                Cause::Remembered(text) => text.clone(),
                cause => cause.to_string(),
            },
            took_micros: u64::try_from(verdict.took.as_micros()).unwrap_or(u64::MAX),
        }
    }

    fn verdict(&self, clock: &Clock) -> Verdict {
        Verdict {
            at: clock.wall(self.at),
            source: match self.source {
                KeptSource::Probe => Source::Probe,
                KeptSource::Traffic => Source::Traffic,
                KeptSource::Resolver => Source::Resolver,
                KeptSource::Tunnel => Source::Tunnel,
            },
            outcome: if self.passed { VerdictOutcome::Pass } else { VerdictOutcome::Fail },
            cause: Cause::Remembered(self.cause.clone()),
            took: Duration::from_micros(self.took_micros),
        }
    }
}
