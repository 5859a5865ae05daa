//! Backoff before a broken tunnel is started again.

use std::time::Duration;

/// Exponential backoff from half a second to half a minute. Each wait is shortened by a random part of up to one half,
/// so that a thousand tunnels to one host do not reconnect together.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Wait after one more failure. `random` is from 0 to 1.
    pub fn next(&mut self, random: f64) -> Duration {
        let whole = (FIRST * 2u32.saturating_pow(self.failures.min(16))).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0)).max(FIRST / 2)
    }

    /// Notes that the tunnel was up for the time `lived`. If it served meanwhile, or after `SETTLED`, the next wait is
    /// the shortest again.
    pub fn handle_lifetime(&mut self, lived: Duration, use_of: Use) {
        if use_of == Use::Served || lived >= SETTLED {
            self.failures = 0;
        }
    }

    /// Failures since the tunnel last served or was up for `SETTLED`.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// What a tunnel did while it was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It carried a connection, or a service answered through it.
    Served,
    None,
}

const FIRST: Duration = Duration::from_millis(500);
pub const LONGEST: Duration = Duration::from_secs(30);
/// Prevents two tries per second without end for a connection that breaks immediately each time, before it serves.
const SETTLED: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_half_a_minute_and_begin_anew_after_a_long_or_useful_life() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        backoff.handle_lifetime(Duration::from_secs(1), Use::None);
        assert_eq!(backoff.next(0.0), Duration::from_secs(15));
        backoff.handle_lifetime(Duration::from_secs(60), Use::None);
        assert_eq!(backoff.next(0.0), Duration::from_millis(250));
        assert_eq!(backoff.next(0.0), Duration::from_millis(500));
        backoff.handle_lifetime(Duration::from_secs(1), Use::Served);
        assert_eq!(backoff.next(0.0), Duration::from_millis(250));
    }
}
