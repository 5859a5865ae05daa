//! Decides when to ask a responder again: well before the response expires, and with backoff after failures. `random`
//! (0.0 to 1.0) shortens the wait a little, so that many servers do not ask at once.

use std::time::{Duration, SystemTime};

use super::verify::Good;

/// Minimum time between two requests for one certificate.
const SHORTEST: Duration = Duration::from_secs(5);

/// Maximum time between two requests, so that a revocation is detected within a day.
pub const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Backoff after the first failure, and its upper limit.
const FIRST_RETRY: Duration = Duration::from_secs(4);
const LAST_RETRY: Duration = Duration::from_secs(60 * 60);

/// Wait until the next request after a valid response: until half of its validity is over, so that the other half
/// remains for retries. In the second half, a third of the remaining time.
pub fn after_success(good: &Good, now: SystemTime, random: f64) -> Duration {
    let life = good.until.duration_since(good.this_update).unwrap_or_default();
    let half = good.this_update + life / 2;
    let wait = match half.duration_since(now) {
        Ok(wait) => wait,
        Err(_) => good.until.duration_since(now).unwrap_or_default() / 3,
    };
    wait.clamp(SHORTEST, LONGEST).mul_f64(1.0 - 0.1 * random)
}

/// Wait after this number of failures in a row (from 1).
pub fn after_failure(failures: u32, random: f64) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(LAST_RETRY).mul_f64(1.0 - 0.5 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn the_next_question_comes_at_half_life_but_within_a_day() {
        let start = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let good = |life: Duration| Good { this_update: start, until: start + life };
        assert_eq!(after_success(&good(DAY), start, 0.0), DAY / 2);
        assert_eq!(after_success(&good(DAY * 7), start, 0.0), DAY);
        assert_eq!(after_success(&good(DAY), start + DAY * 3 / 4, 0.0), DAY / 12);
        assert_eq!(after_success(&good(Duration::ZERO), start, 0.0), SHORTEST);
        for random in [0.0, 0.3, 1.0] {
            let wait = after_success(&good(DAY), start, random);
            assert!(wait <= DAY / 2 && wait >= DAY * 9 / 20, "{wait:?}");
        }
    }

    #[test]
    fn failures_are_tried_again_later_and_later_within_an_hour() {
        let waits: Vec<_> = (1..40).map(|failures| after_failure(failures, 0.0)).collect();
        assert_eq!(waits[0], FIRST_RETRY);
        assert!(waits.is_sorted() && waits[39 - 1] == LAST_RETRY);
        assert_eq!(after_failure(u32::MAX, 1.0), LAST_RETRY / 2);
    }
}
