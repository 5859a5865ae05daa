//! One trial's figures, and the ways to look at them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::meter::Cpu;

/// What one trial gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Units of work done: requests, connections, GB. Fractions are meant for GB.
    pub units: f64,
    /// How long that took, in seconds.
    pub seconds: f64,
    /// CPU time of what is measured; none where there is no such process.
    pub cpu: Option<Cpu>,
    /// How long the units took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Units that failed. They are not among `units`.
    #[serde(default)]
    pub errors: u64,
    /// The first failure, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Further figures by name, in base units (seconds, bytes, counts): see [`Metric::Figure`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

/// A figure of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// CPU time of the target for each unit of work, in seconds.
    CpuPerUnit,
    /// Units of work a second.
    Rate,
    /// Time within which half of the units were done, in seconds.
    LatencyMedian,
    /// Time within which 99 % of the units were done, in seconds.
    Latency99,
    /// Time within which 99.9 % of the units were done, in seconds.
    Latency999,
    /// Wall time for each unit of work, in seconds.
    TimePerUnit,
    /// One of [`Sample::figures`].
    Figure {
        /// Its key there.
        key: String,
        /// Its column.
        title: String,
        /// What it is measured in.
        scale: Scale,
        /// Which way is better.
        better: Better,
    },
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Seconds, with the prefix that fits.
    Seconds,
    /// Bytes, with the prefix that fits.
    Bytes,
    /// A plain number, with the prefix that fits.
    Count,
}

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Less time, less memory.
    Lower,
    /// More work.
    Higher,
}

impl Sample {
    /// Why its figures would be those of something else than the work; none if they count.
    pub fn fault(&self) -> Option<String> {
        let first =
            self.first_error.as_ref().map(|error| format!(", the first with: {error}")).unwrap_or_default();
        let errors = self.errors;
        if self.units > 0.0 {
            // How fast somebody fails is no measure of the work.
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
    /// Its value in a sample; none if the sample does not have it.
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

    /// The head of its column; `unit` is the unit of work in the singular.
    pub fn title(&self, unit: &str) -> String {
        match self {
            Metric::CpuPerUnit => format!("CPU per {unit}"),
            // Symbols of units have no plural: GB/s.
            Metric::Rate if unit.chars().all(char::is_uppercase) => format!("{unit}/s"),
            Metric::Rate => format!("{unit}s/s"),
            Metric::TimePerUnit => format!("time per {unit}"),
            Metric::LatencyMedian => "p50".to_owned(),
            Metric::Latency99 => "p99".to_owned(),
            Metric::Latency999 => "p99.9".to_owned(),
            Metric::Figure { title, .. } => title.clone(),
        }
    }

    /// Which way it is better.
    pub fn better(&self) -> Better {
        match self {
            Metric::Rate => Better::Higher,
            Metric::Figure { better, .. } => *better,
            _ => Better::Lower,
        }
    }

    /// A value, as it is shown.
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
    /// A value with three digits and a prefix: `12.3 us`, `1.46 GB`, `76.2 k`.
    pub fn show(self, value: f64) -> String {
        let steps: &[(f64, &str)] = match self {
            Scale::Seconds => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
            Scale::Bytes => &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
            Scale::Count => &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
        };
        let last = steps[steps.len() - 1];
        // 999.6 with three digits is 1000: that belongs to the next prefix.
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
