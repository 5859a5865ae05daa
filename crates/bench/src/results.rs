//! Results of a run, as written into the JSON file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::limit::{Against, Limit, LimitResult, Measured};
use crate::machine::Machine;
use crate::pairing::Pairing;
use crate::plan::Missing;
use crate::sample::{Better, Metric, Sample};
use crate::stats::Summary;

mod file;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Version of the file format.
    pub format: u32,
    /// Start time (RFC 3339).
    pub started: String,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Command that repeats the run.
    pub command: String,
    pub rounds: usize,
    /// Length of a trial in seconds.
    pub trial_seconds: f64,
    pub extent: Extent,
    pub cores: Cores,
    pub machine: Machine,
    /// Scenarios in the order of the run.
    pub scenarios: Vec<ScenarioResult>,
    /// Name of the signal that interrupted the run: `SIGINT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// Interrupted group without results, because no round was complete: `http/latency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioResult {
    pub name: String,
    pub question: String,
    pub groups: Vec<GroupResult>,
    /// Programs that would have taken part.
    pub missing: Vec<Missing>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Reason why the scenario could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupResult {
    /// Name within the scenario.
    pub id: String,
    pub title: String,
    pub unit: String,
    /// Figure that verdicts are based on.
    pub headline: Metric,
    pub columns: Vec<Metric>,
    pub contestants: Vec<ContestantResult>,
    pub pairs: Vec<Pair>,
    pub limits: Vec<LimitResult>,
    /// Disturbances during each round that counts.
    pub rounds: Vec<Disturbance>,
    /// Disturbances during each round that was repeated.
    pub repeated: Vec<Disturbance>,
    /// Number of planned rounds if the run was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_rounds: Option<usize>,
    /// Reason not to trust the verdicts: rounds were disturbed, and repeating them did not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContestantResult {
    pub name: String,
    pub version: Option<String>,
    pub configuration: String,
    /// Reason why the contestant did not start or did not finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// One sample per round that counts.
    pub samples: Vec<Sample>,
    /// Summaries of the headline and the columns, by title.
    pub summaries: BTreeMap<String, Summary>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// Contestant whose figure is the numerator.
    pub subject: String,
    pub other: String,
    pub comparison: Comparison,
}

impl Results {
    /// Returns every group with its scenario, in order.
    pub fn groups(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult)> {
        self.scenarios.iter().flat_map(|scenario| scenario.groups.iter().map(move |group| (scenario, group)))
    }

    /// Returns every limit of every group, in order.
    pub fn limits(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult, &LimitResult)> {
        self.groups()
            .flat_map(|(scenario, group)| group.limits.iter().map(move |limit| (scenario, group, limit)))
    }

    /// Returns the groups with disturbed rounds among those that count.
    pub fn disturbed(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult)> {
        self.groups().filter(|(_, group)| group.disturbed.is_some())
    }

    /// Lists differences that make two runs incomparable: other machines, or other cores of the same machine.
    pub fn differences(&self, other: &Results) -> Vec<String> {
        let mut found = self.machine.differences(&other.machine);
        let pinned = [self, other].map(|results| !results.cores.target.is_empty());
        if pinned[0] != pinned[1] {
            let words = pinned.map(|pinned| if pinned { "yes" } else { "no" });
            found.push(format!("pinned to cores: {} / {}", words[0], words[1]));
        }
        found
    }
}

impl GroupResult {
    /// Computes the summaries, the comparisons and the limits' results.
    pub fn conclude(&mut self, pairing: &Pairing, limits: &[Limit]) {
        let metrics: Vec<_> = std::iter::once(&self.headline).chain(&self.columns).cloned().collect();
        for contestant in &mut self.contestants {
            contestant.summaries = metrics
                .iter()
                .filter_map(|metric| {
                    Some((metric.title(&self.unit), Summary::of(&contestant.values_by_round(metric))?))
                })
                .collect();
        }
        let names: Vec<_> = self.contestants.iter().map(|contestant| contestant.name.as_str()).collect();
        let pairs = pairing.pairs(&names).into_iter();
        self.pairs = pairs.filter_map(|(subject, other)| self.compare(subject, other)).collect();
        self.limits = limits.iter().map(|limit| self.hold(limit)).collect();
        self.mark();
    }

    pub fn contestant(&self, name: &str) -> Option<&ContestantResult> {
        self.contestants.iter().find(|contestant| contestant.name == name)
    }

    pub fn headline_of(&self, contestant: &ContestantResult) -> Option<Summary> {
        Summary::of(&contestant.values_by_round(&self.headline))
    }

    /// Sets `disturbed` if disturbed rounds are among those that count.
    pub(crate) fn mark(&mut self) {
        let disturbed: Vec<_> = self.rounds.iter().filter(|round| round.is_disturbed()).collect();
        let worst = disturbed.iter().max_by(|a, b| a.severity().total_cmp(&b.severity()));
        let (count, all) = (disturbed.len(), self.rounds.len());
        self.disturbed = worst.map(|worst| format!("{count} of {all} rounds: {}", worst.reasons.join("; ")));
    }

    fn compare(&self, subject: String, other: String) -> Option<Pair> {
        let comparison = self.ratio(&subject, &other, &self.headline)?;
        Some(Pair { subject, other, comparison })
    }

    /// Compares two contestants' figures, round by round.
    fn ratio(&self, subject: &str, other: &str, metric: &Metric) -> Option<Comparison> {
        let rounds = self.finisher(subject)?.samples.iter().zip(&self.finisher(other)?.samples);
        let figures = rounds.filter_map(|(a, b)| metric.of(a).zip(metric.of(b)));
        let (first, second): (Vec<_>, Vec<_>) = figures.unzip();
        Comparison::of_pairs(&first, &second, metric.better())
    }

    /// Finds a contestant that completed every round: otherwise its samples belong to other rounds.
    fn finisher(&self, name: &str) -> Option<&ContestantResult> {
        self.contestant(name).filter(|contestant| contestant.failed.is_none())
    }

    fn hold(&self, limit: &Limit) -> LimitResult {
        let there = |name: &&String| self.median(name, &limit.metric).is_some();
        let missing = limit.rivals().iter().filter(|name| !there(name)).cloned().collect();
        LimitResult { limit: limit.clone(), measured: self.measured(limit), missing }
    }

    fn measured(&self, limit: &Limit) -> Option<Measured> {
        match &limit.against {
            Against::Limit => {
                let summary = Summary::of(&self.finisher(&limit.subject)?.values_by_round(&limit.metric))?;
                Some(Measured { value: summary.median, interval: summary.interval, rival: None })
            }
            Against::Best(rivals) => {
                let rivals = rivals.iter().filter_map(|name| Some((name, self.median(name, &limit.metric)?)));
                let (rival, _) = match limit.metric.better() {
                    Better::Lower => rivals.min_by(|a, b| a.1.total_cmp(&b.1)),
                    Better::Higher => rivals.max_by(|a, b| a.1.total_cmp(&b.1)),
                }?;
                let Comparison { ratio, interval, .. } = self.ratio(&limit.subject, rival, &limit.metric)?;
                Some(Measured { value: ratio, interval, rival: Some(rival.clone()) })
            }
        }
    }

    fn median(&self, name: &str, metric: &Metric) -> Option<f64> {
        Some(Summary::of(&self.finisher(name)?.values_by_round(metric))?.median)
    }
}

impl ContestantResult {
    /// Returns a figure's value in each round that has one.
    pub fn values_by_round(&self, metric: &Metric) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| metric.of(sample)).collect()
    }

    /// Number of failed units in all rounds.
    pub fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }

    /// Latencies of all rounds together.
    pub fn latency(&self) -> Option<crate::latency::Latency> {
        let mut all = crate::latency::Latency::default();
        self.samples.iter().filter_map(|sample| sample.latency.as_ref()).for_each(|latency| all.add(latency));
        (all.count() > 0).then_some(all)
    }
}

/// Version of the file format. It changes when this program can no longer read files of the previous version.
pub const FORMAT: u32 = 3;
