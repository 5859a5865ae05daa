//! Statistics of a few figures: median, spread, interval of the median, outliers. Nothing here assumes a normal
//! distribution, because times on a shared machine do not have one.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: usize,
    pub median: f64,
    /// Median absolute deviation from the median (MAD).
    pub mad: f64,
    /// Lower and upper quartile.
    pub quartiles: [f64; 2],
    /// Minimum and maximum.
    pub range: [f64; 2],
    pub interval: Interval,
    /// Indexes of outliers, which are shown and never removed.
    pub outliers: Vec<usize>,
}

/// Confidence interval of the true median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// Probability from 0 to 1.
    pub confidence: f64,
}

impl Summary {
    /// Computes the summary; `None` without figures.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let median = quantile(&sorted, 0.5);
        let mad = median_distance(values, median);
        // Modified z-score of Iglewicz and Hoaglin: the factor 0.6745 makes it comparable with standard deviations.
        let far = |value: f64| mad > 0.0 && 0.6745 * (value - median).abs() / mad > 3.5;
        Some(Summary {
            count: values.len(),
            median,
            mad,
            quartiles: [quantile(&sorted, 0.25), quantile(&sorted, 0.75)],
            range: [first, last],
            interval: Interval::of_median(&sorted)?,
            outliers: (0..values.len()).filter(|index| far(values[*index])).collect(),
        })
    }

    /// Half of the interquartile range, relative to the median.
    pub fn spread(&self) -> f64 {
        let [low, high] = self.quartiles;
        if self.median == 0.0 { 0.0 } else { (high - low) / 2.0 / self.median.abs() }
    }
}

impl Interval {
    /// Returns the narrowest interval between two of the ascending figures that contains the median with at least 90 %,
    /// or the whole range of too few figures. The method counts figures on either side of the median; it is exact and
    /// assumes only that the figures are independent.
    pub fn of_median(sorted: &[f64]) -> Option<Self> {
        let count = sorted.len();
        let mut found =
            Interval { low: *sorted.first()?, high: *sorted.last()?, confidence: coverage(count, 0) };
        for cut in 1..count.div_ceil(2) {
            let confidence = coverage(count, cut);
            if confidence < WANTED {
                break;
            }
            found = Interval { low: sorted[cut], high: sorted[count - 1 - cut], confidence };
        }
        Some(found)
    }

    /// Returns a 95 % bootstrap interval for the ratio of two medians of unpaired figures. The result is deterministic.
    pub fn of_ratio(over: &[f64], under: &[f64]) -> Option<Self> {
        if over.is_empty() || under.is_empty() {
            return None;
        }
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let mut ratios: Vec<_> = (0..BOOTSTRAPS)
            .map(|_| median(&random.resample(over)) / median(&random.resample(under)))
            .filter(|ratio| ratio.is_finite())
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (quantile(&ratios, 0.025), quantile(&ratios, 0.975));
        (!ratios.is_empty()).then_some(Interval { low, high, confidence: 0.95 })
    }
}

/// Median; NaN without figures.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Quantile of ascending figures, with linear interpolation.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

fn median_distance(values: &[f64], from: f64) -> f64 {
    median(&values.iter().map(|value| (value - from).abs()).collect::<Vec<_>>())
}

/// Probability that the median lies between the figures at position `cut` from both ends (0: the outermost): each
/// figure is below the median with probability 1/2.
fn coverage(count: usize, cut: usize) -> f64 {
    let mut term = 0.5_f64.powi(count as i32);
    let mut tail = 0.0;
    for below in 0..=cut {
        tail += term;
        term *= (count - below) as f64 / (below + 1) as f64;
    }
    (1.0 - 2.0 * tail).max(0.0)
}

/// SplitMix64: sufficient for resampling, and deterministic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn resample(&mut self, values: &[f64]) -> Vec<f64> {
        (0..values.len()).map(|_| values[(self.next() % values.len() as u64) as usize]).collect()
    }
}

const WANTED: f64 = 0.90;
const BOOTSTRAPS: usize = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_figures_hold_the_median_between_the_outermost_with_94_percent() {
        let summary = Summary::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((summary.median, summary.range, summary.quartiles), (3.0, [1.0, 5.0], [2.0, 4.0]));
        assert_eq!((summary.interval.low, summary.interval.high), (1.0, 5.0));
        assert!((summary.interval.confidence - 0.9375).abs() < 1e-12);
    }

    #[test]
    fn more_figures_leave_the_outermost_out_of_the_interval() {
        let values: Vec<_> = (1..=10).map(f64::from).collect();
        let interval = Interval::of_median(&values).unwrap();
        // The 2nd and the 9th of 10 figures: 1 - 2 * (1 + 10) / 1024.
        assert_eq!((interval.low, interval.high), (2.0, 9.0));
        assert!((interval.confidence - (1.0 - 22.0 / 1024.0)).abs() < 1e-12);
    }

    #[test]
    fn few_figures_are_not_more_sure_than_they_can_be() {
        assert_eq!(Interval::of_median(&[1.0]).unwrap().confidence, 0.0);
        assert!((Interval::of_median(&[1.0, 2.0, 3.0]).unwrap().confidence - 0.75).abs() < 1e-12);
        assert!(Summary::of(&[]).is_none());
    }

    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_says() {
        let mut random = Random(7);
        let mut uniform = || random.next() as f64 / u64::MAX as f64;
        let rounds = 4000;
        let covered = (0..rounds).filter(|_| {
            // A skewed distribution, like that of times; the true median of x^3 is 0.125.
            let values = sorted(&(0..7).map(|_| uniform().powi(3)).collect::<Vec<_>>());
            let interval = Interval::of_median(&values).unwrap();
            interval.low <= 0.125 && 0.125 <= interval.high
        });
        let share = covered.count() as f64 / f64::from(rounds);
        let claimed = Interval::of_median(&[0.0; 7]).unwrap().confidence;
        assert!((share - claimed).abs() < 0.02, "{share} instead of {claimed}");
    }

    #[test]
    fn an_outlier_is_named_and_does_not_move_the_median() {
        let summary = Summary::of(&[10.0, 10.1, 9.9, 10.2, 30.0, 9.8]).unwrap();
        assert_eq!(summary.outliers, [4]);
        assert!((summary.median - 10.05).abs() < 1e-9);
    }

    #[test]
    fn the_ratio_of_unpaired_figures_has_a_repeatable_interval() {
        let (slow, fast) = ([20.0, 21.0, 19.0, 20.5, 19.5], [10.0, 10.2, 9.9, 10.1, 9.8]);
        let interval = Interval::of_ratio(&slow, &fast).unwrap();
        assert!(interval.low > 1.85 && interval.high < 2.15, "{interval:?}");
        assert_eq!(Interval::of_ratio(&slow, &fast), Some(interval));
        assert_eq!(Interval::of_ratio(&[], &fast), None);
    }
}
