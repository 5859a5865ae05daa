//! What is measured: scenarios, each made of groups, each of contestants that are measured in turns.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::context::{Context, Extent};
use crate::error::Error;
use crate::load::Window;
use crate::sample::{Metric, Sample};
use crate::trial::Rules;
pub use bar::Bar;

pub mod bar;
mod chain;
pub mod ciphers;
pub mod fleet;
pub mod forwarded;
pub mod http;
pub mod sockets;
pub mod tcp;
pub mod tls;
pub mod truststore;

/// Everything that can be measured, in the order in which `all` does it.
pub fn all() -> Vec<Box<dyn Scenario>> {
    vec![
        Box::new(sockets::Sockets),
        Box::new(http::Http),
        Box::new(forwarded::Forwarded),
        Box::new(tcp::Tcp),
        Box::new(tls::TlsTermination),
        Box::new(truststore::TrustStores),
        Box::new(fleet::Fleet),
        Box::new(ciphers::Ciphers),
    ]
}

/// A question that can be answered by measuring.
pub trait Scenario {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The question, in one line.
    fn question(&self) -> &'static str;

    /// What can be measured on this machine, whatever the extent of the run: each group says to which it belongs.
    /// Nothing is started yet: looking for programs is all that happens.
    fn plan(&self, context: &Context) -> Result<Plan, Error>;
}

/// What a scenario measures on this machine.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order in which they are measured.
    pub groups: Vec<Group>,
    /// Programs that would take part if they were installed.
    pub missing: Vec<Missing>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A program that is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub program: String,
    /// The Debian package that has it.
    pub package: String,
}

/// Contestants that do the same work and are compared.
#[derive(Debug)]
pub struct Group {
    /// Its name within the scenario: `keep-alive-tcp`.
    pub id: String,
    /// What the work is, for people.
    pub title: String,
    /// The unit of work in the singular: `request`, `GB`.
    pub unit: String,
    /// The figure that verdicts are about.
    pub headline: Metric,
    /// Further columns.
    pub columns: Vec<Metric>,
    /// Who is compared with whom.
    pub pairing: Pairing,
    /// Limits that the subject is to keep.
    pub bars: Vec<Bar>,
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    /// The smallest extent to which it belongs: [`Extent::Quick`] is part of every run.
    pub extent: Extent,
    /// How long a trial takes.
    pub length: Length,
    /// How many descriptors its hungriest process must be able to open.
    pub descriptors: u64,
}

/// How long a trial takes, for the estimate of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Its window, and what every load process takes beside that.
    Window,
    /// About this, whatever the window is.
    Own(Duration),
}

/// Who is compared with whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// This one with every other: `penstock` against its rivals.
    Subject(String),
    /// Every other with this one: everything against `tcp`.
    Reference(String),
    /// These, subject first.
    Pairs(Vec<(String, String)>),
}

/// Someone who takes part in a group.
pub struct Contestant {
    /// Its name in the group: `haproxy`.
    pub name: String,
    /// Program and version, if it is one.
    pub version: Option<String>,
    /// Starts it. It stays up through all rounds, and is ended by being dropped.
    pub start: Starter,
}

/// Starts a contestant.
pub type Starter = Box<dyn Fn(&Context) -> Result<Box<dyn Running>, Error>>;

/// A contestant that is up.
pub trait Running {
    /// The configuration that it runs with, as a reader could use it. Empty if there is none.
    fn configuration(&self) -> String;

    /// Does the work for the length of `window` and gives the figures. It is called once to warm up (the sample is
    /// thrown away), and then once in each round.
    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error>;

    /// Roots of process trees that work for it although somebody else started them, as Docker's engine starts
    /// containers: what they use is not foreign load.
    fn elsewhere(&self) -> Vec<i32> {
        Vec::new()
    }
}

impl Contestant {
    /// A contestant that `start` starts.
    pub fn new<R: Running + 'static>(
        name: impl Into<String>,
        start: impl Fn(&Context) -> Result<R, Error> + 'static,
    ) -> Self {
        let start: Starter = Box::new(move |context| Ok(Box::new(start(context)?)));
        Contestant { name: name.into(), version: None, start }
    }

    /// Says which version it is.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// A group without contestants, judged by CPU time per unit of work, with rate and latency beside it.
    pub fn new(id: impl Into<String>, title: impl Into<String>, unit: &str, pairing: Pairing) -> Self {
        Group {
            id: id.into(),
            title: title.into(),
            unit: unit.to_owned(),
            headline: Metric::CpuPerUnit,
            columns: vec![Metric::Rate, Metric::LatencyMedian, Metric::Latency99],
            pairing,
            bars: Vec::new(),
            contestants: Vec::new(),
            extent: Extent::Full,
            length: Length::Window,
            descriptors: FEW,
        }
    }

    /// How long it takes to measure it, if nothing disturbs it.
    pub fn estimate(&self, rules: Rules) -> Duration {
        let [first, each] = [rules.first_window(), rules.window()].map(|window| match self.length {
            Length::Window => window.whole() + BESIDE,
            Length::Own(length) => length,
        });
        (START + first + each * rules.rounds as u32) * self.contestants.len() as u32
    }
}

impl Pairing {
    /// Pairs (subject, other) among `names`, in their order.
    pub fn pairs(&self, names: &[&str]) -> Vec<(String, String)> {
        let others =
            |one: &String| names.iter().filter(|name| **name != one).map(|name| (*name).to_owned()).collect();
        match self {
            Pairing::Pairs(pairs) => {
                let here = |name: &String| names.contains(&name.as_str());
                pairs.iter().filter(|(subject, other)| here(subject) && here(other)).cloned().collect()
            }
            Pairing::Subject(one) | Pairing::Reference(one) if !names.contains(&one.as_str()) => Vec::new(),
            Pairing::Subject(one) => {
                let others: Vec<String> = others(one);
                others.into_iter().map(|other| (one.clone(), other)).collect()
            }
            Pairing::Reference(one) => {
                let others: Vec<String> = others(one);
                others.into_iter().map(|other| (other, one.clone())).collect()
            }
        }
    }
}

impl Plan {
    /// Notes a program that is not here; any other error is given back.
    pub fn note_missing(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Missing { program, package } => {
                let missing = Missing { program, package };
                if !self.missing.contains(&missing) {
                    self.missing.push(missing);
                }
                Ok(())
            }
            other => Err(other),
        }
    }
}

/// Descriptors that every process has: those of its log, its pipes, its runtime, and some connections.
const FEW: u64 = 64;
/// What a trial takes beyond its window: a load process, its connections, looks at the cores.
const BESIDE: Duration = Duration::from_millis(60);
/// What it takes to start a contestant and its backend, and to end them.
const START: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Interrupt;
    use crate::run;
    use crate::selection::{self, Selection};

    #[test]
    fn pairs_name_the_subject_first() {
        let names = ["a", "b", "c"];
        let pair = |x: &str, y: &str| (x.to_owned(), y.to_owned());
        assert_eq!(Pairing::Subject("b".into()).pairs(&names), [pair("b", "a"), pair("b", "c")]);
        assert_eq!(Pairing::Reference("a".into()).pairs(&names), [pair("b", "a"), pair("c", "a")]);
        assert_eq!(Pairing::Subject("x".into()).pairs(&names), []);
        let some = Pairing::Pairs(vec![pair("c", "a"), pair("c", "gone")]);
        assert_eq!(some.pairs(&names), [pair("c", "a")]);
    }

    #[test]
    fn every_scenario_has_its_own_name() {
        let mut names: Vec<_> = all().iter().map(|scenario| scenario.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len());
    }

    /// Group, figure, rivals, what must be kept, what is aimed for.
    type Row = (&'static str, &'static str, &'static [&'static str], f64, Option<f64>);

    /// Every bar that the project has set.
    const BARS: &[Row] = &[
        ("http/keep-alive-tcp", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("http/keep-alive-unix", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("http/new-connection", "CPU per request", &["haproxy", "nginx"], 0.95, Some(0.85)),
        ("http/idle", "memory per connection", &[], 1536.0, Some(921.6)),
        ("tcp/connections", "CPU per connection", &["pen", "nginx"], 1.0, Some(0.87)),
        ("tcp/download", "CPU per GB", &["haproxy-splice"], 1.05, Some(0.95)),
        ("tcp/download", "CPU per GB", &["pen"], 0.70, None),
        ("tcp/download", "CPU per GB", &["nginx"], 0.45, None),
        ("tcp/download", "GB/s", &["haproxy-splice"], 0.95, None),
        ("tcp/upload", "CPU per GB", &["haproxy-splice"], 1.05, Some(0.95)),
        ("tcp/upload", "CPU per GB", &["pen"], 0.70, None),
        ("tcp/upload", "CPU per GB", &["nginx"], 0.45, None),
        ("tcp/upload", "GB/s", &["haproxy-splice"], 0.95, None),
        ("tcp/idle", "memory per connection", &[], 1024.0, Some(307.2)),
        ("tls/full-p256-tls13", "CPU per handshake", &["haproxy", "nginx", "hitch", "pen"], 0.48, Some(0.43)),
        ("tls/full-rsa-tls13", "CPU per handshake", &["haproxy", "nginx", "hitch", "pen"], 0.75, Some(0.70)),
        (
            "tls/resumed-p256-tls13",
            "CPU per handshake",
            &["haproxy", "nginx", "hitch", "pen"],
            0.50,
            Some(0.46),
        ),
        ("tls/requests", "CPU per request", &["haproxy", "nginx"], 0.80, Some(0.75)),
        ("tls/download", "CPU per GB", &["haproxy"], 1.05, Some(0.95)),
        ("tls/idle", "memory per connection", &[], 15_360.0, Some(10_240.0)),
        ("tls/upload", "CPU per GB", &["haproxy"], 1.05, Some(0.95)),
        (
            "tls/resumed-rsa-tls13",
            "CPU per handshake",
            &["haproxy", "nginx", "hitch", "pen"],
            0.50,
            Some(0.46),
        ),
        ("truststore/bundle", "CPU per certificate", &[], 10e-6, Some(5e-6)),
        ("truststore/bundle", "t(4000)/t(1000)", &[], 5.0, None),
        ("fleet/hosts-100", "CPU per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 5.0, None),
        ("fleet/hosts-100", "time per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 3.0, None),
        ("fleet/hosts-100", "memory per session", &[], 1e6, None),
        ("fleet/hosts-1000", "CPU per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 5.0, None),
        ("fleet/hosts-1000", "time per host", &["parallel-ssh", "pdsh", "clush"], 1.0 / 3.0, None),
        ("fleet/hosts-1000", "memory per session", &[], 1e6, None),
        ("ciphers/down-aes128-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/down-aes256-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/down-chacha20-poly1305", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-aes128-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-aes256-gcm", "CPU per GB", &["openssh"], 0.5, None),
        ("ciphers/up-chacha20-poly1305", "CPU per GB", &["openssh"], 0.5, None),
    ];

    #[test]
    fn every_bar_is_in_its_group_with_its_rivals_and_limits() {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Full).unwrap();
        let mut found = Vec::new();
        for scenario in all() {
            let Ok(plan) = scenario.plan(&context) else { continue };
            for group in &plan.groups {
                for bar in &group.bars {
                    assert_eq!(bar.subject, "penstock");
                    let place = format!("{}/{}", scenario.name(), group.id);
                    let metric = bar.metric.title(&group.unit);
                    found.push((place, metric, bar.rivals().to_vec(), bar.must, bar.aim));
                }
            }
        }
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected: Vec<_> = BARS
            .iter()
            .map(|(place, metric, rivals, must, aim)| {
                ((*place).to_owned(), (*metric).to_owned(), own(rivals), *must, *aim)
            })
            .collect();
        let mut differences: Vec<_> = found.iter().filter(|bar| !expected.contains(bar)).collect();
        differences.extend(expected.iter().filter(|bar| !found.contains(bar)));
        assert_eq!((differences, found.len()), (Vec::new(), BARS.len()));
    }

    #[test]
    fn all_scenarios_take_at_most_seven_minutes_in_a_quick_run() {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
        let planned = Selection::all().plan(&context).unwrap();
        let estimate = selection::estimate(&planned, run::QUICK);
        assert!(estimate <= Duration::from_secs(420), "{estimate:?}");
    }
}
