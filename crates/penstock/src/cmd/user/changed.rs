//! What `deploy` and `revoke` say about each host, and their exit status.

use std::fmt::Write as _;

use hosts::authorized::report::{Change, Changed};
use hosts::fleet::verdict::Status;
use text::shell;

use super::fleet::{Host, Ran, folded};
use crate::output::{Failure, complain, plain, print, print_failed};

/// Messages after Ctrl-C: before the first file is changed, and while files are changed.
pub(super) const LOOK_STOPS: &str =
    "stopping: nothing has been changed; press Ctrl-C again to quit immediately";
pub(super) const CHANGE_STOPS: &str =
    "stopping: files are whole, old or new; press Ctrl-C again to quit immediately";

/// A line about hosts, and whether it is about a failure.
#[derive(Default)]
pub(super) struct Told {
    lines: Vec<(String, Vec<String>)>,
    /// Hosts on which not everything is as it should be.
    pub(super) failed: Vec<String>,
    status: Option<Status>,
}

impl Told {
    /// Adds a line; equal ones of several hosts become one.
    pub(super) fn line(&mut self, host: &str, line: String) {
        match self.lines.iter_mut().find(|(told, _)| *told == line) {
            Some((_, hosts)) if hosts.iter().any(|one| one == host) => {}
            Some((_, hosts)) => hosts.push(host.to_owned()),
            None => self.lines.push((line, vec![host.to_owned()])),
        }
    }

    /// Adds a line about a failure.
    pub(super) fn failure(&mut self, host: &str, line: String, status: Status) {
        self.line(host, line);
        if !self.failed.iter().any(|one| one == host) {
            self.failed.push(host.to_owned());
        }
        self.status = self.status.max(Some(status));
    }

    /// Adds what a host has told.
    pub(super) fn host(&mut self, host: &Host) {
        for Change { account, path, result } in &host.report.changes {
            let place = if path == "-" { account.clone() } else { format!("{account} {path}") };
            match result {
                Changed::Replaced { added, removed } => {
                    self.line(&host.name, format!("{place}: changed, {added} added, {removed} removed"));
                }
                Changed::Same => self.line(&host.name, format!("{place}: as it should be")),
                Changed::Failed(why) => {
                    self.failure(&host.name, format!("{place}: NOT CHANGED: {why}"), Status::Failed);
                }
            }
        }
        if let Some(trouble) = &host.trouble {
            let status = Status::of(&host.ending).max(Status::Failed);
            self.failure(&host.name, format!("FAILED: {trouble}; {}", host.left()), status);
        }
    }

    /// Prints all lines, then `summary` of how many hosts are as they should be and how many are not, and where some are not, the
    /// command that `again` makes for these.
    pub(super) fn finish(
        &self,
        ran: &Ran,
        hosts: usize,
        summary: impl FnOnce(usize, usize) -> String,
        again: impl FnOnce(&str) -> String,
    ) -> Result<(), Failure> {
        let left = self.failed.len();
        let text = self.text() + &summary(hosts.saturating_sub(left), left);
        let finished = match self.status.unwrap_or(Status::Ok).max(ran.status) {
            Status::Ok => print(&text),
            status => Err(print_failed(&text, status.code())),
        };
        if left > 0 {
            let again = again(&shell::word(&folded(&self.failed)));
            complain(&format!("again: {}\n", plain(&again)));
        }
        finished
    }

    fn text(&self) -> String {
        self.lines.iter().fold(String::new(), |mut text, (line, hosts)| {
            let _ = writeln!(text, "{} {}", folded(hosts), plain(line));
            text
        })
    }
}
