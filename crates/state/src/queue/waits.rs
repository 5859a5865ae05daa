//! How long sessions have waited in a queue, over the last minute.

use std::time::Duration;

use crate::metrics::LatencySum;

/// Length of one part of the minute.
const PART: Duration = Duration::from_secs(10);

/// Parts of a minute, and the one that goes on.
const PARTS: usize = 7;

/// The waits of a minute to 70 seconds. Times are since any moment that stays the same.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    parts: [Part; PARTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Number of this part since that moment, plus one.
    number: u64,
    waits: LatencySum,
}

impl Waits {
    /// Counts a wait that ends at `now`.
    pub(super) fn note(&mut self, waited: Duration, now: Duration) {
        let number = number(now);
        let part = &mut self.parts[(number % PARTS as u64) as usize];
        if part.number != number {
            *part = Part { number, waits: LatencySum::default() };
        }
        part.waits.observe(waited);
    }

    pub(super) fn sum(&self, now: Duration) -> LatencySum {
        let oldest = (number(now) + 1).saturating_sub(PARTS as u64);
        let mut sum = LatencySum::default();
        self.parts.iter().filter(|part| part.number >= oldest).for_each(|part| sum.add(&part.waits));
        sum
    }
}

fn number(now: Duration) -> u64 {
    now.as_secs() / PART.as_secs() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_the_last_minute_are_counted_and_older_ones_are_not() {
        let seconds = Duration::from_secs;
        let mut waits = Waits::default();
        assert_eq!(waits.sum(seconds(0)).count(), 0);
        for second in 0..300 {
            waits.note(Duration::from_millis(second), seconds(second));
        }
        let sum = waits.sum(seconds(300));
        assert_eq!(sum.count(), 60, "from 240 on");
        assert_eq!(sum.longest_micros, 299_000);
        assert!(sum.quantile(0.5).unwrap() > Duration::from_millis(200));
        assert_eq!(waits.sum(seconds(329)).count(), 40);
        assert_eq!(waits.sum(seconds(400)).count(), 0);
    }
}
