//! Connections to jump hosts, shared by all targets behind them. With one log-in per target, the jump host would refuse
//! some: `MaxStartups` limits simultaneous connections, `PerSourcePenalties` frequent ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hosts::fleet::ending::Failure;
use tokio::sync::Mutex as AsyncMutex;

use crate::session::Session;
use crate::target::Target;

/// All jump hosts in use, by the chain of hosts up to and including the jump host.
#[derive(Default)]
pub(crate) struct JumpHosts(Mutex<HashMap<Vec<Target>, Arc<JumpHost>>>);

#[derive(Default)]
pub(crate) struct JumpHost {
    open: AsyncMutex<Open>,
    /// Number of failed log-ins.
    failures: AtomicU64,
}

#[derive(Default)]
struct Open {
    sessions: Vec<Arc<Session>>,
    /// Failure of the last failed log-in.
    failure: Option<Failure>,
}

impl JumpHosts {
    /// Returns the jump host at the end of `way`.
    pub(crate) fn at(&self, way: &[Target]) -> Arc<JumpHost> {
        let mut jump_hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jump_host) = jump_hosts.get(way) {
            return Arc::clone(jump_host);
        }
        let jump_host = Arc::new(JumpHost::default());
        jump_hosts.insert(way.to_vec(), Arc::clone(&jump_host));
        jump_host
    }
}

impl JumpHost {
    /// Returns a session with room for one more channel. One task at a time logs in. Tasks that waited for it get its
    /// session or its failure: a retry at once would only be refused again.
    pub(crate) async fn session(
        &self,
        log_in: impl Future<Output = Result<Session, Failure>>,
    ) -> Result<Arc<Session>, Failure> {
        let before = self.failures.load(Relaxed);
        let mut open = self.open.lock().await;
        open.sessions.retain(|session| session.is_open());
        if let Some(session) = open.sessions.iter().find(|session| Arc::strong_count(session) <= PLACES) {
            return Ok(Arc::clone(session));
        }
        if let Some(failure) = open.failure.as_ref().filter(|_| self.failures.load(Relaxed) != before) {
            return Err(failure.clone());
        }
        match log_in.await {
            Ok(session) => {
                let session = Arc::new(session);
                open.sessions.push(Arc::clone(&session));
                Ok(session)
            }
            Err(failure) => {
                self.failures.fetch_add(1, Relaxed);
                open.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }
}

/// Maximum number of channels per session. Each uses a descriptor of one sshd process, whose limit is usually 1,024.
const PLACES: usize = 256;
