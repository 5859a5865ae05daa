//! Wish of a new client for the slot of an idle one. A worker without an idle client asks the other workers: one of
//! them closes one client for each wish.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// Wishes that no worker has granted yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    open: Mutex<VecDeque<Arc<Mutex<Phase>>>>,
    /// Number of open wishes, so that a check needs no lock.
    count: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// A worker is closing a client for the wish.
    Granted,
    /// The client has ended, or continues because a request had arrived.
    Over,
}

/// Wish for a slot; withdrawn when dropped.
pub struct Wish {
    wishes: Arc<Wishes>,
    phase: Arc<Mutex<Phase>>,
}

/// Granted wish: the client that is being closed keeps the value until the client has ended or continues.
#[derive(Debug)]
pub struct Granted(Arc<Mutex<Phase>>);

impl Wishes {
    pub(super) fn open(self: &Arc<Self>) -> Wish {
        let phase = Arc::new(Mutex::new(Phase::Open));
        let mut open = lock(&self.open);
        open.push_back(phase.clone());
        self.count.store(open.len(), Relaxed);
        Wish { wishes: self.clone(), phase }
    }

    pub(super) fn is_any_open(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    pub(super) fn grant(&self) -> Option<Granted> {
        let mut open = lock(&self.open);
        let phase = open.pop_front()?;
        self.count.store(open.len(), Relaxed);
        *lock(&phase) = Phase::Granted;
        Some(Granted(phase))
    }
}

impl Wish {
    /// Prevents later grants; a worker may have granted the wish before.
    pub fn withdraw(&self) {
        let mut open = lock(&self.wishes.open);
        open.retain(|one| !Arc::ptr_eq(one, &self.phase));
        self.wishes.count.store(open.len(), Relaxed);
    }

    /// Tells whether a client is being closed for the wish.
    pub fn is_granted(&self) -> bool {
        *lock(&self.phase) == Phase::Granted
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        if *lock(&self.phase) == Phase::Open {
            self.withdraw();
        }
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        *lock(&self.0) = Phase::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Account;

    #[test]
    fn each_wish_is_granted_once_and_none_that_was_withdrawn() {
        let account = Account::new(3);
        let (first, second) = (account.wish(0), account.wish(0));
        drop(account.wish(1));
        let granted = account.grant().unwrap();
        assert_eq!((first.is_granted(), second.is_granted()), (true, false));
        let other = account.grant().unwrap();
        assert!(account.grant().is_none() && !account.has_wish());
        drop(granted);
        assert_eq!((first.is_granted(), second.is_granted()), (false, true));
        drop((first, second, other));
        let _next = account.wish(0);
        assert!(account.has_wish());
    }
}
