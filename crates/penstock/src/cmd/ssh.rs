//! `penstock ssh`: shows the SSH configuration of a host, and explains a connection to it.

mod config;
mod explain;
mod host_arguments;

use clap::{Args, Subcommand};

pub(crate) use self::config::refuse;
use crate::output::Failure;

/// Understand SSH: what the configuration says of a host, why a login fails
///
/// Reads ~/.ssh/config and /etc/ssh/ssh_config as OpenSSH does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Config(config::Arguments),
    Explain(explain::Arguments),
}

const EXAMPLES: &str = "\
Examples:
  penstock ssh config web1                    the settings for web1, and the file and line of each
  penstock ssh explain web1                   try to log in, show every step and what to do";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Config(arguments) => config::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
    }
}
