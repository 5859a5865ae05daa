//! Plan of a run: scenarios consist of groups, and groups of contestants that are measured in turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contestant::Contestant;
use crate::context::{Context, Extent};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::gauge::Window;
use crate::pairing::Pairing;
use crate::sample::Metric;

pub trait Scenario {
    /// Name on the command line.
    fn name(&self) -> &'static str;

    fn question(&self) -> &'static str;

    /// Plans all groups that this machine can measure, of every extent. Looks for programs, but starts none.
    fn plan(&self, context: &Context) -> Result<Plan, Error>;
}

#[derive(Debug, Default)]
pub struct Plan {
    /// Groups in the order of measurement.
    pub groups: Vec<Group>,
    /// Programs that would take part if they were installed.
    pub missing: Vec<Missing>,
    /// Notes for the reader of the report.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub program: String,
    /// Debian package that contains the program.
    pub package: String,
}

/// A group of contestants that do the same work and are compared.
#[derive(Debug)]
pub struct Group {
    /// Name within the scenario: `keep-alive-tcp`.
    pub id: String,
    /// Description of the work for people.
    pub title: String,
    /// The unit of work in the singular: `request`, `GB`.
    pub unit: String,
    /// Figure that verdicts are based on.
    pub headline: Metric,
    pub columns: Vec<Metric>,
    pub pairing: Pairing,
    /// Limits of the subject's figures.
    pub limits: Vec<Limit>,
    pub contestants: Vec<Contestant>,
    /// Smallest extent that includes the group: [`Extent::Quick`] is part of every run.
    pub extent: Extent,
    pub length: Length,
    /// Largest number of descriptors that one of its processes needs.
    pub descriptors: u64,
}

/// Duration of a trial, for the estimate of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Length of the window plus a constant for a load process.
    Window,
    /// About this duration, independent of the window.
    Own(Duration),
}

impl Group {
    /// Makes an empty group with the headline CPU time per unit of work, and with columns for rate and latency.
    pub fn new(id: impl Into<String>, title: impl Into<String>, unit: &str, pairing: Pairing) -> Self {
        Group {
            id: id.into(),
            title: title.into(),
            unit: unit.to_owned(),
            headline: Metric::CpuPerUnit,
            columns: vec![Metric::Rate, Metric::LatencyMedian, Metric::Latency99],
            pairing,
            limits: Vec::new(),
            contestants: Vec::new(),
            extent: Extent::Full,
            length: Length::Window,
            descriptors: FEW,
        }
    }

    /// Estimates the duration of the group's measurement without repeated rounds.
    pub fn estimate(&self, rules: Rules) -> Duration {
        let [first, each] = [rules.first_window(), rules.window()].map(|window| match self.length {
            Length::Window => window.whole() + BESIDE,
            Length::Own(length) => length,
        });
        (START + first + each * rules.rounds as u32) * self.contestants.len() as u32
    }
}

impl Plan {
    /// Notes a missing program. Returns any other error.
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

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Number of rounds that count.
    pub rounds: usize,
    /// Length of a trial.
    pub duration: Duration,
}

impl Rules {
    /// Window of a trial that counts.
    pub fn window(self) -> Window {
        Window { warm_up: (self.duration / 10).min(LONGEST_WARM_UP), duration: self.duration }
    }

    /// Window of the warm-up trial.
    pub fn first_window(self) -> Window {
        Window { warm_up: Duration::ZERO, duration: (self.duration / 2).min(LONGEST_WARM_UP) }
    }
}

/// Descriptors that every process may open, for its log, pipes, runtime and some connections.
const FEW: u64 = 64;

/// Duration of a trial outside its window: start of a load process, its connections, checks of the cores.
const BESIDE: Duration = Duration::from_millis(60);

/// Time for starting and ending a contestant and its backend.
const START: Duration = Duration::from_millis(300);
const LONGEST_WARM_UP: Duration = Duration::from_millis(500);
