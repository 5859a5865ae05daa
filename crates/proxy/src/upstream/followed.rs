//! The pool of a session that waits, as it is served now. A session keeps its snapshot, but an operator who adds a backend or
//! raises a limit means those that wait, too.

use std::cell::OnceCell;
use std::sync::Arc;

use logic::balance::Tried;

use crate::snapshot::{PoolPlan, Snapshot};
use crate::sticky_cookie::Slot;
use crate::worker::Current;

/// Snapshot with which a session goes on after a wait, and its pool there.
pub struct Followed {
    pub current: Current,
    pub pool: Arc<PoolPlan>,
    /// The one after the next wait.
    next: Chain,
}

/// The snapshots with which a session went on, one after the other.
#[derive(Default)]
pub struct Chain(OnceCell<Box<Followed>>);

impl Chain {
    /// The snapshot with which a session goes on that began with `first`.
    pub fn newest<'a>(&'a self, first: &'a Current) -> &'a Current {
        let (mut newest, mut next) = (first, self);
        while let Some(followed) = next.0.get() {
            (newest, next) = (&followed.current, &followed.next);
        }
        newest
    }

    /// Goes on with another one.
    pub fn add(&self, followed: Box<Followed>) -> &Followed {
        let mut end = self;
        while let Some(one) = end.0.get() {
            end = &one.next;
        }
        end.0.get_or_init(|| followed)
    }
}

impl Followed {
    /// Finds the pool of a session in the snapshot that is served now. `None` if it has been removed.
    pub(super) fn find(current: Current, pool: &PoolPlan) -> Option<Box<Self>> {
        let pool = same(&current, pool)?.clone();
        Some(Box::new(Self { current, pool, next: Chain::default() }))
    }

    /// The backends that a session has tried in `before`, the same pool.
    pub fn tried(&self, before: &PoolPlan, tried: &Tried) -> Tried {
        let mut now = Tried::default();
        let indices = (0..before.backends.len()).filter(|index| tried.contains(*index));
        indices.filter_map(|index| self.place(before, index)).for_each(|index| now.insert(index));
        now
    }

    /// What the cookie of a session says that was read for `before`, the same pool.
    pub(super) fn cookie(&self, before: &PoolPlan, cookie: Slot) -> Slot {
        match cookie {
            Slot::Backend(index) => self.place(before, index).map_or(Slot::Unknown, Slot::Backend),
            Slot::Absent | Slot::Unknown => cookie,
        }
    }

    fn place(&self, before: &PoolPlan, index: usize) -> Option<usize> {
        let state = &before.backends.get(index)?.state;
        self.pool.backends.iter().position(|backend| Arc::ptr_eq(&backend.state, state))
    }
}

/// The same pool in another snapshot: its queue stays when a snapshot is replaced.
fn same<'a>(now: &'a Snapshot, pool: &PoolPlan) -> Option<&'a Arc<PoolPlan>> {
    now.pools.iter().find(|plan| Arc::ptr_eq(&plan.queue, &pool.queue))
}
