//! Watches the error rates and response times of pools whose `passive` has limits for them: one task per such pool reads
//! the counters of its backends. `crates/logic/src/health/outlier.rs` decides; `crates/proxy/src/ejection.rs` ejects.
//! Traffic is not delayed: it only counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use logic::health::State as HealthState;
use logic::health::outlier::{Seen, Window, judge};
use proxy::ejection::eject_outlier;
use proxy::snapshot::{PoolPlan, Snapshot};
use state::metrics::LatencySum;
use state::{BackendState, State};
use tokio::sync::watch;

/// The tasks, by the name of the pool. Dropping a sender ends its task.
#[derive(Default)]
pub(super) struct Outliers(HashMap<Arc<str>, watch::Sender<Arc<PoolPlan>>>);

impl Outliers {
    pub(super) fn reconcile(&mut self, state: &Arc<State>, snapshot: &Snapshot) {
        let mut gone = std::mem::take(&mut self.0);
        for pool in snapshot.pools.iter().filter(|pool| pool.settings.passive.outlier.is_on()) {
            let plans = match gone.remove(&pool.settings.name) {
                Some(plans) => {
                    plans.send_replace(pool.clone());
                    plans
                }
                None => {
                    let (plans, receiver) = watch::channel(pool.clone());
                    tokio::spawn(watch_pool(state.clone(), receiver));
                    plans
                }
            };
            self.0.insert(pool.settings.name.clone(), plans);
        }
    }
}

/// Totals of a backend that only grow.
struct Totals {
    passes: u64,
    errors: u64,
    latency: LatencySum,
}

/// A backend and its totals within the window.
struct Watched {
    backend: Arc<BackendState>,
    window: Window<Totals>,
}

async fn watch_pool(state: Arc<State>, mut plans: watch::Receiver<Arc<PoolPlan>>) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        let pool = plans.borrow_and_update().clone();
        let pause = pool.settings.passive.outlier.pause();
        tokio::select! {
            changed = plans.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => look(&state, &pool, &mut all),
        }
    }
}

fn look(state: &State, pool: &PoolPlan, all: &mut Vec<Watched>) {
    let rule = pool.settings.passive.outlier;
    let mut before = std::mem::take(all);
    for plan in &pool.backends {
        let is_same =
            |one: &Watched| Arc::ptr_eq(&one.backend, &plan.state) && one.window.length() == rule.window;
        let known = before.iter().position(is_same).map(|at| before.swap_remove(at));
        let new = || Watched { backend: plan.state.clone(), window: Window::new(rule.window) };
        all.push(known.unwrap_or_else(new));
    }
    let now = Instant::now();
    let seen: Vec<_> = all.iter_mut().map(|one| one.seen(now)).collect();
    for (index, cause) in judge(&rule, &seen).into_iter().enumerate() {
        match cause {
            Some(cause) => eject_outlier(state, pool, index, cause),
            // Too few sessions say nothing, also not that it is well again.
            None if seen[index].is_some_and(|seen| seen.sessions >= u64::from(rule.least)) => {
                all[index].backend.breaker.forget_stop();
            }
            None => {}
        }
    }
}

impl Watched {
    /// What the backend did within the window; `None` if it does not take its full share of sessions.
    fn seen(&mut self, now: Instant) -> Option<Seen> {
        if !matches!(self.backend.health_state(), HealthState::Up | HealthState::Unchecked) {
            self.window.clear();
            return None;
        }
        let counters = &self.backend.counters;
        let passes = counters.sum(|block| &block.passes);
        let errors = counters.sum(|block| &block.errors);
        let latency = counters.sum_latency(|block| &block.latency);
        let before = self.window.slide(now, Totals { passes, errors, latency });
        let errors = errors.saturating_sub(before.errors);
        let latency = latency.since(&before.latency);
        Some(Seen {
            sessions: passes.saturating_sub(before.passes) + errors,
            errors,
            timed: latency.count(),
            response: latency.quantile(0.5),
        })
    }
}
