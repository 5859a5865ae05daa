//! Result of reading a directory of certificates or CAs, and its report to operators.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Directories that must be watched for changes.
    pub(super) directories: Vec<PathBuf>,
    /// Time after which the directory must be read again, if there is one.
    pub(super) again: Option<Duration>,
    /// Messages for operators about certificates that have come into use or gone out of use.
    pub(super) changes: Vec<String>,
}

impl Scan {
    /// Requests another scan after `soon`, or earlier if an earlier one was already requested.
    pub(super) fn look_again(&mut self, soon: Duration) {
        self.again = Some(self.again.map_or(soon, |other| other.min(soon)));
    }
}

/// Pause before a file is read again that could not be opened because no descriptor was free.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// Largest number of errors and changes that are reported in full.
const TOLD: usize = 5;

pub(super) fn listed(all: &[String]) -> String {
    let told = all[..all.len().min(TOLD)].join("; ");
    match all.len().saturating_sub(TOLD) {
        0 => told,
        more => format!("{told}; and {more} more: `penstock ctl certs` lists all"),
    }
}
