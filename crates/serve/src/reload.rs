//! Applies a new configuration to all workers: opens and closes only sockets that differ, and replaces one snapshot. If
//! any new part cannot be made, nothing changes.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use config::Config;
use config::types::{Admin, Control, MaxConnections, Process, Transport};
use logic::account::{Division, TooFew};
use logic::udp::Listening;
use proxy::front::Front;
use proxy::snapshot::{Facts, Snapshot, adopt, compile, http_settings};
use proxy::worker::Command;
use state::State;
use state::claim::Claim;
use state::events::Level;
use state::listen::{self, BindError, Bound, BoundKey, Changed, Holder, OpenAddress, Passed, Socket};
use state::lock::lock;
use sys::socket::ListenAddress;
use text::units::{count, count_of};
use tokio::sync::{mpsc, oneshot};

pub(crate) mod changes;

use crate::needs::{Needs, backend_slots, wanted};
use crate::report::hsts::HstsReport;

/// Compiles the next configuration and adopts it into `state`. Blocks on the disk.
pub fn build(config: Arc<Config>, state: &State, tls: &tls::Shared, before: Option<&Snapshot>) -> Snapshot {
    let snapshot = compiled(config, state, tls, before);
    adopt(&snapshot, state, tls);
    announce_hsts(&snapshot, state, before);
    snapshot
}

/// Compiles a configuration and changes nothing. Blocks on the disk.
fn compiled(config: Arc<Config>, state: &State, tls: &tls::Shared, before: Option<&Snapshot>) -> Snapshot {
    let facts = Facts::read(&config, state, tls, before);
    compile(config, &facts)
}

/// Records what a listener sends as Strict-Transport-Security, when it is new or its setting has changed: browsers
/// remember the header for its whole time.
fn announce_hsts(snapshot: &Snapshot, state: &State, before: Option<&Snapshot>) {
    let setting = |snapshot: &Snapshot, name: &str| {
        let settings = snapshot.listeners.get(name).and_then(|plan| http_settings(plan));
        settings.map(|settings| settings.hsts.clone())
    };
    for listener in &snapshot.config.listeners {
        let Some(plan) = snapshot.listeners.get(&listener.name) else { continue };
        let known = before.and_then(|before| setting(before, &listener.name));
        if known == setting(snapshot, &listener.name) {
            continue;
        }
        if let Some(hsts) = HstsReport::read(plan) {
            state.events.record(Level::Info, format!("listener.{}", listener.name), hsts.words());
        }
    }
}

type Make = fn(Arc<Config>, &State, &tls::Shared, Option<&Snapshot>) -> Snapshot;

/// Time after which the sockets of a removed UDP listener are closed for certain: `crates/proxy/src/udp.rs` has the limit.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// Open sockets, workers and settings that a reload needs.
pub struct Supervisor {
    /// State shared with the tasks beside the workers.
    pub front: Arc<Front>,
    /// Command channels, one per worker.
    pub workers: Vec<mpsc::UnboundedSender<Command>>,
    pub open: HashMap<BoundKey, OpenAddress>,
    /// Addresses of UDP listeners that were removed, with the times: their sockets may still wait for replies.
    pub leaving: Vec<(OpenAddress, Instant)>,
    /// State shared by all TLS listeners.
    pub tls: Arc<tls::Shared>,
    /// Sockets that systemd passed.
    pub passed: Passed,
    /// Descriptors that this process needs.
    pub descriptors: Needs,
    /// Configuration at the start of the process: some settings never change.
    pub started_with: Arc<Config>,
}

/// Applies the limits of a configuration to `state`.
pub fn set_limits(state: &State, config: &Config, descriptors: &Needs, division: Division) {
    let (process, account) = (&config.process, &state.account);
    account.set(descriptors.limit, division, process.shares, wanted(config), backend_slots(config));
    account.sources.set_prefixes(process.source_prefixes);
    let possible = division.clients(account.client_slots());
    let most = match process.max_connections {
        MaxConnections::Auto => possible,
        MaxConnections::Count(count) => count,
    };
    // The number that is possible changes with the number of backends, so with each answer of the DNS.
    let too_high = if most > possible { most } else { 0 };
    if state.told_too_high.swap(too_high, Relaxed) != too_high && too_high > 0 {
        let message = format!(
            "max-connections = {most}, but there are descriptors for {possible} connections: raise LimitNOFILE, or lower max-connections"
        );
        state.events.record(Level::Warning, "process.max-connections", message);
    }
    state.max_connections.store(most, Relaxed);
}

/// Records an event if fewer descriptors are divided than the process may open.
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

/// Sockets opened for a configuration that is not yet served, and claims of addresses that stay open.
#[derive(Debug, Default)]
pub struct Opened(Vec<Bound>, Vec<(BoundKey, Claim)>);

impl Opened {
    pub fn take_for_worker(&mut self, worker: usize) -> Vec<(BoundKey, Socket)> {
        let of_each = |bound: &mut Bound| {
            let key = bound.key.clone();
            std::mem::take(&mut bound.sockets[worker]).into_iter().map(move |socket| (key.clone(), socket))
        };
        self.0.iter_mut().flat_map(of_each).collect()
    }

    /// The addresses that were opened.
    pub fn keys(&self) -> impl Iterator<Item = &BoundKey> {
        self.0.iter().map(|bound| &bound.key)
    }

    /// Directories of programs that forward packets.
    pub fn programs(&self) -> Vec<PathBuf> {
        let sockets = self.0.iter().flat_map(|bound| bound.sockets.iter().flatten());
        let of = |socket: &Socket| match socket {
            Socket::Packet(_, path) | Socket::Proxied(path) => path.directory(),
            Socket::Tcp(_) | Socket::Udp(_) | Socket::Unix(_) => None,
        };
        sockets.filter_map(of).collect()
    }

    /// Whether CAP_NET_ADMIN is needed to take a program away.
    pub fn needs_rights(&self) -> bool {
        let mut sockets = self.0.iter().flat_map(|bound| bound.sockets.iter().flatten());
        sockets.any(
            |socket| matches!(socket, Socket::Packet(_, path) | Socket::Proxied(path) if path.needs_rights()),
        )
    }

    /// Address records of all sockets.
    pub fn addresses(&self) -> impl Iterator<Item = &OpenAddress> {
        self.0.iter().map(|bound| &bound.open)
    }

    /// Returns the address records of all sockets, by key.
    pub fn into_open(self) -> impl Iterator<Item = (BoundKey, OpenAddress)> {
        self.0.into_iter().map(|bound| (bound.key, bound.open))
    }
}

/// Listens on every address of `config` that is not open yet, and claims those that have another interface now. Returns all errors, not only the first.
/// Sockets of `leaving` addresses may still be open.
pub fn open_new(
    config: &Config,
    open: &HashMap<BoundKey, OpenAddress>,
    leaving: &[(OpenAddress, Instant)],
    workers: usize,
    passed: &mut Passed,
) -> Result<Opened, Vec<BindError>> {
    let mut opened = Opened::default();
    let mut errors = Vec::new();
    for listener in &config.listeners {
        for bind in &listener.binds {
            let key = BoundKey::new(listener, bind);
            if let Some(known) = open.get(&key) {
                match listen::moved(listener, bind, known) {
                    Ok(claim) => opened.1.extend(claim.map(|claim| (key, claim))),
                    Err(error) => errors.push(error),
                }
                continue;
            }
            let ours = open.values().chain(leaving.iter().map(|(address, _)| address));
            match listen::open(listener, bind, Holder::of(&key, ours), workers, passed) {
                Ok(bound) => opened.0.push(bound),
                Err(error) => errors.push(error),
            }
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

/// Reason why a valid configuration is not served.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Descriptors(#[from] TooFew),
}

impl Supervisor {
    /// Serves a new configuration. On an error, the old one remains in use, unchanged.
    pub async fn apply(&mut self, config: Config) -> Result<String, Vec<ApplyError>> {
        let config = Arc::new(config);
        let before = self.front.snapshot.load().config.clone();
        let changes = changes::between(&before, &config);
        let workers = self.workers.len();
        let division = self.descriptors.divide(&config).map_err(|few| vec![ApplyError::from(few)])?;
        self.leaving.retain(|(_, since)| since.elapsed() < LEAVES_WITHIN);
        let opened = open_new(&config, &self.open, &self.leaving, workers, &mut self.passed);
        let mut opened = opened.map_err(|errors| {
            let confinement = &self.front.state.confinement;
            let explained =
                |error| ApplyError::from(crate::confinement::explain_low_port(confinement, error));
            errors.into_iter().map(explained).collect::<Vec<_>>()
        })?;
        let wanted: HashSet<BoundKey> = keys(&config).collect();
        let close: Vec<BoundKey> = self.open.keys().filter(|key| !wanted.contains(key)).cloned().collect();
        let snapshot = self.build(&config).await;
        let state = &self.front.state;
        set_limits(state, &config, &self.descriptors, division);
        self.front.snapshot.store(snapshot.clone());
        // After the snapshot: control clients that see a new number read their rights in it.
        state.generation.store(snapshot.generation, Relaxed);
        let opened_count = opened.0.len();
        publish_datagram_addresses(state, self.open.values().chain(opened.addresses()));
        let mut waiting = Vec::new();
        for (index, worker) in self.workers.iter().enumerate() {
            let (done, told) = oneshot::channel();
            let open = opened.take_for_worker(index);
            let command = Command::Apply { snapshot: snapshot.clone(), open, close: close.clone(), done };
            // The process ends, or is about to end, when a worker's channel is closed.
            if worker.send(command).is_ok() {
                waiting.push(told);
            }
        }
        let moved = std::mem::take(&mut opened.1);
        self.open.extend(opened.into_open());
        for told in waiting {
            let _ = told.await;
        }
        for (key, claim) in moved {
            if let Some(open) = self.open.get_mut(&key) {
                open.set_claim(claim);
            }
        }
        for key in &close {
            // Dropping the last handle of our Unix socket removes its file, unless another listener uses the path.
            let closed = self.open.remove(key);
            if key.transport == Transport::Datagram {
                self.leaving.extend(closed.map(|address| (address, Instant::now())));
            }
        }
        self.set_modes(&config);
        self.tell_backlogs(&before, &config);
        let state = &self.front.state;
        self.tls.reconcile(&config, state);
        forget_unused(state, &config);
        publish_addresses(&snapshot, &self.open);
        publish_datagram_addresses(state, self.open.values());
        Ok(format!(
            "serving generation {}: {}, {}; {} opened, {} closed; {changes}",
            snapshot.generation,
            count(config.listeners.len(), "listener"),
            count(config.pools.len(), "pool"),
            count_of(opened_count, "address", "addresses"),
            close.len()
        ))
    }

    async fn build(&self, config: &Arc<Config>) -> Arc<Snapshot> {
        self.made_by(build, config.clone()).await
    }

    /// Compiles a configuration that is not served.
    pub async fn compile(&self, config: Arc<Config>) -> Arc<Snapshot> {
        self.made_by(compiled, config).await
    }

    /// Makes a snapshot on a thread for blocking calls, because that reads certificates from the disk.
    async fn made_by(&self, make: Make, config: Arc<Config>) -> Arc<Snapshot> {
        let (front, tls) = (self.front.clone(), self.tls.clone());
        let make = move || make(config, &front.state, &tls, Some(&front.snapshot.load_full()));
        match tokio::task::spawn_blocking(make).await {
            Ok(snapshot) => Arc::new(snapshot),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The join fails only while the runtime shuts down, when no request waits here.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Sets the configured permissions on sockets that stay open.
    fn set_modes(&self, config: &Config) {
        for listener in &config.listeners {
            for bind in &listener.binds {
                let key = BoundKey::new(listener, bind);
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

    /// Says of which listeners a changed `backlog` has no effect yet: their sockets stay open.
    fn tell_backlogs(&self, before: &Config, config: &Config) {
        for listener in &config.listeners {
            let old = before.listeners.iter().find(|old| old.name == listener.name);
            if old.is_some_and(|old| old.backlog != listener.backlog) {
                let message = "backlog changed: takes effect for addresses that are opened from now on";
                let subject = format!("listener.{}", listener.name);
                self.front.state.events.record(Level::Info, subject, message);
            }
        }
    }

    /// Records a warning about settings that a reload cannot change, and returns it.
    pub fn warn_of_fixed(&self, new: &Config) -> Option<String> {
        // Name every key, so that a new key does not compile before its author decides when it takes effect.
        let Config {
            process,
            control,
            admin,
            access_log: _,
            events: _,
            listeners: _,
            pools: _,
            acls: _,
            geoip: _,
            otp: _,
            acme: _,
            tunnels: _,
            variable_files: _,
            included: _,
        } = new;
        let Process {
            workers,
            engine,
            user,
            group,
            state_directory,
            pid_file,
            state_interval: _,
            drain_timeout: _,
            max_connections: _,
            shares: _,
            source_prefixes: _,
        } = process;
        let old = &*self.started_with;
        // Whether others may connect is fixed with the socket; who they are is not.
        let place_of = |control: &Option<Control>| {
            control.as_ref().map(|control| (control.socket.clone(), control.access.is_empty()))
        };
        let listen_of = |config: &Option<Control>| Some(config.as_ref()?.remote.as_ref()?.listen.clone());
        let bind_of = |admin: &Option<Admin>| admin.as_ref().map(|admin| admin.bind.clone());
        let fixed: Vec<_> = [
            ("process.workers", old.process.workers != *workers),
            ("process.engine", old.process.engine != *engine),
            ("process.pid-file", old.process.pid_file != *pid_file),
            ("process.user", (&old.process.user, &old.process.group) != (user, group)),
            ("process.state-directory", old.process.state_directory != *state_directory),
            ("control.socket", place_of(&old.control) != place_of(control)),
            ("control.listen", listen_of(&old.control) != listen_of(control)),
            ("admin.bind", bind_of(&old.admin) != bind_of(admin)),
        ]
        .into_iter()
        .filter(|(_, changed)| *changed)
        .map(|(key, _)| key)
        .collect();
        if fixed.is_empty() {
            return None;
        }
        let message = format!("{} changed: takes effect at the next start", fixed.join(", "));
        self.front.state.events.record(Level::Warning, "process", message.as_str());
        Some(message)
    }
}

/// Returns every listening address of a configuration.
pub fn keys(config: &Config) -> impl Iterator<Item = BoundKey> + '_ {
    config.listeners.iter().flat_map(BoundKey::all)
}

/// Publishes the bound addresses in the listeners' states.
pub fn publish_addresses(snapshot: &Snapshot, open: &HashMap<BoundKey, OpenAddress>) {
    for plan in snapshot.listeners.values() {
        let mut bound = Vec::new();
        for key in BoundKey::all(&plan.settings) {
            if let Some(open) = open.get(&key) {
                bound.extend(open.texts());
            }
        }
        *lock(&plan.state.bound) = bound;
    }
}

/// Tells workers where this process receives datagrams, before they serve the first one there.
pub fn publish_datagram_addresses<'a>(state: &State, open: impl Iterator<Item = &'a OpenAddress>) {
    let addresses = open.flat_map(|open| &open.addresses).filter_map(|address| match address {
        ListenAddress::Udp(address) => Some(*address),
        ListenAddress::Tcp(_) | ListenAddress::Packets(_) | ListenAddress::Unix(_) => None,
    });
    state.listening_for_datagrams.store(Arc::new(Listening::new(addresses)));
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
