//! Figures of one trial, and the metrics computed from them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::meter::Cpu;

/// Result of one trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Units of completed work: requests, connections, GB. Fractions occur for GB.
    pub units: f64,
    /// Duration of the work in seconds.
    pub seconds: f64,
    /// CPU time of the target; `None` without a target process.
    pub cpu: Option<Cpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Number of failed units, which `units` excludes.
    #[serde(default)]
    pub errors: u64,
    /// Message of the first failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Further figures by name, in base units (seconds, bytes, counts): see [`Metric::Figure`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// CPU time of the target per unit of work, in seconds.
    CpuPerUnit,
    /// Units of work per second.
    Rate,
    /// Median latency in seconds.
    LatencyMedian,
    /// 99th percentile of the latency in seconds.
    Latency99,
    /// 99.9th percentile of the latency in seconds.
    Latency999,
    /// Wall-clock time per unit of work, in seconds.
    TimePerUnit,
    /// One of [`Sample::figures`].
    Figure { key: String, title: String, scale: Scale, better: Better },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Seconds, with an SI prefix.
    Seconds,
    /// Bytes, with an SI prefix.
    Bytes,
    /// A plain number, with an SI prefix.
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Less time or less memory is better.
    Lower,
    Higher,
}

impl Sample {
    /// Returns the reason why the sample does not measure the work; `None` if it counts.
    pub fn fault(&self) -> Option<String> {
        let first =
            self.first_error.as_ref().map(|error| format!(", the first with: {error}")).unwrap_or_default();
        let errors = self.errors;
        if self.units > 0.0 {
            // The speed of failures does not measure the work.
            (errors as f64 >= self.units)
                .then(|| format!("{errors} failed{first}, and {} did not", self.units))
        } else if errors > 0 {
            Some(format!("no work was done: {errors} failed{first}"))
        } else {
            let seconds = Scale::Seconds.show(self.seconds);
            Some(format!("no work was finished in {seconds}: a longer trial may help (--duration)"))
        }
    }
}

impl Metric {
    /// Returns the metric's value in a sample; `None` if the sample has none.
    pub fn of(&self, sample: &Sample) -> Option<f64> {
        let quantile = |share| sample.latency.as_ref().and_then(|latency| latency.quantile(share));
        let value = match self {
            Metric::CpuPerUnit => sample.cpu?.total / sample.units,
            Metric::Rate => sample.units / sample.seconds,
            Metric::TimePerUnit => sample.seconds / sample.units,
            Metric::LatencyMedian => quantile(0.5)?,
            Metric::Latency99 => quantile(0.99)?,
            Metric::Latency999 => quantile(0.999)?,
            Metric::Figure { key, .. } => *sample.figures.get(key)?,
        };
        value.is_finite().then_some(value)
    }

    /// Column title; `unit` is the unit of work in the singular.
    pub fn title(&self, unit: &str) -> String {
        match self {
            Metric::CpuPerUnit => format!("CPU per {unit}"),
            // Unit symbols have no plural: GB/s.
            Metric::Rate if unit.chars().all(char::is_uppercase) => format!("{unit}/s"),
            Metric::Rate => format!("{unit}s/s"),
            Metric::TimePerUnit => format!("time per {unit}"),
            Metric::LatencyMedian => "p50".to_owned(),
            Metric::Latency99 => "p99".to_owned(),
            Metric::Latency999 => "p99.9".to_owned(),
            Metric::Figure { title, .. } => title.clone(),
        }
    }

    pub fn better(&self) -> Better {
        match self {
            Metric::Rate => Better::Higher,
            Metric::Figure { better, .. } => *better,
            _ => Better::Lower,
        }
    }

    pub fn show(&self, value: f64) -> String {
        match self {
            Metric::Rate => Scale::Count,
            Metric::Figure { scale, .. } => *scale,
            _ => Scale::Seconds,
        }
        .show(value)
    }
}

impl Scale {
    /// Formats a value with three digits and an SI prefix: `12.3 us`, `1.46 GB`, `76.2 k`.
    pub fn show(self, value: f64) -> String {
        let steps: &[(f64, &str)] = match self {
            Scale::Seconds => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
            Scale::Bytes => &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
            Scale::Count => &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
        };
        let last = steps[steps.len() - 1];
        // 999.6 with three digits is 1000: use the next prefix.
        let (size, prefix) =
            steps.iter().copied().find(|(size, _)| value.abs() >= size * 0.9995).unwrap_or(last);
        let number = value / size;
        let digits = match number.abs() {
            n if n >= 99.95 => 0,
            n if n >= 9.995 => 1,
            _ => 2,
        };
        format!("{number:.digits$} {prefix}").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_three_digits_and_a_prefix() {
        let seconds = [
            (11.7e-6, "11.7 us"),
            (0.2612, "261 ms"),
            (0.9999, "1.00 s"),
            (63e-9, "63.0 ns"),
            (0.0, "0.00 ns"),
        ];
        for (value, expected) in seconds {
            assert_eq!(Scale::Seconds.show(value), expected);
        }
        assert_eq!(Scale::Count.show(76_210.0), "76.2 k");
        assert_eq!(Scale::Count.show(2.0), "2.00");
        assert_eq!(Scale::Bytes.show(527.0), "527 B");
    }

    #[test]
    fn a_sample_counts_if_most_of_its_work_was_done() {
        let sample = |units, errors, first_error: Option<&str>| Sample {
            units,
            errors,
            seconds: 0.25,
            first_error: first_error.map(str::to_owned),
            ..Sample::default()
        };
        assert_eq!(sample(1.0, 0, None).fault(), None);
        assert_eq!(sample(0.3, 0, None).fault(), None);
        assert_eq!(sample(100.0, 99, Some("reset")).fault(), None);
        let faults = [sample(100.0, 100, Some("reset")), sample(0.0, 7, Some("reset")), sample(0.0, 0, None)]
            .map(|sample| sample.fault().unwrap());
        assert_eq!(faults[0], "100 failed, the first with: reset, and 100 did not");
        assert_eq!(faults[1], "no work was done: 7 failed, the first with: reset");
        assert!(faults[2].starts_with("no work was finished in 250 ms"), "{}", faults[2]);
        assert!(sample(f64::NAN, 0, None).fault().is_some());
    }

    #[test]
    fn a_sample_without_work_has_no_rate_of_cost() {
        let sample = Sample { cpu: Some(Cpu::default()), seconds: 1.0, ..Sample::default() };
        assert_eq!(Metric::CpuPerUnit.of(&sample), None);
        assert_eq!(Metric::Rate.of(&sample), Some(0.0));
        assert_eq!(Metric::Latency99.of(&sample), None);
    }
}
