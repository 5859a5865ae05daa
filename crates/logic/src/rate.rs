//! Rates of events for each source: a burst at once, then so many a second.
//!
//! A source is a number only: the time at which its burst is whole again. Sources whose time is past need no memory, so a
//! table of fixed size holds all that matter, and forgets the one that is closest to its whole burst when it is full.

use std::time::Duration;

use crate::balance::StickyKey;

/// Events that a source may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Events at once; at least 1.
    pub burst: u32,
    /// Events a second after that; at least 1.
    pub per_second: u32,
}

impl Rate {
    fn interval(self) -> u64 {
        1_000_000_000 / u64::from(self.per_second.max(1))
    }
}

/// Sources in one set of the table.
pub const WAYS: usize = 8;

/// The sources that share a place in the table.
#[derive(Clone, Debug, Default)]
pub struct Set([Spent; WAYS]);

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    source: StickyKey,
    /// Time in nanoseconds since the start of the process at which the source has its whole burst again.
    until: u64,
}

impl Set {
    /// Counts an event of a source at `now`, the time since the start of the process. Returns how long the source must wait
    /// if it may not cause one.
    pub fn take(&mut self, source: StickyKey, rate: Rate, now: Duration) -> Result<(), Duration> {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let at = self.0.iter().position(|spent| spent.source == source && spent.until > now);
        let (at, until) = match at {
            Some(at) => (at, self.0[at].until),
            None => (self.least_spent(), now),
        };
        let interval = rate.interval();
        let until = until.saturating_add(interval);
        let limit = now.saturating_add(interval.saturating_mul(u64::from(rate.burst.max(1))));
        if until > limit {
            return Err(Duration::from_nanos(until - limit));
        }
        self.0[at] = Spent { source, until };
        Ok(())
    }

    fn least_spent(&self) -> usize {
        let all = self.0.iter().enumerate();
        all.min_by_key(|(_, spent)| spent.until).map_or(0, |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> StickyKey {
        StickyKey::from(IpAddr::from([192, 0, 2, last]))
    }

    const RATE: Rate = Rate { burst: 3, per_second: 10 };

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_for_each_interval() {
        let mut set = Set::default();
        for _ in 0..3 {
            assert_eq!(set.take(source(1), RATE, millis(500)), Ok(()));
        }
        assert_eq!(set.take(source(1), RATE, millis(500)), Err(millis(100)));
        assert_eq!(set.take(source(1), RATE, millis(570)), Err(millis(30)), "a refusal costs nothing");
        assert_eq!(set.take(source(1), RATE, millis(600)), Ok(()));
        assert_eq!(set.take(source(1), RATE, millis(600)), Err(millis(100)));
        assert_eq!(set.take(source(2), RATE, millis(600)), Ok(()), "another source has its own");
        for _ in 0..3 {
            assert_eq!(set.take(source(1), RATE, millis(5000)), Ok(()));
        }
        assert!(set.take(source(1), RATE, millis(5000)).is_err(), "rest does not add up beyond the burst");
    }

    #[test]
    fn over_a_long_time_the_rate_holds() {
        let mut set = Set::default();
        let passed = (0..10_000).filter(|at| set.take(source(1), RATE, millis(*at)).is_ok()).count();
        assert_eq!(passed, 3 + 99);
    }

    #[test]
    fn a_full_set_forgets_the_source_that_is_closest_to_its_whole_burst() {
        let mut set = Set::default();
        for last in 0..WAYS as u8 {
            for _ in 0..=u32::from(last > 0) {
                assert_eq!(set.take(source(last), RATE, millis(1)), Ok(()));
            }
        }
        assert_eq!(set.take(source(100), RATE, millis(1)), Ok(()));
        assert!(set.0.iter().all(|spent| spent.source != source(0)));
        for last in 1..WAYS as u8 {
            assert_eq!(set.take(source(last), RATE, millis(1)), Ok(()));
            assert!(set.take(source(last), RATE, millis(1)).is_err(), "{last} is remembered");
        }
    }

    #[test]
    fn extreme_rates_and_times_do_not_overflow() {
        for rate in [Rate { burst: u32::MAX, per_second: 1 }, Rate { burst: 1, per_second: u32::MAX }] {
            let mut set = Set::default();
            for now in [Duration::ZERO, Duration::MAX] {
                let _ = set.take(source(1), rate, now);
                let _ = set.take(source(1), rate, now);
            }
        }
    }
}
