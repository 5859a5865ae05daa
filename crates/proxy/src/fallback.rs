//! The pool that serves a session: the one that its route names, or while none of its backends is available, its fallback.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use config::types::AllDown;
use state::events::Level;

use crate::ejection::serves;
use crate::snapshot::{PoolPlan, Snapshot};
use crate::worker::Worker;

/// Returns the first pool in the chain of fallbacks with an available backend, and `pool` itself if there is none.
#[inline]
pub fn serving<'a>(worker: &Worker, snapshot: &'a Snapshot, pool: &'a Arc<PoolPlan>) -> &'a Arc<PoolPlan> {
    match pool.settings.fallback {
        None => pool,
        Some(_) => first_available(worker, snapshot, pool),
    }
}

fn first_available<'a>(
    worker: &Worker,
    snapshot: &'a Snapshot,
    pool: &'a Arc<PoolPlan>,
) -> &'a Arc<PoolPlan> {
    let found = find(snapshot, pool);
    tell(worker, pool, found);
    match found {
        Some(found) => {
            if !Arc::ptr_eq(found, pool) {
                pool.state.fallback_sessions.fetch_add(1, Relaxed);
            }
            found
        }
        None => pool,
    }
}

/// Returns the pool for a session that got no connection to a backend of `pool`, although some looked available. `None`
/// if there is no such pool.
pub fn after<'a>(snapshot: &'a Snapshot, pool: &PoolPlan) -> Option<&'a Arc<PoolPlan>> {
    let found = next(snapshot, pool)?;
    pool.state.fallback_sessions.fetch_add(1, Relaxed);
    Some(found)
}

/// Like [`after`], for no session.
pub(crate) fn next<'a>(snapshot: &'a Snapshot, pool: &PoolPlan) -> Option<&'a Arc<PoolPlan>> {
    find(snapshot, snapshot.pool(pool.settings.fallback?))
}

/// Returns the first pool in the chain of fallbacks with an available backend.
pub(crate) fn find<'a>(snapshot: &'a Snapshot, pool: &'a Arc<PoolPlan>) -> Option<&'a Arc<PoolPlan>> {
    chain(snapshot, pool).find(|pool| can_serve(pool))
}

/// Returns a pool and its fallbacks. The configuration allows no circle.
pub(crate) fn chain<'a>(
    snapshot: &'a Snapshot,
    first: &'a Arc<PoolPlan>,
) -> impl Iterator<Item = &'a Arc<PoolPlan>> {
    std::iter::successors(Some(first), move |pool| pool.settings.fallback.map(|next| snapshot.pool(next)))
}

fn can_serve(pool: &PoolPlan) -> bool {
    pool.settings.all_down == AllDown::FailOpen || pool.backends.iter().any(|backend| serves(pool, backend))
}

/// Records when a fallback begins and ends to be used. The sessions themselves notice it, so a pool without traffic says
/// nothing.
fn tell(worker: &Worker, pool: &PoolPlan, found: Option<&Arc<PoolPlan>>) {
    let found = found.filter(|found| found.id != pool.id);
    let told = &pool.state.fallback_told;
    let uses = found.is_some();
    if told.load(Relaxed) == uses || told.swap(uses, Relaxed) == uses {
        return;
    }
    let (level, message) = match found {
        Some(found) => {
            let name = &found.settings.name;
            (Level::Warning, format!("no backend is available: sessions go to pool {name}"))
        }
        None => (Level::Info, "sessions do not go to the fallback any more".to_owned()),
    };
    worker.front.state.events.record(level, format!("pool.{}", pool.settings.name), message);
}
