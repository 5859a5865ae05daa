//! Status model of the front door, for `penstock ctl status`, `ctl backends` and the admin listener's `/status`.
//!
//! It only reads state, snapshot and counters. `report/tables.rs` renders it for people, serde for programs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use config::Config;
use config::types::{BackendAddress, Protocol, Transport};
use logic::health::{Awaits, Source, Verdict, VerdictOutcome};
use proxy::front::Front;
use proxy::snapshot::{BackendPlan, ListenerPlan, PoolPlan};
use serde::{Serialize, Serializer};
use state::dsr::{Served, Services};
use state::events::timestamp;
use state::lock::lock;
use state::metrics::{Counter, LatencySum, ListenerCounters, PerWorker};
use state::{Admission, Drain};
use text::units;

pub mod certificates;
pub mod clients;
pub mod confinement;
pub mod descriptors;
pub mod dsr;
pub mod engine;
#[cfg(test)]
pub(crate) mod fixture;
pub mod hsts;
pub mod html;
pub mod older;
pub mod past;
pub mod path;
pub mod pending;
pub mod probes;
pub mod queue;
pub mod sessions;
pub mod stopping;
pub mod stored;
pub mod tables;
pub mod taking;
pub mod why;

use confinement::ConfinementReport;
use descriptors::Descriptors;
use engine::EngineReport;
use hsts::HstsReport;
use older::OlderReport;
use pending::PendingReport;
use probes::ProbeReport;
use queue::QueueReport;
use stopping::StoppingReport;
use stored::StoredReport;
use taking::TakingReport;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub version: &'static str,
    pub pid: u32,
    pub phase: Phase,
    /// What a process still waits for that was told to stop; `None` before.
    pub stopping: Option<StoppingReport>,
    pub uptime_seconds: u64,
    /// Number of the current configuration.
    pub generation: u64,
    /// Number of live changes that the file of the configuration does not have.
    pub unsaved_changes: usize,
    /// Live changes that operators have begun and not ended.
    pub pending: PendingReport,
    pub workers: usize,
    pub connections: Connections,
    pub descriptors: Descriptors,
    pub confinement: ConfinementReport,
    /// What moves the bytes of TCP sessions.
    pub engine: EngineReport,
    /// State for the next process; `None` if nothing is kept over a restart.
    pub stored: Option<StoredReport>,
    /// Why nothing is kept, if another process holds the directory.
    pub not_stored: Option<String>,
    /// The process before this one, if it still has sessions after an upgrade.
    pub older: Option<OlderReport>,
    pub degraded: Vec<Degraded>,
    /// In configuration order.
    pub listeners: Vec<ListenerReport>,
    /// In configuration order.
    pub pools: Vec<PoolReport>,
    /// Counts of rare events.
    pub counters: Counters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Serving,
    /// The process was told to stop and waits for its sessions to end.
    Draining,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Connections {
    pub now: usize,
    /// Configured limit; `None` if unknown.
    pub max: Option<usize>,
}

/// A part that does not work as configured.
#[derive(Clone, Debug, Serialize)]
pub struct Degraded {
    /// Path of the configuration key: `pool.app`, `listener.web.tls`.
    pub subject: String,
    /// Reason and fallback.
    pub reason: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct ListenerReport {
    /// NAME of `[listener.NAME]`.
    pub name: String,
    /// `tcp`, `http`, `tcp+tls`, `http+tls`, `tls-passthrough` or `udp`.
    pub protocol: &'static str,
    pub bound: Vec<String>,
    /// Strict-Transport-Security; `None` if the listener never sends it.
    pub hsts: Option<HstsReport>,
    /// Open client connections.
    pub connections: usize,
    /// Client connections accepted since the process started.
    pub accepted: u64,
    /// Sessions ended since the process started (HTTP: requests; TCP: connections; UDP: flows).
    pub sessions: u64,
    pub statuses: Statuses,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// UDP datagrams from clients; `None` for listeners of connections.
    pub datagrams_in: Option<u64>,
    /// UDP datagrams to clients.
    pub datagrams_out: Option<u64>,
    /// UDP datagrams that were dropped: `endings` says why.
    pub datagrams_dropped: Option<u64>,
    /// Packets to backends; `None` for listeners that do not have `protocol = "dsr"`.
    pub packets_forwarded: Option<u64>,
    /// Packets that were dropped: `endings` says why.
    pub packets_dropped: Option<u64>,
    /// Packets that were seen and were not for the listener.
    pub packets_passed: Option<u64>,
    /// Where the packets of each address are forwarded; `None` for listeners that do not have `protocol = "dsr"`.
    pub paths: Option<Vec<path::DataPathReport>>,
    /// Time from a session's first byte to its end.
    pub latency: LatencyReport,
    /// Number of sessions that ended with an error, by reason.
    pub endings: BTreeMap<&'static str, u64>,
}

/// Number of HTTP answers by status class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statuses {
    #[serde(rename = "1xx")]
    pub interim: u64,
    #[serde(rename = "2xx")]
    pub success: u64,
    #[serde(rename = "3xx")]
    pub redirect: u64,
    #[serde(rename = "4xx")]
    pub client_error: u64,
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

    /// Pairs each class with its name.
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

/// Percentiles of a latency, estimated from histogram buckets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyReport {
    /// Median in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile in milliseconds.
    pub p99_ms: Option<f64>,
}

impl From<LatencySum> for LatencyReport {
    fn from(sum: LatencySum) -> Self {
        let at = |quantile| sum.quantile(quantile).map(milliseconds);
        Self { p50_ms: at(0.5), p99_ms: at(0.99) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct PoolReport {
    /// NAME of `[pool.NAME]`.
    pub name: String,
    /// Balancing method, as configured.
    pub balance: String,
    /// Sessions waiting in the queue for a backend below its limit.
    pub queued: usize,
    /// How long they wait.
    pub queue: QueueReport,
    /// Number of backends that take new sessions.
    pub available: usize,
    /// Backends that traffic would have ejected, if another one could take their sessions.
    pub ejections_stopped: u64,
    /// Retries that were not made because `retry-budget` was spent.
    pub retries_refused: u64,
    /// Pool that gets the sessions while no backend is available.
    pub fallback: Option<FallbackReport>,
    /// The addresses of `dsr` listeners with the pool.
    pub taking: Vec<TakingReport>,
    pub backends: Vec<BackendReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct FallbackReport {
    pub pool: String,
    /// Sessions that went there.
    pub sessions: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// Address as configured.
    pub name: String,
    /// `unchecked`, `up`, `down`, `ejected` or `half-open`.
    pub state: &'static str,
    /// Seconds since the last change of state.
    pub state_seconds: u64,
    /// What an ejected backend needs to return.
    pub returns_after: Option<ReturnReport>,
    /// Setting of an operator for the backend.
    #[serde(serialize_with = "serialize_admission")]
    pub admission: Admission,
    /// Time until its drain ends by itself; `null` without one, and if an operator ends it.
    pub drain_seconds_left: Option<u64>,
    pub weight: u32,
    /// Weight set by an operator, instead of the configured one.
    pub weight_override: Option<u32>,
    pub in_flight: u32,
    pub max_connections: Option<u32>,
    pub soft_max_connections: Option<u32>,
    pub priority: u32,
    pub sessions: u64,
    pub statuses: Statuses,
    pub connects: u64,
    /// Number of sessions that reused an idle connection.
    pub reused: u64,
    pub failures: u64,
    /// Failed attempts that were retried on another connection.
    pub retries: u64,
    /// Requests that went elsewhere when the backend was judged down.
    pub moved: u64,
    /// Copies sent to it because another backend was slow.
    pub hedges: u64,
    /// Copies whose response it began first.
    pub hedge_wins: u64,
    /// Current number of consecutive failures.
    pub consecutive_failures: u32,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Time to the first byte of an answer.
    pub latency: LatencyReport,
    /// Addresses of the backend's name; empty for other kinds of address.
    pub addresses: Vec<String>,
    pub last_verdicts: Vec<VerdictReport>,
    /// Whether it accepts the addresses of `dsr` listeners with its pool.
    pub services: Vec<ProbeReport>,
}

/// What must happen before an ejected backend returns.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReturnReport {
    /// Seconds that must pass, rounded up. Not 0 without checks, and for a backend that was ejected again within a minute.
    pub seconds: u64,
    /// Number of checks in a row that must pass.
    pub passes: u32,
}

impl ReturnReport {
    fn read(awaits: Awaits) -> Self {
        Self { seconds: awaits.time.as_millis().div_ceil(1000) as u64, passes: awaits.passes }
    }
}

/// Time until a drain ends by itself, rounded up.
pub(crate) fn seconds_left(drain: &Drain, now: Instant) -> Option<u64> {
    let left = drain.until?.saturating_duration_since(now);
    Some(left.as_millis().div_ceil(1000) as u64)
}

fn serialize_admission<S: Serializer>(admission: &Admission, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(admission.word())
}

/// Result of a check, of traffic, of a look-up or of a tunnel.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictReport {
    /// RFC 3339 in UTC.
    pub at: String,
    /// `probe`, `traffic`, `resolver` or `tunnel`.
    pub source: &'static str,
    /// `pass` or `fail`.
    pub outcome: &'static str,
    pub cause: String,
    /// Duration of the check in milliseconds.
    pub took_ms: f64,
}

/// Counts of rare events.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counters {
    /// Idle client connections closed to free descriptors.
    pub idle_clients_closed: u64,
    pub accept_pauses: u64,
    /// Access-log lines dropped because the writer was too slow.
    pub log_lines_dropped: u64,
    /// Access-log lines that could not be written.
    pub log_lines_failed: u64,
    /// Access-log lines about clients turned away that were left out, because there were too many.
    pub log_lines_left_out: u64,
    /// Admin clients that the access list denied.
    pub admin_clients_denied: u64,
    /// Sessions that ended in a panic.
    pub panics: u64,
    pub reloads_refused: u64,
}

impl Status {
    /// Reads the current status of `front`.
    pub fn read(front: &Front) -> Self {
        let state = &front.state;
        let snapshot = front.snapshot.load();
        let max = state.max_connections.load(Relaxed);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            phase: if state.draining.load(Relaxed) { Phase::Draining } else { Phase::Serving },
            stopping: StoppingReport::read(state, Instant::now()),
            uptime_seconds: state.started.elapsed().as_secs(),
            generation: snapshot.generation,
            unsaved_changes: state.unsaved_changes.load(Relaxed),
            pending: PendingReport::read(state),
            workers: state.workers,
            connections: Connections {
                now: state.connections.load(Relaxed),
                max: (max != usize::MAX).then_some(max),
            },
            descriptors: Descriptors::read(state),
            confinement: ConfinementReport::read(&state.confinement),
            engine: EngineReport::read(&state.engine, &snapshot),
            stored: StoredReport::read(state),
            not_stored: state.kept.another(),
            older: OlderReport::read(state),
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
                idle_clients_closed: state.evicted.load(Relaxed),
                accept_pauses: state.accept_pauses.load(Relaxed),
                log_lines_dropped: state.log_lines_dropped.load(Relaxed),
                log_lines_failed: state.log_lines_failed.load(Relaxed),
                log_lines_left_out: state.log_lines_left_out.load(Relaxed),
                admin_clients_denied: state.admin_denied.load(Relaxed),
                panics: state.panics.load(Relaxed),
                reloads_refused: state.reloads_refused.load(Relaxed),
            },
        }
    }
}

/// Reports all pools, or only the pool named `only`.
pub fn pools(front: &Front, only: Option<&str>) -> Vec<PoolReport> {
    let now = Instant::now();
    let snapshot = front.snapshot.load();
    let served = front.state.services.all();
    snapshot
        .pools
        .iter()
        .filter(|pool| only.is_none_or(|only| *pool.settings.name == *only))
        .map(|pool| {
            PoolReport::read(pool, &snapshot.config, &served, now).with_services(&front.state.services)
        })
        .collect()
}

impl ListenerReport {
    fn read(plan: &ListenerPlan) -> Self {
        let state = &plan.state;
        let counters = &state.counters;
        let transport = plan.settings.protocol.transport();
        type Of = fn(&ListenerCounters) -> &Counter;
        let datagrams = |of: Of| (transport == Transport::Datagram).then(|| counters.sum(of));
        let packets = |of: Of| (transport == Transport::Packet).then(|| counters.sum(of));
        Self {
            name: state.name.to_string(),
            protocol: protocol_word(plan),
            bound: lock(&state.bound).clone(),
            hsts: HstsReport::read(plan),
            connections: state.connections.load(Relaxed),
            accepted: counters.sum(|block| &block.connections),
            sessions: counters.sum(|block| &block.sessions),
            statuses: Statuses::sum(counters, |block| &block.statuses),
            bytes_in: counters.sum(|block| &block.bytes_in),
            bytes_out: counters.sum(|block| &block.bytes_out),
            datagrams_in: datagrams(|block| &block.datagrams_in),
            datagrams_out: datagrams(|block| &block.datagrams_out),
            datagrams_dropped: datagrams(|block| &block.datagrams_dropped),
            packets_forwarded: packets(|block| &block.packets_forwarded),
            packets_dropped: packets(|block| &block.packets_dropped),
            packets_passed: packets(|block| &block.packets_passed),
            paths: (transport == Transport::Packet).then(|| path::read(state)),
            latency: counters.sum_latency(|block| &block.latency).into(),
            endings: state.endings(),
        }
    }
}

/// Protocol of a listener, with TLS if it terminates it.
fn protocol_word(plan: &ListenerPlan) -> &'static str {
    match (&plan.settings.protocol, &plan.settings.tls) {
        (Protocol::Tcp(_), None) => "tcp",
        (Protocol::Tcp(_), Some(_)) => "tcp+tls",
        (Protocol::TlsPassthrough(_), _) => "tls-passthrough",
        (Protocol::Udp(_), _) => "udp",
        (Protocol::Dsr(_), _) => "dsr",
        (Protocol::Http(_), None) => "http",
        (Protocol::Http(_), Some(_)) => "http+tls",
    }
}

impl Status {
    /// Where the state of the process is stored for the next one, or why it is not.
    fn stored_lines(&self) -> impl Iterator<Item = String> {
        self.stored.iter().map(StoredReport::line).chain(self.not_stored.clone())
    }
}

impl PoolReport {
    /// What the limits of the pool have stopped so far; each begins with a comma.
    fn limited(&self) -> String {
        let stopped = match self.ejections_stopped {
            0 => String::new(),
            count => format!(", {} stopped", units::count(count as usize, "ejection")),
        };
        let refused = match self.retries_refused {
            0 => String::new(),
            count => format!(", {} refused", units::count_of(count as usize, "retry", "retries")),
        };
        stopped + &refused
    }

    /// Whether a session or a flow gets a backend.
    pub(crate) fn serves(&self) -> bool {
        self.available > 0 && (self.taking.is_empty() || self.taking.iter().any(TakingReport::takes))
    }

    /// Number of backends that take sessions, and of those that take flows, where these are fewer.
    pub(super) fn availability(&self) -> String {
        let backends = units::count(self.backends.len(), "backend");
        let taking: String = self.taking.iter().map(|taking| taking.words(self.available)).collect();
        format!("{} of {backends} available{taking}", self.available)
    }

    fn read(plan: &PoolPlan, config: &Config, served: &[Served], now: Instant) -> Self {
        let backends: Vec<_> =
            plan.backends.iter().map(|backend| BackendReport::read(backend, now)).collect();
        Self {
            name: plan.settings.name.to_string(),
            balance: plan.settings.balance.to_string(),
            queued: plan.queue.waiting(),
            queue: QueueReport::read(&plan.queue, now),
            available: backends.iter().filter(|backend| backend.takes_sessions()).count(),
            ejections_stopped: plan.state.ejections_stopped.load(Relaxed),
            retries_refused: plan.state.retries_refused.load(Relaxed),
            fallback: plan.settings.fallback.map(|fallback| FallbackReport {
                pool: config.pools[fallback.0].name.to_string(),
                sessions: plan.state.fallback_sessions.load(Relaxed),
            }),
            taking: TakingReport::read(&plan.settings.name, config, served),
            backends,
        }
    }
}

impl PoolReport {
    fn with_services(mut self, services: &Services) -> Self {
        for backend in &mut self.backends {
            let all = services.probes(&self.name, &backend.name).into_iter();
            backend.services =
                all.map(|(listener, address, vip)| ProbeReport { listener, address, vip }).collect();
        }
        self
    }
}

impl BackendReport {
    fn read(plan: &BackendPlan, now: Instant) -> Self {
        let state = &plan.state;
        let counters = &state.counters;
        let (since, awaits, last_verdicts) = {
            let health = state.lock_health();
            (health.since(), health.awaits(now), health.verdicts().map(VerdictReport::read).collect())
        };
        Self {
            name: state.name.to_string(),
            state: state.health_state().word(),
            state_seconds: now.saturating_duration_since(since).as_secs(),
            returns_after: awaits.map(ReturnReport::read),
            admission: state.admission(),
            drain_seconds_left: state.drain().and_then(|drain| seconds_left(&drain, now)),
            weight: plan.settings.weight,
            weight_override: state.weight_override(),
            in_flight: state.in_flight.load(Relaxed),
            max_connections: plan.settings.max_connections,
            soft_max_connections: plan.settings.soft_max_connections,
            priority: plan.settings.priority,
            sessions: counters.sum(|block| &block.sessions),
            statuses: Statuses::sum(counters, |block| &block.statuses),
            connects: counters.sum(|block| &block.connects),
            reused: counters.sum(|block| &block.reused),
            failures: counters.sum(|block| &block.failures),
            retries: counters.sum(|block| &block.retries),
            moved: counters.sum(|block| &block.moved),
            hedges: counters.sum(|block| &block.hedges),
            hedge_wins: counters.sum(|block| &block.hedge_wins),
            consecutive_failures: state.failures.load(Relaxed),
            bytes_in: counters.sum(|block| &block.bytes_in),
            bytes_out: counters.sum(|block| &block.bytes_out),
            latency: counters.sum_latency(|block| &block.latency).into(),
            addresses: match &state.address {
                BackendAddress::Name { .. } => {
                    state.addresses.load().iter().map(ToString::to_string).collect()
                }
                BackendAddress::Ip(_) | BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => Vec::new(),
                BackendAddress::Dns(_) | BackendAddress::Discovered { .. } => Vec::new(),
            },
            last_verdicts,
            services: Vec::new(),
        }
    }

    /// Its health, and whether it drains and for how long still: for people.
    fn standing(&self) -> String {
        let state = if self.lacks_vip() {
            format!("{}, VIP not accepted", self.state)
        } else {
            self.state.to_owned()
        };
        match (self.admission, self.drain_seconds_left) {
            (Admission::Ready, _) => state,
            (Admission::Draining, None) => format!("{state}, draining"),
            (Admission::Draining, Some(left)) => {
                let left = units::duration(Duration::from_secs(left.max(1)));
                format!("{state}, draining, {left} left")
            }
        }
    }

    /// Whether it passes its checks, and does not accept an address of a `dsr` listener.
    fn lacks_vip(&self) -> bool {
        matches!(self.state, "up" | "unchecked") && self.services.iter().any(|it| it.vip.state == "down")
    }

    /// Reports whether the backend takes new sessions while its pool has a healthy backend.
    fn takes_sessions(&self) -> bool {
        matches!(self.state, "up" | "unchecked")
            && self.admission == Admission::Ready
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
    use logic::health::{Cause, Event};

    use super::*;
    use crate::report::fixture;

    #[test]
    fn degraded_things_and_backends_that_are_down_come_first() {
        let front = fixture::front("backends = ['127.0.0.1:1', '127.0.0.1:2']\nbalance = 'maglev'");
        front.state.degrade("pool.app", "no \x1b[31mbackend");
        let snapshot = front.snapshot.load();
        snapshot.pools[0].backends[1].state.publish_health(logic::health::State::Down, Instant::now());
        let text = tables::status(&Status::read(&front));
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in:\n{text}"));
        assert!(position("DEGRADED") < position("LISTENERS"));
        assert!(position("no \\u{1b}[31mbackend") < position("LISTENERS"));
        assert!(position("127.0.0.1:2") < position("127.0.0.1:1 "), "{text}");
        assert!(position("POOL app (maglev): 1 of 2 backends available") > 0);
    }

    #[test]
    fn last_verdicts_of_a_backend_fit_100_columns_and_the_newest_is_first() {
        let front =
            fixture::front("backends = ['app-server-12.internal.example:8000', 'unix:/tmp/gunicorn.sock']");
        let long = "connect to 10.0.0.12:8000 failed: connection refused, as it was 17 times before; \u{1b}[31m and more words";
        let verdict = |second: u64, cause: &str| VerdictReport {
            at: timestamp(std::time::UNIX_EPOCH + Duration::from_secs(second)),
            source: "probe",
            outcome: "fail",
            cause: cause.to_owned(),
            took_ms: 2.0,
        };
        let mut pools = pools(&front, None);
        pools[0].backends[0].last_verdicts =
            vec![verdict(4, long), verdict(3, "third"), verdict(2, "second"), verdict(1, "first")];
        let text = tables::pools(&pools);
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in:\n{text}"));
        assert!(position("1970-01-01T00:00:04Z  probe  fail  connect to") < position("probe  fail  third"));
        assert!(position("third") < position("second") && !text.contains("first"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }

    #[test]
    fn an_ejected_backend_says_until_when_it_is_out_and_why() {
        let checks = "health = { tcp = true, interval = '1s', rise = 2 }";
        let front = fixture::front(&format!("backends = ['127.0.0.1:1', '127.0.0.1:2']\n{checks}"));
        let snapshot = front.snapshot.load();
        let state = &snapshot.pools[0].backends[1].state;
        let verdict = |source, outcome, cause| Verdict {
            at: std::time::UNIX_EPOCH + Duration::from_secs(7),
            source,
            outcome,
            cause,
            took: Duration::from_millis(2),
        };
        let now = Instant::now();
        let fails = || {
            let closed = verdict(Source::Traffic, VerdictOutcome::Fail, Cause::ClosedEarly);
            let event = state.lock_health().handle_traffic_failure(5, closed, now);
            assert_eq!(event, Some(Event::Ejected));
            state.publish_health(logic::health::State::Ejected, now);
        };
        let passes = || {
            let passed = verdict(Source::Probe, VerdictOutcome::Pass, Cause::Passed);
            state.lock_health().handle_probe(passed, now, 0.5)
        };
        let shown = || tables::pools(&pools(&front, None));
        fails();
        let text = shown();
        assert!(text.contains("  127.0.0.1:2 returns when 2 checks in a row pass\n"), "{text}");
        let why = format!("    1970-01-01T00:00:07Z  traffic  fail  {}", Cause::ClosedEarly);
        assert!(text.contains(&why), "{text}");
        passes();
        let text = shown();
        assert!(text.contains("  127.0.0.1:2 returns when 1 check in a row passes\n"), "{text}");
        assert_eq!(passes(), Some(Event::Readmitted));
        state.publish_health(logic::health::State::Up, now);
        assert!(!shown().contains(" returns "), "{}", shown());
        // The second one soon after the first lasts a time as well.
        fails();
        let text = shown();
        assert!(
            text.contains("  127.0.0.1:2 returns after 10 s and when 2 checks in a row pass\n"),
            "{text}"
        );
        let json = serde_json::to_value(pools(&front, None)).unwrap();
        let backend = &json[0]["backends"][1];
        assert_eq!(
            backend["returns_after"],
            serde_json::json!({ "seconds": 10, "passes": 2 }),
            "{backend:#}"
        );
        assert_eq!(backend["last_verdicts"][0]["source"], "traffic");
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
