//! What a request does whose backend is judged down or ejected while the request waits there: it goes to another backend
//! if that is safe, and waits no longer than `timeouts.down` otherwise.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use logic::balance::Tried;
use logic::peers::Peer;
use logic::retry::{self, Idempotence, Progress, WhenDown};

use crate::retry_budget;
use crate::snapshot::PoolPlan;
use crate::timer::Timer;
use crate::upstream;
use crate::waits::BackendWait;
use crate::worker::Worker;

/// Interval at which a request looks for room at the other backends while it waits at one that is down.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Why a request waits no longer at a backend that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Another backend can take the request.
    Moved,
    /// The request had to stay, and the backend did not respond within `timeouts.down`.
    TimedOut,
}

/// What decides which other backends a request may go to.
#[derive(Clone, Copy)]
pub(super) struct Others<'a> {
    pub(super) tried: &'a Tried,
    /// See [`crate::upstream::Wanted::judged`].
    pub(super) judged: Option<Peer>,
}

/// The wait of one attempt at its backend.
pub(super) struct Moving<'a> {
    wait: RefCell<BackendWait<'a>>,
    worker: &'a Rc<Worker>,
    pool: &'a Arc<PoolPlan>,
    /// Index of the backend in the pool.
    pub(super) backend: usize,
    pub(super) tried: &'a Tried,
    /// See [`crate::upstream::Wanted::judged`].
    pub(super) judged: Option<Peer>,
    /// Number of this attempt, from 1.
    pub(super) attempt: u32,
    pub(super) idempotence: Idempotence,
}

impl<'a> Moving<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        pool: &'a Arc<PoolPlan>,
        backend: usize,
        others: Others<'a>,
        attempt: u32,
        idempotence: Idempotence,
    ) -> Self {
        let Others { tried, judged } = others;
        let wait = RefCell::new(BackendWait::new(&worker.waits, &pool.backends[backend].state));
        Self { wait, worker, pool, backend, tried, judged, attempt, idempotence }
    }

    /// Tests whether the request should stop waiting; `progress` says how far it has come.
    pub(super) fn poll_lost(
        &self,
        cx: &mut Context<'_>,
        timer: &Timer,
        progress: impl FnOnce() -> Progress,
    ) -> Poll<Lost> {
        let Some(since) = self.wait.borrow_mut().poll_lost(cx) else { return Poll::Pending };
        let retries = match retry_budget::has_left(self.worker, self.pool) {
            true => self.pool.settings.retries,
            false => 0,
        };
        let decide =
            |elsewhere| retry::when_down(self.idempotence, progress(), self.attempt, retries, elsewhere);
        let now = Instant::now();
        let elsewhere =
            upstream::elsewhere(self.worker, self.pool, self.backend, self.tried, self.judged, now);
        if decide(elsewhere) == WhenDown::Move {
            return Poll::Ready(Lost::Moved);
        }
        let due = since + self.pool.settings.timeouts.down;
        if due <= now {
            return Poll::Ready(Lost::TimedOut);
        }
        // The task polls again then.
        timer.poll_due(cx, due.min(now + LOOK_AGAIN)).map(|()| Lost::TimedOut)
    }

    /// Returns the result of `future`, or why the request waits no longer. Nothing has been sent yet.
    pub(super) async fn until<F: Future>(&self, timer: &Timer, future: F) -> Result<F::Output, Lost> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_lost(cx, timer, || Progress::NothingSent).map(Err),
        })
        .await
    }
}
