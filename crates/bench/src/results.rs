//! What a run found: everything, as it goes into the JSON file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::machine::Machine;
use crate::sample::{Better, Metric, Sample};
use crate::scenario::bar::{Against, Bar, BarResult, Measured};
use crate::scenario::{Missing, Pairing};
use crate::stats::Summary;

mod file;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Version of this format.
    pub format: u32,
    /// When it began (RFC 3339).
    pub started: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The command that gives it again.
    pub command: String,
    /// Rounds for each group.
    pub rounds: usize,
    /// Length of a trial, in seconds.
    pub trial_seconds: f64,
    /// How much of each scenario.
    pub extent: Extent,
    /// Who ran where.
    pub cores: Cores,
    /// The machine.
    pub machine: Machine,
    /// In the order in which they ran.
    pub scenarios: Vec<ScenarioResult>,
    /// The signal that ended the run before everything was measured: `SIGINT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The group that was begun then and of which nothing is kept, because no round was complete: `http/latency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// A scenario's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// Its name.
    pub name: String,
    /// Its question.
    pub question: String,
    /// Its groups.
    pub groups: Vec<GroupResult>,
    /// Programs that would have taken part.
    pub missing: Vec<Missing>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Why it could not be run at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A group's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupResult {
    /// Its name within the scenario.
    pub id: String,
    /// What the work was.
    pub title: String,
    /// The unit of work.
    pub unit: String,
    /// The figure that verdicts are about.
    pub headline: Metric,
    /// Further columns.
    pub columns: Vec<Metric>,
    /// Who took part.
    pub contestants: Vec<ContestantResult>,
    /// Verdicts, pair by pair.
    pub pairs: Vec<Pair>,
    /// Limits, and whether they were kept.
    pub bars: Vec<BarResult>,
    /// What was seen beside each round that counts.
    pub rounds: Vec<Disturbance>,
    /// What was seen beside rounds that were disturbed and repeated.
    pub repeated: Vec<Disturbance>,
    /// How many rounds there should have been, if the run was interrupted before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<usize>,
    /// Why its verdicts are not to be trusted: rounds were disturbed, and repeating them did not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<String>,
}

/// A contestant's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContestantResult {
    /// Its name in the group.
    pub name: String,
    /// Program and version.
    pub version: Option<String>,
    /// The configuration it ran with.
    pub configuration: String,
    /// Why it did not take part, or not to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// A sample for each round that counts.
    pub samples: Vec<Sample>,
    /// The headline and the columns described, by title.
    pub summaries: BTreeMap<String, Summary>,
}

/// A verdict about a pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pair {
    /// Whose figure is above the line.
    pub subject: String,
    /// Whose is below.
    pub other: String,
    /// Ratio and verdict.
    pub comparison: Comparison,
}

impl Results {
    /// Every group with its scenario, in order.
    pub fn groups(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult)> {
        self.scenarios.iter().flat_map(|scenario| scenario.groups.iter().map(move |group| (scenario, group)))
    }

    /// Every bar of every group, in order.
    pub fn bars(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult, &BarResult)> {
        self.groups().flat_map(|(scenario, group)| group.bars.iter().map(move |bar| (scenario, group, bar)))
    }

    /// Groups in which rounds were used although something disturbed them.
    pub fn disturbed(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult)> {
        self.groups().filter(|(_, group)| group.disturbed.is_some())
    }

    /// What forbids comparing the figures of two runs: other machines, or other cores of one.
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
    /// Describes samples, compares pairs and looks at the bars.
    pub fn conclude(&mut self, pairing: &Pairing, bars: &[Bar]) {
        let metrics: Vec<_> = std::iter::once(&self.headline).chain(&self.columns).cloned().collect();
        for contestant in &mut self.contestants {
            contestant.summaries = metrics
                .iter()
                .filter_map(|metric| {
                    Some((metric.title(&self.unit), Summary::of(&contestant.values(metric))?))
                })
                .collect();
        }
        let names: Vec<_> = self.contestants.iter().map(|contestant| contestant.name.as_str()).collect();
        let pairs = pairing.pairs(&names).into_iter();
        self.pairs = pairs.filter_map(|(subject, other)| self.compare(subject, other)).collect();
        self.bars = bars.iter().map(|bar| self.hold(bar)).collect();
        self.mark();
    }

    /// A contestant by name.
    pub fn contestant(&self, name: &str) -> Option<&ContestantResult> {
        self.contestants.iter().find(|contestant| contestant.name == name)
    }

    /// A summary of a contestant's headline figure.
    pub fn headline_of(&self, contestant: &ContestantResult) -> Option<Summary> {
        Summary::of(&contestant.values(&self.headline))
    }

    /// Says in the result itself whether it was disturbed to the end.
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

    /// A figure of one divided by that of another, round by round.
    fn ratio(&self, subject: &str, other: &str, metric: &Metric) -> Option<Comparison> {
        let rounds = self.finisher(subject)?.samples.iter().zip(&self.finisher(other)?.samples);
        let figures = rounds.filter_map(|(a, b)| metric.of(a).zip(metric.of(b)));
        let (first, second): (Vec<_>, Vec<_>) = figures.unzip();
        Comparison::of_pairs(&first, &second, metric.better())
    }

    /// A contestant that took part in every round: samples of others do not belong to the same rounds.
    fn finisher(&self, name: &str) -> Option<&ContestantResult> {
        self.contestant(name).filter(|contestant| contestant.failed.is_none())
    }

    fn hold(&self, bar: &Bar) -> BarResult {
        let there = |name: &&String| self.median(name, &bar.metric).is_some();
        let absent = bar.rivals().iter().filter(|name| !there(name)).cloned().collect();
        BarResult { bar: bar.clone(), measured: self.measured(bar), absent }
    }

    fn measured(&self, bar: &Bar) -> Option<Measured> {
        match &bar.against {
            Against::Nobody => {
                let summary = Summary::of(&self.finisher(&bar.subject)?.values(&bar.metric))?;
                Some(Measured { value: summary.median, interval: summary.interval, rival: None })
            }
            Against::Best(rivals) => {
                let rivals = rivals.iter().filter_map(|name| Some((name, self.median(name, &bar.metric)?)));
                let (rival, _) = match bar.metric.better() {
                    Better::Lower => rivals.min_by(|a, b| a.1.total_cmp(&b.1)),
                    Better::Higher => rivals.max_by(|a, b| a.1.total_cmp(&b.1)),
                }?;
                let Comparison { ratio, interval, .. } = self.ratio(&bar.subject, rival, &bar.metric)?;
                Some(Measured { value: ratio, interval, rival: Some(rival.clone()) })
            }
        }
    }

    fn median(&self, name: &str, metric: &Metric) -> Option<f64> {
        Some(Summary::of(&self.finisher(name)?.values(metric))?.median)
    }
}

impl ContestantResult {
    /// A figure's value in each round that has it.
    pub fn values(&self, metric: &Metric) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| metric.of(sample)).collect()
    }

    /// Units that failed, in all rounds.
    pub fn errors(&self) -> u64 {
        self.samples.iter().map(|sample| sample.errors).sum()
    }

    /// All of its latencies together.
    pub fn latency(&self) -> Option<crate::latency::Latency> {
        let mut all = crate::latency::Latency::default();
        self.samples.iter().filter_map(|sample| sample.latency.as_ref()).for_each(|latency| all.add(latency));
        (all.count() > 0).then_some(all)
    }
}

/// Version of the file format. It changes when a file of the version before can no longer be read.
pub const FORMAT: u32 = 2;
