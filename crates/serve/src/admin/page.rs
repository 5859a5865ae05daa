//! A page that costs much to write: it is written once for all who wait for it, so that a crowd costs what one client does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::body::Bytes;
use sys::cpu::thread_time;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

use crate::front::Front;
use crate::pace::Client;

/// What is written: the text, or what to say instead.
type Written = Result<Bytes, String>;

/// A page, and who may write it when.
pub(super) struct Page {
    write: fn(&Arc<Front>) -> Written,
    /// Times that writing it was begun.
    begun: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    pace: Client,
    /// Which of the times it was, and what came of it.
    last: (u64, Written),
}

impl Page {
    /// Writes with `write`, at the pace of `client`.
    pub(super) fn new(client: Client, write: fn(&Arc<Front>) -> Written) -> Self {
        let inner = Inner { pace: client, last: (0, Ok(Bytes::new())) };
        Self { write, begun: AtomicU64::new(0), inner: Mutex::new(inner) }
    }

    /// The page as it is now or later, never as it was before.
    pub(super) async fn read(&self, front: &Arc<Front>) -> Written {
        let before = self.begun.load(Relaxed);
        let mut inner = self.inner.lock().await;
        if inner.last.0 > before {
            return inner.last.1.clone();
        }
        inner.pace.turn().await;
        let number = self.begun.fetch_add(1, Relaxed) + 1;
        let (front, write) = (front.clone(), self.write);
        // Not on the thread that checks health.
        let writing = spawn_blocking(move || {
            let start = thread_time();
            let written = write(&front);
            (written, thread_time().saturating_sub(start))
        });
        let (written, took) =
            writing.await.map_err(broken_off).unwrap_or_else(|error| (Err(error), <_>::default()));
        inner.pace.charge(took);
        inner.last = (number, written.clone());
        written
    }
}

fn broken_off(error: JoinError) -> String {
    format!("it was broken off: {error}")
}
