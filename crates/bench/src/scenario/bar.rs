//! Limits that a contestant is to keep, and what became of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sample::{Better, Metric, Scale};
use crate::stats::Interval;

/// A limit of one contestant's figure: at most, or at least where more is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Whose figure.
    pub subject: String,
    /// The figure.
    pub metric: Metric,
    /// What it is held against.
    pub against: Against,
    /// What has to be kept.
    pub must: f64,
    /// What is aimed for.
    pub aim: Option<f64>,
}

/// What a figure is held against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The figure itself is limited, in base units.
    Nobody,
    /// The figure divided by that of the best of these is limited.
    Best(Vec<String>),
}

/// A bar and what came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BarResult {
    /// The bar.
    pub bar: Bar,
    /// What came out; none if the subject or every rival is missing.
    pub measured: Option<Measured>,
    /// Rivals that were not there, or not to the end.
    pub absent: Vec<String>,
}

/// A figure that is held against a bar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The figure, or the ratio to the best rival.
    pub value: f64,
    /// Where the true one is.
    pub interval: Interval,
    /// The best rival, if there are any.
    pub rival: Option<String>,
}

/// What became of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is kept, and what is aimed for is reached: the whole interval is on that side.
    AimKept,
    /// The whole interval keeps it.
    Kept,
    /// The interval reaches over the limit: another run might say otherwise.
    TooClose,
    /// There were fewer rounds than an interval needs.
    TooFewRounds,
    /// No part of the interval keeps it.
    NotKept,
    /// Nothing is known.
    NotMeasured,
}

impl Bar {
    /// The subject's figure divided by that of the best of `rivals`.
    pub fn ratio(subject: &str, metric: Metric, rivals: &[&str], must: f64) -> Self {
        let rivals = rivals.iter().map(|name| (*name).to_owned()).collect();
        Bar { subject: subject.to_owned(), metric, against: Against::Best(rivals), must, aim: None }
    }

    /// The subject's figure alone, in base units.
    pub fn absolute(subject: &str, metric: Metric, must: f64) -> Self {
        Bar { subject: subject.to_owned(), metric, against: Against::Nobody, must, aim: None }
    }

    /// Says what is aimed for beyond that.
    pub fn aim(self, aim: f64) -> Self {
        Bar { aim: Some(aim), ..self }
    }

    /// Whose figures it looks at beside the subject's.
    pub fn rivals(&self) -> &[String] {
        match &self.against {
            Against::Nobody => &[],
            Against::Best(rivals) => rivals,
        }
    }

    /// The figure in words: `CPU per request of penstock / best of haproxy, nginx`.
    pub fn what(&self, unit: &str) -> String {
        let figure = format!("{} of {}", self.metric.title(unit), self.subject);
        match self.rivals() {
            [] => figure,
            [one] => format!("{figure} / {one}"),
            several => format!("{figure} / best of {}", several.join(", ")),
        }
    }

    /// A limit, as it is shown: `<= 0.80 x`.
    pub fn limit(&self, limit: f64) -> String {
        let relation = match self.metric.better() {
            Better::Lower => "<=",
            Better::Higher => ">=",
        };
        format!("{relation} {}", self.show(limit))
    }

    /// A value, as it is shown: `0.76 x`, `880 B`.
    pub fn show(&self, value: f64) -> String {
        match (&self.against, &self.metric) {
            (Against::Best(_), _) => format!("{value:.2} x"),
            // Limits of memory are exact numbers of bytes.
            (Against::Nobody, Metric::Figure { scale: Scale::Bytes, .. }) => format!("{value:.0} B"),
            (Against::Nobody, metric) => metric.show(value),
        }
    }

    fn keeps(&self, value: f64, limit: f64) -> bool {
        match self.metric.better() {
            Better::Lower => value <= limit,
            Better::Higher => value >= limit,
        }
    }
}

impl BarResult {
    /// What became of it.
    pub fn outcome(&self) -> Outcome {
        let Some(Measured { interval: Interval { low, high, confidence }, .. }) = self.measured else {
            return Outcome::NotMeasured;
        };
        if confidence < CONFIDENCE {
            return Outcome::TooFewRounds;
        }
        let bar = &self.bar;
        let all_keep = |limit| bar.keeps(low, limit) && bar.keeps(high, limit);
        if bar.aim.is_some_and(all_keep) {
            Outcome::AimKept
        } else if all_keep(bar.must) {
            Outcome::Kept
        } else if bar.keeps(low, bar.must) || bar.keeps(high, bar.must) {
            Outcome::TooClose
        } else {
            Outcome::NotKept
        }
    }

    /// What came out, with its interval: `0.76 x (0.74 to 0.79) against nginx`.
    pub fn shown(&self) -> String {
        let Some(measured) = &self.measured else { return "-".to_owned() };
        let Interval { low, high, .. } = measured.interval;
        let [value, low, high] = [measured.value, low, high].map(|value| self.bar.show(value));
        let low = low.strip_suffix(" x").unwrap_or(&low);
        let high = high.strip_suffix(" x").unwrap_or(&high);
        let mut text = format!("{value} ({low} to {high})");
        if let Some(rival) = measured.rival.as_ref().filter(|_| self.bar.rivals().len() > 1) {
            text += &format!(" against {rival}");
        }
        if !self.absent.is_empty() {
            text += &format!(", without {}", self.absent.join(", "));
        }
        text
    }
}

/// Confidence from which an interval decides: that of five rounds.
const CONFIDENCE: f64 = 0.9;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::AimKept => "aim kept",
            Outcome::Kept => "kept",
            Outcome::TooClose => "too close",
            Outcome::TooFewRounds => "too few rounds",
            Outcome::NotKept => "NOT kept",
            Outcome::NotMeasured => "not measured",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bar: &Bar, value: f64) -> Outcome {
        let interval = Interval { low: value, high: value, confidence: 0.9 };
        let measured = Some(Measured { value, interval, rival: None });
        BarResult { bar: bar.clone(), measured, absent: Vec::new() }.outcome()
    }

    #[test]
    fn a_bar_is_kept_at_its_limit_and_on_its_side() {
        let cpu = Bar::ratio("a", Metric::CpuPerUnit, &["b"], 0.8).aim(0.75);
        let values = [0.81, 0.80, 0.76, 0.75, 0.1].map(|value| outcome(&cpu, value));
        let expected = [Outcome::NotKept, Outcome::Kept, Outcome::Kept, Outcome::AimKept, Outcome::AimKept];
        assert_eq!(values, expected);
        let rate = Bar::ratio("a", Metric::Rate, &["b"], 0.95);
        let values = [0.94, 0.95, 2.0].map(|value| outcome(&rate, value));
        assert_eq!(values, [Outcome::NotKept, Outcome::Kept, Outcome::Kept]);
        let nothing = BarResult { bar: rate, measured: None, absent: vec!["b".to_owned()] };
        assert_eq!((nothing.outcome(), nothing.shown()), (Outcome::NotMeasured, "-".to_owned()));
    }

    #[test]
    fn an_interval_over_the_limit_decides_nothing() {
        let bar = Bar::ratio("a", Metric::CpuPerUnit, &["b"], 0.8).aim(0.75);
        let outcome = |low, high| {
            let measured =
                Measured { value: low, interval: Interval { low, high, confidence: 0.9 }, rival: None };
            BarResult { bar: bar.clone(), measured: Some(measured), absent: Vec::new() }.outcome()
        };
        assert_eq!(outcome(0.79, 0.81), Outcome::TooClose);
        assert_eq!(outcome(0.74, 0.76), Outcome::Kept);
        assert_eq!(outcome(0.60, 0.75), Outcome::AimKept);
        assert_eq!(outcome(0.801, 0.9), Outcome::NotKept);
        let measured =
            Measured { value: 0.1, interval: Interval { low: 0.1, high: 0.1, confidence: 0.0 }, rival: None };
        let once = BarResult { bar: bar.clone(), measured: Some(measured), absent: Vec::new() };
        assert_eq!(once.outcome(), Outcome::TooFewRounds);
    }

    #[test]
    fn limits_say_which_side_is_meant_in_the_unit_of_the_figure() {
        let rate = Bar::ratio("a", Metric::Rate, &["b", "c"], 0.95);
        assert_eq!(rate.limit(rate.must), ">= 0.95 x");
        assert_eq!(rate.what("GB"), "GB/s of a / best of b, c");
        let time = Bar::absolute("a", Metric::CpuPerUnit, 10e-6);
        assert_eq!(time.limit(time.must), "<= 10.0 us");
        assert_eq!(time.what("certificate"), "CPU per certificate of a");
        let memory = Metric::Figure {
            key: "m".to_owned(),
            title: "memory".to_owned(),
            scale: Scale::Bytes,
            better: Better::Lower,
        };
        assert_eq!(Bar::absolute("a", memory, 15_360.0).limit(15_360.0), "<= 15360 B");
    }
}
