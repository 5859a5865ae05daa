//! Changes the state for a snapshot that is served next. No step after this one can reject the snapshot.

use std::time::Instant;

use config::types::SourceAddress;
use logic::health::State as HealthState;
use state::State;
use state::events::Level;
use state::kept::traffic;

use super::faults::source_fault;
use super::{PoolPlan, Snapshot};

/// Stores new objects in `state`, sets the health rules of backends, and reads certificates of listeners. Reports
/// faults through events and [`State::degrade`]. Blocks on the disk.
pub fn adopt(snapshot: &Snapshot, state: &State, tls: &tls::Shared) {
    for pool in &snapshot.pools {
        announce_tls(pool, state);
        announce_source(pool, state);
        announce_cookie(pool, state);
        adopt_pool(pool, state);
    }
    for listener in &snapshot.config.listeners {
        let Some(plan) = snapshot.listeners.get(&listener.name) else { continue };
        state.keep_listener(&plan.state);
        if let Some(key) = &plan.hash_key {
            key.announce(&listener.name, state);
        }
        if let Some(terminator) = &plan.tls {
            tls.adopt(&listener.name, terminator, state);
        }
    }
    if let Some(terminator) = &snapshot.control_tls {
        tls.adopt(&"[control]".into(), terminator, state);
    }
    if let Some(terminator) = &snapshot.admin_tls {
        tls.adopt(&"[admin]".into(), terminator, state);
    }
}

fn announce_tls(pool: &PoolPlan, state: &State) {
    let name = &pool.settings.name;
    match (&pool.tls, &pool.settings.tls) {
        (Some(tls), Some(settings)) => tls.announce(name, settings, state),
        _ => {
            let subject = format!("pool.{name}.tls");
            state.forget_degraded(|degraded| degraded == subject);
        }
    }
}

fn announce_cookie(pool: &PoolPlan, state: &State) {
    let subject = format!("pool.{}.sticky", pool.settings.name);
    match &pool.cookie {
        Some(cookie) => cookie.announce(&subject, state),
        None => state.forget_degraded(|degraded| degraded == subject),
    }
}

/// Reports a source address that this machine does not have: every connection would fail.
fn announce_source(pool: &PoolPlan, state: &State) {
    let subject = format!("pool.{}.source-address", pool.settings.name);
    match (pool.settings.source_address, source_fault(pool)) {
        (SourceAddress::Any, _) => state.forget_degraded(|degraded| degraded == subject),
        (_, Some(why)) => state.degrade(&subject, &why),
        (_, None) => state.restore(&subject),
    }
}

fn adopt_pool(pool: &PoolPlan, state: &State) {
    let settings = &pool.settings;
    let now = Instant::now();
    let rule = settings.health.as_ref().map(|check| check.rule);
    for plan in &pool.backends {
        let backend = &plan.state;
        state.keep_backend(backend);
        backend.set_standing(plan.settings.standing);
        let (before, event) = {
            let mut health = backend.lock_health();
            (health.state(), health.adopt(rule, settings.passive, now, fastrand::f64()))
        };
        if let Some(event) = event {
            let why = match before {
                HealthState::HalfOpen => "its pool has no error-rate and latency-factor any more",
                _ => "it is not checked any more",
            };
            let message = format!("{event}: {why}");
            state.events.record(Level::Info, backend.subject(), message);
        }
        traffic::resume(state, backend);
    }
    if let Some(table) = &pool.sticky {
        state.keep_sticky(&settings.name, settings.sticky, table);
    }
    state.keep_queue(&settings.name, &pool.queue);
    state.keep_pool(&settings.name, &pool.state);
}
