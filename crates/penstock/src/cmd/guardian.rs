//! `penstock upgrade-guardian`: the process that starts the next one at an upgrade. `penstock serve` starts it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::output::Failure;

/// Start the next process of `penstock ctl upgrade`
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A program that may be started, or a directory of such programs
    #[arg(long, value_name = "PATH")]
    allow: Vec<PathBuf>,
    /// The arguments of the next process
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    serve::upgrade::guardian::run(&arguments.allow, &arguments.arguments).map_err(|error| {
        Failure::usage(format_args!("upgrade-guardian is started by `penstock serve`: {error}"))
    })
}
