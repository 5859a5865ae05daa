//! Values kept per backend of one kind (look-ups of names, tunnels), across changes of the configuration.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proxy::snapshot::{PoolPlan, Snapshot};
use state::{BackendState, State};
use tokio::time::timeout;

/// Time limit of [`PerBackend::first`]: an unreachable peer must not delay the start.
pub(crate) const FIRST_LIMIT: Duration = Duration::from_secs(2);

/// The kept values, by pool and backend.
pub(crate) struct PerBackend<T>(HashMap<Key, (Arc<BackendState>, T)>);

/// Names of a pool and of a backend in it.
type Key = (Arc<str>, Arc<str>);

impl<T> Default for PerBackend<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> PerBackend<T> {
    /// Adapts the values to a new configuration. `keep` gets each backend with its present value, and returns the new
    /// value, or `None` for a backend of another kind. The values and the status of removed backends are dropped.
    pub(crate) fn reconcile(
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

    /// Waits until `done` has completed for all kept values, but at most 2 s.
    pub(crate) async fn first(&self, done: impl AsyncFn(&T)) {
        let all = async {
            for (_, kept) in self.0.values() {
                done(kept).await;
            }
        };
        let _ = timeout(FIRST_LIMIT, all).await;
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
