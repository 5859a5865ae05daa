//! What is known of the stored state: for reports, and for those that want it stored now.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};

use crate::lock::lock;

#[derive(Debug)]
pub struct Board {
    /// Files written since the first start with this directory.
    pub stores: AtomicU64,
    /// Attempts to write a file that failed.
    pub failures: AtomicU64,
    /// Whether state is stored at all.
    active: AtomicBool,
    place: Mutex<Option<Stored>>,
    /// Why nothing is stored while another process holds the directory.
    another: Mutex<Option<String>>,
    /// Number of requests so far.
    asked: AtomicU64,
    wanted: Notify,
    /// The last request that a finished store has seen.
    done: watch::Sender<Finished>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Finished {
    /// Number of the request.
    asked: u64,
    /// Number of the last one that a store has seen that did not fail.
    stored: u64,
}

/// Whether a restart has what was to be stored. Where nothing is ever stored there is nothing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredWithin {
    Yes,
    /// Not in time, or it failed.
    No,
}

/// Where the state is stored, and when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub directory: PathBuf,
    /// `None` before the first store of this process.
    pub at: Option<SystemTime>,
    /// Size of the files that this process has written last.
    pub bytes: u64,
    /// When the state that this process began with was stored.
    pub restored: Option<SystemTime>,
}

/// Whether this process has just begun to wait for a directory that another process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    New,
    AsBefore,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            stores: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            active: AtomicBool::new(false),
            place: Mutex::default(),
            another: Mutex::default(),
            asked: AtomicU64::new(0),
            wanted: Notify::new(),
            done: watch::Sender::new(Finished::default()),
        }
    }
}

impl Board {
    /// Waits until everything counted so far is stored, or for `limit`. A counter that a client has seen must not be
    /// smaller after a crash.
    pub async fn stored_within(&self, limit: Duration) -> StoredWithin {
        self.changes_stored_within(1, limit).await
    }

    /// Like [`Self::stored_within`], for several changes: each counts as a request.
    pub async fn changes_stored_within(&self, changes: u64, limit: Duration) -> StoredWithin {
        if !self.active.load(Relaxed) {
            return StoredWithin::Yes;
        }
        let number = self.ask(changes);
        let mut done = self.done.subscribe();
        // After the limit the answer is given all the same.
        match tokio::time::timeout(limit, done.wait_for(|done| done.asked >= number)).await {
            Ok(Ok(done)) if done.stored >= number => StoredWithin::Yes,
            _ => StoredWithin::No,
        }
    }

    /// Has everything counted so far stored soon. No client waits for it.
    pub fn want(&self) {
        if self.active.load(Relaxed) {
            self.ask(1);
        }
    }

    fn ask(&self, requests: u64) -> u64 {
        let number = self.asked.fetch_add(requests, SeqCst) + requests;
        self.wanted.notify_one();
        number
    }

    /// Completes when someone wants the state stored.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Number of the last request: everything before it is in what is read from now on.
    pub fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    /// A store that began after request `asked` has ended.
    pub fn finished(&self, asked: u64, stored: StoredWithin) {
        self.done.send_modify(|done| {
            done.asked = asked;
            if stored == StoredWithin::Yes {
                done.stored = asked;
            }
        });
    }

    pub fn stored(&self) -> Option<Stored> {
        lock(&self.place).clone()
    }

    /// Why nothing is stored, if another process holds the directory.
    pub fn another(&self) -> Option<String> {
        lock(&self.another).clone()
    }

    /// Notes that another process holds the directory.
    pub fn wait_for_another(&self, why: &str) -> Waits {
        match lock(&self.another).replace(why.to_owned()) {
            Some(_) => Waits::AsBefore,
            None => Waits::New,
        }
    }

    /// Tells where the state is stored from now on.
    pub fn set(&self, stored: Stored) {
        self.active.store(true, Relaxed);
        *lock(&self.another) = None;
        *lock(&self.place) = Some(stored);
    }

    /// Notes that the files were written.
    pub fn note(&self, at: SystemTime, bytes: u64) {
        if let Some(stored) = &mut *lock(&self.place) {
            (stored.at, stored.bytes) = (Some(at), bytes);
        }
    }
}
