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
    noticing_by(now, future).await
}

/// The same by this clock.
async fn noticing_by<T>(
    now: impl Fn() -> Duration,
    future: impl Future<Output = T>,
) -> (T, Option<Duration>) {
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

    use tokio::time::{Instant, advance};

    /// Time goes on, and nothing of ours does: all timers are found overdue at once. Without the machine's clock nothing but
    /// this and waiting takes time, on a machine that is as slow as it likes.
    async fn stop(time: Duration) {
        advance(time).await;
    }

    fn paused() -> impl Fn() -> Duration {
        let begun = Instant::now();
        move || begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_costs_a_piece_of_the_limit_and_not_all_of_it() {
        let work = || async {
            stop(Duration::from_millis(1500)).await;
            sleep(Duration::from_millis(900)).await;
        };
        let limit = Duration::from_secs(1);
        assert!(timeout(limit, work()).await.is_err(), "what a plain limit does");
        assert_eq!(within(limit, work()).await, Ok(()));
        let begun = Instant::now();
        assert_eq!(within(limit, std::future::pending::<()>()).await, Err(Late));
        // Timers are exact to a millisecond.
        let spent = begun.elapsed();
        assert!(spent >= limit && spent <= limit + PIECES * Duration::from_millis(1), "{spent:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_noticed_and_mere_waiting_is_none() {
        let long = STOPPED + Duration::from_millis(600);
        let (done, stopped) = noticing_by(paused(), async {
            sleep(Duration::from_millis(600)).await;
            stop(long).await;
            sleep(Duration::from_millis(300)).await;
            1
        })
        .await;
        let stopped = stopped.unwrap();
        assert!(done == 1 && stopped >= long && stopped <= long + TICK, "{stopped:?}");
        assert_eq!(noticing_by(paused(), sleep(10 * long)).await.1, None);
        let (_, stopped) = noticing_by(paused(), stop(long)).await;
        assert_eq!(stopped, Some(long), "also one right before the end");
        // What a machine does that is only busy.
        let (_, stopped) = noticing_by(paused(), stop(STOPPED)).await;
        assert_eq!(stopped, None);
    }

    /// That of the machine, which also counts the time that it sleeps.
    #[test]
    fn the_clock_can_be_read() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let up = Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap());
        assert!(now() >= up, "{up:?}");
    }
}
