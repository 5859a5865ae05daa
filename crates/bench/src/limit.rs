//! Limits that the project sets for figures, and their results.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sample::{Better, Metric, Scale};
use crate::stats::Interval;

/// Limit of one contestant's figure: a maximum, or a minimum where more is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    pub subject: String,
    pub metric: Metric,
    pub against: Against,
    #[serde(rename = "limit")]
    pub value: f64,
    /// Stricter value that the project wants to reach.
    pub goal: Option<f64>,
}

/// Quantity that the limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// The figure itself, in base units.
    Limit,
    /// The ratio of the figure to that of the best of these contestants.
    Best(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitResult {
    /// Serialized beside `measured` in the JSON.
    #[serde(flatten)]
    pub limit: Limit,
    /// `None` if the subject or every rival is missing.
    pub measured: Option<Measured>,
    /// Rivals that did not run, or failed before the end.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Figure, or its ratio to the best rival.
    pub value: f64,
    pub interval: Interval,
    /// Best rival; `None` for [`Against::Limit`].
    pub rival: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The whole interval meets both limit and goal.
    GoalMet,
    /// The whole interval meets the limit.
    Met,
    /// The interval contains the limit: another run could have another result.
    TooClose,
    /// Too few rounds for an interval.
    TooFewRounds,
    /// No part of the interval meets the limit.
    Missed,
    NotMeasured,
}

impl Limit {
    /// Limits the subject's figure divided by that of the best of `rivals`.
    pub fn ratio(subject: &str, metric: Metric, rivals: &[&str], limit: f64) -> Self {
        let rivals = rivals.iter().map(|name| (*name).to_owned()).collect();
        Limit {
            subject: subject.to_owned(),
            metric,
            against: Against::Best(rivals),
            value: limit,
            goal: None,
        }
    }

    /// Limits the subject's figure itself, in base units.
    pub fn absolute(subject: &str, metric: Metric, limit: f64) -> Self {
        Limit { subject: subject.to_owned(), metric, against: Against::Limit, value: limit, goal: None }
    }

    /// Sets a goal stricter than the limit.
    pub fn goal(self, goal: f64) -> Self {
        Limit { goal: Some(goal), ..self }
    }

    /// Names of the rivals; empty for a limit of the figure itself.
    pub fn rivals(&self) -> &[String] {
        match &self.against {
            Against::Limit => &[],
            Against::Best(rivals) => rivals,
        }
    }

    /// Describes the limited quantity: `CPU per request of penstock / best of haproxy, nginx`.
    pub fn what(&self, unit: &str) -> String {
        let figure = format!("{} of {}", self.metric.title(unit), self.subject);
        match self.rivals() {
            [] => figure,
            [one] => format!("{figure} / {one}"),
            several => format!("{figure} / best of {}", several.join(", ")),
        }
    }

    /// Formats a limit: `<= 0.80 x`.
    pub fn show_limit(&self, limit: f64) -> String {
        let relation = match self.metric.better() {
            Better::Lower => "<=",
            Better::Higher => ">=",
        };
        format!("{relation} {}", self.show(limit))
    }

    /// Formats a value: `0.76 x`, `880 B`.
    pub fn show(&self, value: f64) -> String {
        match (&self.against, &self.metric) {
            (Against::Best(_), _) => format!("{value:.2} x"),
            // Show memory limits as exact numbers of bytes.
            (Against::Limit, Metric::Figure { scale: Scale::Bytes, .. }) => format!("{value:.0} B"),
            (Against::Limit, metric) => metric.show(value),
        }
    }

    fn keeps(&self, value: f64, limit: f64) -> bool {
        match self.metric.better() {
            Better::Lower => value <= limit,
            Better::Higher => value >= limit,
        }
    }
}

impl LimitResult {
    pub fn outcome(&self) -> Outcome {
        let Some(Measured { interval: Interval { low, high, confidence }, .. }) = self.measured else {
            return Outcome::NotMeasured;
        };
        if confidence < CONFIDENCE {
            return Outcome::TooFewRounds;
        }
        let limit = &self.limit;
        let all_keep = |value| limit.keeps(low, value) && limit.keeps(high, value);
        if limit.goal.is_some_and(all_keep) {
            Outcome::GoalMet
        } else if all_keep(limit.value) {
            Outcome::Met
        } else if limit.keeps(low, limit.value) || limit.keeps(high, limit.value) {
            Outcome::TooClose
        } else {
            Outcome::Missed
        }
    }

    /// Formats the measured value with its interval: `0.76 x (0.74 to 0.79) against nginx`.
    pub fn shown(&self) -> String {
        let Some(measured) = &self.measured else { return "-".to_owned() };
        let Interval { low, high, .. } = measured.interval;
        let [value, low, high] = [measured.value, low, high].map(|value| self.limit.show(value));
        let low = low.strip_suffix(" x").unwrap_or(&low);
        let high = high.strip_suffix(" x").unwrap_or(&high);
        let mut text = format!("{value} ({low} to {high})");
        if let Some(rival) = measured.rival.as_ref().filter(|_| self.limit.rivals().len() > 1) {
            text += &format!(" against {rival}");
        }
        if !self.missing.is_empty() {
            text += &format!(", without {}", self.missing.join(", "));
        }
        text
    }
}

/// Smallest confidence of a usable interval, reached with five rounds.
const CONFIDENCE: f64 = 0.9;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::GoalMet => "goal met",
            Outcome::Met => "met",
            Outcome::TooClose => "too close",
            Outcome::TooFewRounds => "too few rounds",
            Outcome::Missed => "MISSED",
            Outcome::NotMeasured => "not measured",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(limit: &Limit, value: f64) -> Outcome {
        let interval = Interval { low: value, high: value, confidence: 0.9 };
        let measured = Some(Measured { value, interval, rival: None });
        LimitResult { limit: limit.clone(), measured, missing: Vec::new() }.outcome()
    }

    #[test]
    fn a_limit_is_met_at_its_value_and_on_its_side() {
        let cpu = Limit::ratio("a", Metric::CpuPerUnit, &["b"], 0.8).goal(0.75);
        let values = [0.81, 0.80, 0.76, 0.75, 0.1].map(|value| outcome(&cpu, value));
        let expected = [Outcome::Missed, Outcome::Met, Outcome::Met, Outcome::GoalMet, Outcome::GoalMet];
        assert_eq!(values, expected);
        let rate = Limit::ratio("a", Metric::Rate, &["b"], 0.95);
        let values = [0.94, 0.95, 2.0].map(|value| outcome(&rate, value));
        assert_eq!(values, [Outcome::Missed, Outcome::Met, Outcome::Met]);
        let nothing = LimitResult { limit: rate, measured: None, missing: vec!["b".to_owned()] };
        assert_eq!((nothing.outcome(), nothing.shown()), (Outcome::NotMeasured, "-".to_owned()));
    }

    #[test]
    fn an_interval_over_the_limit_decides_nothing() {
        let limit = Limit::ratio("a", Metric::CpuPerUnit, &["b"], 0.8).goal(0.75);
        let outcome = |low, high| {
            let measured =
                Measured { value: low, interval: Interval { low, high, confidence: 0.9 }, rival: None };
            LimitResult { limit: limit.clone(), measured: Some(measured), missing: Vec::new() }.outcome()
        };
        assert_eq!(outcome(0.79, 0.81), Outcome::TooClose);
        assert_eq!(outcome(0.74, 0.76), Outcome::Met);
        assert_eq!(outcome(0.60, 0.75), Outcome::GoalMet);
        assert_eq!(outcome(0.801, 0.9), Outcome::Missed);
        let measured =
            Measured { value: 0.1, interval: Interval { low: 0.1, high: 0.1, confidence: 0.0 }, rival: None };
        let once = LimitResult { limit: limit.clone(), measured: Some(measured), missing: Vec::new() };
        assert_eq!(once.outcome(), Outcome::TooFewRounds);
    }

    #[test]
    fn limits_say_which_side_is_meant_in_the_unit_of_the_figure() {
        let rate = Limit::ratio("a", Metric::Rate, &["b", "c"], 0.95);
        assert_eq!(rate.show_limit(rate.value), ">= 0.95 x");
        assert_eq!(rate.what("GB"), "GB/s of a / best of b, c");
        let time = Limit::absolute("a", Metric::CpuPerUnit, 10e-6);
        assert_eq!(time.show_limit(time.value), "<= 10.0 us");
        assert_eq!(time.what("certificate"), "CPU per certificate of a");
        let memory = Metric::Figure {
            key: "m".to_owned(),
            title: "memory".to_owned(),
            scale: Scale::Bytes,
            better: Better::Lower,
        };
        assert_eq!(Limit::absolute("a", memory, 15_360.0).show_limit(15_360.0), "<= 15360 B");
    }
}
