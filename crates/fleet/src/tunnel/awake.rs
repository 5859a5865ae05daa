//! Limits on time in which we were at work. A process that was stopped (SIGSTOP), or whose machine slept, finds all of its
//! limits passed at once when it goes on, although nobody was late.

use std::pin::pin;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::{sleep, timeout};

/// The limit has passed, most of it while we were at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Late;

/// What comes of `future` within `limit`.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Late> {
    let mut future = pin!(future);
    for _ in 0..PIECES {
        if let Ok(done) = timeout(limit / PIECES, &mut future).await {
            return Ok(done);
        }
    }
    Err(Late)
}

/// What comes of `future`, and for how long we were stopped meanwhile, if we were.
pub(crate) async fn noticing<T>(future: impl Future<Output = T>) -> (T, Option<Duration>) {
    let mut future = pin!(future);
    let mut longest = Duration::ZERO;
    loop {
        let before = now();
        let done = tokio::select! {
            done = &mut future => Some(done),
            () = sleep(TICK) => None,
        };
        longest = longest.max(now().saturating_sub(before));
        if let Some(done) = done {
            return (done, (longest > STOPPED).then_some(longest));
        }
    }
}

/// Time since the machine was started, with the time that it slept.
fn now() -> Duration {
    // It cannot fail for this clock; a stop would only not be noticed.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// A limit is counted in pieces: whatever time goes by while we are stopped counts as one of them at most.
const PIECES: u32 = 16;
/// How often it is looked whether we were stopped.
const TICK: Duration = Duration::from_millis(250);
/// A gap between two looks beyond which a busy machine does not explain it.
const STOPPED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as we are stopped, neither timers nor anything else of ours goes on.
    fn stop(time: Duration) {
        std::thread::sleep(time);
    }

    #[tokio::test]
    async fn a_stop_costs_a_piece_of_the_limit_and_not_all_of_it() {
        let work = || async {
            stop(Duration::from_millis(1500));
            sleep(Duration::from_millis(300)).await;
        };
        let limit = Duration::from_secs(1);
        assert!(timeout(limit, work()).await.is_err(), "what a plain limit does");
        assert_eq!(within(limit, work()).await, Ok(()));
        assert_eq!(within(limit, std::future::pending::<()>()).await, Err(Late));
    }

    #[tokio::test]
    async fn a_stop_is_noticed_and_mere_waiting_is_none() {
        let (done, stopped) = noticing(async {
            sleep(Duration::from_millis(600)).await;
            stop(Duration::from_millis(2600));
            sleep(Duration::from_millis(300)).await;
            1
        })
        .await;
        assert!(done == 1 && stopped.is_some_and(|time| time > Duration::from_secs(2)), "{stopped:?}");
        assert_eq!(noticing(sleep(Duration::from_millis(2600))).await.1, None);
        let (_, stopped) = noticing(async { stop(Duration::from_millis(2600)) }).await;
        assert!(stopped.is_some(), "also one right before the end");
    }
}
