//! Measured servers, started as processes with generated configurations.
//!
//! All programs get equal conditions: one thread or process each, the same limits, no logs, no features that the
//! scenario does not need, persistent connections to backends where the program supports them. The report contains the
//! configuration so that a reader can check it.

use std::env;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use self::front::{Front, SPARE};
use self::prepared::{Prepared, Target};
use crate::context::Context;
use crate::error::Error;
use crate::{process, version};

pub mod backend;
pub mod certificate;
pub mod front;
pub mod gunicorn;
pub mod haproxy;
pub mod hitch;
pub mod nginx;
pub mod pen;
pub mod penstock;
pub mod prepared;
pub mod sshd;

/// A program between clients and backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    Penstock,
    Haproxy,
    Nginx,
    /// pen: TCP and UDP.
    Pen,
    /// hitch: TLS only.
    Hitch,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Penstock => "penstock",
            Program::Haproxy => "haproxy",
            Program::Nginx => "nginx",
            Program::Pen => "pen",
            Program::Hitch => "hitch",
        }
    }

    /// Debian package that contains the program.
    pub fn package(self) -> &'static str {
        match self {
            Program::Penstock => "penstock",
            Program::Haproxy => "haproxy",
            Program::Nginx => "nginx-light",
            Program::Pen => "pen",
            Program::Hitch => "hitch",
        }
    }

    /// Environment variable with the path of another build of the program than the installed one, such as `HAPROXY`.
    pub fn variable(self) -> String {
        self.name().to_uppercase()
    }

    /// Finds the program to measure: this one, or [`Self::peer`].
    pub fn find(self, context: &Context) -> Result<PathBuf, Error> {
        match self {
            Program::Penstock => Ok(context.program.clone()),
            other => other.peer(),
        }
    }

    /// Finds another project's program: the one that its [variable](Self::variable) names, or the installed one.
    pub fn peer(self) -> Result<PathBuf, Error> {
        self.peer_at(env::var_os(self.variable()).map(PathBuf::from))
    }

    fn peer_at(self, named: Option<PathBuf>) -> Result<PathBuf, Error> {
        match named {
            None => process::find(self.name(), self.package()),
            Some(path) if path.is_file() => Ok(path),
            Some(path) => Err(Error::NoProgram { variable: self.variable(), path }),
        }
    }

    /// TLS library that the program says it runs with; `None` if it does not say it.
    pub fn tls_library(self, context: &Context) -> Option<String> {
        let arguments = match self {
            Program::Penstock => return Some("rustls with AWS-LC".to_owned()),
            Program::Haproxy => "-vv",
            Program::Nginx => "-V",
            Program::Pen | Program::Hitch => return None,
        };
        version::tls_library(&version::output(&self.find(context).ok()?, &[arguments])?)
    }

    /// Version that the program reports.
    pub fn version(self, context: &Context) -> Option<String> {
        let path = self.find(context).ok()?;
        context.version_of(self.name(), || match self {
            Program::Penstock | Program::Hitch => version::of(&path, &["--version"]),
            Program::Haproxy | Program::Nginx => version::of(&path, &["-v"]),
            Program::Pen => version::of_package("pen").map(|version| format!("pen {version}")),
        })
    }

    /// Starts the program on the cores of `front.place` and waits until it listens.
    pub fn start(self, context: &Context, front: &Front) -> Result<Target, Error> {
        self.prepare(context, front)?.start(context, &front.listen)
    }

    /// Writes the program's configuration and builds its command, pinned to the cores of `front.place`.
    pub fn prepare(self, context: &Context, front: &Front) -> Result<Prepared, Error> {
        let path = self.find(context)?;
        let connections = context.holdable(front.connections.saturating_sub(SPARE)) + SPARE;
        let front = &front.clone().connections(connections);
        let mut prepared = match self {
            Program::Penstock => penstock::prepare(context, &path, front),
            Program::Haproxy => haproxy::prepare(context, &path, front),
            Program::Nginx => nginx::prepare(context, &path, front),
            Program::Pen => pen::prepare(context, &path, front),
            Program::Hitch => hitch::prepare(context, &path, front),
        }?;
        prepared.launch.cores = front.place.cores(context).to_vec();
        Ok(prepared)
    }
}

#[cfg(test)]
mod tests;
