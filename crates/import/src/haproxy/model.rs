//! The sections of a file.

use std::collections::BTreeMap;

use super::route::{Acls, Rule};
use super::server::Server;

/// A value and its line.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Defaults,
    Frontend,
    Backend,
    Listen,
}

impl Kind {
    /// Whether clients arrive there.
    pub(super) fn takes_clients(self) -> bool {
        matches!(self, Self::Frontend | Self::Listen)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Tcp,
    Http,
}

text::words! {
    /// What follows `timeout`.
    pub(super) enum Timeout: "timeout" {
        Connect = "connect",
        Client = "client",
        Server = "server",
        HttpRequest = "http-request",
        HttpKeepAlive = "http-keep-alive",
        Queue = "queue",
        Tunnel = "tunnel",
        Check = "check",
    }
}

/// An active check.
#[derive(Clone, Debug)]
pub(super) struct HttpCheck {
    pub(super) path: String,
}

/// Settings that `defaults` passes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) mode: Option<At<Mode>>,
    pub(super) balance: Option<At<Vec<String>>>,
    pub(super) retries: Option<At<u64>>,
    pub(super) max_connections: Option<At<u64>>,
    /// In milliseconds.
    pub(super) timeouts: BTreeMap<Timeout, At<u64>>,
    pub(super) http_check: Option<At<HttpCheck>>,
    pub(super) expect: Option<At<String>>,
    pub(super) forward_for: Option<At<()>>,
    pub(super) default_backend: Option<At<String>>,
    pub(super) default_server: Vec<At<Vec<String>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Bind {
    pub(super) address: String,
    /// Directory or files of certificates, with TLS.
    pub(super) certificates: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) place: String,
    pub(super) settings: Settings,
    pub(super) binds: Vec<At<Bind>>,
    pub(super) servers: Vec<At<Server>>,
    pub(super) acls: Acls,
    pub(super) rules: Vec<At<Rule>>,
    /// Clients without TLS are sent to https.
    pub(super) redirect: Option<At<()>>,
    /// A page of statistics is served there.
    pub(super) statistics: bool,
}

impl Proxy {
    pub(super) fn mode(&self) -> Mode {
        self.settings.mode.as_ref().map_or(Mode::Tcp, |mode| mode.value)
    }

    pub(super) fn timeout(&self, timeout: Timeout) -> Option<&At<u64>> {
        self.settings.timeouts.get(&timeout)
    }
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) proxies: Vec<Proxy>,
    /// `maxconn` of `global`.
    pub(super) max_connections: Option<At<u64>>,
    pub(super) user: Option<At<String>>,
    pub(super) group: Option<At<String>>,
    pub(super) notes: Vec<crate::Note>,
}
