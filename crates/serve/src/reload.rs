//! From a new configuration to every worker serving it: sockets opened and closed by difference, one snapshot swapped.
//! Nothing changes unless everything that is new could be made.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use config::Config;
use config::types::MaxConnections;
use logic::account::{Division, TooFew};
use tokio::sync::{mpsc, oneshot};

use crate::events::Level;
use crate::front::Front;
use crate::listen::{self, BindError, Bound, BoundKey, Changed, Holder, OpenAddress, Passed, Socket};
use crate::lock::lock;
use crate::needs::{Needs, backend_places, wanted};
use crate::snapshot::Snapshot;
use crate::state::State;
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
    pub tls: Arc<tls::Shared>,
    /// Sockets that systemd passed.
    pub passed: Passed,
    /// Descriptors of this process.
    pub descriptors: Needs,
    /// What the process was started with: some of it holds until its end.
    pub started_with: Arc<Config>,
}

/// Makes the limits of a configuration hold.
pub fn set_limits(state: &State, config: &Config, descriptors: &Needs, division: Division) {
    let (process, account) = (&config.process, &state.account);
    account.set(descriptors.limit, division, process.shares, wanted(config), backend_places(config));
    account.sources.set_ipv6_prefix(process.source_ipv6_prefix);
    let possible = division.clients(account.client_places());
    let most = match process.max_connections {
        MaxConnections::Auto => possible,
        MaxConnections::Count(count) => count,
    };
    if most > possible {
        let message = format!(
            "max-connections = {most}, but there are descriptors for {possible} connections: raise LimitNOFILE, or lower max-connections"
        );
        state.events.record(Level::Warning, "process.max-connections", message);
    }
    state.max_connections.store(most, Relaxed);
}

/// Says how many descriptors are divided where that is fewer than there are.
pub fn tell_division(state: &State, descriptors: &Needs, division: Division) {
    let divided = division.reserve + division.traffic;
    if divided < descriptors.limit {
        let message = format!(
            "of {} descriptors that this process may open, {divided} are used; max-connections makes it more",
            descriptors.limit
        );
        state.events.record(Level::Info, "process", message);
    }
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

    /// What is remembered of each, by key.
    pub fn into_open(self) -> impl Iterator<Item = (BoundKey, OpenAddress)> {
        self.0.into_iter().map(|bound| (bound.key, bound.open))
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
            match listen::open(listener, bind, Holder::of(bind, open.values()), workers, passed) {
                Ok(bound) => opened.0.push(bound),
                Err(error) => errors.push(error),
            }
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

/// Why a configuration that is valid is not served.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There are too few descriptors for it.
    #[error(transparent)]
    Descriptors(#[from] TooFew),
}

impl Supervisor {
    /// Serves a new configuration. On an error the old one serves on, untouched.
    pub async fn apply(&mut self, config: Config) -> Result<String, Vec<ApplyError>> {
        let config = Arc::new(config);
        let workers = self.workers.len();
        let division = self.descriptors.divide(&config).map_err(|few| vec![ApplyError::from(few)])?;
        let opened = open_new(&config, &self.open, workers, &mut self.passed);
        let mut opened =
            opened.map_err(|errors| errors.into_iter().map(ApplyError::from).collect::<Vec<_>>())?;
        let wanted: HashSet<BoundKey> = keys(&config).collect();
        let close: Vec<BoundKey> = self.open.keys().filter(|key| !wanted.contains(key)).cloned().collect();
        let snapshot = self.build(&config).await;
        let state = &self.front.state;
        state.generation.store(snapshot.generation, Relaxed);
        set_limits(state, &config, &self.descriptors, division);
        self.front.snapshot.store(snapshot.clone());
        let opened_count = opened.0.len();
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
        self.open.extend(opened.into_open());
        for told in waiting {
            let _ = told.await;
        }
        for key in &close {
            // The last handle on a Unix socket of ours: its name goes with it, unless another listener has taken it over.
            drop(self.open.remove(key));
        }
        self.set_modes(&config);
        let state = &self.front.state;
        self.tls.reconcile(&config, state);
        forget_unused(state, &config);
        publish_addresses(state, &snapshot, &self.open);
        Ok(format!(
            "serving generation {}: {}, {}; {} opened, {} closed",
            snapshot.generation,
            counted(config.listeners.len(), "listener", "listeners"),
            counted(config.pools.len(), "pool", "pools"),
            counted(opened_count, "address", "addresses"),
            close.len()
        ))
    }

    /// Compiles what will be served. It reads certificates, so it runs where a slow disk holds nobody up.
    async fn build(&self, config: &Arc<Config>) -> Arc<Snapshot> {
        let (config, front, tls) = (config.clone(), self.front.clone(), self.tls.clone());
        let build = move || Snapshot::build(config, &front.state, &tls, Some(&front.snapshot.load_full()));
        match tokio::task::spawn_blocking(build).await {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only when the runtime ends, and then nobody waits here any more.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// A socket that stays open gets the permissions that are configured now.
    fn set_modes(&self, config: &Config) {
        for listener in &config.listeners {
            for bind in &listener.binds {
                let key = BoundKey { listener: listener.name.clone(), bind: bind.clone() };
                let Some(file) = self.open.get(&key).and_then(|open| open.file.as_ref()) else { continue };
                let (level, message) = match file.set_mode(listener.unix_mode) {
                    Ok(Changed::No) => continue,
                    Ok(Changed::Yes) => {
                        (Level::Info, format!("{bind} has mode {:04o} now", listener.unix_mode))
                    }
                    Err(error) => {
                        (Level::Warning, format!("unix-mode changed, {bind} keeps the one it has: {error}"))
                    }
                };
                self.front.state.events.record(level, format!("listener.{}", listener.name), message);
            }
        }
    }

    /// Says what a reload could not change: it is as it was at the start. The warning is also given back.
    pub fn warn_of_fixed(&self, new: &Config) -> Option<String> {
        let old = &self.started_with;
        let mut fixed = Vec::new();
        if old.process.workers != new.process.workers {
            fixed.push("process.workers");
        }
        if (&old.process.user, &old.process.group) != (&new.process.user, &new.process.group) {
            fixed.push("process.user");
        }
        if old.process.state_directory != new.process.state_directory {
            fixed.push("process.state-directory");
        }
        if old.control != new.control {
            fixed.push("control.socket");
        }
        if old.admin != new.admin {
            fixed.push("admin.bind");
        }
        if fixed.is_empty() {
            return None;
        }
        let message = format!("{} changed: takes effect at the next start", fixed.join(", "));
        self.front.state.events.record(Level::Warning, "process", message.as_str());
        Some(message)
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
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
                bound.extend(open.texts());
            }
        }
        *lock(&state.listener(&plan.settings.name).bound) = bound;
    }
}

fn forget_unused(state: &State, config: &Config) {
    let pool = |name: &str| config.pools.iter().find(|pool| &*pool.name == name);
    state.retain(
        |name| config.listeners.iter().any(|listener| &*listener.name == name),
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
