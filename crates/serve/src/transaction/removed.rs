//! Sessions that stay open on backends and listeners that a change has removed.

use std::sync::atomic::Ordering::Relaxed;

use proxy::snapshot::{PoolPlan, Snapshot};
use serde::Serialize;
use text::terminal::line;
use text::units::count;

/// Backends that are named in an answer; of others it says how many there are.
const MOST: usize = 20;

/// A backend that is not served any more, and has sessions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StillOpen {
    pool: String,
    backend: String,
    sessions: u32,
    /// Whether a `dsr` listener had the pool: what is open is counted as flows.
    #[serde(skip)]
    gets_packets: bool,
}

impl StillOpen {
    fn words(&self) -> String {
        let (pool, backend, number) = (line(&self.pool), line(&self.backend), self.sessions as usize);
        if self.gets_packets {
            let flows = count(number, "flow");
            return format!("{backend} of pool {pool}: {flows} of it remembered (penstock ctl dsr status)");
        }
        let stay = if number == 1 { "stays" } else { "stay" };
        let sessions = count(number, "session");
        format!(
            "{backend} of pool {pool}: {sessions} {stay} open on it (penstock ctl sessions --backend {backend})"
        )
    }
}

/// Backends with sessions that `now` does not have any more.
pub(crate) fn still_open(before: &Snapshot, now: &Snapshot) -> Vec<StillOpen> {
    let has = |pool: &PoolPlan, name: &str| {
        let mut same = now.pools.iter().filter(|other| other.settings.name == pool.settings.name);
        same.any(|other| other.backends.iter().any(|plan| &*plan.state.name == name))
    };
    let mut all = Vec::new();
    for pool in &before.pools {
        let gets_packets =
            before.config.listeners.iter().any(|it| it.dsr().is_some_and(|dsr| dsr.pool == pool.id));
        for plan in &pool.backends {
            let sessions = plan.state.in_flight.load(Relaxed);
            if sessions > 0 && !has(pool, &plan.state.name) {
                let (pool, backend) = (pool.settings.name.to_string(), plan.state.name.to_string());
                all.push(StillOpen { pool, backend, sessions, gets_packets });
            }
        }
    }
    all
}

/// A line for each listener that `now` does not have any more, and that has connections.
pub(crate) fn listener_lines(before: &Snapshot, now: &Snapshot) -> String {
    let gone = before.listeners.iter().filter(|(name, _)| !now.listeners.contains_key(*name));
    let open = gone.map(|(name, plan)| (line(name), plan.state.connections.load(Relaxed)));
    let open = open.filter(|(_, number)| *number > 0).map(|(name, number)| {
        let stay = if number == 1 { "stays" } else { "stay" };
        let connections = count(number, "connection");
        format!("\nlistener {name}: {connections} {stay} open (penstock ctl sessions --listener {name})")
    });
    open.collect()
}

/// A line for each.
pub(crate) fn lines(all: &[StillOpen]) -> String {
    let named = all.iter().take(MOST).map(|one| format!("\n{}", one.words()));
    let more = all.len().saturating_sub(MOST);
    let more = (more > 0).then(|| format!("\nsessions stay open on {} more", count(more, "backend")));
    named.chain(more).collect()
}
