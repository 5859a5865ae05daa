//! A thread that serves many callers with one write: a caller that comes while the disk writes for others goes with the next write.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::store::{Job, Store};

/// Jobs that may wait.
const WAITING: usize = 4096;

/// Largest number of jobs in one write.
const BATCH: usize = 1024;

/// Time after which a busy thread lets other processes have the lock, and for how long.
const TURN: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(2);

/// A handle for callers. The thread ends with the last one.
#[derive(Clone)]
pub struct GroupCommit {
    jobs: SyncSender<Box<dyn Job>>,
}

/// Too many jobs wait, or the thread has ended.
#[derive(thiserror::Error)]
#[error("too many requests wait for the store")]
pub struct Busy {
    /// What will not be done.
    pub job: Box<dyn Job>,
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Busy")
    }
}

impl GroupCommit {
    /// Starts the thread of a store.
    pub fn start(store: Store) -> io::Result<Self> {
        let (jobs, taken) = sync_channel(WAITING);
        thread::Builder::new().name("otp-store".to_owned()).spawn(move || serve(store, &taken))?;
        Ok(Self { jobs })
    }

    /// Hands a job in and returns at once; the thread tells its result. `Err`: it will not be done.
    pub fn submit(&self, job: Box<dyn Job>) -> Result<(), Busy> {
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => Busy { job },
        })
    }
}

impl std::fmt::Debug for GroupCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GroupCommit(..)")
    }
}

fn serve(mut store: Store, jobs: &Receiver<Box<dyn Job>>) {
    let mut turn = Instant::now();
    while let Ok(first) = jobs.recv() {
        let batch: Vec<_> = [first].into_iter().chain(jobs.try_iter().take(BATCH - 1)).collect();
        let began = Instant::now();
        if began.duration_since(turn) > 2 * TURN {
            turn = began;
        }
        store.run(batch);
        if turn.elapsed() > TURN {
            thread::sleep(PAUSE);
            turn = Instant::now();
        }
    }
}
