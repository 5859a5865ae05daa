//! What a run found: everything, as it goes into the JSON file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::compare::Comparison;
use crate::context::{Cores, Extent};
use crate::disturbance::Disturbance;
use crate::error::{Doing, Error};
use crate::machine::Machine;
use crate::sample::{Better, Metric, Sample};
use crate::scenario::{Bar, Missing};
use crate::stats::Summary;

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

/// A limit and what came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BarResult {
    /// The limit.
    pub bar: Bar,
    /// The best of the rivals.
    pub rival: String,
    /// The ratio to it.
    pub ratio: f64,
}

impl Results {
    /// Reads a file that [`Results::write`] wrote.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).doing(format!("read {}", path.display()))?;
        let file = path.display().to_string();
        let results: Results = serde_json::from_str(&text)
            .map_err(|error| Error::Results { file: file.clone(), text: error.to_string() })?;
        if results.format != FORMAT {
            let text = format!("its format is {}, this program reads {FORMAT}", results.format);
            return Err(Error::Results { file, text });
        }
        Ok(results)
    }

    /// Writes everything as JSON.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string(self).expect("results are made of plain values with text keys");
        fs::write(path, text + "\n").doing(format!("write {}", path.display()))
    }

    /// Groups in which rounds were used although something disturbed them.
    pub fn disturbed(&self) -> impl Iterator<Item = (&ScenarioResult, &GroupResult)> {
        let groups = self
            .scenarios
            .iter()
            .flat_map(|scenario| scenario.groups.iter().map(move |group| (scenario, group)));
        groups.filter(|(_, group)| group.disturbed().is_some())
    }
}

impl GroupResult {
    /// Describes samples, compares pairs and looks at the bars.
    pub fn conclude(&mut self, pairing: &crate::scenario::Pairing, bars: &[Bar]) {
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
        self.bars = bars.iter().filter_map(|bar| self.hold(bar)).collect();
    }

    /// A contestant by name.
    pub fn contestant(&self, name: &str) -> Option<&ContestantResult> {
        self.contestants.iter().find(|contestant| contestant.name == name)
    }

    /// A summary of a contestant's headline figure.
    pub fn headline_of(&self, contestant: &ContestantResult) -> Option<Summary> {
        Summary::of(&contestant.values(&self.headline))
    }

    /// Why the group is not to be trusted: rounds were disturbed and repeating did not help.
    pub fn disturbed(&self) -> Option<String> {
        let disturbed: Vec<_> = self.rounds.iter().filter(|round| round.is_disturbed()).collect();
        let worst = disturbed.iter().max_by(|a, b| a.severity().total_cmp(&b.severity()))?;
        Some(format!("{} of {} rounds: {}", disturbed.len(), self.rounds.len(), worst.reasons.join("; ")))
    }

    fn compare(&self, subject: String, other: String) -> Option<Pair> {
        let (first, second) = (self.contestant(&subject)?, self.contestant(&other)?);
        if first.failed.is_some() || second.failed.is_some() {
            // Its samples no longer belong to the same rounds.
            return None;
        }
        let rounds = first.samples.iter().zip(&second.samples);
        let figures = rounds.filter_map(|(a, b)| self.headline.of(a).zip(self.headline.of(b)));
        let (first, second): (Vec<_>, Vec<_>) = figures.unzip();
        let comparison = Comparison::of_pairs(&first, &second, self.headline.better())?;
        Some(Pair { subject, other, comparison })
    }

    fn hold(&self, bar: &Bar) -> Option<BarResult> {
        let median = |name: &String| Some(self.headline_of(self.contestant(name)?)?.median);
        let rivals = bar.rivals.iter().filter_map(|name| Some((name, median(name)?)));
        let (rival, best) = match self.headline.better() {
            Better::Lower => rivals.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::Higher => rivals.max_by(|a, b| a.1.total_cmp(&b.1)),
        }?;
        let ratio = median(&bar.subject)? / best;
        Some(BarResult { bar: bar.clone(), rival: rival.clone(), ratio })
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

impl BarResult {
    /// Whether the limit is kept.
    pub fn is_kept(&self) -> bool {
        self.ratio <= self.bar.must
    }
}

/// Version of the file format.
pub const FORMAT: u32 = 1;
