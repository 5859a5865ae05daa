//! How long the next connection of a client address waits after connections of the address were ended for floods.
//!
//! A connection that floods is ended, but a client that connects again at once makes Penstock accept, read and close
//! thousands of times a second, and other clients wait behind that work (`bench/results/http2-floods.md`). So each flood
//! doubles the time that the next connection of the address waits before Penstock reads from it.

use std::time::Duration;

/// Wait after the first flood.
const FIRST: Duration = Duration::from_millis(10);

/// Time without a flood after which earlier floods are forgotten. A longer wait has no effect.
pub const MEMORY: Duration = Duration::from_secs(10);

/// Most doublings: with [`FIRST`], about as long as [`MEMORY`].
const MOST_DOUBLINGS: u8 = 10;

/// Floods of one client address. Times are measured from any fixed moment, in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FloodDelay {
    /// Number of floods since the address was last without one for ten seconds.
    floods: u8,
    /// When the last connection that flooded was ended.
    last: Duration,
}

impl FloodDelay {
    /// The state after a connection was ended for a flood.
    #[must_use]
    pub fn flooded(self, now: Duration) -> Self {
        let floods = if self.is_over(now) { 0 } else { self.floods };
        Self { floods: (floods + 1).min(MOST_DOUBLINGS + 1), last: whole_milliseconds(now) }
    }

    /// How long a connection that arrives now waits; at most `longest`.
    pub fn wait(self, now: Duration, longest: Duration) -> Duration {
        if self.is_over(now) {
            return Duration::ZERO;
        }
        let whole = (FIRST * (1 << (self.floods - 1))).min(longest);
        (self.last + whole).saturating_sub(now)
    }

    /// Whether the floods are forgotten.
    pub fn is_over(self, now: Duration) -> bool {
        self.floods == 0 || now >= self.last + MEMORY
    }

    /// The state as a number, for an atomic variable; 0 is [`Self::default`].
    pub fn to_bits(self) -> u64 {
        let milliseconds = u64::try_from(self.last.as_millis()).unwrap_or(u64::MAX);
        (milliseconds << 8) | u64::from(self.floods)
    }

    pub fn from_bits(bits: u64) -> Self {
        let [floods, ..] = bits.to_le_bytes();
        Self { floods: floods.min(MOST_DOUBLINGS + 1), last: Duration::from_millis(bits >> 8) }
    }
}

fn whole_milliseconds(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(1);

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn an_address_without_floods_never_waits() {
        assert_eq!(FloodDelay::default().wait(at(0), LONGEST), Duration::ZERO);
        assert_eq!(FloodDelay::default().wait(at(5), LONGEST), Duration::ZERO);
    }

    #[test]
    fn each_flood_doubles_the_wait_up_to_the_longest() {
        let mut delay = FloodDelay::default();
        let mut now = at(7);
        for expected in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            delay = delay.flooded(now);
            assert_eq!(delay.wait(now, LONGEST), at(expected));
            now += at(expected);
            assert_eq!(delay.wait(now, LONGEST), Duration::ZERO);
        }
    }

    #[test]
    fn a_connection_waits_only_for_the_rest_of_the_time() {
        let delay = FloodDelay::default().flooded(at(100)).flooded(at(100));
        assert_eq!(delay.wait(at(115), LONGEST), at(5));
        assert_eq!(delay.wait(at(120), LONGEST), Duration::ZERO);
    }

    #[test]
    fn floods_are_forgotten_ten_seconds_after_the_last() {
        let delay = (0..30).fold(FloodDelay::default(), |delay, _| delay.flooded(at(1)));
        assert_eq!(delay.wait(at(1), LONGEST), LONGEST);
        assert!(!delay.is_over(at(10_000)));
        assert!(delay.is_over(at(10_001)));
        assert_eq!(delay.flooded(at(10_001)).wait(at(10_001), LONGEST), FIRST);
    }

    #[test]
    fn no_wait_is_asked_for_where_the_longest_is_zero() {
        assert_eq!(FloodDelay::default().flooded(at(1)).wait(at(1), Duration::ZERO), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn no_wait_exceeds_the_longest_and_the_bits_keep_the_state(
            floods in proptest::collection::vec(0..20_000_u64, 0..40),
            later in 0..20_000_u64,
            longest in 0..5_000_u64,
        ) {
            let (mut delay, mut now) = (FloodDelay::default(), Duration::ZERO);
            for pause in floods {
                now += at(pause);
                delay = delay.flooded(now);
                prop_assert_eq!(FloodDelay::from_bits(delay.to_bits()), delay);
            }
            prop_assert!(delay.wait(now + at(later), at(longest)) <= at(longest));
        }
    }
}
