//! Converts the file's structs into a [`Config`]: each value is validated or causes a fault. A fault does not stop the
//! conversion, so that all faults are reported together. `None` means that the report contains the reason.

use std::time::Duration;

use logic::control_access::{Rules, Who};

mod access_log;
mod acl;
mod acme;
mod address;
mod admin;
mod backend_tls;
mod bandwidth;
mod bind;
mod bound;
mod control;
mod dns_name;
mod dsr;
mod duration;
mod events;
mod geoip;
mod header;
mod health;
mod hsts;
mod http2;
mod listener;
mod names;
mod otp;
mod parser;
mod passive;
mod pool;
mod process;
mod refused;
mod route;
mod size;
mod sticky;
mod tarpit;
mod tls;
mod tunnel;
mod udp;

use names::{AclNames, AcmeNames, PoolNames};
use parser::Parser;
use refused::Refused;

use crate::de::{At, Key};
use crate::environment::Environment;
use crate::error::Report;
use crate::quote::quote;
use crate::raw::RawConfig;
use crate::tree::Nodes;
use crate::types::{Config, Control};

/// Converts the whole configuration, with the files of its access lists. `None` if the report has errors.
pub(crate) fn parse(
    raw: &RawConfig,
    nodes: &Nodes,
    report: &mut Report,
    env: &Environment,
) -> Option<Config> {
    let mut parser = Parser::new(raw, nodes, report);
    let process = raw.process.as_ref().and_then(|process| parser.process(&process.value));
    parser.acme.keep_in(process.as_ref().and_then(|process| process.state_directory.as_deref()));
    let acme = parser.all_acme(raw);
    let geoip = parser.geoip(raw, env);
    parser.acls.countries = geoip.as_ref().map(|geoip| geoip.as_ref().map(|geoip| geoip.countries.clone()));
    let acls = parser.all_acls(raw, env);
    let access_log = raw.access_log.as_ref().and_then(|log| parser.access_log(&log.value));
    let events = raw.events.as_ref().and_then(|events| parser.events(&events.value));
    let mut control = parser.control(raw);
    let remote = parser.remote_control(raw);
    if let (Some(Some(control)), Some(remote)) = (&mut control, &remote) {
        control.remote.clone_from(remote);
    }
    let admin = parser.admin(raw, remote.as_ref().and_then(Option::as_ref));
    let listeners = parser.listeners(raw);
    let otp = parser.otp(raw, listeners.as_deref());
    let pools = parser.all_pools(raw);
    let tunnels = parser.tunnels(raw);
    parser.collisions(raw, control.as_ref().and_then(Option::as_ref));
    if let Some(pools) = &pools {
        parser.fallback_circles(raw, pools);
    }
    if let (Some(listeners), Some(pools)) = (&listeners, &pools) {
        parser.loops(raw, listeners, pools);
        parser.keys_of_tcp(raw, listeners, pools);
        parser.pools_of_udp(raw, listeners, pools);
        parser.pools_of_dsr(raw, listeners, pools);
        parser.paths_of_dsr(raw, listeners);
        parser.tarpits_of_dsr(raw, listeners);
        parser.preload_without_redirect(raw, listeners);
    }
    if !parser.report.has_errors() {
        parser.unused_pools();
        parser.unused_acls();
    }
    if let (Some(sections), Some(listeners)) = (&acme, &listeners) {
        parser.useless_acme(raw, sections, listeners);
    }
    Some(Config {
        process: process?,
        access_log: access_log?,
        events: events?,
        control: remote.and(flatten(control))?,
        admin: admin?,
        listeners: listeners?,
        pools: pools?,
        acls: acls?,
        geoip: geoip?,
        otp: otp?,
        acme: acme?,
        tunnels: tunnels?,
        variable_files: Vec::new(),
        included: Vec::new(),
    })
}

/// Converts only the control socket. `None` if the report has errors.
pub(crate) fn control(raw: &RawConfig, nodes: &Nodes, report: &mut Report) -> Option<Control> {
    let mut parser = Parser::new(raw, nodes, report);
    parser.control(raw).flatten()
}

/// Parses a duration outside a configuration file.
pub(crate) fn duration_of(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|Refused { reason, instead, .. }| {
        let instead = instead.map_or_else(String::new, |instead| format!("; {instead}"));
        format!("{} {reason}{instead}", quote(text))
    })
}

/// Converts an absent key to `Some(None)` and a refused value to `None`.
fn flatten<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(inner) => inner.map(Some),
    }
}

impl<'a> Parser<'a> {
    fn new(raw: &RawConfig, nodes: &'a Nodes, report: &'a mut Report) -> Self {
        let (pools, acme) = (PoolNames::new(raw), AcmeNames::new(raw));
        let validating = raw.otp.as_ref().and_then(|otp| otp.value.listeners.as_ref());
        let validating = validating.into_iter().flat_map(|names| &names.value);
        Parser {
            nodes,
            report,
            pools,
            acme,
            acls: AclNames::default(),
            validating: validating.map(|name| name.value.clone()).collect(),
            binds: Vec::new(),
            routes: 0,
        }
    }

    fn control(&mut self, raw: &RawConfig) -> Option<Option<Control>> {
        raw.control.as_ref().map(|control| {
            let socket = control.value.socket.as_ref()?;
            let socket = self.read(socket, address::unix_path);
            let (operators, readers) =
                (self.accounts(&control.value.operators), self.accounts(&control.value.readers));
            let access = Rules { operators: operators?, readers: readers? };
            Some(Control { socket: socket?, access, remote: None })
        })
    }

    /// Reads users and groups.
    fn accounts(&mut self, key: &Key<Vec<At<String>>>) -> Option<Vec<Who>> {
        // Where only this section is read, no default stands in for a key that is absent.
        let Some(key) = key else { return Some(Vec::new()) };
        let entries = &key.value;
        let read = |text: &str| text.parse::<Who>().map_err(|error| Refused::new(error.to_string()));
        let all: Vec<_> = entries.iter().filter_map(|entry| self.read(entry, read)).collect();
        (all.len() == entries.len()).then_some(all)
    }
}
