//! Limits of backends. A session that waits for a backend keeps its snapshot, but not the limits in it: an operator who raises
//! one means those that wait.

use std::sync::Arc;

use crate::snapshot::{BackendPlan, PoolPlan, Snapshot};

/// How many sessions a backend takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) most: Option<u32>,
    /// More only of clients that the backend knows.
    pub(super) soft: Option<u32>,
}

impl Limits {
    /// Those of the session's snapshot.
    #[inline]
    pub(super) fn configured(_: usize, backend: &BackendPlan) -> Self {
        Self { most: backend.settings.max_connections, soft: backend.settings.soft_max_connections }
    }
}

/// Limits of the backends of `pool` by the snapshot that is served now, in the order of `pool`. A backend that it does not have
/// keeps its own.
pub(super) fn served(now: &Snapshot, pool: &PoolPlan) -> Vec<Limits> {
    // The queue of a pool stays when a snapshot is replaced.
    let plan = now.pools.iter().find(|plan| Arc::ptr_eq(&plan.queue, &pool.queue));
    let backends = plan.map(|plan| &*plan.backends).unwrap_or_default();
    let mut next = 0;
    let limits = pool.backends.iter().enumerate().map(|(index, backend)| {
        // Nearly always the order is the same.
        let mut places = (next..backends.len()).chain(0..next);
        match places.find(|at| Arc::ptr_eq(&backends[*at].state, &backend.state)) {
            Some(at) => {
                next = at + 1;
                Limits::configured(at, &backends[at])
            }
            None => Limits::configured(index, backend),
        }
    });
    limits.collect()
}
