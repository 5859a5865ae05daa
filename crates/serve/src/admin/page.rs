//! A page that is expensive to write: one copy answers all waiting clients, so that many clients cost as much as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::body::Bytes;
use proxy::front::Front;
use sys::cpu::thread_time;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

use crate::pace::Client;

/// Text of the page, or the error message for the client.
type Written = Result<Bytes, String>;

pub(super) struct Page {
    write: fn(&Arc<Front>) -> Written,
    /// Number of writes begun.
    begun: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    pace: Client,
    /// Number of the last complete write, and its result.
    last: (u64, Written),
}

impl Page {
    /// Makes a page that calls `write`, limited by the pace of `client`.
    pub(super) fn new(client: Client, write: fn(&Arc<Front>) -> Written) -> Self {
        let inner = Inner { pace: client, last: (0, Ok(Bytes::new())) };
        Self { write, begun: AtomicU64::new(0), inner: Mutex::new(inner) }
    }

    /// Returns the page as of this call or later, never an older copy. The write completes and is charged even if the
    /// client that asked disconnects.
    pub(super) async fn read(self: &Arc<Self>, front: &Arc<Front>) -> Written {
        let before = self.begun.load(Relaxed);
        let (page, front) = (self.clone(), front.clone());
        tokio::spawn(async move { page.written_after(before, front).await })
            .await
            .unwrap_or_else(|error| Err(broken_off(error)))
    }

    async fn written_after(&self, before: u64, front: Arc<Front>) -> Written {
        let mut inner = self.inner.lock().await;
        if inner.last.0 > before {
            return inner.last.1.clone();
        }
        inner.pace.turn().await;
        let number = self.begun.fetch_add(1, Relaxed) + 1;
        let write = self.write;
        // The current thread also runs health checks: do not block it.
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
    format!("the task that writes it has failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Pace;
    use crate::report::fixture;

    /// Blocks `write` while a test holds it.
    static HELD: Mutex<()> = Mutex::const_new(());

    fn write(_: &Arc<Front>) -> Written {
        drop(HELD.blocking_lock());
        Ok(Bytes::from_static(b"a page"))
    }

    #[tokio::test]
    async fn page_is_written_to_its_end_and_by_one_also_where_the_client_that_asked_leaves() {
        let front = fixture::front("backends = ['127.0.0.1:1']");
        let page = Arc::new(Page::new(Pace::one_part_in(2).client(), write));
        let held = HELD.lock().await;
        let asking = tokio::spawn({
            let (page, front) = (page.clone(), front.clone());
            async move { page.read(&front).await }
        });
        while page.begun.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        asking.abort();
        assert!(asking.await.is_err());
        assert!(page.inner.try_lock().is_err(), "the next client would have it written beside the first");
        drop(held);
        assert_eq!(page.inner.lock().await.last.0, 1, "what was written is lost, and was not charged");
    }
}
