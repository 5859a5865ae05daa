//! `penstock ctl upgrade`.

use std::time::Duration;

use clap::Args;

use super::word::{parse_time, parse_word};

/// Time for an answer, which is at most: the server has a limit of 30 s, and may be busy with a reload before.
pub(super) const PATIENCE: Duration = Duration::from_secs(160);

#[derive(Debug, Args)]
pub(super) struct Upgrade {
    /// The program of the other version: one that the server may start (`penstock serve --allow-upgrade`)
    /// [default: the path by which the server was started]
    #[arg(value_name = "PROGRAM", value_parser = parse_word)]
    program: Option<String>,
    /// Only try it: the new process starts, reads the configuration, takes copies of the sockets, says that it is ready, and is ended
    #[arg(long)]
    check: bool,
    /// Time for the sessions of the old process, at most 7d; what is left then is cut off [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "check")]
    drain_for: Option<String>,
}

impl Upgrade {
    pub(super) fn words(&self) -> Vec<String> {
        let check = self.check.then(|| "check".to_owned());
        let drain = self.drain_for.iter().flat_map(|time| ["drain-for".to_owned(), time.clone()]);
        check.into_iter().chain(self.program.clone()).chain(drain).collect()
    }
}
