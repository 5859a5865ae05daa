//! Something that is kept for each backend of one kind, through every change of the configuration: look-ups of names, tunnels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::snapshot::{PoolPlan, Snapshot};
use crate::state::{BackendState, State};

/// How long [`PerBackend::first`] waits: what is gone out there must not hold the start.
pub(crate) const FIRST_LIMIT: Duration = Duration::from_secs(2);

/// What is kept, by pool and backend.
pub struct PerBackend<T>(HashMap<Key, (Arc<BackendState>, T)>);

/// The names of a pool and of a backend in it.
type Key = (Arc<str>, Arc<str>);

impl<T> Default for PerBackend<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> PerBackend<T> {
    /// Brings it in line with a configuration. `keep` gets every backend with what is kept for it, if anything, and returns what is
    /// to be kept from now on; `None` if the backend is of another kind. What is kept for backends that are gone is dropped, and
    /// nothing is said about them any more.
    pub fn reconcile(
        &mut self,
        state: &State,
        snapshot: &Snapshot,
        mut keep: impl FnMut(&PoolPlan, &Arc<BackendState>, Option<T>) -> Option<T>,
    ) {
        let mut gone = std::mem::take(&mut self.0);
        for pool in &snapshot.pools {
            for plan in &pool.backends {
                let key = (pool.settings.name.clone(), plan.state.name.clone());
                let kept = gone.remove(&key).filter(|(backend, _)| Arc::ptr_eq(backend, &plan.state));
                if let Some(kept) = keep(pool, &plan.state, kept.map(|(_, kept)| kept)) {
                    self.0.insert(key, (Arc::clone(&plan.state), kept));
                }
            }
        }
        for (backend, _) in gone.into_values() {
            let subject = backend.subject();
            state.forget_degraded(|degraded| degraded == subject);
        }
    }

    /// Waits until `done` has come for everything that is kept, but at most 2 s. What is not there by then comes later.
    pub async fn first(&self, done: impl AsyncFn(&T)) {
        let all = async {
            for (_, kept) in self.0.values() {
                done(kept).await;
            }
        };
        let _ = timeout(FIRST_LIMIT, all).await;
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
