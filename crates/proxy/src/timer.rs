//! A single runtime timer for all time limits of one connection.
//!
//! With one runtime timer for each wait, a request would insert and remove four timers (about 2,000 instructions). Here
//! one timer stays as long as it fires early enough; when it fires, its task checks its own limit, and the timer is set
//! again for the earliest limit. A busy connection sets the timer about once per limit instead of several times per
//! request.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

/// Timer of one connection. All waits with it belong to one task.
#[derive(Default)]
pub(crate) struct Timer(RefCell<Option<Armed>>);

struct Armed {
    sleep: Pin<Box<Sleep>>,
    /// Time when the timer fires, or has fired.
    at: Instant,
}

/// Error: a time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

/// Polls a timer for a task that does not poll it again before it fires. The timer wakes the task also if the task has used
/// up its budget in tokio: a plain poll would then not register the task's waker.
pub(crate) fn poll_sleep(sleep: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
    pin!(tokio::task::unconstrained(sleep)).poll(cx)
}

impl Timer {
    /// Tests whether `due` has passed. If not, the task is woken then, or earlier to ask again.
    pub(crate) fn poll_due(&self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let mut armed = self.0.borrow_mut();
        if armed.as_ref().is_some_and(|armed| armed.at <= due && !armed.sleep.is_elapsed()) {
            return Poll::Pending;
        }
        if due <= Instant::now() {
            return Poll::Ready(());
        }
        match &mut *armed {
            Some(armed) => {
                armed.sleep.as_mut().reset(due.into());
                armed.at = due;
            }
            None => *armed = Some(Armed { sleep: Box::pin(tokio::time::sleep_until(due.into())), at: due }),
        }
        match &mut *armed {
            Some(armed) => poll_sleep(armed.sleep.as_mut(), cx),
            None => Poll::Pending,
        }
    }

    /// Returns the result of `future`, or an error after `limit`. The clock is read only if the future has to wait.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut due = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            let due = *due.get_or_insert_with(|| Instant::now() + limit);
            self.poll_due(cx, due).map(|()| Err(Elapsed))
        })
        .await
    }

    /// Returns the result of `future`, or an error at `due`.
    pub(crate) async fn until<F: Future>(&self, due: Instant, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_due(cx, due).map(|()| Err(Elapsed)),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_limit_ends_a_wait_when_it_is_due_and_not_before() {
        let timer = Timer::default();
        let limit = Duration::from_millis(20);
        let started = Instant::now();
        assert_eq!(timer.within(limit, pending::<()>()).await, Err(Elapsed));
        assert!(started.elapsed() >= limit);
    }

    #[tokio::test]
    async fn what_is_ready_needs_no_timer() {
        let timer = Timer::default();
        assert_eq!(timer.within(Duration::ZERO, ready(1)).await, Ok(1));
        assert!(timer.0.borrow().is_none());
    }

    #[tokio::test]
    async fn a_later_limit_leaves_the_timer_alone_and_an_earlier_one_moves_it() {
        let timer = Timer::default();
        let now = Instant::now();
        let armed_at = |timer: &Timer| timer.0.borrow().as_ref().map(|armed| armed.at);
        let timer_ref = &timer;
        let ask = |due| std::future::poll_fn(move |cx| Poll::Ready(timer_ref.poll_due(cx, due)));
        for (due, expected) in [(30, 30), (60, 30), (10, 10), (30, 10)] {
            assert!(ask(now + due * SECOND).await.is_pending());
            assert_eq!(armed_at(&timer), Some(now + expected * SECOND));
        }
    }

    #[tokio::test]
    async fn a_limit_ends_the_wait_of_a_task_that_had_used_its_budget() {
        let timer = Timer::default();
        let due = Instant::now() + Duration::from_millis(20);
        let waiting = std::future::poll_fn(|cx| {
            while pin!(tokio::task::consume_budget()).poll(cx).is_ready() {}
            timer.poll_due(cx, due)
        });
        assert!(tokio::time::timeout(10 * SECOND, waiting).await.is_ok());
    }

    #[tokio::test]
    async fn of_two_waits_at_once_each_ends_at_its_own_limit() {
        let timer = Timer::default();
        let started = Instant::now();
        let wait = async |limit: Duration| {
            timer.within(limit, pending::<()>()).await.unwrap_err();
            started.elapsed()
        };
        // A machine that keeps the task from its turn for longer than the long one lets both end at once.
        let (long, short) = (Duration::from_secs(3), Duration::from_millis(20));
        let (longer, shorter) = tokio::join!(wait(long), wait(short));
        assert!(shorter >= short && shorter < longer && longer >= long);
    }
}
