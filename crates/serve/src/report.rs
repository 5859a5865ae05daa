//! One model of how the front door is, for `penstock ctl status`, `ctl backends` and the admin listener's `/status`.
//!
//! A reader of state, snapshot and counters; it changes nothing. `report/text.rs` renders it for people, serde for
//! programs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use config::types::{BackendAddress, Protocol};
use logic::health::{Source, State as HealthState, Verdict, VerdictOutcome};
use serde::Serialize;

use crate::events::timestamp;
use crate::front::Front;
use crate::lock::lock;
use crate::metrics::{Counter, LatencySum, PerWorker};
use crate::snapshot::{BackendPlan, ListenerPlan, PoolPlan};
use crate::state::Admission;

pub mod certificates;
pub mod descriptors;
#[cfg(test)]
pub(crate) mod fixture;
pub mod text;

use descriptors::Descriptors;

/// How the whole front door is.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Version of the program.
    pub version: &'static str,
    /// Process id.
    pub pid: u32,
    /// Whether it takes new sessions.
    pub phase: Phase,
    /// Since the process started.
    pub uptime_seconds: u64,
    /// Number of the snapshot that is served.
    pub generation: u64,
    /// Worker threads.
    pub workers: usize,
    /// Client connections.
    pub connections: Connections,
    /// Descriptors, and what holds them.
    pub descriptors: Descriptors,
    /// What does not work as configured.
    pub degraded: Vec<Degraded>,
    /// Listeners in configuration order.
    pub listeners: Vec<ListenerReport>,
    /// Pools in configuration order.
    pub pools: Vec<PoolReport>,
    /// Counts of things that should be rare.
    pub counters: Counters,
}

/// Whether the front door takes new sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It does.
    Serving,
    /// It was told to stop and waits for its sessions.
    Draining,
}

/// Client connections.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    /// Open now.
    pub now: usize,
    /// Their limit, if it is known.
    pub max: Option<usize>,
}

/// Something that does not work as configured.
#[derive(Clone, Debug, Serialize)]
pub struct Degraded {
    /// What, as a path: `pool.app`, `listener.web.tls`.
    pub subject: String,
    /// Why, and what is done instead.
    pub reason: String,
}

/// A listener.
#[derive(Clone, Debug, Serialize)]
pub struct ListenerReport {
    /// NAME of `[listener.NAME]`.
    pub name: String,
    /// `tcp`, `http`, `tcp+tls` or `http+tls`.
    pub protocol: &'static str,
    /// Addresses really bound.
    pub bound: Vec<String>,
    /// Client connections open now.
    pub connections: usize,
    /// Client connections accepted so far.
    pub accepted: u64,
    /// Sessions ended so far (HTTP: requests; TCP: connections).
    pub sessions: u64,
    /// HTTP answers by class.
    pub statuses: Statuses,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Time from a session's first byte to its end.
    pub latency: LatencyReport,
    /// Sessions that did not end well, by reason.
    pub endings: BTreeMap<&'static str, u64>,
}

/// HTTP answers by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statuses {
    /// Interim answers.
    #[serde(rename = "1xx")]
    pub interim: u64,
    /// Successes.
    #[serde(rename = "2xx")]
    pub success: u64,
    /// Redirects.
    #[serde(rename = "3xx")]
    pub redirect: u64,
    /// The client's faults.
    #[serde(rename = "4xx")]
    pub client_error: u64,
    /// The server's faults.
    #[serde(rename = "5xx")]
    pub server_error: u64,
}

impl Statuses {
    /// Sums one counter array over all workers.
    pub fn sum<T>(workers: &PerWorker<T>, counters: impl Fn(&T) -> &[Counter; 5]) -> Self {
        let class = |at: usize| workers.sum(|block| &counters(block)[at]);
        Self {
            interim: class(0),
            success: class(1),
            redirect: class(2),
            client_error: class(3),
            server_error: class(4),
        }
    }

    /// Each class with its name.
    pub fn classes(&self) -> [(&'static str, u64); 5] {
        [
            ("1xx", self.interim),
            ("2xx", self.success),
            ("3xx", self.redirect),
            ("4xx", self.client_error),
            ("5xx", self.server_error),
        ]
    }
}

/// What the buckets say of a latency. Estimates: exact only to the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Half of all sessions took at most so many milliseconds.
    pub p50_ms: Option<f64>,
    /// 99 of 100 sessions took at most so many milliseconds.
    pub p99_ms: Option<f64>,
}

impl From<LatencySum> for LatencyReport {
    fn from(sum: LatencySum) -> Self {
        let at = |quantile| sum.quantile(quantile).map(milliseconds);
        Self { p50_ms: at(0.5), p99_ms: at(0.99) }
    }
}

/// A pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    /// NAME of `[pool.NAME]`.
    pub name: String,
    /// How a backend is chosen.
    pub balance: String,
    /// Sessions that wait for a busy backend now.
    pub waiting: usize,
    /// Backends that take new sessions now.
    pub available: usize,
    /// In configuration order.
    pub backends: Vec<BackendReport>,
}

/// A backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// Its address as configured.
    pub name: String,
    /// `unchecked`, `up`, `down` or `ejected`.
    pub state: &'static str,
    /// For how long it has been in this state.
    pub state_seconds: u64,
    /// What operators said.
    pub admission: AdmissionReport,
    /// As configured.
    pub weight: u32,
    /// An operator's weight, which counts instead.
    pub weight_override: Option<u32>,
    /// Sessions now.
    pub in_flight: u32,
    /// Limit of these.
    pub max_connections: Option<u32>,
    /// Sessions so far.
    pub sessions: u64,
    /// HTTP answers by class.
    pub statuses: Statuses,
    /// Connections opened.
    pub connects: u64,
    /// Idle connections used again.
    pub reused: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Attempts that failed and were made again elsewhere.
    pub retries: u64,
    /// Failures in a row now.
    pub failing: u32,
    /// Bytes sent to it.
    pub bytes_in: u64,
    /// Bytes received from it.
    pub bytes_out: u64,
    /// Time to its first byte.
    pub latency: LatencyReport,
    /// What its name was resolved to; empty for other addresses.
    pub addresses: Vec<String>,
    /// Newest first.
    pub last_verdicts: Vec<VerdictReport>,
}

/// What operators said of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdmissionReport {
    /// It takes its share.
    Ready,
    /// No new sessions.
    Draining,
}

/// What a check, or traffic, said of a backend.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictReport {
    /// RFC 3339 in UTC.
    pub at: String,
    /// `probe`, `traffic`, `resolver` or `operator`.
    pub source: &'static str,
    /// `pass` or `fail`.
    pub outcome: &'static str,
    /// For people.
    pub cause: String,
    /// How long it took to find out.
    pub took_ms: f64,
}

/// Counts of things that should be rare.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counters {
    /// Idle client connections closed to make room.
    pub evicted: u64,
    /// Times that accepting paused.
    pub accept_pauses: u64,
    /// Access-log lines that the writer had no time for.
    pub log_lines_dropped: u64,
    /// Access-log lines that could not be written.
    pub log_lines_failed: u64,
    /// Sessions that ended in a panic.
    pub panics: u64,
    /// Reloads refused.
    pub reloads_refused: u64,
}

impl Status {
    /// How `front` is now.
    pub fn read(front: &Front) -> Self {
        let state = &front.state;
        let snapshot = front.snapshot.load();
        let max = state.max_connections.load(Relaxed);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            phase: if state.draining.load(Relaxed) { Phase::Draining } else { Phase::Serving },
            uptime_seconds: state.started.elapsed().as_secs(),
            generation: snapshot.generation,
            workers: state.workers,
            connections: Connections {
                now: state.connections.load(Relaxed),
                max: (max != usize::MAX).then_some(max),
            },
            descriptors: Descriptors::read(state),
            degraded: state
                .degraded()
                .into_iter()
                .map(|(subject, reason)| Degraded { subject, reason })
                .collect(),
            listeners: snapshot
                .config
                .listeners
                .iter()
                .filter_map(|listener| snapshot.listeners.get(&listener.name))
                .map(|plan| ListenerReport::read(plan))
                .collect(),
            pools: pools(front, None),
            counters: Counters {
                evicted: state.evicted.load(Relaxed),
                accept_pauses: state.accept_pauses.load(Relaxed),
                log_lines_dropped: state.log_lines_dropped.load(Relaxed),
                log_lines_failed: state.log_lines_failed.load(Relaxed),
                panics: state.panics.load(Relaxed),
                reloads_refused: state.reloads_refused.load(Relaxed),
            },
        }
    }
}

/// All pools, or the one with this name.
pub fn pools(front: &Front, only: Option<&str>) -> Vec<PoolReport> {
    let now = Instant::now();
    let snapshot = front.snapshot.load();
    snapshot
        .pools
        .iter()
        .filter(|pool| only.is_none_or(|only| *pool.settings.name == *only))
        .map(|pool| PoolReport::read(pool, now))
        .collect()
}

/// The word for a health state.
pub fn health_word(state: HealthState) -> &'static str {
    match state {
        HealthState::Unchecked => "unchecked",
        HealthState::Up => "up",
        HealthState::Down => "down",
        HealthState::Ejected => "ejected",
    }
}

impl ListenerReport {
    fn read(plan: &ListenerPlan) -> Self {
        let state = &plan.state;
        let counters = &state.counters;
        Self {
            name: state.name.to_string(),
            protocol: match (&plan.settings.protocol, &plan.settings.tls) {
                (Protocol::Tcp(_), None) => "tcp",
                (Protocol::Tcp(_), Some(_)) => "tcp+tls",
                (Protocol::TlsPassthrough(_), _) => "tls-passthrough",
                (Protocol::Http(_), None) => "http",
                (Protocol::Http(_), Some(_)) => "http+tls",
            },
            bound: lock(&state.bound).clone(),
            connections: state.connections.load(Relaxed),
            accepted: counters.sum(|block| &block.connections),
            sessions: counters.sum(|block| &block.sessions),
            statuses: Statuses::sum(counters, |block| &block.statuses),
            bytes_in: counters.sum(|block| &block.bytes_in),
            bytes_out: counters.sum(|block| &block.bytes_out),
            latency: counters.sum_latency(|block| &block.latency).into(),
            endings: state.endings(),
        }
    }
}

impl PoolReport {
    fn read(plan: &PoolPlan, now: Instant) -> Self {
        let backends: Vec<_> =
            plan.backends.iter().map(|backend| BackendReport::read(backend, now)).collect();
        Self {
            name: plan.settings.name.to_string(),
            balance: plan.settings.balance.to_string(),
            waiting: plan.queue.waiting(),
            available: backends.iter().filter(|backend| backend.takes_sessions()).count(),
            backends,
        }
    }
}

impl BackendReport {
    fn read(plan: &BackendPlan, now: Instant) -> Self {
        let state = &plan.state;
        let counters = &state.counters;
        let (since, last_verdicts) = {
            let health = state.lock_health();
            (health.since(), health.verdicts().map(VerdictReport::read).collect())
        };
        Self {
            name: state.name.to_string(),
            state: health_word(state.health_state()),
            state_seconds: now.saturating_duration_since(since).as_secs(),
            admission: match state.admission() {
                Admission::Ready => AdmissionReport::Ready,
                Admission::Draining => AdmissionReport::Draining,
            },
            weight: plan.settings.weight,
            weight_override: state.weight_override(),
            in_flight: state.in_flight.load(Relaxed),
            max_connections: plan.settings.max_connections,
            sessions: counters.sum(|block| &block.sessions),
            statuses: Statuses::sum(counters, |block| &block.statuses),
            connects: counters.sum(|block| &block.connects),
            reused: counters.sum(|block| &block.reused),
            failures: counters.sum(|block| &block.failures),
            retries: counters.sum(|block| &block.retries),
            failing: state.failures.load(Relaxed),
            bytes_in: counters.sum(|block| &block.bytes_in),
            bytes_out: counters.sum(|block| &block.bytes_out),
            latency: counters.sum_latency(|block| &block.latency).into(),
            addresses: match &state.address {
                BackendAddress::Name { .. } => {
                    state.addresses.load().iter().map(ToString::to_string).collect()
                }
                BackendAddress::Ip(_) | BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => Vec::new(),
            },
            last_verdicts,
        }
    }

    /// Whether new sessions go there, if its pool has a healthy backend at all.
    fn takes_sessions(&self) -> bool {
        matches!(self.state, "up" | "unchecked")
            && self.admission == AdmissionReport::Ready
            && self.weight_override.unwrap_or(self.weight) > 0
    }
}

impl VerdictReport {
    fn read(verdict: &Verdict) -> Self {
        Self {
            at: timestamp(verdict.at),
            source: match verdict.source {
                Source::Probe => "probe",
                Source::Traffic => "traffic",
                Source::Resolver => "resolver",
                Source::Tunnel => "tunnel",
            },
            outcome: match verdict.outcome {
                VerdictOutcome::Pass => "pass",
                VerdictOutcome::Fail => "fail",
            },
            cause: verdict.cause.to_string(),
            took_ms: milliseconds(verdict.took),
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn degraded_things_and_backends_that_are_down_come_first() {
        let front = fixture::front("backends = ['127.0.0.1:1', '127.0.0.1:2']\nbalance = 'maglev'");
        front.state.degrade("pool.app", "no \x1b[31mbackend");
        let snapshot = front.snapshot.load();
        snapshot.pools[0].backends[1].state.publish_health(HealthState::Down, Instant::now());
        let text = text::status(&Status::read(&front));
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in:\n{text}"));
        assert!(position("DEGRADED") < position("LISTENERS"));
        assert!(position("no \\u{1b}[31mbackend") < position("LISTENERS"));
        assert!(position("127.0.0.1:2") < position("127.0.0.1:1 "), "{text}");
        assert!(position("POOL app (maglev): 1 of 2 backends available") > 0);
    }

    #[test]
    fn programs_get_the_same_facts() {
        let front = fixture::front("backends = ['127.0.0.1:1']");
        let snapshot = front.snapshot.load();
        let backend = &snapshot.pools[0].backends[0].state;
        backend.counters.of(0).sessions.add(7);
        backend.counters.of(1).sessions.add(5);
        backend.set_weight_override(Some(3));
        backend.set_admission(Admission::Draining);
        front.state.reloads_refused.store(2, Relaxed);
        let json = serde_json::to_value(Status::read(&front)).unwrap();
        let backend = &json["pools"][0]["backends"][0];
        assert_eq!(backend["sessions"], 12);
        assert_eq!((&backend["weight"], &backend["weight_override"]), (&1.into(), &3.into()));
        assert_eq!((&backend["admission"], &backend["state"]), (&"draining".into(), &"unchecked".into()));
        assert_eq!(json["pools"][0]["available"], 0);
        assert_eq!(json["counters"]["reloads_refused"], 2);
        assert_eq!(json["connections"]["max"], serde_json::Value::Null);
    }
}
