//! Errors of measurements. An error of a contestant ends that contestant, not the run.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{program} is not installed (Debian package: {package})")]
    Missing { program: String, package: String },
    #[error("{variable}={}: no such file; give the path of a program, or unset {variable} to measure the installed one", path.display())]
    NoProgram { variable: String, path: PathBuf },
    /// The machine does not support the action, or the user lacks a permission.
    #[error("{what} is not possible here: {why}")]
    Unsupported { what: String, why: String },
    #[error("{what} was not ready after {seconds} s; its last output: {log}")]
    NotReady {
        /// Name of the process.
        what: String,
        /// Time limit.
        seconds: u64,
        log: String,
    },
    #[error("{what} ended by itself; its last output: {log}")]
    Ended {
        /// Name of the process.
        what: String,
        log: String,
    },
    #[error("{what} failed: {text}")]
    Load {
        /// Name of the process.
        what: String,
        text: String,
    },
    #[error(
        "{group} needs {needed} open descriptors for a process, and the hard limit is {limit}: raise it (ulimit -Hn \
         {needed})"
    )]
    Descriptors {
        /// Name of the group that cannot be measured.
        group: String,
        needed: u64,
        limit: u64,
    },
    /// The trial's figures do not measure the work.
    #[error("the trial does not count: {0}")]
    Worthless(String),
    #[error("cannot {doing}")]
    Io {
        /// Failed action; completes "cannot ...".
        doing: String,
        source: io::Error,
    },
    #[error("there is no {what} {name:?}")]
    Unknown {
        what: String,
        name: String,
        /// Similar names, most similar first.
        near: Vec<String>,
        known: Vec<String>,
    },
    /// A results file with another format version.
    #[error(
        "{file}: results in format {found}; this program reads and writes format {known}: measure again, or use the \
         program that wrote them"
    )]
    Format {
        file: String,
        found: u64,
        /// Format version that this program supports.
        known: u32,
    },
    /// The file is not a results file.
    #[error("{file}: not a results file of `penstock bench`: {text}")]
    Results { file: String, text: String },
    #[error("interrupted")]
    Interrupted,
}

/// Adds the failed action to an I/O error.
pub(crate) trait ErrorContext<T> {
    /// `doing` completes "cannot ...".
    fn doing(self, doing: impl Into<String>) -> Result<T, Error>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::Io { doing: doing.into(), source })
    }
}

impl<T> ErrorContext<T> for nix::Result<T> {
    fn doing(self, doing: impl Into<String>) -> Result<T, Error> {
        self.map_err(io::Error::from).doing(doing)
    }
}
