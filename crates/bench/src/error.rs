//! Why something could not be measured. A contestant's error ends that contestant, not the run.

use std::io;

/// What went wrong, while doing what.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that is not on this machine.
    #[error("{program} is not installed (Debian package: {package})")]
    Missing {
        /// Name of the program.
        program: String,
        /// Debian package that has it.
        package: String,
    },
    /// The machine cannot do this, or this user may not.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// What was wanted.
        what: String,
        /// The reason, for a person.
        why: String,
    },
    /// A process did not become ready in time.
    #[error("{what} was not ready after {seconds} s; its last words: {log}")]
    NotReady {
        /// Name of the process.
        what: String,
        /// How long it was given.
        seconds: u64,
        /// End of its log.
        log: String,
    },
    /// A process ended that should be running.
    #[error("{what} ended by itself; its last words: {log}")]
    Ended {
        /// Name of the process.
        what: String,
        /// End of its log.
        log: String,
    },
    /// One of our own load processes reported a failure.
    #[error("{what} failed: {text}")]
    Load {
        /// Name of the process.
        what: String,
        /// What it said.
        text: String,
    },
    /// The limit of open descriptors is too low.
    #[error(
        "{group} needs {needed} open descriptors for a process, and the hard limit is {limit}: raise it (ulimit -Hn \
         {needed})"
    )]
    Descriptors {
        /// What cannot be measured.
        group: String,
        /// What it needs.
        needed: u64,
        /// What it may have.
        limit: u64,
    },
    /// A trial that says nothing about its contestant.
    #[error("the trial does not count: {0}")]
    Worthless(String),
    /// Reading, writing, starting.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A scenario or a group that does not exist.
    #[error("there is no {what} {name:?}")]
    Unknown {
        /// What was looked for.
        what: String,
        /// Its name.
        name: String,
        /// Names that are like it, nearest first.
        near: Vec<String>,
        /// All names.
        known: Vec<String>,
    },
    /// A results file of another version.
    #[error(
        "{file}: results in format {found}; this program reads and writes format {known}: measure again, or use the \
         program that wrote them"
    )]
    Format {
        /// The file.
        file: String,
        /// Its format.
        found: u64,
        /// The format that is understood.
        known: u32,
    },
    /// A results file that is none.
    #[error("{file}: not a results file of `penstock bench`: {text}")]
    Results {
        /// The file.
        file: String,
        /// What is wrong with it.
        text: String,
    },
    /// Ctrl-C, SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

/// Adds to an I/O error what was being done.
pub(crate) trait Doing<T> {
    /// `doing` completes "cannot ...".
    fn doing(self, doing: impl Into<String>) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::Io { doing: doing.into(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, Error> {
        self.map_err(io::Error::from).doing(doing)
    }
}
