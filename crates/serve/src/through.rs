//! Backends behind SSH hosts: one supervised tunnel for each, which ends in a private Unix socket of ours. Traffic and checks
//! connect to that socket, so that the data path knows nothing of SSH. A tunnel that is down takes its backends down, with
//! its reason as the cause.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::types::BackendAddress;
use fleet::tunnel::engine::Engine;
use fleet::tunnel::supervise::{Standing, Supervised};
use logic::health::{Cause, Source, Verdict, VerdictOutcome};
use logic::tunnel::plan::{Check, Endpoint, Forward, Listen, Tunnel, Way};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::health::note_resolution;
use crate::snapshot::Snapshot;
use crate::state::{BackendState, State};

/// How long [`Tunnels::first`] waits: a host that is gone must not hold the start.
const FIRST_LIMIT: Duration = Duration::from_secs(2);

/// The tunnels of all backends behind SSH. Dropping it ends them.
pub struct Tunnels {
    state: Arc<State>,
    engine: Arc<dyn Engine>,
    /// Made when the first one is needed, for the user that the process is then.
    directory: Option<PathBuf>,
    made: usize,
    tasks: HashMap<(Arc<str>, Arc<str>), Task>,
}

struct Task {
    backend: Arc<BackendState>,
    standing: watch::Receiver<Standing>,
    follower: tokio::task::JoinHandle<()>,
    _tunnel: Supervised,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.follower.abort();
        self.backend.through.store(None);
    }
}

impl Tunnels {
    /// None yet; `engine` will carry them.
    pub fn new(state: Arc<State>, engine: Arc<dyn Engine>) -> Self {
        Self { state, engine, directory: None, made: 0, tasks: HashMap::new() }
    }

    /// Opens those of new backends, and closes those of backends that are gone.
    /// Must be called on a tokio runtime: the tasks run there.
    pub fn reconcile(&mut self, snapshot: &Snapshot) {
        let mut gone = std::mem::take(&mut self.tasks);
        for pool in &snapshot.pools {
            for plan in &pool.backends {
                let BackendAddress::Ssh { host, connect } = &plan.state.address else { continue };
                let key = (pool.settings.name.clone(), plan.state.name.clone());
                let task = match gone.remove(&key) {
                    Some(task) if Arc::ptr_eq(&task.backend, &plan.state) => Some(task),
                    _ => self.open(&plan.state, host, connect),
                };
                if let Some(task) = task {
                    self.tasks.insert(key, task);
                }
            }
        }
        for task in gone.into_values() {
            let subject = task.backend.subject();
            self.state.forget_degraded(|degraded| degraded == subject);
        }
    }

    /// Waits until every tunnel stands or has failed once, but at most 2 s.
    pub async fn first(&self) {
        let all = async {
            for task in self.tasks.values() {
                // An error means that the tunnel is gone.
                let _ = task.standing.clone().wait_for(|standing| *standing != Standing::Opening).await;
            }
        };
        // What does not stand by then comes later.
        let _ = timeout(FIRST_LIMIT, all).await;
    }

    fn open(&mut self, backend: &Arc<BackendState>, host: &str, connect: &Endpoint) -> Option<Task> {
        let opened = self.directory().and_then(|directory| {
            self.made += 1;
            let own = directory.join(self.made.to_string());
            let socket = directory.join(format!("{}.sock", self.made));
            let listen = Listen::Unix(socket.clone());
            let tunnel = tunnel(&backend.name, host, Way::Local { listen, connect: connect.clone() });
            let subject = backend.subject();
            let say = Arc::new(move |line: &str| tracing::info!(%subject, "{line}"));
            let opened = Supervised::open(Arc::clone(&self.engine), own, tunnel, say);
            opened.map(|tunnel| (tunnel, socket)).map_err(|failure| failure.detail)
        });
        let (tunnel, socket) = match opened {
            Ok(opened) => opened,
            Err(why) => {
                follow(&self.state, backend, &Standing::Down(why));
                return None;
            }
        };
        backend.through.store(Some(Arc::new(socket)));
        let standing = tunnel.standing();
        follow(&self.state, backend, &Standing::Down("it is being opened".to_owned()));
        let (state, of, mut changes) = (Arc::clone(&self.state), Arc::clone(backend), standing.clone());
        let follower = tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let standing = changes.borrow_and_update().clone();
                follow(&state, &of, &standing);
            }
        });
        Some(Task { backend: Arc::clone(backend), standing, follower, _tunnel: tunnel })
    }

    /// A directory for our user only.
    fn directory(&mut self) -> Result<PathBuf, String> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let parent =
            std::env::var_os("RUNTIME_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute());
        let parent = parent.unwrap_or_else(|| PathBuf::from("/tmp"));
        let made = nix::unistd::mkdtemp(&parent.join("penstock-ssh-XXXXXX"));
        let made = made.map_err(|errno| {
            format!("cannot make a directory for its socket in {}: {errno}", parent.display())
        })?;
        self.directory = Some(made.clone());
        Ok(made)
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        self.tasks.clear();
        if let Some(directory) = &self.directory {
            remove(directory);
        }
    }
}

/// It holds nothing but sockets.
fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::debug!(directory = %directory.display(), %error, "cannot remove a directory of sockets");
    }
}

/// Passes on how a tunnel stands.
fn follow(state: &State, backend: &BackendState, standing: &Standing) {
    let (outcome, cause) = match standing {
        Standing::Opening => return,
        Standing::Up => {
            state.restore(&backend.subject());
            (VerdictOutcome::Pass, Cause::TunnelUp)
        }
        Standing::Down(why) => {
            let cause = Cause::Tunnel(why.clone());
            state.degrade(&backend.subject(), &cause.to_string());
            (VerdictOutcome::Fail, cause)
        }
    };
    let verdict =
        Verdict { at: SystemTime::now(), source: Source::Tunnel, outcome, cause, took: Duration::ZERO };
    note_resolution(state, backend, verdict);
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
