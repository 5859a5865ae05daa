//! `ssh_config`: settings of a host, with the file and line of each setting.
//!
//! [`Config`] is read once and evaluated for any number of hosts. [`Files`] reads the files and [`Machine`] runs the
//! commands of `Match exec`; this module does no I/O. An error for OpenSSH is an error here. A valid setting that
//! Penstock does not support becomes a [`Notice`].
//!
//! `words.rs` splits lines, `keyword.rs` and `setting.rs` parse settings, `criteria.rs` parses `Match`, `load.rs` and
//! `source.rs` read files, `evaluate.rs` collects the settings of a host, `resolved.rs` holds the result, `notice.rs`
//! lists unsupported settings, `show.rs` prints settings as `ssh -G` does.

mod algorithms;
mod asked;
mod criteria;
mod evaluate;
mod expand;
mod fault;
mod forward;
mod jump;
mod keyword;
mod launcher;
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

pub use algorithms::{Known, KnownAlgorithms, List};
pub use asked::{Asked, Local, Machine};
pub use fault::{Fault, Faults, Place};
pub use forward::{End, Forward, ForwardKind};
pub use jump::{Hop, Jump};
pub use keyword::Keyword;
pub use launcher::Started;
pub use load::{File, Files, Group, Presence, Sources};
pub use notice::{Effect, Notice};
pub use overruled::{Asking, Overruling, asking, overruling};
pub use resolved::{Agent, Family, KeyFile, Proxy, Rekey, Resolved, Setting};
pub use setting::Value;

/// Parsed configuration files.
#[derive(Debug)]
pub struct Config {
    loaded: load::Loaded,
    known: KnownAlgorithms,
}

impl Config {
    /// Reads the files and their includes. [`Config::resolve`] reports the faults.
    #[must_use]
    pub fn read(wanted: &Sources, files: &dyn Files, machine: &dyn Machine, known: KnownAlgorithms) -> Self {
        let loaded = load::load(wanted, files, &known, &|name| machine.variable(name));
        Self { loaded, known }
    }

    /// Configuration without files: the defaults.
    #[must_use]
    pub fn empty() -> Self {
        Self { loaded: load::Loaded::default(), known: KnownAlgorithms::openssh() }
    }

    /// Names on `Host` lines that are no patterns, in the order of the files, each once.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.loaded.sources.iter().for_each(|source| source.hosts(&mut names));
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// Collects the settings of a host.
    ///
    /// # Errors
    /// Faults in any of the files, even in sections for other hosts, as with OpenSSH.
    pub fn resolve(&self, asked: &Asked, local: &Local, machine: &dyn Machine) -> Result<Resolved, Faults> {
        resolved::resolve(&self.loaded, &self.known, asked, local, machine)
    }
}

#[cfg(test)]
mod tests;
