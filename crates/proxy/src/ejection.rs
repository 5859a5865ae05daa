//! Ejects backends for what traffic says of them: failures in a row and failed trials at once, by the worker that sees
//! them; error rates and response times when `crates/serve/src/health/outliers.rs` finds them.
//! `crates/logic/src/health/outlier.rs` says whether one more backend may be out. The task of the backend
//! (`crates/serve/src/health.rs`) decides when it returns.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use logic::balance::Availability;
use logic::health::outlier::{Fallback, Gate, Rest};
use logic::health::{Cause, State as HealthState};
use state::events::Level;
use state::lock::lock;
use state::{Admission, State};

use crate::snapshot::{BackendPlan, PoolPlan};
use crate::worker::Worker;

/// Held while a backend is ejected, so that two threads do not eject the last two backends of a pool at once.
static EJECTING: Mutex<()> = Mutex::new(());

/// `failures` sessions in a row have failed: ejects the backend if that is too many.
pub(crate) fn note_failures(worker: &Worker, pool: &PoolPlan, index: usize, failures: u32, cause: Cause) {
    let backend = &pool.backends[index].state;
    let limit = pool.settings.passive.failures;
    if limit == 0 || failures < limit || !backend.is_up() {
        return;
    }
    let text = format!("traffic fails: {cause} ({failures} in a row)");
    let gate = eject(pool, index, cause);
    if gate != Gate::Open && failures == limit {
        tell_stop(&worker.front.state, pool, index, gate, &text);
        backend.wake_health.notify_one();
    }
}

/// An answer of a half-open backend.
pub(crate) fn note_trial(worker: &Worker, pool: &PoolPlan, index: usize, failed: Option<Cause>) {
    let backend = &pool.backends[index].state;
    let Some(cause) = failed else {
        if backend.breaker.pass() >= pool.settings.passive.trials {
            backend.wake_health.notify_one();
        }
        return;
    };
    let text = format!("half-open, and traffic fails: {cause}");
    let gate = eject(pool, index, cause);
    if gate != Gate::Open && backend.breaker.tell_stop() {
        tell_stop(&worker.front.state, pool, index, gate, &text);
    }
}

/// Ejects a backend whose error rate or response time is beyond its limit, and says once if it cannot be ejected.
pub fn eject_outlier(state: &State, pool: &PoolPlan, index: usize, cause: Cause) {
    let backend = &pool.backends[index].state;
    let text = cause.to_string();
    let gate = eject(pool, index, cause);
    if gate != Gate::Open && backend.breaker.tell_stop() {
        tell_stop(state, pool, index, gate, &text);
    }
}

fn eject(pool: &PoolPlan, index: usize, cause: Cause) -> Gate {
    let backend = &pool.backends[index].state;
    let _one_at_a_time = lock(&EJECTING);
    let others = || pool.backends.iter().filter(|other| !Arc::ptr_eq(&other.state, backend));
    let rest = Rest {
        all: pool.backends.len(),
        serving: others().filter(|other| serves(pool, other)).count(),
        ejected: others().filter(|other| other.state.health_state() == HealthState::Ejected).count(),
        fallback: if pool.settings.fallback.is_some() { Fallback::Configured } else { Fallback::None },
    };
    let gate = Gate::of(rest, pool.settings.passive.most_ejected);
    if gate == Gate::Open {
        *lock(&backend.last_failure) = Some(cause);
        backend.publish_health(HealthState::Ejected, Instant::now());
        backend.wake_health.notify_one();
    }
    gate
}

/// Returns true if a backend takes new sessions: healthy, not drained, and with a weight.
pub(crate) fn serves(pool: &PoolPlan, backend: &BackendPlan) -> bool {
    let state = &backend.state;
    let weight = state.weight_override().unwrap_or(backend.settings.weight);
    let takes = match state.health_state() {
        HealthState::HalfOpen => state.breaker.free(pool.settings.passive.trials) > 0,
        health => health.availability() == Availability::Available,
    };
    takes && state.admission() == Admission::Ready && weight > 0
}

fn tell_stop(state: &State, pool: &PoolPlan, index: usize, gate: Gate, why: &str) {
    pool.state.ejections_stopped.fetch_add(1, Relaxed);
    let reason = match gate {
        Gate::LastOne | Gate::Open => "it is the last healthy one".to_owned(),
        Gate::MostAreOut => {
            format!("most-ejected = {} lets no more backends be out", pool.settings.passive.most_ejected)
        }
    };
    let message = format!("{why}; not ejected: {reason}");
    state.events.record(Level::Warning, pool.backends[index].state.subject(), message);
}
