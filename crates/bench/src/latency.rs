//! Latency of units of work: a histogram during the measurement, a list of points afterwards.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram that records values from 100 ns to one minute with two significant digits.
#[derive(Debug)]
pub struct Recorder(Histogram<u64>);

/// Points of a finished histogram, ascending: time in nanoseconds and count.
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
    pub fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST).min(LONGEST));
    }

    /// Converts the histogram to points.
    pub fn finish(&self) -> Latency {
        let points = self.0.iter_recorded().map(|point| (point.value_iterated_to(), point.count_at_value()));
        Latency { points: points.collect() }
    }
}

impl Latency {
    /// Number of recorded units.
    pub fn count(&self) -> u64 {
        self.points.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Latency in seconds at the quantile `share` (0 to 1). `None` without units.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.points.iter().find_map(|(nanoseconds, count)| {
            seen = count.saturating_add(seen);
            (seen >= wanted).then_some(*nanoseconds as f64 / 1e9)
        })
    }

    /// Adds the counts of another histogram.
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

    /// Pairs of time in nanoseconds and count.
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
