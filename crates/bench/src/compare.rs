//! Verdict on two contestants, or on one contestant in two runs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sample::{Better, Metric};
use crate::stats::{Interval, median};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Better,
    Worse,
    /// The figures are equal within the tolerance.
    NoDifference,
    /// The confidence interval is too wide for a verdict.
    TooNoisy,
    /// Fewer than five rounds.
    TooFewRounds,
}

/// Ratio of the first contestant's figure to the second's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub ratio: f64,
    /// Confidence interval of the ratio.
    pub interval: Interval,
    pub verdict: Verdict,
}

impl Comparison {
    /// Compares figures in pairs, one per round: a disturbance of a round affects both figures. `None` without a pair.
    pub fn of_pairs(first: &[f64], second: &[f64], better: Better) -> Option<Self> {
        let pairs = first.iter().zip(second);
        let mut ratios: Vec<_> = pairs.map(|(a, b)| a / b).filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        let interval = Interval::of_median(&ratios)?;
        Some(Self::judge(median(&ratios), interval, better))
    }

    /// Compares the unpaired figures of two runs.
    pub fn of_runs(first: &[f64], second: &[f64], better: Better) -> Option<Self> {
        let mut interval = Interval::of_ratio(first, second)?;
        if first.len().min(second.len()) < FEWEST {
            interval.confidence = 0.0;
        }
        Some(Self::judge(median(first) / median(second), interval, better))
    }

    fn judge(ratio: f64, interval: Interval, better: Better) -> Self {
        let (below, above) = match better {
            Better::Lower => (Verdict::Better, Verdict::Worse),
            Better::Higher => (Verdict::Worse, Verdict::Better),
        };
        let Interval { low, high, confidence } = interval;
        let verdict = if confidence < LEAST_CONFIDENCE {
            Verdict::TooFewRounds
        } else if high < 1.0 && ratio <= 1.0 - LEAST {
            below
        } else if low > 1.0 && ratio >= 1.0 + LEAST {
            above
        } else if low > 1.0 - EQUAL && high < 1.0 + EQUAL {
            Verdict::NoDifference
        } else {
            Verdict::TooNoisy
        };
        Comparison { ratio, interval, verdict }
    }

    /// Formats the verdict with its figure: `24 % less CPU per request`.
    pub fn outcome(&self, metric: &Metric, unit: &str) -> String {
        match self.verdict {
            Verdict::Better | Verdict::Worse => {
                let change = (self.ratio - 1.0) * 100.0;
                let direction = if change < 0.0 { "less" } else { "more" };
                format!("{:.0} % {direction} {}", change.abs(), metric.title(unit))
            }
            verdict => verdict.to_string(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifference => "no difference",
            Verdict::TooNoisy => "too noisy to say",
            Verdict::TooFewRounds => "too few rounds to say",
        })
    }
}

/// Smallest relative difference that counts.
const LEAST: f64 = 0.02;

/// Two contestants are equal if the whole interval of their ratio is within this distance of 1.
const EQUAL: f64 = 0.06;

/// Smallest confidence of an interval for a verdict. Fewer than five rounds cannot reach it.
const LEAST_CONFIDENCE: f64 = 0.90;

const FEWEST: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(first: &[f64], second: &[f64], better: Better) -> Verdict {
        Comparison::of_pairs(first, second, better).unwrap().verdict
    }

    #[test]
    fn a_clear_difference_is_better_or_worse_by_the_direction_of_the_figure() {
        let (low, high) = ([10.0, 10.5, 9.8, 10.1, 10.2], [15.0, 15.5, 14.9, 15.2, 15.3]);
        assert_eq!(verdict(&low, &high, Better::Lower), Verdict::Better);
        assert_eq!(verdict(&high, &low, Better::Lower), Verdict::Worse);
        assert_eq!(verdict(&low, &high, Better::Higher), Verdict::Worse);
    }

    #[test]
    fn a_noisy_phase_that_hits_both_does_not_hide_a_difference() {
        let first = [10.0, 13.0, 10.1, 14.0, 10.2];
        let second = first.map(|value| value * 1.1);
        assert_eq!(verdict(&first, &second, Better::Lower), Verdict::Better);
    }

    #[test]
    fn figures_that_agree_are_no_difference() {
        let (first, second) = ([10.0, 10.1, 9.9, 10.0, 10.05], [10.02, 10.0, 10.0, 9.95, 10.1]);
        assert_eq!(verdict(&first, &second, Better::Lower), Verdict::NoDifference);
    }

    #[test]
    fn figures_that_contradict_each_other_are_too_noisy() {
        let (first, second) = ([8.0, 12.0, 10.0, 9.0, 11.5], [10.0; 5]);
        assert_eq!(verdict(&first, &second, Better::Lower), Verdict::TooNoisy);
    }

    #[test]
    fn fewer_than_five_rounds_never_decide() {
        assert_eq!(verdict(&[1.0; 4], &[2.0; 4], Better::Lower), Verdict::TooFewRounds);
        let runs = Comparison::of_runs(&[1.0; 4], &[2.0; 9], Better::Lower).unwrap();
        assert_eq!(runs.verdict, Verdict::TooFewRounds);
        assert_eq!(runs.verdict.to_string(), "too few rounds to say");
    }

    #[test]
    fn nothing_can_be_said_about_no_figures() {
        assert_eq!(Comparison::of_pairs(&[], &[], Better::Lower), None);
        assert_eq!(Comparison::of_pairs(&[1.0], &[0.0], Better::Lower), None);
    }
}
