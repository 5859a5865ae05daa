//! How the output of a run is shown.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use fleet::run::Host;
use fleet::run::output::View;
use fleet::run::view::Colour;
use fleet::run::view::fold::{Called, Folded, Shown};
use fleet::run::view::json::Json;
use fleet::run::view::stream::Lines;
use logic::fleet::fold::Masks;

/// Ways to show output.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Arguments {
    /// Each line as it comes, with its host before it; the default
    #[arg(long = "stream", short = 'f', help_heading = "Output")]
    pub stream: bool,
    /// At the end, what hosts said alike, once for all of them, the largest group first
    #[arg(long, short = 'b', conflicts_with = "stream", help_heading = "Output")]
    pub fold: bool,
    /// As -b, but of all groups except the largest only what is different
    #[arg(long, conflicts_with = "stream", help_heading = "Output")]
    pub diff: bool,
    /// As -b, and these make no difference: host (its own name, the default), ip, uuid, date, duration, pid, number; all, or none
    #[arg(long, value_name = "WHAT", conflicts_with = "stream", help_heading = "Output")]
    pub mask: Option<Masks>,
    /// One JSON object per line: events as they come, and a summary; their fields are in the table below
    #[arg(long, conflicts_with_all = ["stream", "fold", "diff", "mask"], help_heading = "Output")]
    pub json: bool,
    /// Also keep each host's output in this directory, as HOST.out and HOST.err. What one of these hosts said before is replaced, or
    /// removed if it says nothing now, so that a silent host has no file; everything else stays
    #[arg(long = "output", short = 'o', value_name = "DIRECTORY", help_heading = "Output")]
    pub directory: Option<PathBuf>,
    /// No progress, and no summary if all went well
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

/// How much is said about a run beside what its hosts say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Talk {
    /// What it does, and what came of it.
    Usual,
    /// What went wrong.
    Quiet,
}

impl Arguments {
    /// How much is said about the run.
    pub fn talk(&self) -> Talk {
        if self.quiet { Talk::Quiet } else { Talk::Usual }
    }

    /// What shows the output.
    pub fn view(&self, hosts: &[Host]) -> Box<dyn View> {
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
        let shown = if self.diff { Shown::Difference } else { Shown::Whole };
        let masks = self.mask.clone().unwrap_or_default();
        Box::new(Folded::new(hosts.iter().map(called).collect(), masks, shown, colour))
    }
}

/// Whether what stands on standard output has colours.
pub fn colour() -> Colour {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    if unwanted || is_dumb() || !std::io::stdout().is_terminal() { Colour::Off } else { Colour::On }
}

/// Whether the terminal can only write one line after another.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
