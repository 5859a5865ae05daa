//! Response time of a backend as a moving average that follows a rise at once, and a fall slowly: a backend that was slow
//! once gets few sessions, until it has shown for a while that it is not slow any more.

use std::time::Duration;

/// Time after which an earlier response has lost two thirds of its weight.
const MEMORY: Duration = Duration::from_secs(10);

/// Unit of time in [`PeakEwma`], in milliseconds.
const TICK: u64 = 16;

/// The average and the time of its last change, counted from any fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakEwma {
    micros: u32,
    /// In units of [`TICK`]; 32 bits last for two years, and then one response counts too much.
    ticks: u32,
}

impl PeakEwma {
    /// The average after a response that took `took`.
    #[must_use]
    pub fn observed(self, took: Duration, now: Duration) -> Self {
        // 0 means that nothing is known.
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        let kept = self.weight_at(now);
        let average = f64::from(self.micros) * kept + f64::from(took) * (1.0 - kept);
        let micros = if self.micros == 0 || took >= self.micros { took } else { average as u32 };
        Self { micros: micros.max(1), ticks: ticks(now) }
    }

    /// The average in microseconds; it falls while there are no responses, so that a slow backend is tried again. 0 if
    /// there was no response.
    pub fn micros(self, now: Duration) -> u32 {
        if self.micros == 0 {
            return 0;
        }
        ((f64::from(self.micros) * self.weight_at(now)) as u32).max(1)
    }

    fn weight_at(self, now: Duration) -> f64 {
        let passed = u64::from(ticks(now).saturating_sub(self.ticks)) * TICK;
        (-(passed as f64) / MEMORY.as_millis() as f64).exp()
    }

    /// The state as a number, for an atomic variable; 0 is [`Self::default`].
    pub fn to_bits(self) -> u64 {
        u64::from(self.ticks) << 32 | u64::from(self.micros)
    }

    pub fn from_bits(bits: u64) -> Self {
        Self { micros: bits as u32, ticks: (bits >> 32) as u32 }
    }
}

fn ticks(now: Duration) -> u32 {
    u32::try_from(now.as_millis() / u128::from(TICK)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    const fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_rise_counts_at_once_and_a_fall_slowly() {
        let mut average = PeakEwma::default().observed(millis(10), secs(1));
        assert_eq!(average.micros(secs(1)), 10_000);
        average = average.observed(millis(500), secs(2));
        assert_eq!(average.micros(secs(2)), 500_000);
        average = average.observed(millis(10), secs(3));
        let after = average.micros(secs(3));
        assert!((400_000..500_000).contains(&after), "{after}");
        for second in 4..40 {
            average = average.observed(millis(10), secs(second));
        }
        let long_after = average.micros(secs(40));
        assert!((9_000..30_000).contains(&long_after), "{long_after}");
    }

    #[test]
    fn without_responses_a_slow_backend_is_forgiven_and_an_unknown_one_stays_unknown() {
        let slow = PeakEwma::default().observed(secs(2), secs(100));
        assert!(slow.micros(secs(110)) < 800_000 && slow.micros(secs(1000)) == 1);
        assert_eq!(PeakEwma::default().micros(secs(5)), 0);
        assert_eq!(slow.micros(secs(50)), 2_000_000, "time does not go back");
    }

    #[test]
    fn bits_hold_everything() {
        let average = PeakEwma::default().observed(millis(7), secs(9_000_000));
        assert_eq!(PeakEwma::from_bits(average.to_bits()), average);
        assert_eq!(PeakEwma::from_bits(0), PeakEwma::default());
        let longest = PeakEwma::default().observed(Duration::MAX, Duration::MAX);
        assert_eq!(longest.micros(Duration::MAX), u32::MAX);
    }
}
