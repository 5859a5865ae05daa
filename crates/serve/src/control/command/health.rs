//! `health`: whether this server should have the address that clients use, for keepalived and the like.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::json;
use text::terminal::line;

use super::{Call, Refusal, Step};
use crate::report::{self, PoolReport};

pub(super) fn run(call: &Call<'_>) -> Result<Step, Refusal> {
    for pool in call.arguments {
        call.expect_pool(pool)?;
    }
    let pools = report::pools(call.front, None);
    let draining = call.front.state.draining.load(Relaxed);
    let good = judge(draining, &pools, call.arguments).map_err(Refusal::from)?;
    Ok(call.answer(|| good.clone(), || json!({ "healthy": true, "reason": good }).to_string()))
}

/// The reason why clients should come here, or as an error why they should not. A pool without a backend is a reason
/// where it is asked for, or where no pool has one: the other server may have the same backends.
fn judge(draining: bool, pools: &[PoolReport], wanted: &[&str]) -> Result<String, String> {
    if draining {
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
