//! What can be wrong with a host of the lab, and which hosts have it. [`FAULTS`] is the one table.

mod near;
mod table;

use std::fmt::Write as _;

use logic::fleet::ending::{Phase, Reason, Remote};
use thiserror::Error;

pub use table::FAULTS;

/// One line of the table.
#[derive(Debug)]
pub struct Entry {
    /// How it is called in `--fault`.
    pub name: &'static str,
    /// Which fault it is.
    pub kind: Kind,
    /// What may follow a colon, and what it is without.
    pub parameter: Parameter,
    /// Where a client meets it.
    pub phase: Phase,
    /// What the host does.
    pub does: &'static str,
    /// How `true` on this host ends for a client that is patient for a few seconds and tells the truth.
    pub expected: Expected,
}

/// How a good client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// As if nothing were wrong, with this exit status.
    Exited(u32),
    /// With the signal that the host named.
    Signalled(&'static str),
    /// Without a status, in the phase of the entry.
    Failed(Reason, Remote),
}

/// What a fault does, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the table says what each of them does")]
pub enum Kind {
    Refuse,
    Blackhole,
    Silent,
    TurnAway,
    HangUp,
    BannerGarbage,
    BannerEndless,
    BannerLines,
    BannerSlow,
    HangKex,
    GarbageKex,
    GiganticPacket,
    NoAlgorithm,
    ChangeKey,
    Impostor,
    ForgedKey,
    HangService,
    HangAuth,
    SlowAuth,
    Deny,
    HangUpAuth,
    Disconnect,
    HostileBanner,
    RefuseChannel,
    HangChannel,
    RefuseExec,
    HangExec,
    HangRun,
    IgnoreTerm,
    Deaf,
    Reset,
    Cut,
    DisconnectRun,
    NoStatus,
    HangClose,
    Flood,
    FloodStderr,
    Escapes,
    LongLine,
    Drip,
    Exit,
    Signal,
    Rekey,
}

impl Kind {
    /// Whether connections end in the kernel, before the host could count them.
    fn is_unseen(self) -> bool {
        matches!(self, Self::Refuse | Self::Blackhole)
    }
}

/// What may follow the name of a fault, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    /// Nothing.
    None,
    /// A time in milliseconds.
    Milliseconds(u64),
    /// A number of bytes.
    Bytes(u64),
    /// A number.
    Number(u32),
    /// Every so many connections, counted from 1.
    Every(u64),
    /// The name of another host; without it, the next one.
    Host(Option<String>),
    /// A signal without `SIG`.
    Signal(std::borrow::Cow<'static, str>),
}

/// A fault of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What it does.
    pub kind: Kind,
    /// Its number or name.
    pub parameter: Parameter,
    /// Only the first so many connections have it.
    pub connections: Option<u64>,
}

impl Fault {
    /// Whether a connection, counted from 1, has it.
    #[must_use]
    pub fn applies(&self, connection: u64) -> bool {
        self.connections.is_none_or(|first| connection <= first)
    }

    /// Milliseconds, bytes, ... of the parameter.
    pub(super) fn number(&self) -> u64 {
        match self.parameter {
            Parameter::Milliseconds(number) | Parameter::Bytes(number) | Parameter::Every(number) => number,
            Parameter::Number(number) => number.into(),
            Parameter::None | Parameter::Host(_) | Parameter::Signal(_) => 0,
        }
    }
}

/// A fault and the hosts that have it: `NAME[:PARAMETER][@CONNECTIONS][=HOSTS]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    fault: Fault,
    hosts: Chosen,
}

/// Which hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Chosen {
    All,
    /// So many in a hundred of all hosts, out of those without a fault.
    Percent(u32),
    /// Numbers, counted from 1.
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
            near: near::near(name),
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

/// Gives each of `hosts` its fault, in the order of the assignments.
///
/// # Errors
/// An assignment names a host that is not there, or one that has a fault already.
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
                // Spread evenly, and the same hosts each time.
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
                        first: name_of(first.kind),
                        second: name_of(fault.kind),
                    });
                }
                Some(free) => *free = Some(fault.clone()),
            }
        }
    }
    Ok(faults)
}

/// The line of the table for a fault.
#[must_use]
pub fn entry(name: &str) -> Option<&'static Entry> {
    FAULTS.iter().find(|entry| entry.name == name)
}

/// The table for people: name, phase, what the host does, how a good client ends.
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
            Expected::Failed(reason, Remote::NeverStarted) => format!("{reason}, never started"),
            Expected::Failed(reason, Remote::Ended) => format!("{reason}, ended there"),
            Expected::Failed(reason, Remote::Unknown) => format!("{reason}, may have run"),
        };
        let name = format!("{}{parameter}", entry.name);
        let phase = entry.phase.word();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<24} {phase:<13} {end:<30} {}", entry.does);
    }
    text
}

/// Why `--fault` cannot be had.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FaultError {
    /// No such fault.
    #[error("there is no fault `{name}`{near}; `penstock lab --list` names them")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What may be meant, with punctuation.
        near: String,
    },
    /// A parameter where none is taken.
    #[error("{0} takes no parameter")]
    NoParameter(&'static str),
    /// A parameter that is none.
    #[error("{name} takes {wanted}, not `{given}`")]
    Parameter {
        /// The fault.
        name: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// What it was given.
        given: String,
    },
    /// What follows `@` is no number.
    #[error("after @ stands how many connections have the fault, not `{0}`")]
    Connections(String),
    /// Connections of which the lab never learns cannot be counted.
    #[error(
        "{0} cannot end after some connections: the kernel turns them away, and the lab never sees them to count them; \
         turn-away@N, hang-up@N and silent@N can"
    )]
    Uncounted(&'static str),
    /// What follows `=` names no hosts.
    #[error("`{0}` names no hosts: write lab003, lab[003-010], 3-10, 1,5 or 10%")]
    Hosts(String),
    /// A host that the lab does not have.
    #[error("there is no host {name} in a lab of {hosts}")]
    NoHost {
        /// Its name or number.
        name: String,
        /// How many there are.
        hosts: usize,
    },
    /// Two faults for one host.
    #[error("host {host} would be `{first}` and `{second}`; a host has one fault")]
    Twice {
        /// Its number.
        host: usize,
        /// The fault it has.
        first: &'static str,
        /// The fault it cannot have too.
        second: &'static str,
    },
}

fn name_of(kind: Kind) -> &'static str {
    FAULTS.iter().find(|entry| entry.kind == kind).map_or("", |entry| entry.name)
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
            _ => return Err(wrong("every how many connections")),
        },
        Parameter::Host(_) => {
            host_number(value).ok_or_else(|| wrong("the name of a host"))?;
            Parameter::Host(Some(value.to_owned()))
        }
        Parameter::Signal(_) => {
            let name = value.strip_prefix("SIG").unwrap_or(value).to_owned();
            crate::signal::named(&name).ok_or_else(|| wrong("a signal such as TERM"))?;
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
    // `lab[1-3,5]` and `1-3,5` say the same; brackets and the name only group.
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

/// The number in a host's name, counted from 1.
pub(super) fn host_number(name: &str) -> Option<usize> {
    name.strip_prefix("lab")?.parse().ok().filter(|number| *number > 0)
}

/// More hosts than any lab has.
const MOST: usize = 100_000;

#[cfg(test)]
mod tests;
