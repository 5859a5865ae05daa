//! Command-line arguments that name a host.

use std::path::PathBuf;

use clap::Args;
use hosts::ssh::config::{Asked, Jump};
use ssh::{ConfigFiles, SshConfig};

use crate::output::Failure;

/// The argument that names the host to connect to.
#[derive(Debug, Args)]
pub(super) struct HostArguments {
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
    pub(super) json: bool,
}

impl HostArguments {
    pub(super) fn asked(&self) -> Result<Asked, Failure> {
        let parsed = Asked::parse(&self.host)
            .ok_or_else(|| Failure::usage(format!("\"{}\" is not a host: NAME or USER@NAME", self.host)))?;
        let jump = self.jump.as_deref().map(Jump::parse).transpose().map_err(|part| {
            Failure::usage(format!("\"{part}\" is not a valid jump host: [USER@]HOST[:PORT]"))
        })?;
        Ok(Asked {
            user: self.login.clone().or(parsed.user),
            port: self.port.or(parsed.port),
            jump,
            ..parsed
        })
    }

    pub(super) fn read(&self) -> Result<SshConfig, Failure> {
        let files = match &self.config {
            None => ConfigFiles::Usual,
            Some(path) if path.as_os_str().eq_ignore_ascii_case("none") => ConfigFiles::None,
            Some(path) => ConfigFiles::Only(path.clone()),
        };
        SshConfig::read(&files).map_err(Failure::runtime)
    }
}
