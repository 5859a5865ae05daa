//! Explains which backend a session would get. Reads what the path of a session reads, by the same functions
//! (`crates/logic/src/balance/choose.rs`), and changes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use logic::balance::explain::{self, Explanation, Facts};
use logic::balance::{Balancer, HashKey, Standing, Tried};
use logic::peers::Peer;
use state::lock::lock;

use crate::fallback;
pub use crate::passthrough::{Chosen as PassthroughChoice, chosen_by, facts as passthrough_facts};
use crate::snapshot::{PoolPlan, Snapshot};
use crate::sticky_cookie::Slot;
use crate::upstream::{self, Origin};

/// An explained choice in a pool.
pub struct Explained {
    pub explanation: Explanation,
    /// Facts about the backends on which it rests.
    pub standings: Vec<Standing>,
    /// What the sticky table has for the client.
    pub remembered: Option<Remembered>,
    /// Sessions in the queue.
    pub waiting: usize,
    /// Most sessions that may wait.
    pub queue: usize,
}

/// Entry of the sticky table, or what the cookie of the client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Index of the backend; `None` if it has left the pool, or the cookie names none.
    pub backend: Option<usize>,
    /// How long ago the client was last seen; `None` with a cookie.
    pub seen: Option<Duration>,
}

/// Hash of the pool's key for a session of which only the client's address is known.
pub fn key_of_client(pool: &PoolPlan, client: Peer) -> u64 {
    match &pool.settings.hash_key {
        HashKey::Client => client.ip().map_or(0, logic::balance::client_key),
        HashKey::Host | HashKey::Path | HashKey::Header(_) => 0,
    }
}

/// Pool that serves a session for `pool`: itself, or one in its chain of fallbacks.
pub fn serving<'a>(snapshot: &'a Snapshot, pool: &'a Arc<PoolPlan>) -> &'a Arc<PoolPlan> {
    fallback::find(snapshot, pool).unwrap_or(pool)
}

/// Pool for a session that gets no backend of `pool`, although some looked available.
pub fn after<'a>(snapshot: &'a Snapshot, pool: &PoolPlan) -> Option<&'a Arc<PoolPlan>> {
    fallback::next(snapshot, pool)
}

/// Client of a session that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub peer: Peer,
    /// See [`Wanted::judged`](upstream::Wanted::judged).
    pub judged: Option<Peer>,
    pub cookie: Slot,
    pub origin: Origin,
}

/// Explains a choice for `client`. `balancers` are copies of those of all workers.
pub fn explain(pool: &PoolPlan, client: Client, key: u64, balancers: &[Balancer], now: Instant) -> Explained {
    let remembered = match (&pool.cookie, client.cookie) {
        (Some(_), Slot::Absent) => None,
        (Some(_), Slot::Unknown) => Some(Remembered { backend: None, seen: None }),
        (Some(_), Slot::Backend(backend)) => Some(Remembered { backend: Some(backend), seen: None }),
        (None, _) => {
            let sticky = pool.sticky.as_ref().zip(upstream::sticky_key(pool, client.peer));
            let found = sticky.and_then(|(table, key)| lock(table).peek(key, now));
            let known = |(identity, seen)| (pool.identities.find(identity), Some(seen));
            found.map(known).map(|(backend, seen)| Remembered { backend, seen })
        }
    };
    let standings: Vec<Standing> = upstream::standings(pool, client.judged, now).collect();
    let facts = Facts {
        policy: pool.settings.balance,
        standings: &standings,
        all_down: pool.settings.all_down,
        identities: &pool.identities,
        key,
        bound: pool.settings.balance_bound,
        remembered: remembered.and_then(|one| one.backend),
        tried: &Tried::default(),
        line: upstream::line(pool),
        queue: upstream::most_waiting(pool, balancers.len(), client.origin),
    };
    let explanation = explain::explain(&facts, balancers, 0);
    let (waiting, queue) = (facts.line.waiting, facts.queue);
    Explained { explanation, standings, remembered, waiting, queue }
}
