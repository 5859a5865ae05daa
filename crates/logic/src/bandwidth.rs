//! Limits of bytes a second: when a piece of data may go on.
//!
//! A token bucket in whole byte-nanoseconds, so that nothing is rounded away however long it runs. A session that has a
//! piece takes its bytes at once, also those that the bucket does not have yet, and is told how long to hold the piece:
//! so the pieces of the sessions that share a bucket go in the order in which they came, and sessions with pieces of
//! one size get equal parts. [`Waiting`] has those that wait: when a session ends, those behind its piece go earlier.

use std::num::NonZeroU64;
use std::time::Duration;

mod waiting;

pub use waiting::{Ticket, Waiting};

/// `bandwidth` of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Limit towards the client; `None`: no limit.
    pub down: Option<Limit>,
    /// Limit from the client; `None`: no limit.
    pub up: Option<Limit>,
    pub per: Per,
}

text::words! {
    /// Which sessions share a limit.
    #[derive(Default)]
    pub enum Per: "per" {
        /// Each session has its own: a connection, or a request.
        #[default]
        Session = "session",
        /// All sessions of one client address.
        Source = "source",
        /// All sessions of the listener.
        Listener = "listener",
    }
}

/// A limit in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes a second.
    pub rate: NonZeroU64,
    /// Bytes that may go at once after a pause.
    pub burst: NonZeroU64,
}

/// Limits of [`Limit::piece`]. Smaller pieces cost more than they even out; a larger one is a read of its own.
const LEAST_PIECE: u64 = 4 * 1024;
const MOST_PIECE: u64 = 64 * 1024;

/// Pieces a second of a session that has a limit to itself, unless they would be too small or too large.
const PIECES: u64 = 20;

impl Limit {
    /// Most bytes that a session should take at once, so that its data flow evenly and others get their turn.
    #[must_use]
    pub fn piece(&self) -> usize {
        usize::try_from((self.rate.get() / PIECES).clamp(LEAST_PIECE, MOST_PIECE)).unwrap_or(usize::MAX)
    }

    fn full(&self) -> i128 {
        i128::from(self.burst.get()) * SECOND
    }
}

/// Nanoseconds of a second: the level of a bucket is in bytes times nanoseconds.
const SECOND: i128 = 1_000_000_000;

/// The bytes that sessions may move now. Negative while pieces wait.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    limit: Limit,
    level: i128,
    /// Time of `level` since the start of the process.
    at: Duration,
}

impl Bucket {
    /// A full bucket at `now`, the time since the start of the process.
    #[must_use]
    pub fn new(limit: Limit, now: Duration) -> Self {
        Self { limit, level: limit.full(), at: now }
    }

    /// Changes the limit from `now` on. What was taken before stays taken.
    pub fn set(&mut self, limit: Limit, now: Duration) {
        self.refill(now);
        self.limit = limit;
        self.level = self.level.min(limit.full());
    }

    /// Takes `bytes`, and returns the time for which they must be held.
    pub fn take(&mut self, bytes: usize, now: Duration) -> Duration {
        self.refill(now);
        self.level = self.level.saturating_sub(scaled(bytes));
        let owed = self.level.min(0).unsigned_abs();
        let wait = owed.div_ceil(u128::from(self.limit.rate.get()));
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// Gives back bytes that were taken and did not go.
    pub fn give_back(&mut self, bytes: usize) {
        self.level = self.level.saturating_add(scaled(bytes)).min(self.limit.full());
    }

    /// Bytes a second.
    #[must_use]
    pub fn rate(&self) -> NonZeroU64 {
        self.limit.rate
    }

    /// Whether the bucket is like a new one at `now`.
    #[must_use]
    pub fn is_full(&self, now: Duration) -> bool {
        let mut refilled = *self;
        refilled.refill(now);
        refilled.level >= refilled.limit.full()
    }

    fn refill(&mut self, now: Duration) {
        // Another thread may have read its clock before.
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let nanos = i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX);
        let more = nanos.saturating_mul(i128::from(self.limit.rate.get()));
        self.level = self.level.saturating_add(more).min(self.limit.full());
    }
}

fn scaled(bytes: usize) -> i128 {
    i128::try_from(bytes).unwrap_or(i128::MAX).saturating_mul(SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: u64, burst: u64) -> Limit {
        Limit { rate: NonZeroU64::new(rate).unwrap(), burst: NonZeroU64::new(burst).unwrap() }
    }

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = Bucket::new(limit(1000, 500), millis(70));
        assert_eq!(bucket.take(500, millis(70)), millis(0));
        assert_eq!(bucket.take(100, millis(70)), millis(100));
        assert_eq!(bucket.take(100, millis(70)), millis(200), "the next piece waits behind the one before");
        assert_eq!(bucket.take(0, millis(170)), millis(100));
        assert_eq!(bucket.take(100, millis(270)), millis(100));
    }

    #[test]
    fn rest_does_not_add_up_beyond_the_burst() {
        let mut bucket = Bucket::new(limit(1000, 500), millis(0));
        assert_eq!(bucket.take(500, millis(0)), millis(0));
        assert!(!bucket.is_full(millis(499)) && bucket.is_full(millis(500)));
        assert_eq!(bucket.take(600, millis(1_000_000)), millis(100));
    }

    #[test]
    fn nothing_drifts_at_a_rate_that_divides_nothing() {
        let (rate, burst) = (999_983, 7);
        let mut bucket = Bucket::new(limit(rate, burst), Duration::ZERO);
        let (mut now, mut moved) = (Duration::ZERO, 0_u64);
        while now < Duration::from_secs(1000) {
            now += bucket.take(1013, now);
            moved += 1013;
            let allowed = u128::from(burst) + u128::from(rate) * now.as_nanos() / 1_000_000_000;
            assert!(u128::from(moved) <= allowed, "{moved} after {now:?}");
        }
        let passed = u64::try_from(now.as_nanos() * u128::from(rate) / 1_000_000_000).unwrap();
        assert!(passed + burst - moved <= 1013, "{moved} of {passed}");
    }

    #[test]
    fn sessions_of_one_bucket_get_equal_parts_and_together_no_more() {
        let mut bucket = Bucket::new(limit(10_000, 1), Duration::ZERO);
        let mut moved = [0_u64; 3];
        let mut due = [Duration::ZERO; 3];
        for (at, due) in due.iter_mut().enumerate() {
            *due = bucket.take(100, millis(at as u64));
        }
        let mut now = Duration::ZERO;
        while now < Duration::from_secs(30) {
            let next = (0..3).min_by_key(|at| due[*at]).unwrap();
            now = now.max(due[next]);
            moved[next] += 100;
            due[next] = now + bucket.take(100, now);
        }
        let all: u64 = moved.iter().sum();
        assert!((299_000..=301_000).contains(&all), "{moved:?}");
        assert!(moved.iter().all(|each| each.abs_diff(all / 3) <= 200), "{moved:?}");
    }

    #[test]
    fn what_is_given_back_is_not_more_than_was_there() {
        let mut bucket = Bucket::new(limit(1000, 500), millis(0));
        assert_eq!(bucket.take(600, millis(0)), millis(100));
        bucket.give_back(600);
        assert_eq!(bucket.take(500, millis(0)), millis(0));
        bucket.give_back(10_000);
        assert_eq!(bucket.take(501, millis(0)), millis(1));
    }

    #[test]
    fn a_new_limit_takes_effect_and_debts_stay() {
        let mut bucket = Bucket::new(limit(1000, 500), millis(0));
        assert_eq!(bucket.take(1500, millis(0)), millis(1000));
        bucket.set(limit(10_000, 100), millis(0));
        assert_eq!(bucket.take(0, millis(0)), millis(100));
        assert_eq!(bucket.take(101, millis(60_000)), Duration::from_micros(100));
    }

    #[test]
    fn a_clock_that_another_thread_read_before_takes_nothing_back() {
        let mut bucket = Bucket::new(limit(1000, 500), millis(100));
        assert_eq!(bucket.take(500, millis(200)), millis(0));
        assert_eq!(bucket.take(100, millis(150)), millis(100));
    }

    #[test]
    fn extreme_limits_and_times_do_not_overflow() {
        for (rate, burst) in [(1, 1), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            let mut bucket = Bucket::new(limit(rate, burst), Duration::ZERO);
            for now in [Duration::ZERO, Duration::MAX, Duration::ZERO] {
                let _ = bucket.take(usize::MAX, now);
                bucket.give_back(usize::MAX);
                let _ = bucket.is_full(now);
            }
            for _ in 0..10 {
                let _ = bucket.take(usize::MAX, Duration::MAX);
            }
        }
    }

    #[test]
    fn pieces_are_a_twentieth_of_a_second_within_bounds() {
        let piece = |rate| limit(rate, 1).piece();
        assert_eq!((piece(1), piece(400_000), piece(u64::MAX)), (4096, 20_000, 65_536));
    }
}
