//! Task of a program between clients and backends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::context::Context;

#[derive(Clone, Debug)]
pub struct Front {
    /// Protocol that the program parses.
    pub protocol: Protocol,
    /// Address for clients. Programs without support for Unix sockets return an error.
    pub listen: Address,
    pub backend: Address,
    /// TLS termination; `None` for plain connections.
    pub tls: Option<Tls>,
    /// Cores of the program.
    pub place: CoreSet,
    /// Required number of client connections.
    pub connections: usize,
    /// Setting of splice(2), for programs that have one.
    pub splicing: Splicing,
    /// Headers to add, for programs that can be configured.
    pub headers: Headers,
    /// What the end of a backend does to a relayed connection, for programs that can be configured.
    pub backend_end: BackendEnd,
    /// What moves the bytes of TCP, for programs that have a choice.
    pub engine: Engine,
}

/// What moves the bytes of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The program's default.
    Default,
    /// epoll(7).
    Epoll,
}

/// What a relay does when the backend has closed its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendEnd {
    /// The program's default.
    Default,
    /// It closes the client's connection too, and does not wait for the client's end.
    EndsSession,
}

/// Headers that a program adds to requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// Typical headers of a load balancer: client address, protocol, host, and a request id that the client also
    /// receives.
    Added,
    /// None of these.
    Untouched,
}

/// Method of forwarding bytes without parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splicing {
    /// Inside the kernel (splice(2)).
    On,
    /// The program's default.
    Default,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreSet {
    Target,
    Load,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Tcp,
    Udp(Replies),
}

/// When a flow of datagrams ends, for programs that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// With the first reply.
    One,
    /// When it is idle.
    Any,
}

/// TLS termination. All programs allow resumption; the client decides.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Directory that contains only `NAME.crt` and `NAME.key`.
    pub directory: PathBuf,
    /// Certificate chain (PEM).
    pub certificate: PathBuf,
    /// Private key (PEM).
    pub key: PathBuf,
    /// Chain and key in one file, for programs that need it.
    pub combined: PathBuf,
    /// The only offered version, if the program can be restricted; otherwise the client selects it.
    pub version: TlsVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsVersion {
    V12,
    V13,
}

impl Front {
    /// Makes a task without TLS on the target's cores.
    pub fn new(protocol: Protocol, listen: Address, backend: Address) -> Self {
        Front {
            protocol,
            listen,
            backend,
            tls: None,
            place: CoreSet::Target,
            connections: CONNECTIONS,
            splicing: Splicing::Default,
            headers: Headers::Added,
            backend_end: BackendEnd::Default,
            engine: Engine::Default,
        }
    }

    /// Adds TLS termination.
    pub fn tls(self, tls: Tls) -> Self {
        Front { tls: Some(tls), ..self }
    }

    /// Sets the required number of client connections.
    pub fn connections(self, connections: usize) -> Self {
        Front { connections, ..self }
    }

    pub fn splicing(self, splicing: Splicing) -> Self {
        Front { splicing, ..self }
    }

    pub fn headers(self, headers: Headers) -> Self {
        Front { headers, ..self }
    }

    pub fn backend_end(self, backend_end: BackendEnd) -> Self {
        Front { backend_end, ..self }
    }

    pub fn engine(self, engine: Engine) -> Self {
        Front { engine, ..self }
    }

    pub fn on(self, place: CoreSet) -> Self {
        Front { place, ..self }
    }
}

impl CoreSet {
    pub fn cores(self, context: &Context) -> &[usize] {
        match self {
            CoreSet::Target => &context.cores.target,
            CoreSet::Load => &context.cores.load,
        }
    }
}

/// Default number of client connections in every program's configuration, if the descriptor limit allows it. With the
/// usual limit of 20,000 descriptors, haproxy refuses more than 8,000 connections (it reserves pipes).
pub const CONNECTIONS: usize = 4_000;

/// Number of connections that a program supports beyond those of a load, for connections of an earlier trial.
pub const SPARE: usize = 100;
