//! `ssh_config`: what OpenSSH's configuration says of a host, from which line of which file.
//!
//! [`Config`] is read once and evaluated for as many hosts as there are. Files come through [`Files`], commands of
//! `Match exec` go through [`Machine`]: nothing is touched from here. What OpenSSH would refuse is refused; what it can
//! and we cannot is a [`Notice`], never a guess.
//!
//! `words.rs` splits lines, `keyword.rs` and `setting.rs` give them meaning, `criteria.rs` is `Match`, `load.rs` and
//! `source.rs` read files, `evaluate.rs` goes through them for a host, `resolved.rs` is what comes out, `notice.rs` what
//! we do not follow, `show.rs` writes it as `ssh -G` does.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

mod algorithms;
mod criteria;
mod evaluate;
mod forward;
mod jump;
mod keyword;
mod load;
mod notice;
mod overruled;
mod pattern;
mod resolved;
mod setting;
mod show;
mod source;
mod tokens;
mod value;
mod words;

pub use algorithms::{Catalogue, Known, List};
pub use forward::{End, Forward, Way};
pub use jump::{Hop, Jump};
pub use keyword::Keyword;
pub use load::{File, Files, Group, Presence, Sources};
pub use notice::{Effect, Notice};
pub use overruled::{Asking, Overruling, Started, asking, overruling};
pub use resolved::{Agent, Family, KeyFile, Proxy, Rekey, Resolved, Setting};
pub use setting::Value;

/// A line of a file. Line 0 is the file as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The path, as it was opened.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// Something wrong in a file. Nothing is connected to before it is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where; `None`: on the command line.
    pub place: Option<Place>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Fault {
    fn new(place: &Place, what: String, hint: Option<String>) -> Self {
        Self { place: Some(place.clone()), what, hint }
    }
}

/// `FILE:LINE: what`, and the hint on a line of its own.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n  hint: {hint}"))
    }
}

/// Everything that is wrong, at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Who asks, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// The login of the user who runs this.
    pub user: String,
    /// That user's number.
    pub uid: u32,
    /// That user's home directory.
    pub home: String,
    /// The name of this machine.
    pub hostname: String,
}

/// The host that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// As somebody typed it.
    pub host: String,
    /// The login, if somebody typed one (`user@host`, `-l`).
    pub user: Option<String>,
    /// The port, if somebody typed one (`-p`).
    pub port: Option<u16>,
    /// The hosts to go through, if somebody said so (`-J`).
    pub jump: Option<Jump>,
    /// The command that will run there; `None`: a shell.
    pub command: Option<String>,
}

impl Asked {
    /// Reads what users type: `host`, `user@host`, `ssh://user@host:port`; addresses of IPv6 also as `[::1]` and `[::1]:port`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with("ssh://") {
            let Hop { user, host, port } = Hop::parse(text)?;
            return Some(Self { host, user, port, ..Self::default() });
        }
        let (user, host) = match text.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, text),
        };
        let (host, port) = jump::bracketed(host).unwrap_or_else(|| (host.to_owned(), None));
        let good = jump::is_safe_host(&host) && user.is_none_or(jump::is_safe_user);
        good.then(|| Self { host, user: user.map(str::to_owned), port, ..Self::default() })
    }
}

/// What conditions of `Match` and paths ask of this machine.
pub trait Machine {
    /// Runs a command in the user's shell. `Ok(true)`: it ended with status 0.
    ///
    /// # Errors
    /// Why it could not be run, or that it was ended by a signal.
    fn exec(&self, command: &str) -> Result<bool, String>;

    /// The addresses of this machine's interfaces.
    ///
    /// # Errors
    /// Why they cannot be listed.
    fn addresses(&self) -> Result<Vec<IpAddr>, String>;

    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;
}

/// Configuration files that were read.
#[derive(Debug)]
pub struct Config {
    loaded: load::Loaded,
    known: Catalogue,
}

impl Config {
    /// Reads the files and those they include. Faults come out when a host is asked for, together with its own.
    #[must_use]
    pub fn read(wanted: &Sources, files: &dyn Files, machine: &dyn Machine, known: Catalogue) -> Self {
        let loaded = load::load(wanted, files, &known, &|name| machine.variable(name));
        Self { loaded, known }
    }

    /// No files at all: what holds when nobody says anything.
    #[must_use]
    pub fn empty() -> Self {
        Self { loaded: load::Loaded::default(), known: Catalogue::openssh() }
    }

    /// Every name that a `Host` line says as it is, without a pattern, in the order of the files, each once.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.loaded.sources.iter().for_each(|source| source.hosts(&mut names));
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// What holds for a host.
    ///
    /// # Errors
    /// Everything that is wrong in any of the files, whether it is about this host or not: as OpenSSH does.
    pub fn resolve(&self, asked: &Asked, local: &Local, machine: &dyn Machine) -> Result<Resolved, Faults> {
        resolved::resolve(&self.loaded, &self.known, asked, local, machine)
    }
}

#[cfg(test)]
mod tests;
