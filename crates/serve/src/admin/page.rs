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

    /// The page as it is now or later, never as it was before. It is written and charged to the end also where the client that
    /// asked leaves meanwhile.
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
    format!("the task that writes it has failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Pace;
    use crate::report::fixture;

    /// Held as long as the page is not to be written to its end.
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
