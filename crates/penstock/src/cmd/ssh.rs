//! `penstock ssh`: what the configuration says of a host, and what happens on the way to it.

mod config;
mod explain;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use logic::ssh::config::{Asked, Jump};
use ssh::{ConfigFiles, SshConfig};

pub use self::config::refuse;
use crate::output::Failure;

/// Understand SSH: what the configuration says of a host, why a login fails
///
/// Reads ~/.ssh/config and /etc/ssh/ssh_config as OpenSSH does.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
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
  penstock ssh config web1                    what holds for web1, and from which line of which file
  penstock ssh explain web1                   try to log in, and tell every step and what to do";

/// Whom a command is about.
#[derive(Debug, Args)]
pub struct Whom {
    // Not a doc comment: rustdoc takes brackets for a link.
    #[arg(help = "The host: NAME, USER@NAME or ssh://USER@NAME:PORT", value_name = "HOST")]
    host: String,
    /// Read this file instead of ~/.ssh/config and /etc/ssh/ssh_config; `none` reads none
    #[arg(long, short = 'F', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log in as this user
    #[arg(long, short = 'l', value_name = "USER")]
    login: Option<String>,
    /// Connect to this port
    #[arg(long, short, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    // Not a doc comment: rustdoc takes brackets for links.
    #[arg(
        long,
        short = 'J',
        value_name = "HOSTS",
        help = "Go through these hosts: [USER@]HOST[:PORT], with commas between them"
    )]
    jump: Option<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Whom {
    fn asked(&self) -> Result<Asked, Failure> {
        let parsed = Asked::parse(&self.host)
            .ok_or_else(|| Failure::usage(format!("\"{}\" is no host: NAME or USER@NAME", self.host)))?;
        let jump = self.jump.as_deref().map(Jump::parse).transpose().map_err(|part| {
            Failure::usage(format!("\"{part}\" is no host to go through: [USER@]HOST[:PORT]"))
        })?;
        Ok(Asked {
            user: self.login.clone().or(parsed.user),
            port: self.port.or(parsed.port),
            jump,
            ..parsed
        })
    }

    fn read(&self) -> Result<SshConfig, Failure> {
        let files = match &self.config {
            None => ConfigFiles::Usual,
            Some(path) if path.as_os_str().eq_ignore_ascii_case("none") => ConfigFiles::None,
            Some(path) => ConfigFiles::Only(path.clone()),
        };
        SshConfig::read(&files).map_err(Failure::runtime)
    }
}

/// Runs one of the commands.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Config(arguments) => config::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
    }
}
