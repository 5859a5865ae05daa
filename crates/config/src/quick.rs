//! Configuration without a file: flags are converted to a document with one listener `main` and one pool `main`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use crate::error::Report;
use crate::quote::quote;
use crate::tree::{Node, NodeId, Nodes, Origin, Spans, Step, Table, Value};

/// Variables of the flags below, after `PENSTOCK_`: a flag that is not given has the value of its variable.
pub const VARIABLES: [&str; 11] = [
    "LISTEN",
    "BACKEND",
    "DSR",
    "PROTOCOL",
    "BALANCE",
    "HEALTH",
    "CONTROL",
    "ADMIN",
    "CERTIFICATES",
    "WORKERS",
    "ACCESS_LOG",
];

/// Flags of `penstock serve` that replace a file.
#[derive(Clone, Debug, Default)]
pub struct Quick {
    /// `--listen`, in the formats of `bind`; at least one.
    pub listen: Vec<String>,
    /// `--backend`: `ADDRESS`, or `ADDRESS,weight=2,max-connections=10`; at least one.
    pub backends: Vec<String>,
    /// `--dsr`: network interface; packets are forwarded then, and backends without a port have that of the first `--listen`.
    pub dsr: Option<String>,
    /// `--protocol`; with `--dsr` the transport.
    pub protocol: Option<String>,
    /// `--balance`
    pub balance: Option<String>,
    /// `--health`: a path such as `/healthz`, `tcp`, or `off`.
    pub health: Option<String>,
    /// `--control`: path of the control socket.
    pub control: Option<String>,
    /// `--admin`: address of the admin listener.
    pub admin: Option<String>,
    /// `--certificates`: directory; the listener then speaks TLS.
    pub certificates: Option<String>,
    /// `--workers`: a number, or `auto`.
    pub workers: Option<String>,
    /// `--access-log`: destination, as `access-log.target`.
    pub access_log: Option<String>,
}

impl Quick {
    /// Builds the document that a file would contain.
    pub(crate) fn document(&self, nodes: &mut Nodes, report: &mut Report) -> Table {
        let mut root = Table::default();
        nodes.add(None, Step::Root, Spans::default(), Origin::File);
        let mut writer = Writer { nodes, report };

        if let Some(workers) = &self.workers {
            let workers = number_or_text(workers);
            writer.section(&mut root, "process", "--workers", |writer, id, table| {
                writer.put(table, id, "workers", "--workers", workers);
            });
        }
        if let Some(target) = &self.access_log {
            writer.section(&mut root, "access-log", "--access-log", |writer, id, table| {
                writer.put(table, id, "target", "--access-log", Value::Text(target.clone()));
            });
        }
        if let Some(socket) = &self.control {
            writer.section(&mut root, "control", "--control", |writer, id, table| {
                writer.put(table, id, "socket", "--control", Value::Text(socket.clone()));
            });
        }
        if let Some(bind) = &self.admin {
            writer.section(&mut root, "admin", "--admin", |writer, id, table| {
                writer.put(table, id, "bind", "--admin", Value::Text(bind.clone()));
            });
        }
        writer.section(&mut root, "listener", "--listen", |writer, id, listeners| {
            writer.table(listeners, id, "main", "--listen", |writer, id, table| {
                self.listener(writer, id, table)
            });
        });
        writer.section(&mut root, "pool", "--backend", |writer, id, pools| {
            writer.table(pools, id, "main", "--backend", |writer, id, table| self.pool(writer, id, table));
        });
        root
    }

    fn listener(&self, writer: &mut Writer<'_>, id: NodeId, table: &mut Table) {
        writer.list(table, id, "bind", "--listen", |writer, list| {
            self.listen
                .iter()
                .enumerate()
                .map(|(at, text)| writer.entry(list, at, "--listen", Value::Text(text.clone())))
                .collect()
        });
        let text = |text: &str| Value::Text(text.to_owned());
        match (&self.dsr, &self.protocol) {
            (Some(interface), transport) => {
                writer.put(table, id, "protocol", "--dsr", text("dsr"));
                writer.put(table, id, "interface", "--dsr", text(interface));
                if let Some(transport) = transport.as_ref().filter(|word| *word != "dsr") {
                    writer.put(table, id, "transport", "--protocol", text(transport));
                }
            }
            (None, Some(protocol)) => writer.put(table, id, "protocol", "--protocol", text(protocol)),
            (None, None) => {}
        }
        if let Some(directory) = &self.certificates {
            writer.table(table, id, "tls", "--certificates", |writer, id, tls| {
                writer.put(tls, id, "certificates", "--certificates", Value::Text(directory.clone()));
            });
        }
        writer.put(table, id, "pool", "--backend", Value::Text("main".into()));
    }

    fn pool(&self, writer: &mut Writer<'_>, id: NodeId, table: &mut Table) {
        writer.list(table, id, "backends", "--backend", |writer, list| {
            let entries = self.backends.iter().enumerate();
            entries.filter_map(|(at, text)| writer.backend(list, at, &self.with_port(text))).collect()
        });
        match (&self.balance, &self.dsr) {
            (Some(balance), _) => writer.put(table, id, "balance", "--balance", Value::Text(balance.clone())),
            // The only one that a dsr listener has.
            (None, Some(_)) => writer.put(table, id, "balance", "--dsr", Value::Text("maglev".into())),
            (None, None) => {}
        }
        match &self.health {
            Some(path) if path.starts_with('/') => {
                writer.table(table, id, "health", "--health", |writer, id, health| {
                    writer.put(health, id, "http", "--health", Value::Text(path.clone()));
                });
            }
            Some(word) => writer.put(table, id, "health", "--health", Value::Text(word.clone())),
            None => {}
        }
    }
}

impl Quick {
    /// A backend of a `dsr` listener has the port of the service, unless it is written.
    fn with_port<'t>(&self, backend: &'t str) -> Cow<'t, str> {
        let port = match self.listen.first().and_then(|listen| listen.rsplit_once(':')) {
            // Only the check of the backend has one.
            Some((_, "*")) => None,
            // A mistake there is told, and is none of the backends.
            written => Some(written.and_then(|(_, port)| port.parse().ok()).unwrap_or(80)),
        };
        let (Some(_), Some(port)) = (&self.dsr, port) else { return backend.into() };
        let (address, options) = backend.split_at(backend.find(',').unwrap_or(backend.len()));
        let inside = address.strip_prefix('[').and_then(|inside| inside.strip_suffix(']'));
        match inside.unwrap_or(address).parse::<IpAddr>() {
            Ok(ip) => format!("{}{options}", SocketAddr::new(ip, port)).into(),
            Err(_) => backend.into(),
        }
    }
}

struct Writer<'a> {
    nodes: &'a mut Nodes,
    report: &'a mut Report,
}

impl Writer<'_> {
    fn section(
        &mut self,
        root: &mut Table,
        key: &str,
        flag: &'static str,
        fill: impl FnOnce(&mut Self, NodeId, &mut Table),
    ) {
        self.table(root, Nodes::ROOT, key, flag, fill);
    }

    fn table(
        &mut self,
        parent: &mut Table,
        parent_id: NodeId,
        key: &str,
        flag: &'static str,
        fill: impl FnOnce(&mut Self, NodeId, &mut Table),
    ) {
        let id = self.nodes.add(Some(parent_id), Step::Key(key.into()), Spans::default(), Origin::Flag(flag));
        let mut table = Table::default();
        fill(self, id, &mut table);
        parent.push(key, Node { id, value: Value::Table(table) });
    }

    fn list(
        &mut self,
        parent: &mut Table,
        parent_id: NodeId,
        key: &str,
        flag: &'static str,
        entries: impl FnOnce(&mut Self, NodeId) -> Vec<Node>,
    ) {
        let id = self.nodes.add(Some(parent_id), Step::Key(key.into()), Spans::default(), Origin::Flag(flag));
        let entries = entries(self, id);
        parent.push(key, Node { id, value: Value::List(entries) });
    }

    fn entry(&mut self, list: NodeId, at: usize, flag: &'static str, value: Value) -> Node {
        let id = self.nodes.add(Some(list), Step::Entry(at), Spans::default(), Origin::Flag(flag));
        Node { id, value }
    }

    fn put(&mut self, table: &mut Table, parent: NodeId, key: &str, flag: &'static str, value: Value) {
        let id = self.nodes.add(Some(parent), Step::Key(key.into()), Spans::default(), Origin::Flag(flag));
        table.push(key, Node { id, value });
    }

    /// Parses `ADDRESS[,KEY=NUMBER...]`. A path may contain commas: only final parts with a `=` are options.
    fn backend(&mut self, list: NodeId, at: usize, text: &str) -> Option<Node> {
        const KEYS: [&str; 2] = ["weight", "max-connections"];
        let flag = "--backend";
        let id = self.nodes.add(Some(list), Step::Entry(at), Spans::default(), Origin::Flag(flag));
        let mut address = text;
        let mut options = Vec::new();
        while let Some((before, option)) = address.rsplit_once(',') {
            let Some((key, value)) = option.split_once('=') else {
                break;
            };
            if !KEYS.contains(&key) {
                let message = format!("{} is not an option of a backend", quote(key));
                drop(self.report.at(self.nodes, id, message).hint("ADDRESS,weight=2,max-connections=10"));
                return None;
            }
            options.push((key, value));
            address = before;
        }
        if options.is_empty() {
            return Some(Node { id, value: Value::Text(text.to_owned()) });
        }
        let mut table = Table::default();
        self.put(&mut table, id, "address", flag, Value::Text(address.to_owned()));
        for (key, value) in options.into_iter().rev() {
            if table.get(key).is_some() {
                drop(self.report.at(self.nodes, id, format!("{key} is given twice")));
                return None;
            }
            self.put(&mut table, id, key, flag, number_or_text(value));
        }
        Some(Node { id, value: Value::Table(table) })
    }
}

fn number_or_text(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Integer)
}
