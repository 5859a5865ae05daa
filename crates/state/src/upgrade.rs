//! What operators may know of upgrades: whether one is running, and the process that this one has taken over from.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::SystemTime;

use crate::lock::lock;

#[derive(Debug, Default)]
pub struct Board {
    running: AtomicBool,
    /// The new process has the state: what would change here now would be lost.
    settled: RwLock<bool>,
    older: Mutex<Option<Older>>,
    /// Lock for counts of the process before that arrive after the first worker has begun to end. The thread of that worker and
    /// the thread that receives them take it to add: a counter has one writer at a time.
    pub late_counts: Mutex<()>,
}

/// The process before this one, while it has sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Older {
    pub pid: u32,
    pub version: String,
    /// When this process took over.
    pub since: SystemTime,
    /// Sessions that it has left; `None` before it has said so.
    pub sessions: Option<usize>,
}

/// The right to change the state, until it is dropped.
#[derive(Debug)]
pub struct Change<'a> {
    _settled: RwLockReadGuard<'a, bool>,
}

/// The right to upgrade, which one operator has at a time.
#[derive(Debug)]
pub struct Turn<'a>(&'a Board);

impl Board {
    /// Begins an upgrade. `None` while another one runs.
    pub fn begin(&self) -> Option<Turn<'_>> {
        (!self.running.swap(true, Relaxed)).then_some(Turn(self))
    }

    /// The new process has the state from now on. Waits for the end of changes that have begun: they are in it.
    pub fn settle(&self) {
        self.set_settled(true);
    }

    /// The new process has not become the one that serves.
    pub fn undo(&self) {
        self.set_settled(false);
    }

    fn set_settled(&self, settled: bool) {
        *self.settled.write().unwrap_or_else(PoisonError::into_inner) = settled;
    }

    /// Begins a change. `None` if it would be lost.
    pub fn change(&self) -> Option<Change<'_>> {
        let settled = self.settled.read().unwrap_or_else(PoisonError::into_inner);
        (!*settled).then_some(Change { _settled: settled })
    }

    pub fn older(&self) -> Option<Older> {
        lock(&self.older).clone()
    }

    pub fn set_older(&self, older: Option<Older>) {
        *lock(&self.older) = older;
    }

    pub fn note_left(&self, sessions: usize) {
        if let Some(older) = &mut *lock(&self.older) {
            older.sessions = Some(sessions);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Relaxed);
    }
}
