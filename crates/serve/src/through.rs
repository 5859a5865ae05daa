//! Backends behind SSH hosts: one supervised tunnel per backend, which ends in a private Unix socket of this process.
//! Traffic and checks connect to that socket, so that the data path needs no SSH code. While a tunnel is down, its
//! backend is down with the tunnel's reason as the cause.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::types::BackendAddress;
use fleet::tunnel::engine::Engine;
use fleet::tunnel::supervise::{ConnectionState, Supervised};
use hosts::tunnel::backoff::Backoff;
use hosts::tunnel::plan::{Check, Endpoint, Forward, Listen, Tunnel, Way};
use logic::health::{Cause, Source, Verdict, VerdictOutcome};
use proxy::snapshot::Snapshot;
use state::events::Level;
use state::{BackendState, State};
use tokio::sync::watch;

use crate::health::{note_resolution, note_resolution_at};
use crate::per_backend::PerBackend;

// This byte is the only protocol shared by the data path and the tunnels.
const _: () = assert!(proxy::connect::READY == fleet::tunnel::supervise::READY);

/// The tunnels of all backends behind SSH. Dropping this value closes them.
pub struct Tunnels {
    state: Arc<State>,
    engine: Arc<dyn Engine>,
    tasks: PerBackend<Task>,
}

struct Task {
    backend: Arc<BackendState>,
    standing: watch::Receiver<ConnectionState>,
    keeper: tokio::task::JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.keeper.abort();
        self.backend.through.store(None);
    }
}

impl Tunnels {
    /// Makes a set without tunnels; `engine` will carry them.
    pub fn new(state: Arc<State>, engine: Arc<dyn Engine>) -> Self {
        Self { state, engine, tasks: PerBackend::default() }
    }

    /// Opens the tunnels of new backends, and closes those of removed backends.
    /// Must be called on a tokio runtime.
    pub fn reconcile(&mut self, snapshot: &Snapshot) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.reconcile(&self.state, snapshot, |_, backend, kept| match &backend.address {
            BackendAddress::Ssh { host, connect } => {
                Some(kept.unwrap_or_else(|| self.open(backend, host, connect)))
            }
            _ => None,
        });
        self.tasks = tasks;
    }

    /// Waits until every tunnel is open or has failed once, but at most 2 s.
    pub async fn first(&self) {
        self.tasks
            .first(async |task| {
                // An error means that the tunnel has ended: ignore it.
                let _ =
                    task.standing.clone().wait_for(|standing| *standing != ConnectionState::Opening).await;
            })
            .await;
    }

    fn open(&self, backend: &Arc<BackendState>, host: &str, connect: &Endpoint) -> Task {
        // `Level::Info`, because a tunnel that is still opening is not a fault.
        let opening = verdict(VerdictOutcome::Fail, Cause::Tunnel("it is being opened".to_owned()));
        note_resolution_at(Level::Info, &self.state, backend, opening);
        let told = watch::Sender::new(ConnectionState::Opening);
        let standing = told.subscribe();
        let keeper = Keeper {
            state: Arc::clone(&self.state),
            engine: Arc::clone(&self.engine),
            backend: Arc::clone(backend),
            host: host.to_owned(),
            connect: connect.clone(),
            told,
        };
        Task { backend: Arc::clone(backend), standing, keeper: tokio::spawn(keeper.keep()) }
    }
}

struct Keeper {
    state: Arc<State>,
    engine: Arc<dyn Engine>,
    backend: Arc<BackendState>,
    host: String,
    connect: Endpoint,
    told: watch::Sender<ConnectionState>,
}

impl Keeper {
    async fn keep(self) {
        let mut backoff = Backoff::default();
        let (tunnel, home) = loop {
            match self.open() {
                Ok(opened) => break opened,
                Err(why) => self.stands(ConnectionState::Down(why)),
            }
            // Missing descriptors or directories may become available again.
            tokio::time::sleep(backoff.next(fastrand::f64())).await;
        };
        self.backend.through.store(Some(Arc::new(home.socket())));
        let mut standing = tunnel.standing();
        loop {
            let now = standing.borrow_and_update().clone();
            self.stands(now);
            if standing.changed().await.is_err() {
                return;
            }
        }
    }

    fn open(&self) -> Result<(Supervised, SocketDirectory), String> {
        let home = SocketDirectory::make()?;
        let way = Way::Local { listen: Listen::Unix(home.socket()), connect: self.connect.clone() };
        let tunnel = tunnel(&self.backend.name, &self.host, way);
        let subject = self.backend.subject();
        let say = Arc::new(move |line: &str| tracing::info!(%subject, "{line}"));
        let opened = Supervised::open(Arc::clone(&self.engine), home.0.join("own"), tunnel, say);
        opened.map(|tunnel| (tunnel, home)).map_err(|failure| failure.detail)
    }

    fn stands(&self, standing: ConnectionState) {
        follow(&self.state, &self.backend, &standing);
        self.told.send_replace(standing);
    }
}

/// A directory of one tunnel, for the process's current user only. It is made when needed, after privileges were
/// dropped. It contains only sockets, and is removed on drop.
struct SocketDirectory(PathBuf);

impl SocketDirectory {
    fn make() -> Result<Self, String> {
        let parent =
            std::env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute());
        let parent = parent.unwrap_or_else(|| PathBuf::from("/tmp"));
        let made = nix::unistd::mkdtemp(&parent.join("penstock-ssh-XXXXXX"));
        made.map(Self).map_err(|errno| {
            format!("cannot make a directory for its socket in {}: {errno}", parent.display())
        })
    }

    fn socket(&self) -> PathBuf {
        self.0.join("backend.sock")
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(directory = %self.0.display(), %error, "cannot remove a directory of sockets");
        }
    }
}

/// Records the tunnel's state as the health of its backend.
fn follow(state: &State, backend: &BackendState, standing: &ConnectionState) {
    let (outcome, cause) = match standing {
        ConnectionState::Opening => return,
        ConnectionState::Up => {
            state.restore(&backend.subject());
            (VerdictOutcome::Pass, Cause::TunnelUp)
        }
        ConnectionState::Down(why) => {
            let cause = Cause::Tunnel(why.clone());
            state.degrade(&backend.subject(), &cause.to_string());
            (VerdictOutcome::Fail, cause)
        }
    };
    note_resolution(state, backend, verdict(outcome, cause));
}

fn verdict(outcome: VerdictOutcome, cause: Cause) -> Verdict {
    Verdict { at: SystemTime::now(), source: Source::Tunnel, outcome, cause, took: Duration::ZERO }
}

fn tunnel(name: &Arc<str>, host: &str, way: Way) -> Tunnel {
    Tunnel {
        name: name.clone(),
        host: host.to_owned(),
        forwards: vec![Forward { name: "backend".into(), way, check: Check::None }],
        keep_alive: Duration::from_secs(5),
        keep_alive_count: 2,
        connect_timeout: Duration::from_secs(10),
        check_interval: Duration::from_secs(3600),
        mount: None,
        job: None,
    }
}
