//! How long units of work took: a histogram while it is measured, its points afterwards.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram that is being filled. Values from 100 ns to a minute, to two significant digits.
#[derive(Debug)]
pub struct Recorder(Histogram<u64>);

/// The points of a finished histogram: time in nanoseconds and how often it was seen, ascending.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    points: Vec<(u64, u64)>,
}

impl Default for Recorder {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(100, LONGEST, 2);
        Recorder(histogram.expect("the bounds are in order and the digits are few"))
    }
}

impl Recorder {
    /// Counts one unit of work that took so long.
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST).min(LONGEST));
    }

    /// What was counted.
    pub fn finish(&self) -> Latency {
        let points = self.0.iter_recorded().map(|point| (point.value_iterated_to(), point.count_at_value()));
        Latency { points: points.collect() }
    }
}

impl Latency {
    /// How many units were counted.
    pub fn count(&self) -> u64 {
        self.points.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// The time, in seconds, within which `share` (0 to 1) of the units were done. None if there were none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.points.iter().find_map(|(nanoseconds, count)| {
            seen = count.saturating_add(seen);
            (seen >= wanted).then_some(*nanoseconds as f64 / 1e9)
        })
    }

    /// Adds what another histogram counted.
    pub fn add(&mut self, other: &Latency) {
        let mut all: Vec<_> = self.points.iter().chain(&other.points).copied().collect();
        all.sort_unstable();
        all.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        self.points = all;
    }

    /// The points: time in nanoseconds, and how often.
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }
}

const LONGEST: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_values_recorded() {
        let mut recorder = Recorder::default();
        (1..=1000).for_each(|n| recorder.record(Duration::from_micros(n)));
        let latency = recorder.finish();
        assert_eq!(latency.count(), 1000);
        for (share, expected) in [(0.5, 500e-6), (0.99, 990e-6), (1.0, 1000e-6)] {
            let found = latency.quantile(share).unwrap();
            assert!((found / expected - 1.0).abs() < 0.02, "{share}: {found}");
        }
        assert_eq!(Latency::default().quantile(0.5), None);
    }

    #[test]
    fn adding_histograms_adds_their_counts() {
        let mut first = Latency { points: vec![(100, 1), (300, 2)] };
        first.add(&Latency { points: vec![(100, 4), (200, 1)] });
        assert_eq!(first.points(), [(100, 5), (200, 1), (300, 2)]);
    }
}
