//! Selection of the output format of a run.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use fleet::run::Host;
use fleet::run::output::View;
use fleet::run::view::Colour;
use fleet::run::view::fold::{Called, Folded, Shown};
use fleet::run::view::json::Json;
use fleet::run::view::stream::Lines;
use hosts::fleet::fold::Masks;

/// Options for the output.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Each line as it comes, with its host before it; the default
    #[arg(long = "stream", short = 'f', help_heading = "Output")]
    pub stream: bool,
    /// At the end, print equal outputs once for all hosts that have them, the largest group first
    #[arg(long, short = 'b', conflicts_with = "stream", help_heading = "Output")]
    pub fold: bool,
    /// As -b, but of all groups except the largest only the differences
    #[arg(long, conflicts_with = "stream", help_heading = "Output")]
    pub diff: bool,
    /// As -b, and ignore differences in these: host (its own name), ip, uuid, date, duration, pid, number; all, or none
    /// [default: none]
    #[arg(long, value_name = "WHAT", conflicts_with = "stream", help_heading = "Output")]
    pub mask: Option<Masks>,
    /// One JSON object per line: events as they occur, and a summary; their fields are in the table below
    #[arg(long, conflicts_with_all = ["stream", "fold", "diff", "mask"], help_heading = "Output")]
    pub json: bool,
    /// Also write each host's output into this directory, as HOST.out and HOST.err. What one of these hosts printed
    /// before is replaced, or removed if it says nothing now, so that a silent host has no file; other files stay
    #[arg(long = "output", short = 'o', value_name = "DIRECTORY", help_heading = "Output")]
    pub directory: Option<PathBuf>,
    /// No progress, and no summary if all hosts succeeded
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

/// Amount of messages about a run, beside the output of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Talk {
    /// Progress and results.
    Usual,
    /// Only failures.
    Quiet,
}

impl Arguments {
    pub(crate) fn talk(&self) -> Talk {
        if self.quiet { Talk::Quiet } else { Talk::Usual }
    }

    pub(crate) fn view(&self, hosts: &[Host]) -> Box<dyn View> {
        let names: Vec<String> = hosts.iter().map(|host| host.name.clone()).collect();
        if self.json {
            return Box::new(Json::new(&names));
        }
        let colour = colour();
        if !self.fold && !self.diff && self.mask.is_none() {
            return Box::new(Lines::new(&names, colour));
        }
        let called = |host: &Host| Called {
            name: host.name.clone(),
            also: host.target.as_ref().ok().map(|target| target.host.clone()),
        };
        let shown = if self.diff { Shown::Difference } else { Shown::Complete };
        let masks = self.mask.clone().unwrap_or_default();
        Box::new(Folded::new(hosts.iter().map(called).collect(), masks, shown, colour))
    }
}

/// Selects colours for standard output.
pub(crate) fn colour() -> Colour {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    if unwanted || is_dumb() || !std::io::stdout().is_terminal() { Colour::Off } else { Colour::On }
}

/// Reports whether the terminal lacks cursor movement (TERM=dumb).
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
