//! The faults of a host, and the assignment of faults to hosts. [`FAULTS`] is the table of all faults.

mod kind;
mod table;

use std::fmt::Write as _;

use hosts::fleet::ending::Remote;
use text::nearest::related;
use thiserror::Error;

pub use kind::{Entry, Expected, Kind, Parameter};
pub use table::FAULTS;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Number or name after the colon.
    pub parameter: Parameter,
    /// Limit of the connections that have the fault, counted from the first; `None` for all.
    pub connections: Option<u64>,
}

impl Fault {
    /// Whether connection number `connection`, counted from 1, has the fault.
    #[must_use]
    pub fn applies(&self, connection: u64) -> bool {
        self.connections.is_none_or(|first| connection <= first)
    }

    /// The number in the parameter: milliseconds, bytes or connections.
    pub(crate) fn number(&self) -> u64 {
        match self.parameter {
            Parameter::Milliseconds(number) | Parameter::Bytes(number) | Parameter::Every(number) => number,
            Parameter::Number(number) => number.into(),
            Parameter::None | Parameter::Host(_) | Parameter::Signal(_) => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    fault: Fault,
    hosts: Chosen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Chosen {
    All,
    /// This percentage of all hosts, chosen from the hosts without a fault.
    Percent(u32),
    /// Numbers of hosts, counted from 1.
    Ranges(Vec<(usize, usize)>),
}

impl std::str::FromStr for Assignment {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (fault, hosts) = text.split_once('=').map_or((text, None), |(fault, hosts)| (fault, Some(hosts)));
        let (fault, connections) = match fault.split_once('@') {
            None => (fault, None),
            Some((fault, count)) => {
                let count = count.parse().map_err(|_| FaultError::Connections(count.to_owned()))?;
                (fault, Some(count))
            }
        };
        let (name, parameter) =
            fault.split_once(':').map_or((fault, None), |(name, value)| (name, Some(value)));
        let entry = entry(name).ok_or_else(|| FaultError::Unknown {
            name: name.escape_default().to_string(),
            near: near(name),
        })?;
        if connections.is_some() && entry.kind.is_unseen() {
            return Err(FaultError::Uncounted(entry.name));
        }
        let parameter = match parameter {
            None => entry.parameter.clone(),
            Some(value) => parameter_from(entry, value)?,
        };
        let hosts = hosts.map_or(Ok(Chosen::All), chosen)?;
        Ok(Self { fault: Fault { kind: entry.kind, parameter, connections }, hosts })
    }
}

/// Assigns a fault to each of `hosts`, in the order of the assignments.
///
/// # Errors
/// An assignment names a host that does not exist, or a host that has a fault already.
pub fn assign(assignments: &[Assignment], hosts: usize) -> Result<Vec<Option<Fault>>, FaultError> {
    let mut faults: Vec<Option<Fault>> = vec![None; hosts];
    for Assignment { fault, hosts: chosen } in assignments {
        if let Parameter::Host(Some(name)) = &fault.parameter
            && host_number(name).is_none_or(|number| number > hosts)
        {
            return Err(FaultError::NoHost { name: name.clone(), hosts });
        }
        let numbers: Vec<usize> = match chosen {
            Chosen::All => (0..hosts).collect(),
            Chosen::Percent(percent) => {
                let free: Vec<usize> = (0..hosts).filter(|number| faults[*number].is_none()).collect();
                let wanted = (hosts * *percent as usize).div_ceil(100).min(free.len());
                // The chosen hosts are spread evenly, and are the same in each run.
                (0..wanted).map(|at| free[at * free.len() / wanted]).collect()
            }
            Chosen::Ranges(ranges) => ranges.iter().flat_map(|(from, to)| *from - 1..*to).collect(),
        };
        for number in numbers {
            match faults.get_mut(number) {
                None => return Err(FaultError::NoHost { name: (number + 1).to_string(), hosts }),
                Some(Some(first)) => {
                    return Err(FaultError::Twice {
                        host: number + 1,
                        first: first.kind.as_str(),
                        second: fault.kind.as_str(),
                    });
                }
                Some(free) => *free = Some(fault.clone()),
            }
        }
    }
    Ok(faults)
}

/// The line of [`FAULTS`] for a name.
#[must_use]
pub fn entry(name: &str) -> Option<&'static Entry> {
    FAULTS.iter().find(|entry| entry.name == name)
}

/// The table for users: name, phase, behaviour of the host, and the result of a correct client.
#[must_use]
pub fn list() -> String {
    let mut text = String::new();
    for entry in FAULTS {
        let parameter = match &entry.parameter {
            Parameter::None => String::new(),
            Parameter::Milliseconds(value) => format!("[:MS={value}]"),
            Parameter::Bytes(value) => format!("[:BYTES={value}]"),
            Parameter::Number(value) => format!("[:STATUS={value}]"),
            Parameter::Every(value) => format!("[:EVERY={value}]"),
            Parameter::Host(_) => "[:HOST]".to_owned(),
            Parameter::Signal(value) => format!("[:SIGNAL={value}]"),
        };
        let end = match entry.expected {
            Expected::Exited(status) => format!("exit {status}"),
            Expected::Signalled(signal) => format!("signal {signal}"),
            Expected::Failed(reason, Remote::NotStarted) => format!("{reason}, not started"),
            Expected::Failed(reason, Remote::Ended) => format!("{reason}, ended there"),
            Expected::Failed(reason, Remote::MayHaveRun) => format!("{reason}, may have run"),
        };
        let name = format!("{}{parameter}", entry.name);
        let phase = entry.phase.word();
        // A write to a string cannot fail.
        let _ = writeln!(text, "{name:<24} {phase:<13} {end:<30} {}", entry.does);
    }
    text
}

/// Error in an argument of `--fault`.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FaultError {
    #[error("there is no fault `{name}`{near}; `penstock lab --list` names them")]
    Unknown {
        name: String,
        /// Similar names, with punctuation.
        near: String,
    },
    /// The fault takes no parameter.
    #[error("{0} takes no parameter")]
    NoParameter(&'static str),
    #[error("{name} takes {wanted}, not `{given}`")]
    Parameter { name: &'static str, wanted: &'static str, given: String },
    /// The text after `@` is not a number.
    #[error("after @ comes a number of connections, not `{0}`")]
    Connections(String),
    /// The kernel refuses these connections, so the lab cannot count them.
    #[error(
        "{0} cannot end after some connections: the kernel refuses them, and the lab cannot count them; \
         turn-away@N, hang-up@N and silent@N can"
    )]
    Uncounted(&'static str),
    /// The text after `=` names no hosts.
    #[error("`{0}` names no hosts: write lab003, lab[003-010], 3-10, 1,5 or 10%")]
    Hosts(String),
    #[error("there is no host {name} in a lab of {hosts}")]
    NoHost { name: String, hosts: usize },
    /// A host with two faults.
    #[error("host {host} would be `{first}` and `{second}`; a host has one fault")]
    Twice {
        host: usize,
        first: &'static str,
        /// The fault of the second assignment.
        second: &'static str,
    },
}

/// Names of faults similar to a wrong name, with punctuation.
fn near(name: &str) -> String {
    let near = related(name, FAULTS.iter().map(|entry| entry.name));
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

fn parameter_from(entry: &Entry, value: &str) -> Result<Parameter, FaultError> {
    let wrong = |wanted| FaultError::Parameter {
        name: entry.name,
        wanted,
        given: value.escape_default().to_string(),
    };
    Ok(match &entry.parameter {
        Parameter::None => return Err(FaultError::NoParameter(entry.name)),
        Parameter::Milliseconds(_) => {
            Parameter::Milliseconds(value.parse().map_err(|_| wrong("milliseconds"))?)
        }
        Parameter::Bytes(_) => Parameter::Bytes(value.parse().map_err(|_| wrong("a number of bytes"))?),
        Parameter::Number(_) => {
            Parameter::Number(value.parse().map_err(|_| wrong("an exit status of at most 4294967295"))?)
        }
        Parameter::Every(_) => match value.parse() {
            Ok(every) if every > 0 => Parameter::Every(every),
            _ => return Err(wrong("N, for the fault at every N-th connection")),
        },
        Parameter::Host(_) => {
            host_number(value).ok_or_else(|| wrong("the name of a host"))?;
            Parameter::Host(Some(value.to_owned()))
        }
        Parameter::Signal(_) => {
            let name = value.strip_prefix("SIG").unwrap_or(value).to_owned();
            ssh::signal::named(&name).ok_or_else(|| wrong("a signal such as TERM"))?;
            Parameter::Signal(name.into())
        }
    })
}

fn chosen(text: &str) -> Result<Chosen, FaultError> {
    let wrong = || FaultError::Hosts(text.escape_default().to_string());
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.parse() {
            Ok(percent @ 1..=100) => Ok(Chosen::Percent(percent)),
            _ => Err(wrong()),
        };
    }
    // `lab[1-3,5]` and `1-3,5` mean the same: brackets and the prefix are removed.
    let plain = text.replace("lab[", "").replace([']', ' '], "").replace("lab", "");
    let ranges = plain.split(',').map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        match (from.parse::<usize>(), to.parse::<usize>()) {
            (Ok(from), Ok(to)) if 0 < from && from <= to && to <= MOST => Ok((from, to)),
            _ => Err(wrong()),
        }
    });
    ranges.collect::<Result<_, _>>().map(Chosen::Ranges)
}

/// Number of a host from its name, counted from 1.
pub(crate) fn host_number(name: &str) -> Option<usize> {
    name.strip_prefix("lab")?.parse().ok().filter(|number| *number > 0)
}

/// Limit of the number of a host.
const MOST: usize = 100_000;

#[cfg(test)]
mod tests;
