//! Finds the listener at which a session would arrive.

use std::sync::Arc;

use config::types::{BindAddress, Protocol};
use proxy::snapshot::{ListenerPlan, Snapshot};
use state::lock::lock;
use text::nearest::nearest;
use text::terminal::line;

use super::asked::{Asked, Configuration, Scheme};
use crate::report::why::Found;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenerError {
    #[error("no listener \"{}\"{}", line(.wanted), hint(.wanted, .all))]
    Unknown { wanted: String, all: Vec<String> },
    #[error("listener {} does not serve {scheme}: its protocol is {protocol}{}", line(.name), packets(.protocol))]
    Protocol { name: String, scheme: Scheme, protocol: &'static str },
    #[error("no listener serves {scheme}{}{}", port_words(.port), forwarded(.packets))]
    None {
        scheme: Scheme,
        port: Option<u16>,
        /// A `dsr` listener that has the port.
        packets: Option<String>,
    },
    #[error("several listeners could be meant: name one with --listener: {}", line(&.0.join(", ")))]
    Several(Vec<String>),
}

fn hint(wanted: &str, all: &[String]) -> String {
    match nearest(wanted, all.iter().map(String::as_str)) {
        Some(name) => format!(", did you mean \"{}\"?", line(name)),
        None => format!("; the listeners are: {}", line(&all.join(", "))),
    }
}

/// Packets are explained by another command.
fn packets(protocol: &str) -> &'static str {
    match protocol {
        "dsr" => "; penstock ctl dsr explain tells what happens with a packet",
        _ => "",
    }
}

fn forwarded(listener: &Option<String>) -> String {
    let Some(listener) = listener else { return String::new() };
    format!(": listener.{} forwards the packets of this port{}", line(listener), packets("dsr"))
}

fn port_words(port: &Option<u16>) -> String {
    port.map_or(String::new(), |port| format!(" on port {port}"))
}

pub(crate) fn find(snapshot: &Snapshot, asked: &Asked) -> Result<(Arc<ListenerPlan>, Found), ListenerError> {
    let scheme = asked.scheme;
    let is_bare = matches!(scheme, Scheme::Tcp | Scheme::Udp);
    let named = match &asked.listener {
        Some(name) => Some(name),
        None if is_bare && !is_address(&asked.authority) => Some(&asked.authority),
        None => None,
    };
    if let Some(name) = named {
        let plan = snapshot.listeners.get(name.as_str()).ok_or_else(|| ListenerError::Unknown {
            wanted: name.clone(),
            all: snapshot.config.listeners.iter().map(|listener| listener.name.to_string()).collect(),
        })?;
        if !serves(plan, scheme) {
            let protocol = plan.settings.protocol.name().as_str();
            return Err(ListenerError::Protocol { name: name.clone(), scheme, protocol });
        }
        return Ok((plan.clone(), Found::ByName));
    }
    // In the order of the file.
    let all = snapshot.config.listeners.iter().filter_map(|listener| snapshot.listeners.get(&listener.name));
    let serving: Vec<&Arc<ListenerPlan>> = all.filter(|plan| serves(plan, scheme)).collect();
    let port = asked.port();
    let on_port: Vec<_> = serving
        .iter()
        .filter(|plan| port.is_some_and(|port| has_port(plan, asked.configuration, port)))
        .collect();
    match (&on_port[..], &serving[..]) {
        ([plan], _) => Ok(((**plan).clone(), Found::ByPort)),
        ([], [plan]) => Ok(((*plan).clone(), Found::OnlyOne)),
        ([], []) => Err(ListenerError::None { scheme, port, packets: forwarding(snapshot, port) }),
        ([], _) if forwarding(snapshot, port).is_some() => {
            Err(ListenerError::None { scheme, port, packets: forwarding(snapshot, port) })
        }
        ([], all) => Err(ListenerError::Several(names(all.iter().copied()))),
        (several, _) => Err(ListenerError::Several(names(several.iter().map(|plan| **plan)))),
    }
}

/// The `dsr` listener with this port, or with every port.
fn forwarding(snapshot: &Snapshot, port: Option<u16>) -> Option<String> {
    let port = port?;
    let is_at = |bind: &BindAddress| bind.vip().is_some_and(|vip| vip.port() == port || vip.port() == 0);
    let all = &snapshot.config.listeners;
    let found = all.iter().find(|listener| listener.dsr().is_some() && listener.binds.iter().any(is_at))?;
    Some(found.name.to_string())
}

fn names<'a>(plans: impl Iterator<Item = &'a Arc<ListenerPlan>>) -> Vec<String> {
    plans.map(|plan| plan.settings.name.to_string()).collect()
}

fn serves(plan: &ListenerPlan, scheme: Scheme) -> bool {
    let has_tls = plan.settings.tls.is_some();
    match (&plan.settings.protocol, scheme) {
        (Protocol::Http(_), Scheme::Http) => !has_tls,
        (Protocol::Http(_), Scheme::Https) => has_tls,
        (Protocol::TlsPassthrough(_), Scheme::Https | Scheme::Tls) => true,
        (Protocol::Tcp(_), Scheme::Tcp) | (Protocol::Udp(_), Scheme::Udp) => true,
        (Protocol::Tcp(_), Scheme::Tls) => has_tls,
        _ => false,
    }
}

fn has_port(plan: &ListenerPlan, configuration: Configuration, port: u16) -> bool {
    let end = format!(":{port}");
    let is_bound =
        || lock(&plan.state.bound).iter().any(|bound| !bound.starts_with("unix:") && bound.ends_with(&end));
    match configuration {
        Configuration::Served => is_bound(),
        // Its addresses are not opened, and those of the listener that is served may be others.
        Configuration::Pending => plan.settings.binds.iter().any(|bind| match bind {
            BindAddress::AnyIp(0) => is_bound(),
            BindAddress::Ip(address) if address.port() == 0 => is_bound(),
            BindAddress::AnyIp(wanted) => *wanted == port,
            BindAddress::Ip(address) => address.port() == port,
            BindAddress::Systemd(_) => is_bound(),
            BindAddress::EveryPort(_) | BindAddress::Unix(_) => false,
        }),
    }
}

/// Whether the authority of a URL has a port, which the name of a listener has not.
fn is_address(authority: &str) -> bool {
    authority.contains(':')
}
