//! What a look at a directory of certificates, or of CAs, has found, and how it is told.

use std::path::PathBuf;
use std::time::Duration;

/// What a look at the directory found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Where changes must be watched for.
    pub(super) directories: Vec<PathBuf>,
    /// Look again so soon.
    pub(super) again: Option<Duration>,
    /// What is served now and was not before, or the reverse, for people.
    pub(super) changes: Vec<String>,
}

impl Scan {
    /// Asks for another scan after `soon`, or earlier if that was asked for already.
    pub(super) fn look_again(&mut self, soon: Duration) {
        self.again = Some(self.again.map_or(soon, |other| other.min(soon)));
    }
}

/// A file that could not be read as no descriptor was left is read again after this time.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// Faults and changes that are told in full.
const TOLD: usize = 5;

pub(super) fn listed(all: &[String]) -> String {
    let told = all[..all.len().min(TOLD)].join("; ");
    match all.len().saturating_sub(TOLD) {
        0 => told,
        more => format!("{told}; and {more} more: `penstock ctl certs` lists all"),
    }
}
