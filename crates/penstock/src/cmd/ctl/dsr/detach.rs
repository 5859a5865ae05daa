//! `penstock ctl dsr detach`: programs that forward packets while no process has them. It asks no server.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use sys::bpf::{self, StalePins};

use crate::output::{Failure, complain, plain, print, print_json};

#[derive(Debug, Args)]
pub(in super::super) struct Detach {
    /// The program to take away, as this command shows it without arguments; may be repeated
    #[arg(value_name = "PATH", conflicts_with = "all")]
    paths: Vec<PathBuf>,
    /// Take all of them away that no process has
    #[arg(long)]
    all: bool,
}

const NONE: &str = "no program of penstock with a name in /sys/fs/bpf is in this network namespace; one without a name (`unpinned` in \
                    `paths` of `penstock ctl status --json`) is not seen here, and ends with its process\n";

/// What there is of a program, and what becomes of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Kept,
    InUse,
    TakenAway,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::InUse => "in use",
            Self::TakenAway => "taken away",
        }
    }
}

struct Row {
    path: PathBuf,
    owner: Option<String>,
    state: State,
}

impl Detach {
    pub(in super::super) fn run(&self, as_json: bool) -> Result<(), Failure> {
        bpf::look().map_err(|error| {
            Failure::runtime(format_args!(
                "the names of programs cannot be read: {error}; programs are seen and taken away by root"
            ))
        })?;
        let kept = StalePins::all(&[]).map_err(Failure::runtime)?;
        let mut rows: Vec<Row> = Vec::new();
        for one in bpf::named() {
            let state =
                if kept.iter().any(|free| free.path() == one.path) { State::Kept } else { State::InUse };
            if rows.iter().all(|row| row.path != one.path) {
                rows.push(Row { path: one.path, owner: one.owner, state });
            }
        }
        self.refuse_wrong(&rows)?;
        let mut failed = Vec::new();
        for row in rows.iter_mut().filter(|row| row.state == State::Kept && self.wants(&row.path)) {
            let Some(one) = kept.iter().find(|one| one.path() == row.path) else { continue };
            match one.end() {
                Ok(()) => row.state = State::TakenAway,
                Err(error) => {
                    failed.push(format!("error: {} stays: {error}\n", plain(&row.path.to_string_lossy())))
                }
            }
        }
        match as_json {
            true => print_json(&format!("{:#}\n", as_value(&rows)))?,
            false => print(&self.text(&rows))?,
        }
        if failed.is_empty() {
            return Ok(());
        }
        failed.iter().for_each(|line| complain(line));
        Err(Failure::Status(1))
    }

    fn wants(&self, path: &Path) -> bool {
        self.all || self.paths.iter().any(|wanted| is_meant(wanted, path))
    }

    /// Nothing is taken away if one of the paths is wrong.
    fn refuse_wrong(&self, rows: &[Row]) -> Result<(), Failure> {
        for wanted in &self.paths {
            let shown = plain(&wanted.to_string_lossy());
            match rows.iter().find(|row| is_meant(wanted, &row.path)) {
                None => {
                    return Err(Failure::runtime(format_args!(
                        "{shown} is no program of penstock in this network namespace: `penstock ctl dsr detach` shows them"
                    )));
                }
                Some(row) if row.state == State::InUse => {
                    return Err(Failure::runtime(format_args!(
                        "{shown} is the program of a penstock that runs: end that first, by `penstock ctl stop`"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn text(&self, rows: &[Row]) -> String {
        if rows.is_empty() {
            return NONE.to_owned();
        }
        let mut text = String::new();
        for Row { path, owner, state } in rows {
            let owner = owner.as_deref().unwrap_or("a penstock that does not say whose it is");
            let line = format!("{:<11} {} ({owner})", state.as_str(), path.display());
            text.push_str(&plain(&line));
            text.push('\n');
        }
        let is_asked = self.all || !self.paths.is_empty();
        if !is_asked && rows.iter().any(|row| row.state == State::Kept) {
            text.push_str(
                "`penstock ctl dsr detach PATH` takes one that is kept away, --all takes all of them away\n",
            );
        }
        text
    }
}

/// Whether a path, or its last part, is that of a program.
fn is_meant(wanted: &Path, path: &Path) -> bool {
    wanted == path || path.file_name().is_some_and(|name| wanted.as_os_str() == name)
}

fn as_value(rows: &[Row]) -> serde_json::Value {
    let rows = rows.iter().map(|Row { path, owner, state }| {
        json!({ "path": path.to_string_lossy(), "owner": owner, "state": state.as_str() })
    });
    json!({ "programs": rows.collect::<Vec<_>>() })
}
