//! Health checks of backends. One task per backend runs its checks, receives failures of its traffic and publishes the
//! state that workers read. `logic/src/health.rs` makes every decision; `health/probe.rs` performs one check.
//!
//! The tasks run on the slow runtime. Traffic waits for no check. When descriptors are scarce, checks wait in turn for
//! theirs (`crates/state/src/account/turns.rs`).
//!
//! # The path of a health check
//!
//! 1. `crates/serve/src/health.rs` has one task per backend. It waits until `crates/logic/src/health.rs` says that a
//!    probe is due.
//! 2. The probe connects (`crates/serve/src/health/probe.rs`). Its verdict, with cause and time, goes to
//!    `crates/logic/src/health.rs`, which keeps the last 16 and applies `rise` and `fall`.
//! 3. A change of state is published as one atomic in `crates/state/src/lib.rs`, where workers read it, and as an event
//!    (`crates/state/src/events.rs`) that `penstock ctl events` shows.
//! 4. For a backend with a name, `crates/serve/src/resolve.rs` looks its addresses up repeatedly; a name without an
//!    address makes its backend `down`. Checks and traffic connect through the same `crates/proxy/src/connect.rs`.
//! 5. Real traffic counts too: `crates/proxy/src/upstream.rs` counts consecutive failures and ejects a backend at once;
//!    the task decides when the backend returns.
//! 6. `crates/serve/src/report.rs` (the account of descriptors: `crates/serve/src/report/descriptors.rs`) is the one
//!    model behind `penstock ctl status`, `ctl backends` and the admin `/status`.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use config::types::{ActiveCheck, AllDown, Protocol};
use logic::balance::Availability;
use logic::health::{
    DurationText, Event, PassiveRule, Source, State as HealthState, Verdict, VerdictOutcome,
};
use logic::route::PoolId;
use proxy::snapshot::Snapshot;
use state::account::Purpose;
use state::events::Level;
use state::lock::lock;
use state::{Admission, BackendState, Drain, State};
use tokio::sync::watch;

mod outliers;
mod probe;

use outliers::Outliers;
use probe::{Finding, Way};

/// Runs the checks of all backends. Dropping the checker aborts them.
pub struct Checker {
    state: Arc<State>,
    tasks: HashMap<Key, Task>,
    outliers: Outliers,
}

impl Checker {
    pub fn new(state: Arc<State>) -> Self {
        Self { state, tasks: HashMap::new(), outliers: Outliers::default() }
    }

    /// Starts the checks of new backends, ends those of removed backends and gives the other tasks their new settings.
    /// Must be called on a tokio runtime.
    pub fn reconcile(&mut self, snapshot: &Snapshot) {
        self.outliers.reconcile(&self.state, snapshot);
        let mut gone = std::mem::take(&mut self.tasks);
        for pool in &snapshot.pools {
            let watch = Arc::new(PoolWatch {
                subject: format!("pool.{}", pool.settings.name),
                gets: Gets::of(&snapshot.config, &pool.settings.name),
                all_down: pool.settings.all_down,
                most_failures: pool.settings.passive.failures,
                state: self.state.clone(),
                members: pool
                    .backends
                    .iter()
                    .map(|plan| (plan.state.clone(), plan.settings.weight))
                    .collect(),
                turn: Mutex::new(()),
            });
            for plan in &pool.backends {
                let target = Arc::new(Target {
                    backend: plan.state.clone(),
                    active: pool.settings.health.clone(),
                    passive: pool.settings.passive,
                    way: Way {
                        send_proxy: pool.settings.send_proxy,
                        tls: plan.tls.clone(),
                        outgoing: plan.outgoing,
                        http: pool.settings.http,
                    },
                    watch: watch.clone(),
                });
                // The snapshot's construction already changed the health rules; `settle` publishes the resulting state.
                target.settle();
                let key = (pool.settings.name.clone(), plan.state.name.clone());
                let task = match gone.remove(&key) {
                    Some(task) if Arc::ptr_eq(&task.backend, &plan.state) => {
                        task.targets.send_replace(target);
                        task
                    }
                    _ => Task::start(target),
                };
                self.tasks.insert(key, task);
            }
        }
        for (pool, _) in gone.keys() {
            if !snapshot.pools.iter().any(|plan| plan.settings.name == *pool) {
                let subject = format!("pool.{pool}");
                self.state.forget_degraded(|degraded| degraded == subject);
            }
        }
    }
}

/// Records the verdict of a name look-up, and publishes the resulting state of the backend.
pub(crate) fn note_resolution(state: &State, backend: &BackendState, verdict: Verdict) {
    note_resolution_at(Level::Warning, state, backend, verdict);
}

/// Like [`note_resolution`], with the level of the event "down": a tunnel that is still opening is only information.
pub(crate) fn note_resolution_at(down: Level, state: &State, backend: &BackendState, verdict: Verdict) {
    let now = Instant::now();
    let cause = verdict.cause.to_string();
    let again = if verdict.source == Source::Tunnel { Again::Tunnel } else { Again::Name };
    let (event, health) = {
        let mut health = backend.lock_health();
        (health.handle_resolution(verdict, now), health.state())
    };
    if backend.health_state() != health {
        backend.publish_health(health, now);
    }
    match event {
        Some(Event::WentDown) => state.events.record(down, backend.subject(), format!("down: {cause}")),
        Some(_) => {
            let what = match again {
                Again::Tunnel => "its SSH tunnel stands",
                Again::Name => "its name resolves again",
            };
            state.events.record(Level::Info, backend.subject(), what);
        }
        None => {}
    }
    backend.wake_health.notify_one();
}

/// Reason why the backend had no address before it recovered.
enum Again {
    Name,
    Tunnel,
}

/// Names of a pool and of a backend in it.
type Key = (Arc<str>, Arc<str>);

struct Task {
    backend: Arc<BackendState>,
    /// Dropping this sender ends the task.
    targets: watch::Sender<Arc<Target>>,
}

impl Task {
    fn start(target: Arc<Target>) -> Self {
        let backend = target.backend.clone();
        let (targets, receiver) = watch::channel(target);
        tokio::spawn(watch_backend(receiver));
        Self { backend, targets }
    }
}

/// Settings of one backend's task. A reload replaces them.
struct Target {
    backend: Arc<BackendState>,
    active: Option<ActiveCheck>,
    passive: PassiveRule,
    way: Way,
    watch: Arc<PoolWatch>,
}

/// Shortest time to the next timer while a check runs: an overdue timer would otherwise make the loop spin.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Shortest time between two answers to what wakes the task. Operators may cause thousands a second, each of which would
/// take the core from a worker.
const CALM: Duration = Duration::from_millis(5);

const DESCRIPTORS: &str = "health-checks";

async fn watch_backend(mut targets: watch::Receiver<Arc<Target>>) {
    let mut probe: Option<Pin<Box<dyn Future<Output = Finding> + Send>>> = None;
    let mut woken = tokio::time::Instant::now();
    loop {
        let target = targets.borrow_and_update().clone();
        let due = {
            let health = target.backend.lock_health();
            match probe {
                // A running check also delays the next one, even while it waits for descriptors.
                Some(_) => health.poll_return().map(|due| due.max(Instant::now() + BUSY_PAUSE)),
                None => health.poll_timeout(),
            }
        };
        let drained_until = target.backend.drain().and_then(|drain| drain.until);
        tokio::select! {
            // Checked first: the task of a removed backend must not record anything.
            biased;
            changed = targets.changed() => {
                if changed.is_err() {
                    return;
                }
                let new = targets.borrow().clone();
                if new.active != target.active {
                    probe = None;
                }
                new.handle_traffic();
                new.settle();
                continue;
            }
            () = notified_after(woken, &target.backend) => {
                target.handle_traffic();
                woken = tokio::time::Instant::now() + CALM;
            }
            () = until(drained_until) => target.end_drain(),
            finding = finished(&mut probe) => {
                probe = None;
                // First: a check that passed must not hide failing traffic.
                target.handle_traffic();
                target.handle_finding(finding);
            }
            () = until(due) => {
                target.handle_traffic();
                target.handle_timeout();
                if probe.is_none() {
                    probe = target.start_probe();
                }
            }
        }
        target.settle();
    }
}

/// Completes when the task is woken, but not before `from`.
async fn notified_after(from: tokio::time::Instant, backend: &BackendState) {
    // Nothing is lost meanwhile: a notification stays until it is taken.
    if from > tokio::time::Instant::now() {
        tokio::time::sleep_until(from).await;
    }
    backend.wake_health.notified().await;
}

async fn finished(probe: &mut Option<Pin<Box<dyn Future<Output = Finding> + Send>>>) -> Finding {
    match probe {
        Some(probe) => probe.await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

impl Target {
    fn start_probe(&self) -> Option<Pin<Box<dyn Future<Output = Finding> + Send>>> {
        let active = self.active.clone()?;
        {
            let now = Instant::now();
            let mut health = self.backend.lock_health();
            if health.poll_probe().is_none_or(|due| now < due) {
                return None;
            }
            health.handle_probe_start(now);
        }
        let (backend, way, account) =
            (self.backend.clone(), self.way.clone(), self.watch.state.account.clone());
        Some(Box::pin(async move {
            // The time limit of a check begins when it connects, not while it waits for descriptors.
            let _turn = account.turn(Purpose::Check, backend.slots()).await;
            probe::run(&backend, &active, &way).await
        }))
    }

    /// Gives the backend sessions again when the time of its drain is over.
    fn end_drain(&self) {
        let Some(Drain { by, at, .. }) = self.backend.end_drain(Instant::now()) else { return };
        let lasted = DurationText(at.elapsed().unwrap_or_default());
        self.record(Level::Info, format!("ready: the time of its drain by {by} is over, after {lasted}"));
        // Services of packets follow at once.
        self.watch.state.health_changes.send_replace(());
    }

    fn handle_finding(&self, finding: Finding) {
        let verdict = match finding {
            Finding::Verdict(verdict) => verdict,
            // The resolver has already reported the missing address.
            Finding::NoAddress => return,
            Finding::OurOwnFault(error) => {
                self.watch.state.degrade(DESCRIPTORS, &format!("checks cannot be made: {error}"));
                return;
            }
        };
        self.watch.state.restore(DESCRIPTORS);
        let (now, cause) = (Instant::now(), verdict.cause.to_string());
        let (before, since, event, fall) = {
            let mut health = self.backend.lock_health();
            let (before, since) = (health.state(), health.since());
            let event = health.handle_probe(verdict, now, fastrand::f64());
            (before, since, event, health.rule().map_or(0, |rule| rule.fall))
        };
        match event {
            Some(Event::WentDown) if before == HealthState::Unchecked => {
                self.record(Level::Warning, format!("down: {cause} (first check)"));
            }
            Some(Event::WentDown) => {
                self.record(Level::Warning, format!("down: {cause} ({fall} checks in a row)"));
            }
            Some(event) => self.record_return(event, before, since, now),
            None => {}
        }
    }

    fn handle_timeout(&self) {
        let now = Instant::now();
        let (before, since, event) = {
            let mut health = self.backend.lock_health();
            (health.state(), health.since(), health.handle_timeout(now))
        };
        if let Some(event) = event {
            self.record_return(event, before, since, now);
        }
    }

    /// Publishes the health of the backend and evaluates its pool.
    fn settle(&self) {
        let state = self.backend.lock_health().state();
        if self.backend.health_state() != state {
            self.backend.publish_health(state, Instant::now());
        }
        self.watch.judge();
    }

    /// Records an ejection that a worker made. The cause comes from `last_failure`: the published state and the failure
    /// count may have changed since.
    fn handle_traffic(&self) {
        let Some(cause) = lock(&self.backend.last_failure).take() else { return self.handle_trials() };
        let failures = self.backend.failures.load(Relaxed).max(self.passive.failures);
        let said = cause.to_string();
        let verdict = Verdict {
            at: SystemTime::now(),
            source: Source::Traffic,
            outcome: VerdictOutcome::Fail,
            cause,
            took: Duration::ZERO,
        };
        let now = Instant::now();
        let is_outlier = verdict.cause.is_outlier();
        let mut health = self.backend.lock_health();
        let (event, why) = match health.state() {
            HealthState::HalfOpen => {
                (health.handle_trial_failure(verdict, now), "it was half-open".to_owned())
            }
            _ if is_outlier => (health.handle_outlier(verdict, now), "passive".to_owned()),
            _ => {
                let event = health.handle_traffic_failure(failures, verdict, now);
                (event, format!("{failures} failures of traffic in a row"))
            }
        };
        drop(health);
        if event.is_some() {
            self.record(Level::Warning, format!("ejected: {said} ({why})"));
        }
    }

    /// Ends the trials of a half-open backend if enough of them went well.
    fn handle_trials(&self) {
        let passed = self.backend.breaker.passed();
        if passed < self.passive.trials {
            return;
        }
        let event = self.backend.lock_health().handle_trials_passed(Instant::now());
        if event.is_some() {
            self.record(Level::Info, format!("readmitted: {passed} sessions on trial went well"));
        }
    }

    fn record_return(&self, event: Event, before: HealthState, since: Instant, now: Instant) {
        let away = DurationText(now.saturating_duration_since(since));
        let message = match (event, before) {
            (Event::HalfOpen, _) => {
                let trials = self.passive.trials;
                format!(
                    "half-open after {away}: gets at most {trials} sessions at a time, until {trials} went well"
                )
            }
            (_, HealthState::Unchecked) => "up: first check passed".to_owned(),
            (Event::Readmitted, _) => format!("readmitted after {away}"),
            _ => format!("up again after {away}"),
        };
        self.record(Level::Info, message);
    }

    fn record(&self, level: Level, message: String) {
        self.watch.state.events.record(level, self.backend.subject(), message);
    }
}

/// Reports a pool without a usable backend as degraded. The last healthy backend is not ejected: that its sessions fail
/// shows in their number.
struct PoolWatch {
    subject: String,
    gets: Gets,
    all_down: AllDown,
    /// Failed sessions in a row that eject a backend; 0 disables ejection.
    most_failures: u32,
    state: Arc<State>,
    /// Backends with their configured weights.
    members: Vec<(Arc<BackendState>, u32)>,
    /// Serializes the tasks: an older result must not overwrite a newer one.
    turn: Mutex<()>,
}

/// What listeners give to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gets {
    requests: bool,
    connections: bool,
    datagrams: bool,
    packets: bool,
}

impl Gets {
    fn of(config: &Config, pool: &str) -> Self {
        let is_pool = |id: PoolId| config.pools.get(id.0).is_some_and(|it| &*it.name == pool);
        let mut gets = Self { requests: false, connections: false, datagrams: false, packets: false };
        for listener in &config.listeners {
            match &listener.protocol {
                Protocol::Dsr(settings) => gets.packets |= is_pool(settings.pool),
                Protocol::Tcp(settings) => gets.connections |= is_pool(settings.pool),
                Protocol::Udp(settings) => gets.datagrams |= is_pool(settings.pool),
                // By any of their routes.
                Protocol::Http(_) => gets.requests = true,
                Protocol::TlsPassthrough(_) => gets.connections = true,
            }
        }
        gets
    }

    fn only_packets(self) -> bool {
        self.packets && !(self.requests || self.connections || self.datagrams)
    }

    /// What clients see while no backend is available.
    fn without_backends(self) -> String {
        if self.only_packets() {
            return "packets of the dsr listeners are dropped".to_owned();
        }
        let all = [
            (self.requests, "answering 503"),
            (self.connections, "closing TCP sessions"),
            (self.datagrams, "dropping datagrams"),
            (self.packets, "dropping packets of the dsr listeners"),
        ];
        let said: Vec<_> = all.into_iter().filter_map(|(is_so, words)| is_so.then_some(words)).collect();
        match &said[..] {
            [] => "no listener uses it".to_owned(),
            said => said.join(", "),
        }
    }
}

impl PoolWatch {
    fn judge(&self) {
        let _turn = lock(&self.turn);
        let mut healthy = self
            .members
            .iter()
            .filter(|(member, _)| member.health_state().availability() == Availability::Available)
            .peekable();
        if healthy.peek().is_none() {
            let reason = match self.all_down {
                AllDown::ErrorPage => format!("no healthy backend: {}", self.gets.without_backends()),
                AllDown::FailOpen if self.gets.only_packets() => {
                    "no healthy backend: failing open, all of them get packets".to_owned()
                }
                AllDown::FailOpen => "no healthy backend: failing open, all of them get sessions".to_owned(),
            };
            self.state.degrade(&self.subject, &reason);
            return;
        }
        let serves = |(member, weight): &(Arc<BackendState>, u32)| {
            member.admission() == Admission::Ready && member.weight_override().unwrap_or(*weight) > 0
        };
        let mut serving = healthy.filter(|one| serves(one)).peekable();
        let fails = |member: &BackendState| {
            self.most_failures > 0 && member.failures.load(Relaxed) >= self.most_failures
        };
        if serving.peek().is_none() {
            self.state.degrade(&self.subject, "every healthy backend is drained or has weight 0");
        } else if serving.all(|(member, _)| fails(member)) {
            let reason = "sessions fail with every backend that takes any: see `penstock ctl backends`";
            self.state.degrade(&self.subject, reason);
        } else {
            self.state.restore(&self.subject);
        }
    }
}

#[cfg(test)]
mod tests;
