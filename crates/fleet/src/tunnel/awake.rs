//! Timeouts that do not count the time in which this process was stopped (SIGSTOP) or the machine was suspended. With
//! plain timeouts all of them would expire when the process continues, although no peer was late.

use std::pin::pin;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::{sleep, timeout};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeadlinePassed;

/// Runs `future` with a timeout.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, DeadlinePassed> {
    let mut future = pin!(future);
    for _ in 0..PIECES {
        if let Ok(done) = timeout(limit / PIECES, &mut future).await {
            return Ok(done);
        }
    }
    Err(DeadlinePassed)
}

/// Runs `future`. Also returns the time for which this process was stopped meanwhile, if it was.
pub(crate) async fn noticing<T>(future: impl Future<Output = T>) -> (T, Option<Duration>) {
    noticing_by(now, future).await
}

/// The implementation of [`noticing`] with the clock `now`.
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

/// Time since the machine was started, including the time of suspension.
fn now() -> Duration {
    // clock_gettime(2) cannot fail for this clock. After an error a stop would only not be detected.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// A timeout runs in this number of parts. All the time of one stop counts as one part at most.
const PIECES: u32 = 16;
/// Interval between two checks whether this process was stopped.
const TICK: Duration = Duration::from_millis(250);
/// A longer gap between two checks counts as a stop; a busy machine does not cause one.
const STOPPED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    use tokio::time::{Instant, advance};

    /// Simulates a stop: the test's clock jumps by `time`, so that all timers are overdue at once. The machine's clock
    /// is not read, so the speed of the machine does not matter.
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
        assert_eq!(within(limit, std::future::pending::<()>()).await, Err(DeadlinePassed));
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
        // A busy machine causes such a gap.
        let (_, stopped) = noticing_by(paused(), stop(STOPPED)).await;
        assert_eq!(stopped, None);
    }

    #[test]
    fn the_clock_can_be_read() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let up = Duration::from_secs_f64(uptime.split(' ').next().unwrap().parse().unwrap());
        assert!(now() >= up, "{up:?}");
    }
}
