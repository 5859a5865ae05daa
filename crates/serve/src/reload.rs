//! From a new configuration to every worker serving it: sockets opened and closed by difference, one snapshot swapped.
//! Nothing changes unless everything that is new could be made.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use config::Config;
use tokio::sync::{mpsc, oneshot};

use crate::events::Level;
use crate::front::Front;
use crate::listen::{self, BindError, Bound, BoundKey, Holder, Passed, Socket};
use crate::snapshot::Snapshot;
use crate::state::{State, lock};
use crate::tls;
use crate::worker::Command;

/// What is open, and who to tell.
pub struct Supervisor {
    /// The slow side's view.
    pub front: Arc<Front>,
    /// One channel per worker.
    pub workers: Vec<mpsc::UnboundedSender<Command>>,
    /// What is listened on.
    pub open: HashMap<BoundKey, OpenAddress>,
    /// What all TLS listeners share.
    pub tls: tls::Shared,
    /// Sockets that systemd passed and nobody took.
    pub passed: Passed,
}

/// An address that is listened on.
#[derive(Debug)]
pub struct OpenAddress {
    /// The addresses really bound.
    pub addresses: Vec<String>,
    /// Path to unlink when it is given up.
    pub path: Option<PathBuf>,
}

/// Sockets made for a configuration that is not yet served.
#[derive(Debug, Default)]
pub struct Opened(Vec<Bound>);

impl Opened {
    /// The sockets of one worker.
    pub fn take_for_worker(&mut self, worker: usize) -> Vec<(BoundKey, Socket)> {
        let of_each = |bound: &mut Bound| {
            let key = bound.key.clone();
            std::mem::take(&mut bound.sockets[worker]).into_iter().map(move |socket| (key.clone(), socket))
        };
        self.0.iter_mut().flat_map(of_each).collect()
    }

    /// What was opened, by key.
    pub fn addresses(&self) -> impl Iterator<Item = (BoundKey, OpenAddress)> + '_ {
        self.0.iter().map(|bound| {
            (bound.key.clone(), OpenAddress { addresses: bound.addresses.clone(), path: bound.path.clone() })
        })
    }
}

/// Listens on every address of `config` that is not open yet; all errors at once.
pub fn open_new(
    config: &Config,
    open: &HashMap<BoundKey, OpenAddress>,
    workers: usize,
    passed: &mut Passed,
) -> Result<Opened, Vec<BindError>> {
    let mut opened = Opened::default();
    let mut errors = Vec::new();
    for listener in &config.listeners {
        for bind in &listener.binds {
            let key = BoundKey { listener: listener.name.clone(), bind: bind.clone() };
            if open.contains_key(&key) {
                continue;
            }
            let held = open.keys().any(|other| other.bind == *bind);
            let holder = if held { Holder::Ourselves } else { Holder::Nobody };
            match listen::open(listener, bind, holder, workers, passed) {
                Ok(bound) => opened.0.push(bound),
                Err(error) => errors.push(error),
            }
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

impl Supervisor {
    /// Serves a new configuration. On an error the old one serves on, untouched.
    pub async fn apply(&mut self, config: Config) -> Result<String, Vec<BindError>> {
        let config = Arc::new(config);
        let workers = self.workers.len();
        let mut opened = open_new(&config, &self.open, workers, &mut self.passed)?;
        let wanted: HashSet<BoundKey> = keys(&config).collect();
        let close: Vec<BoundKey> = self.open.keys().filter(|key| !wanted.contains(key)).cloned().collect();
        let state = &self.front.state;
        let snapshot =
            Arc::new(Snapshot::build(config.clone(), state, &self.tls, Some(&self.front.snapshot.load())));
        state.generation.store(snapshot.generation, Relaxed);
        self.front.snapshot.store(snapshot.clone());
        let opened_count = opened.0.len();
        self.open.extend(opened.addresses());
        let mut waiting = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let (done, told) = oneshot::channel();
            let open = opened.take_for_worker(index);
            let command = Command::Apply { snapshot: snapshot.clone(), open, close: close.clone(), done };
            // A worker that is gone has ended the process, or is about to.
            if worker.send(command).is_ok() {
                waiting.push(told);
            }
        }
        for told in waiting {
            let _ = told.await;
        }
        for key in &close {
            if let Some(OpenAddress { path: Some(path), .. }) = self.open.remove(key) {
                // Another listener may have taken the path over; then it is not stale and stays.
                if !self.open.values().any(|open| open.path.as_ref() == Some(&path)) {
                    let _ = sys::socket::remove_stale_unix(&path);
                }
            }
        }
        forget_unused(state, &config);
        publish_addresses(state, &snapshot, &self.open);
        Ok(format!(
            "serving generation {}: {} listeners, {} pools; {opened_count} addresses opened, {} closed",
            snapshot.generation,
            config.listeners.len(),
            config.pools.len(),
            close.len()
        ))
    }

    /// Says what a reload cannot change.
    pub fn warn_of_fixed(&self, old: &Config, new: &Config) {
        let mut fixed = Vec::new();
        if old.process.workers != new.process.workers {
            fixed.push("process.workers");
        }
        if (&old.process.user, &old.process.group) != (&new.process.user, &new.process.group) {
            fixed.push("process.user");
        }
        if old.control != new.control {
            fixed.push("control.socket");
        }
        if old.admin != new.admin {
            fixed.push("admin.bind");
        }
        if old.access_log.target != new.access_log.target {
            fixed.push("access-log.target");
        }
        if !fixed.is_empty() {
            let message = format!("{} changed: takes effect at the next start", fixed.join(", "));
            self.front.state.events.record(Level::Warning, "process", message);
        }
    }
}

/// Every address of a configuration.
pub fn keys(config: &Config) -> impl Iterator<Item = BoundKey> + '_ {
    config.listeners.iter().flat_map(|listener| {
        listener.binds.iter().map(|bind| BoundKey { listener: listener.name.clone(), bind: bind.clone() })
    })
}

/// Tells the listeners' states where they are reached.
pub fn publish_addresses(state: &State, snapshot: &Snapshot, open: &HashMap<BoundKey, OpenAddress>) {
    for plan in snapshot.listeners.values() {
        let mut bound = Vec::new();
        for bind in &plan.settings.binds {
            let key = BoundKey { listener: plan.settings.name.clone(), bind: bind.clone() };
            if let Some(open) = open.get(&key) {
                bound.extend(open.addresses.iter().cloned());
            }
        }
        *lock(&state.listener(&plan.settings.name).bound) = bound;
    }
}

fn forget_unused(state: &State, config: &Config) {
    let pool = |name: &str| config.pools.iter().find(|pool| &*pool.name == name);
    state.retain(
        |name| pool(name).is_some(),
        |name, backend| {
            pool(name)
                .is_some_and(|pool| pool.backends.iter().any(|known| known.address.to_string() == backend))
        },
    );
    state.forget_degraded(|subject| {
        let mut parts = subject.split('.');
        match (parts.next(), parts.next()) {
            (Some("pool"), Some(name)) => pool(name).is_none(),
            (Some("listener"), Some(name)) => config.listeners.iter().all(|listener| &*listener.name != name),
            _ => false,
        }
    });
}
