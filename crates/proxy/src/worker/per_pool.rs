//! What a worker keeps for each pool: it outlives a snapshot as long as its pool is there: a reload, a live change
//! or an answer of the DNS that concerns other objects leaves it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use logic::balance::Balancer;
use logic::hedge::Hedging;
use logic::route::PoolId;

use crate::snapshot::{PoolPlan, Snapshot};

pub(super) trait OfPool: Sized {
    /// For a pool that the worker has not used before.
    fn begun(plan: &PoolPlan, worker: usize) -> Self;

    /// Adapts what was known of a pool to its present settings and backends.
    fn continued(&self, then: &PoolPlan, plan: &PoolPlan, worker: usize) -> Self;

    /// Gives `act` what a session from before a reload may have of it; `plan` is the present one, if the pool is still
    /// there.
    fn lend<R>(
        known: Option<(&mut Self, &PoolPlan)>,
        old: &PoolPlan,
        worker: usize,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R;
}

/// The values of the pools, indexed by [`PoolId`] of the newest snapshot that a session has used.
pub(super) struct PerPool<T> {
    worker: usize,
    kept: RefCell<Kept<T>>,
}

struct Kept<T> {
    generation: u64,
    entries: Vec<Option<Entry<T>>>,
}

struct Entry<T> {
    plan: Arc<PoolPlan>,
    value: T,
}

impl<T: OfPool> PerPool<T> {
    pub(super) fn new(worker: usize) -> Self {
        Self { worker, kept: RefCell::new(Kept { generation: 0, entries: Vec::new() }) }
    }

    pub(super) fn with<R>(&self, snapshot: &Snapshot, pool: PoolId, act: impl FnOnce(&mut T) -> R) -> R {
        let kept = &mut *self.kept.borrow_mut();
        if kept.generation != snapshot.generation {
            if kept.generation > snapshot.generation {
                let old = snapshot.pool(pool);
                let known = kept.find(old).map(|entry| (&mut entry.value, &*entry.plan));
                return T::lend(known, old, self.worker, act);
            }
            kept.follow(snapshot, self.worker);
        }
        let entry = kept.entries[pool.0].get_or_insert_with(|| {
            let plan = snapshot.pool(pool).clone();
            Entry { value: T::begun(&plan, self.worker), plan }
        });
        act(&mut entry.value)
    }

    /// Goes on with the pools of a snapshot for all sessions that begin from now on, and lets those of earlier ones go.
    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let kept = &mut *self.kept.borrow_mut();
        if kept.generation < snapshot.generation {
            kept.follow(snapshot, self.worker);
        }
    }

    /// Copies what a session under `snapshot` would get from [`Self::with`].
    pub(super) fn copy(&self, snapshot: &Snapshot, pool: PoolId) -> T {
        let plan = snapshot.pool(pool);
        match self.kept.borrow_mut().find(plan) {
            Some(entry) => entry.value.continued(&entry.plan, plan, self.worker),
            None => T::begun(plan, self.worker),
        }
    }
}

impl<T: OfPool> Kept<T> {
    /// The entry of the same pool: its state outlives all snapshots that have it.
    fn find(&mut self, plan: &PoolPlan) -> Option<&mut Entry<T>> {
        self.entries.iter_mut().flatten().find(|entry| Arc::ptr_eq(&entry.plan.state, &plan.state))
    }

    fn follow(&mut self, snapshot: &Snapshot, worker: usize) {
        let known: HashMap<_, _> =
            self.entries.iter().flatten().map(|entry| (Arc::as_ptr(&entry.plan.state), entry)).collect();
        let next = snapshot.pools.iter().map(|plan| {
            let entry = known.get(&Arc::as_ptr(&plan.state))?;
            let value = entry.value.continued(&entry.plan, plan, worker);
            Some(Entry { plan: plan.clone(), value })
        });
        let next = next.collect();
        self.entries = next;
        self.generation = snapshot.generation;
    }
}

impl OfPool for Balancer {
    fn begun(plan: &PoolPlan, worker: usize) -> Self {
        plan.balancer(worker)
    }

    fn continued(&self, then: &PoolPlan, plan: &PoolPlan, worker: usize) -> Self {
        plan.balancer(worker).after(self, &then.identities, &plan.identities)
    }

    /// Its backends may be other ones: what it chooses is not seen by the present sessions.
    fn lend<R>(
        known: Option<(&mut Self, &PoolPlan)>,
        old: &PoolPlan,
        worker: usize,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let mut own = match known {
            Some((present, plan)) => present.continued(plan, old, worker),
            None => Self::begun(old, worker),
        };
        act(&mut own)
    }
}

impl OfPool for Hedging {
    fn begun(_: &PoolPlan, _: usize) -> Self {
        Self::default()
    }

    fn continued(&self, _: &PoolPlan, _: &PoolPlan, _: usize) -> Self {
        self.clone()
    }

    fn lend<R>(
        known: Option<(&mut Self, &PoolPlan)>,
        _: &PoolPlan,
        _: usize,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R {
        match known {
            Some((present, _)) => act(present),
            None => act(&mut Self::without_budget()),
        }
    }
}
