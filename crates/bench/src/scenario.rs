//! What is measured: scenarios, each made of groups, each of contestants that are measured in turns.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::error::Error;
use crate::load::Window;
use crate::sample::{Metric, Sample};

mod chain;
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
    ]
}

/// A question that can be answered by measuring.
pub trait Scenario {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The question, in one line.
    fn question(&self) -> &'static str;

    /// What is to be measured on this machine. Nothing is started yet: looking for programs is all that happens.
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

/// A limit: the subject's headline figure divided by that of the best rival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// Whose figure.
    pub subject: String,
    /// Against the best of these.
    pub rivals: Vec<String>,
    /// The ratio that has to be kept.
    pub must: f64,
    /// The ratio that is aimed for.
    pub aim: f64,
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
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
