//! What is measured: servers started as processes with generated configurations.
//!
//! Fair means: one thread or process each, the same limits, no logs, no features that nobody asked for, connections to
//! backends kept where the program can. The configuration is part of the report, so that anybody can object.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::machine;
use crate::process::{self, Launch, Process};

pub mod backend;
pub mod certificate;
pub mod gunicorn;
pub mod haproxy;
pub mod hitch;
pub mod nginx;
pub mod pen;
pub mod penstock;
pub mod sshd;

/// A program that stands between clients and backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// This one.
    Penstock,
    /// HAProxy.
    Haproxy,
    /// nginx.
    Nginx,
    /// pen: TCP only.
    Pen,
    /// hitch: TLS only.
    Hitch,
}

/// What a program is to do.
#[derive(Clone, Debug)]
pub struct Front {
    /// What it understands of the traffic.
    pub protocol: Protocol,
    /// Where clients arrive. Programs that cannot do Unix sockets say so.
    pub listen: Address,
    /// Where it sends them.
    pub backend: Address,
    /// Terminate TLS.
    pub tls: Option<Tls>,
    /// On whose cores it runs.
    pub place: Place,
    /// Client connections that it must be able to hold.
    pub connections: usize,
    /// How it passes bytes on, where it can be told.
    pub splicing: Splicing,
    /// What it adds to requests and responses, where it can be told.
    pub headers: Headers,
}

/// What a program adds to requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// What a front door adds: who called, how and whom, and a number for each request, which the client gets too.
    /// penstock always does.
    Added,
    /// Nothing that it does not add by itself.
    Untouched,
}

/// How a program passes bytes on that it need not look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splicing {
    /// Inside the kernel (splice(2)).
    On,
    /// As it does by itself.
    Default,
}

/// On whose cores a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Those of what is measured.
    Target,
    /// Those of load and backends.
    Load,
}

/// What a program understands of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Requests and responses.
    Http,
    /// Bytes.
    Tcp,
}

/// TLS termination. Sessions can be resumed with every program: whether they are, the client decides.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Directory that holds `NAME.crt` and `NAME.key` and nothing else.
    pub directory: PathBuf,
    /// Certificate chain (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// Key after chain in one file, for programs that want that.
    pub combined: PathBuf,
    /// The only version that is offered, where the program can be told; else it leaves that to the client.
    pub version: TlsVersion,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsVersion {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

/// A program that is up, with the configuration it runs with.
#[derive(Debug)]
pub struct Target {
    /// Its process: the root of its tree.
    pub process: Process,
    /// As a reader could use it.
    pub configuration: String,
    /// Where clients arrive.
    pub address: Address,
}

impl Front {
    /// A front without TLS on the target's cores.
    pub fn new(protocol: Protocol, listen: Address, backend: Address) -> Self {
        Front {
            protocol,
            listen,
            backend,
            tls: None,
            place: Place::Target,
            connections: CONNECTIONS,
            splicing: Splicing::Default,
            headers: Headers::Added,
        }
    }

    /// Makes it terminate TLS.
    pub fn tls(self, tls: Tls) -> Self {
        Front { tls: Some(tls), ..self }
    }

    /// Makes it hold so many client connections.
    pub fn connections(self, connections: usize) -> Self {
        Front { connections, ..self }
    }

    /// Tells it how to pass bytes on.
    pub fn splicing(self, splicing: Splicing) -> Self {
        Front { splicing, ..self }
    }

    /// Tells it what to add.
    pub fn headers(self, headers: Headers) -> Self {
        Front { headers, ..self }
    }

    /// Moves it.
    pub fn on(self, place: Place) -> Self {
        Front { place, ..self }
    }
}

impl Place {
    /// The cores themselves.
    pub fn cores(self, context: &Context) -> &[usize] {
        match self {
            Place::Target => &context.cores.target,
            Place::Load => &context.cores.load,
        }
    }
}

impl Program {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Program::Penstock => "penstock",
            Program::Haproxy => "haproxy",
            Program::Nginx => "nginx",
            Program::Pen => "pen",
            Program::Hitch => "hitch",
        }
    }

    /// The Debian package that has it.
    pub fn package(self) -> &'static str {
        match self {
            Program::Penstock => "penstock",
            Program::Haproxy => "haproxy",
            Program::Nginx => "nginx-light",
            Program::Pen => "pen",
            Program::Hitch => "hitch",
        }
    }

    /// Where it is on this machine.
    pub fn find(self, context: &Context) -> Result<PathBuf, Error> {
        match self {
            Program::Penstock => Ok(context.program.clone()),
            other => process::find(other.name(), other.package()),
        }
    }

    /// What it says about its version.
    pub fn version(self, context: &Context) -> Option<String> {
        let path = self.find(context).ok()?;
        context.version_of(self.name(), || match self {
            Program::Penstock | Program::Hitch => machine::version(&path, &["--version"]),
            Program::Haproxy | Program::Nginx => machine::version(&path, &["-v"]),
            Program::Pen => machine::package_version("pen").map(|version| format!("pen {version}")),
        })
    }

    /// Starts it on its place's cores and waits until it listens.
    pub fn start(self, context: &Context, front: &Front) -> Result<Target, Error> {
        let Prepared { launch, configuration } = self.prepare(context, front)?;
        let mut process = Process::start(context, &launch)?;
        process.wait_listening(context, &front.listen)?;
        Ok(Target { process, configuration, address: front.listen.clone() })
    }

    /// Writes its configuration and says how it is started, on its place's cores.
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

/// A program that is ready to be started.
#[derive(Debug)]
pub struct Prepared {
    /// How.
    pub launch: Launch,
    /// The file or the command line that says what it does.
    pub configuration: String,
}

/// `ADDR:PORT` or an error: for programs that know no Unix sockets there.
fn tcp_only(program: &str, what: &str, address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(address) => Ok(address.to_string()),
        _ => Err(unsupported(program, what)),
    }
}

fn unsupported(program: &str, what: &str) -> Error {
    Error::Unsupported {
        what: format!("{what} with {program}"),
        why: "the program does not have it".to_owned(),
    }
}

/// Client connections that every program is configured for, if nothing else is said and the limit of descriptors allows
/// it. With the usual limit of 20,000 haproxy refuses to start with more than 8,000, because it reserves pipes for
/// splicing.
pub const CONNECTIONS: usize = 4_000;

/// Connections that a program holds beyond those of a load, for those that come before.
pub const SPARE: usize = 100;

#[cfg(test)]
mod tests;
