//! How the output of a run is shown.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use fleet::run::output::View;
use fleet::run::view::Colour;
use fleet::run::view::json::Json;
use fleet::run::view::stream::Lines;

/// Ways to show output.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct Arguments {
    /// Each line as it comes, with its host before it [default]
    #[arg(long = "stream", short = 'f', help_heading = "Output")]
    pub stream: bool,
    /// One JSON object per line: events as they come, and a summary
    #[arg(long, conflicts_with = "stream", help_heading = "Output")]
    pub json: bool,
    /// Also keep each host's output in this directory, as HOST.out and HOST.err
    #[arg(long = "output", short = 'o', value_name = "DIRECTORY", help_heading = "Output")]
    pub directory: Option<PathBuf>,
    /// No progress, and no summary if all went well
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

impl Arguments {
    /// Whether less is said about the run.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// What shows the output.
    pub fn view(&self, names: &[String]) -> Box<dyn View> {
        if self.json {
            return Box::new(Json::new(names));
        }
        let plain = !std::io::stdout().is_terminal()
            || std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        Box::new(Lines::new(names, if plain { Colour::Off } else { Colour::On }))
    }
}
