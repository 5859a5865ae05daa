//! How long to wait before a broken tunnel is tried again.

use std::time::Duration;

/// Waits that double from half a second to half a minute, each a random half shorter, so that a thousand tunnels to one host
/// do not come back together.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure. `random` is from 0 to 1.
    pub fn next(&mut self, random: f64) -> Duration {
        let whole = (FIRST * 2u32.saturating_pow(self.failures.min(16))).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0)).max(FIRST / 2)
    }

    /// It worked for so long: when it counts as well again, the next wait is the first again.
    pub fn handle_lifetime(&mut self, lived: Duration) {
        if lived >= SETTLED {
            self.failures = 0;
        }
    }

    /// Failures since it was well.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(30);
/// A connection that breaks at once each time must not be tried twice a second for ever.
const SETTLED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute_and_begin_anew_after_a_long_life() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        backoff.handle_lifetime(Duration::from_secs(1));
        assert_eq!(backoff.next(0.0), Duration::from_secs(15));
        backoff.handle_lifetime(Duration::from_secs(60));
        assert_eq!(backoff.next(0.0), Duration::from_millis(250));
    }
}
