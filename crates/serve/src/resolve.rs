//! Resolves backends that are configured by name: one task per backend repeats its look-up.
//!
//! A name that does not resolve degrades only its own backend and never delays the start. After a first success, the
//! last addresses stay in use even if later look-ups fail.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::types::BackendAddress;
use logic::health::{Cause, Source, Verdict, VerdictOutcome};
use proxy::snapshot::Snapshot;
use state::account::{OF_LOOK_UP, Purpose, Turn};
use state::{BackendState, State};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::health::note_resolution;
use crate::per_backend::PerBackend;

/// Time limit of one look-up.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// Pause after the first failure. Each further failure doubles the pause, up to the pool's interval.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Largest number of addresses used per name.
const MAX_ADDRESSES: usize = 32;

/// Resolver of names.
pub trait Lookup: Send + Sync + 'static {
    /// Returns all addresses of `host`, each with `port`, in order of preference.
    fn lookup(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
}

/// The system's resolver: getaddrinfo(3), with all sources in nsswitch.conf(5).
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let host = host.to_owned();
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Runs the look-ups of all backends. Dropping the resolver ends them.
pub struct Resolver {
    state: Arc<State>,
    lookup: Arc<dyn Lookup>,
    tasks: PerBackend<Task>,
}

impl Resolver {
    /// Makes a resolver without tasks, which uses [`SystemLookup`].
    pub fn new(state: Arc<State>) -> Self {
        Self::with_lookup(state, Arc::new(SystemLookup))
    }

    /// Makes a resolver without tasks, which uses `lookup`.
    pub fn with_lookup(state: Arc<State>, lookup: Arc<dyn Lookup>) -> Self {
        Self { state, lookup, tasks: PerBackend::default() }
    }

    /// Starts the look-ups of new names at once and in parallel, and ends those of removed names.
    /// Must be called on a tokio runtime.
    pub fn reconcile(&mut self, snapshot: &Snapshot) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.reconcile(&self.state, snapshot, |pool, backend, kept| {
            let BackendAddress::Name { host, port } = &backend.address else { return None };
            let interval = pool.settings.resolve_interval;
            Some(match kept {
                Some(task) => {
                    task.interval.send_if_modified(|before| std::mem::replace(before, interval) != interval);
                    task
                }
                None => self.start(backend, host, *port, interval),
            })
        });
        self.tasks = tasks;
    }

    /// Waits until every name has been looked up once, with or without success, but at most 2 s.
    pub async fn first(&self) {
        self.tasks
            .first(async |task| {
                // An error means that the task has ended: ignore its backend.
                let _ = task.looked_up.clone().wait_for(|done| *done == LookedUp::Once).await;
            })
            .await;
    }

    fn start(&self, backend: &Arc<BackendState>, host: &str, port: u16, interval: Duration) -> Task {
        let (interval, intervals) = watch::channel(interval);
        let (done, looked_up) = watch::channel(LookedUp::Never);
        let name = Name {
            state: self.state.clone(),
            lookup: self.lookup.clone(),
            backend: backend.clone(),
            host: host.to_owned(),
            port,
            pending: None,
        };
        tokio::spawn(name.run(intervals, done));
        Task { interval, looked_up }
    }
}

struct Task {
    /// Dropping this sender ends the task.
    interval: watch::Sender<Duration>,
    looked_up: watch::Receiver<LookedUp>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookedUp {
    Never,
    Once,
}

struct Name {
    state: Arc<State>,
    lookup: Arc<dyn Lookup>,
    backend: Arc<BackendState>,
    host: String,
    port: u16,
    /// A look-up that exceeded its time limit. getaddrinfo cannot be interrupted and blocks a thread, so a backend
    /// never has a second look-up beside it.
    pending: Option<JoinHandle<io::Result<Vec<SocketAddr>>>>,
}

impl Name {
    async fn run(mut self, mut intervals: watch::Receiver<Duration>, done: watch::Sender<LookedUp>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let turn = tokio::select! {
                turn = self.turn() => turn,
                () = gone(&mut intervals) => return,
            };
            let interval = *intervals.borrow_and_update();
            let start = Instant::now();
            let found = self.look_up(turn).await;
            if intervals.has_changed().is_err() {
                // The backend was removed: record nothing about it.
                return;
            }
            let next = match found {
                Ok(addresses) => {
                    self.store(addresses, start.elapsed());
                    pause = FIRST_PAUSE;
                    interval
                }
                Err(reason) => {
                    self.fail(reason, start.elapsed());
                    let next = pause.min(interval);
                    pause = (pause * 2).min(interval);
                    next
                }
            };
            done.send_replace(LookedUp::Once);
            tokio::select! {
                // Jitter of 10 % spreads the look-ups of names that were configured together.
                () = sleep(next.mul_f64(0.9 + 0.2 * fastrand::f64())) => {}
                changed = intervals.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Waits for the descriptors of a new look-up. `None` if a look-up still runs, which holds its own.
    async fn turn(&self) -> Option<Turn> {
        match self.pending {
            Some(_) => None,
            None => Some(self.state.account.turn(Purpose::LookUp, OF_LOOK_UP).await),
        }
    }

    async fn look_up(&mut self, turn: Option<Turn>) -> Result<Vec<SocketAddr>, String> {
        let mut running = self.pending.take().unwrap_or_else(|| {
            let found = self.lookup.lookup(&self.host, self.port);
            tokio::spawn(async move {
                let _turn = turn;
                found.await
            })
        });
        match timeout(LOOKUP_LIMIT, &mut running).await {
            Ok(Ok(Ok(addresses))) if addresses.is_empty() => Err("no address".to_owned()),
            Ok(Ok(Ok(addresses))) => Ok(addresses),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(_)) => Err("the look-up was aborted".to_owned()),
            Err(_) => {
                self.pending = Some(running);
                Err(format!("no answer within {} s", LOOKUP_LIMIT.as_secs()))
            }
        }
    }

    fn store(&self, found: Vec<SocketAddr>, took: Duration) {
        let before = self.backend.addresses.load();
        let addresses = merge(&before, &found);
        if addresses != **before {
            if !before.is_empty() {
                let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                let message = format!("its name now resolves to {}", list.join(", "));
                self.state.events.record(state::events::Level::Info, self.backend.subject(), message);
            }
            self.backend.addresses.store(Arc::new(addresses));
        }
        self.state.restore(&self.backend.subject());
        note_resolution(&self.state, &self.backend, verdict(VerdictOutcome::Pass, Cause::Resolved, took));
    }

    fn fail(&self, reason: String, took: Duration) {
        let known = self.backend.addresses.load().len();
        if known == 0 {
            self.state.degrade(&self.backend.subject(), &format!("name does not resolve: {reason}"));
            let verdict = verdict(VerdictOutcome::Fail, Cause::Unresolvable(reason), took);
            note_resolution(&self.state, &self.backend, verdict);
        } else {
            let reason = format!("name does not resolve any more: {reason}; using the last good addresses");
            self.state.degrade(&self.backend.subject(), &reason);
        }
    }
}

/// Completes when the backend is removed.
async fn gone(intervals: &mut watch::Receiver<Duration>) {
    while intervals.changed().await.is_ok() {}
}

fn verdict(outcome: VerdictOutcome, cause: Cause, took: Duration) -> Verdict {
    Verdict { at: SystemTime::now(), source: Source::Resolver, outcome, cause, took }
}

/// Keeps known addresses in their order and appends new ones, because resolvers rotate their answers.
fn merge(before: &[SocketAddr], found: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut merged: Vec<_> = before.iter().filter(|address| found.contains(address)).copied().collect();
    for address in found {
        if merged.len() < MAX_ADDRESSES && !merged.contains(address) {
            merged.push(*address);
        }
    }
    merged
}

#[cfg(test)]
mod tests;
