//! Connections to jump hosts, shared by all who go through them. A log-in for each host behind a gate would be punished
//! there: `MaxStartups` turns away what comes at once, `PerSourcePenalties` who comes too often.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use logic::fleet::ending::Failure;
use tokio::sync::Mutex as Turnstile;

use crate::session::Session;
use crate::target::Target;

/// Every gate that somebody went through, by the whole way up to it.
#[derive(Default)]
pub(crate) struct Gates(Mutex<HashMap<Vec<Target>, Arc<Gate>>>);

/// One jump host, as reached in one way.
#[derive(Default)]
pub(crate) struct Gate {
    open: Turnstile<Open>,
    /// How many log-ins have failed.
    failures: AtomicU64,
}

#[derive(Default)]
struct Open {
    sessions: Vec<Arc<Session>>,
    /// Why the last log-in that failed did.
    failure: Option<Failure>,
}

impl Gates {
    /// The gate at the end of `way`.
    pub(crate) fn at(&self, way: &[Target]) -> Arc<Gate> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(way) {
            return Arc::clone(gate);
        }
        let gate = Arc::new(Gate::default());
        gates.insert(way.to_vec(), Arc::clone(&gate));
        gate
    }
}

impl Gate {
    /// A session with room for one more channel; whoever holds it takes one of its places. One user at a time logs in. Those
    /// who waited for that get its session, or its failure: asking again at once would only be refused again.
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

/// So many channels share a session. Each is a descriptor of one sshd process, which mostly has 1,024 of them.
const PLACES: usize = 256;
