//! Counts requests and retries of a pool with a `retry-budget`; `crates/logic/src/retry_budget.rs` decides. Each worker has
//! its own part, which stays over a reload.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use state::events::Level;
use state::lock::lock;

use crate::snapshot::PoolPlan;
use crate::worker::Worker;

/// Counts a request that comes to a pool for the first time.
pub(crate) fn count(worker: &Worker, pool: &PoolPlan, now: Instant) {
    if pool.settings.retry_budget.is_some() {
        lock(pool.state.retries.of(worker.index)).count(since_start(worker, now));
    }
}

/// Tests whether a request may be tried again, without counting it.
pub(crate) fn has_left(worker: &Worker, pool: &PoolPlan) -> bool {
    let Some(rule) = pool.settings.retry_budget else { return true };
    let now = since_start(worker, Instant::now());
    lock(pool.state.retries.of(worker.index)).has_left(rule, worker.front.state.workers, now)
}

/// Takes the budget for a retry. `false` if none is left, which is counted.
pub(crate) fn spend(worker: &Worker, pool: &PoolPlan) -> bool {
    let Some(rule) = pool.settings.retry_budget else { return true };
    let now = since_start(worker, Instant::now());
    let has_left = {
        let mut budget = lock(pool.state.retries.of(worker.index));
        let has_left = budget.has_left(rule, worker.front.state.workers, now);
        if has_left {
            budget.spend(now);
        }
        has_left
    };
    if !has_left {
        pool.state.retries_refused.fetch_add(1, Relaxed);
        if pool.state.retries_told.may(now) {
            let message = "the retry budget is spent: requests that fail are not tried again for now";
            let subject = format!("pool.{}", pool.settings.name);
            worker.front.state.events.record(Level::Warning, subject, message);
        }
    }
    has_left
}

fn since_start(worker: &Worker, now: Instant) -> Duration {
    now.saturating_duration_since(worker.front.state.started)
}
