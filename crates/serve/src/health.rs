//! Finds out which backends work: one task per backend makes its checks, hears of failing traffic and publishes the
//! state that workers read. Every decision is in `logic/src/health.rs`; the check itself is in `health/probe.rs`.
//!
//! Runs on the slow runtime. Traffic waits for no check. A check waits for others only where descriptors are few: each takes its
//! turn (`crates/serve/src/account/turns.rs`).
//!
//! # The path of a health check
//!
//! 1. `crates/serve/src/health.rs` has one task per backend. It waits until `crates/logic/src/health.rs` says that a probe is due.
//! 2. The probe connects (`crates/serve/src/health/probe.rs`) and its verdict, with cause and time, goes back into
//!    `crates/logic/src/health.rs`, which keeps the last 16 and decides by rise and fall.
//! 3. A change is published as one atomic in `crates/serve/src/state.rs`, where workers read it, and as an event
//!    (`crates/serve/src/events.rs`) that `penstock ctl events` shows.
//! 4. A backend with a name has its addresses looked up again and again by `crates/serve/src/resolve.rs`; a name without an address
//!    takes its backend down. Checks and traffic connect through the same `crates/serve/src/connect.rs`.
//! 5. Real traffic counts too: `crates/serve/src/upstream.rs` notes failures in a row and ejects a backend at once; the task
//!    decides when it comes back.
//! 6. `crates/serve/src/report.rs` (the account of descriptors: `crates/serve/src/report/descriptors.rs`) is the one model behind `penstock ctl status`, `ctl backends` and the admin `/status`.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use config::types::{ActiveCheck, AllDown};
use logic::balance::Availability;
use logic::health::{Event, PassiveRule, Source, Spoken, State as HealthState, Verdict, VerdictOutcome};
use tokio::sync::watch;

use crate::account::Purpose;
use crate::events::Level;
use crate::lock::lock;
use crate::snapshot::Snapshot;
use crate::state::{Admission, BackendState, State};

mod probe;

use probe::{Finding, Way};

/// Runs the checks of all backends. Dropping it ends them.
pub struct Checker {
    state: Arc<State>,
    tasks: HashMap<Key, Task>,
}

impl Checker {
    /// A checker without backends.
    pub fn new(state: Arc<State>) -> Self {
        Self { state, tasks: HashMap::new() }
    }

    /// Starts checks of new backends, ends those of backends that are gone and gives the others their new rules.
    /// Must be called on a tokio runtime: the tasks run there.
    pub fn reconcile(&mut self, snapshot: &Snapshot) {
        let mut gone = std::mem::take(&mut self.tasks);
        for pool in &snapshot.pools {
            let watch = Arc::new(PoolWatch {
                subject: format!("pool.{}", pool.settings.name),
                all_down: pool.settings.all_down,
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
                        http: pool.settings.http,
                    },
                    watch: watch.clone(),
                });
                // The rules were adopted when the snapshot was built; what that changed is published here.
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

/// Enters what a look-up of a backend's name has shown, and publishes the state that follows from it.
pub(crate) fn note_resolution(state: &State, backend: &BackendState, verdict: Verdict) {
    note_resolution_at(Level::Warning, state, backend, verdict);
}

/// The same, with what it means that the backend is down: at first it is only on its way.
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

/// What a backend was without.
enum Again {
    Name,
    Tunnel,
}

/// Pool and backend by name.
type Key = (Arc<str>, Arc<str>);

struct Task {
    backend: Arc<BackendState>,
    /// The task ends when this is dropped.
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

/// What a task needs to know of its backend; a reload brings a new one.
struct Target {
    backend: Arc<BackendState>,
    active: Option<ActiveCheck>,
    passive: PassiveRule,
    way: Way,
    watch: Arc<PoolWatch>,
}

/// A timer that was late and a check that is still running would otherwise make the loop spin.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

const DESCRIPTORS: &str = "health-checks";

async fn watch_backend(mut targets: watch::Receiver<Arc<Target>>) {
    let mut probe: Option<Pin<Box<dyn Future<Output = Finding> + Send>>> = None;
    loop {
        let target = targets.borrow_and_update().clone();
        let due = {
            let health = target.backend.lock_health();
            match probe {
                // The next check is due only when this one is over, however long it waits for its turn.
                Some(_) => health.poll_return().map(|due| due.max(Instant::now() + BUSY_PAUSE)),
                None => health.poll_timeout(),
            }
        };
        tokio::select! {
            // First: a task whose backend is gone must not say anything more.
            biased;
            changed = targets.changed() => {
                if changed.is_err() {
                    return;
                }
                let new = targets.borrow().clone();
                if new.active != target.active {
                    probe = None;
                }
                new.settle();
                continue;
            }
            // Before a finding: a check that passed must not hide that traffic fails.
            () = target.backend.wake_health.notified() => target.handle_traffic(),
            finding = finished(&mut probe) => {
                probe = None;
                target.handle_finding(finding);
            }
            () = until(due) => {
                target.handle_timeout();
                if probe.is_none() {
                    probe = target.start_probe();
                }
            }
        }
        target.settle();
    }
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
            // A check that waits for its turn is not late: its time begins when it connects.
            let _turn = account.turn(Purpose::Check, backend.places()).await;
            probe::run(&backend, &active, &way).await
        }))
    }

    fn handle_finding(&self, finding: Finding) {
        let verdict = match finding {
            Finding::Verdict(verdict) => verdict,
            // The resolver has said so already.
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

    /// Publishes the state and looks at the whole pool.
    fn settle(&self) {
        let state = self.backend.lock_health().state();
        if self.backend.health_state() != state {
            self.backend.publish_health(state, Instant::now());
        }
        self.watch.judge();
    }

    /// Takes over an ejection that a worker has made. Its mark is the cause: the published state may have been
    /// overwritten since, and the count may have been reset with it.
    fn handle_traffic(&self) {
        let Some(cause) = lock(&self.backend.last_failure).take() else { return };
        let failures = self.backend.failures.load(Relaxed).max(self.passive.failures);
        let said = cause.to_string();
        let verdict = Verdict {
            at: SystemTime::now(),
            source: Source::Traffic,
            outcome: VerdictOutcome::Fail,
            cause,
            took: Duration::ZERO,
        };
        let event = self.backend.lock_health().handle_traffic_failure(failures, verdict, Instant::now());
        if event.is_some() {
            self.record(Level::Warning, format!("ejected: {said} ({failures} failures of traffic in a row)"));
        }
    }

    fn record_return(&self, event: Event, before: HealthState, since: Instant, now: Instant) {
        let away = Spoken(now.saturating_duration_since(since));
        let message = match (event, before) {
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

/// Says it loudly when a pool has nobody left.
struct PoolWatch {
    subject: String,
    all_down: AllDown,
    state: Arc<State>,
    /// With the weights of the configuration.
    members: Vec<(Arc<BackendState>, u32)>,
    /// One task judges at a time: an older look must not overwrite what a newer one said.
    turn: Mutex<()>,
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
                AllDown::ErrorPage => "no healthy backend: answering 503, closing TCP sessions",
                AllDown::FailOpen => "no healthy backend: failing open, all of them get sessions",
            };
            self.state.degrade(&self.subject, reason);
            return;
        }
        let serves = |(member, weight): &(Arc<BackendState>, u32)| {
            member.admission() == Admission::Ready && member.weight_override().unwrap_or(*weight) > 0
        };
        if healthy.any(serves) {
            self.state.restore(&self.subject);
        } else {
            self.state.degrade(&self.subject, "every healthy backend is drained or has weight 0");
        }
    }
}

#[cfg(test)]
mod tests;
