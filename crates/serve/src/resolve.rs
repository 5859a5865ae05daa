//! Keeps the addresses of backends that are configured by name: one task per backend looks its name up again and
//! again.
//!
//! A name that does not resolve degrades that backend alone and never holds the start. Once it was resolved, the last
//! good addresses stay in use whatever the resolver says later.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use config::types::BackendAddress;
use logic::health::{Cause, Source, Verdict, VerdictOutcome};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::account::{OF_LOOK_UP, Purpose, Turn};
use crate::health::note_resolution;
use crate::per_backend::PerBackend;
use crate::snapshot::Snapshot;
use crate::state::{BackendState, State};

/// A look-up may take so long.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// Pause after the first failure; it doubles up to the interval of the pool.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Addresses used of one name.
const MAX_ADDRESSES: usize = 32;

/// Finds the addresses of a name.
pub trait Lookup: Send + Sync + 'static {
    /// All addresses of `host`, each with `port`, the best first.
    fn lookup(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
}

/// The system's resolver: getaddrinfo(3), with everything that nsswitch.conf(5) names.
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

/// Runs the look-ups of all backends. Dropping it ends them.
pub struct Resolver {
    state: Arc<State>,
    lookup: Arc<dyn Lookup>,
    tasks: PerBackend<Task>,
}

impl Resolver {
    /// A resolver without names, which asks the system.
    pub fn new(state: Arc<State>) -> Self {
        Self::with_lookup(state, Arc::new(SystemLookup))
    }

    /// A resolver without names, which asks `lookup`.
    pub fn with_lookup(state: Arc<State>, lookup: Arc<dyn Lookup>) -> Self {
        Self { state, lookup, tasks: PerBackend::default() }
    }

    /// Starts look-ups of new names, at once and side by side, and ends those of names that are gone.
    /// Must be called on a tokio runtime: the tasks run there.
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

    /// Waits until every name has been looked up once, well or badly, but at most 2 s.
    pub async fn first(&self) {
        self.tasks
            .first(async |task| {
                // An error means that the task is gone, and so is what it could still find.
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
    /// The task ends when this is dropped.
    interval: watch::Sender<Duration>,
    looked_up: watch::Receiver<LookedUp>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LookedUp {
    Never,
    Once,
}

/// One name of one backend.
struct Name {
    state: Arc<State>,
    lookup: Arc<dyn Lookup>,
    backend: Arc<BackendState>,
    host: String,
    port: u16,
    /// A look-up that took too long. getaddrinfo cannot be interrupted and holds a thread: there is never a second one
    /// for the same backend.
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
                // The backend is gone: nothing more is said about it.
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
                // Names of many backends, configured together, would otherwise be asked for together for ever.
                () = sleep(next.mul_f64(0.9 + 0.2 * fastrand::f64())) => {}
                changed = intervals.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Waits for the turn of a new look-up. `None`: one is running, and has its turn.
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
            Ok(Err(_)) => Err("the look-up broke off".to_owned()),
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
                self.state.events.record(crate::events::Level::Info, self.backend.subject(), message);
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

/// Comes when the backend is gone.
async fn gone(intervals: &mut watch::Receiver<Duration>) {
    while intervals.changed().await.is_ok() {}
}

fn verdict(outcome: VerdictOutcome, cause: Cause, took: Duration) -> Verdict {
    Verdict { at: SystemTime::now(), source: Source::Resolver, outcome, cause, took }
}

/// What was known stays in its order, what is new comes behind: resolvers rotate their answers, and a mere rotation
/// is no change.
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
