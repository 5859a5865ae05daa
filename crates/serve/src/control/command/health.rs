//! `health`: whether this server should have the address that clients use, for keepalived and the like.

use text::terminal::line;

use crate::report::{Phase, PoolReport};

/// The reason why clients should come here, or as an error why they should not. A pool without a backend is a reason
/// where it is asked for, or where no pool has one: the other server may have the same backends.
pub(super) fn judge(phase: Phase, pools: &[PoolReport], wanted: &[&str]) -> Result<String, String> {
    if phase == Phase::Draining {
        return Err("unhealthy: it was told to stop, and takes no new connections".to_owned());
    }
    let dead = pools.iter().filter(|pool| pool.available == 0);
    let missing: Vec<_> =
        dead.filter(|pool| wanted.contains(&&*pool.name)).map(|pool| line(&pool.name)).collect();
    if !missing.is_empty() {
        return Err(format!("unhealthy: no backend of pool {} is available", missing.join(", ")));
    }
    let available = pools.iter().filter(|pool| pool.available > 0).count();
    if available == 0 && !pools.is_empty() {
        return Err("unhealthy: no pool has an available backend".to_owned());
    }
    Ok(format!("healthy: it serves, and {available} of {} pools have an available backend", pools.len()))
}
