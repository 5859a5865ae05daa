//! The way to a host that its identity file names: `addr ... via=gate`. The gate is a host like any other, judged by its own
//! file and configured by its own block of `ssh_config`, and may itself be behind another one.

use std::net::IpAddr;

use logic::fleet::ending::{Failure, Phase, Reason};
use logic::identity::{Damage, Found, Index, Name, Verdict, refuse_damaged};
use logic::ssh::config::Asked;

use super::{Before, LONGEST_WAY, Proxy, Target};
use crate::config::SshConfig;
use crate::trouble::advised;

impl Target {
    /// The same, reached through `via`, whatever else is said of the way to it.
    ///
    /// # Errors
    /// What is wrong with the configuration of that host; hosts that are reached through themselves.
    pub fn via(mut self, via: &Name, config: &SshConfig, index: &Index) -> Result<Self, Failure> {
        let mut way = vec![identity(&self, index)];
        self.lead_through(via, config, index, &mut way)?;
        Ok(self)
    }

    fn lead_through(
        &mut self,
        via: &Name,
        config: &SshConfig,
        index: &Index,
        way: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let (name, port) = via.split_port();
        let asked = Asked { host: name.to_owned(), port, ..Asked::default() };
        let gate = Target::from_config(config, &asked)?.target;
        let gate = placed(gate, Before::Own, config, index, way)?;
        self.proxy = Proxy::Jump(bounded(unrolled(gate))?);
        // The gate looks a name up, and knows nothing of our hints.
        let is_name = self.host.parse::<IpAddr>().is_err() && self.host.eq_ignore_ascii_case(&self.name);
        let hint = self.addresses.known.first().or(self.addresses.hints.first());
        if let Some(address) = hint.filter(|_| is_name && self.said.host.is_none()) {
            self.host = address.to_string();
        }
        Ok(())
    }
}

/// A host with its hints, and everything before it. `way` is the identities that are being reached through this one.
pub(super) fn placed(
    mut target: Target,
    before: Before,
    config: &SshConfig,
    index: &Index,
    way: &mut Vec<String>,
) -> Result<Target, Failure> {
    let here = identity(&target, index);
    let is_loop = way.contains(&here);
    if is_loop || way.len() > LONGEST_WAY {
        way.push(here);
        return Err(if is_loop { loops(way) } else { too_long(way) });
    }
    let via = match index.find(&target.name, target.port) {
        // It will be refused. Where it is, its file does not tell: the DNS must not be blamed for that.
        Found::Damaged(damage) => return Err(refused(&target.name, damage)),
        // Several hosts may have one HostKeyAlias: its hints are not theirs.
        Found::Host(host) if target.said.alias.is_none() => {
            target.said.unused_port = host.port();
            host.address().via
        }
        _ => None,
    };
    target.found_by(index);
    target.said.unused_port = target.said.unused_port.filter(|own| *own != target.port);
    way.push(here);
    if before == Before::Own && (target.said.proxy.is_some() || target.proxy != Proxy::None) {
        target.said.unused_via = via.as_ref().filter(|via| !leads_through(&target.proxy, via)).cloned();
    }
    match &mut target.proxy {
        Proxy::Jump(hops) => {
            let mut chain = Vec::new();
            for (at, hop) in std::mem::take(hops).into_iter().enumerate() {
                let before = if at == 0 { Before::Own } else { Before::Chosen };
                chain.extend(unrolled(placed(hop, before, config, index, way)?));
            }
            *hops = bounded(chain)?;
        }
        Proxy::None if before == Before::Own && target.said.proxy.is_none() => {
            if let Some(via) = via {
                target.lead_through(&via, config, index, way)?;
            }
        }
        Proxy::None | Proxy::Command(_) => {}
    }
    way.pop();
    Ok(target)
}

/// Whether a host is the last one on that way.
fn leads_through(proxy: &Proxy, host: &Name) -> bool {
    let Proxy::Jump(hops) = proxy else { return false };
    hops.last().is_some_and(|hop| hop.name.eq_ignore_ascii_case(host.split_port().0))
}

fn refused(name: &str, damage: &Damage) -> Failure {
    match refuse_damaged(name, damage) {
        Verdict::Refused { reason, message, advice } => advised(Phase::Queued, reason, message, &advice),
        Verdict::Accepted { .. } => {
            advised(Phase::Queued, Reason::Internal, name.to_owned(), "please report this")
        }
    }
}

/// What a host is called in its file; else, and where several hosts share an identity, the place that it is at.
fn identity(target: &Target, index: &Index) -> String {
    let place = |name: &str| format!("{}:{}", name.to_ascii_lowercase(), target.port);
    if target.said.alias.is_some() {
        return place(&target.host);
    }
    match index.find(&target.name, target.port) {
        Found::Host(host) if !host.is_elsewhere(target.port) => host.name().to_string(),
        _ if target.port == 22 => target.name.to_ascii_lowercase(),
        _ => place(&target.name),
    }
}

/// The hosts before a host, and it.
fn unrolled(mut gate: Target) -> Vec<Target> {
    let mut hops = Vec::new();
    if let Proxy::Jump(nearer) = &mut gate.proxy {
        hops.append(nearer);
        gate.proxy = Proxy::None;
    }
    hops.push(gate);
    hops
}

/// Not more than [`LONGEST_WAY`] hosts.
fn bounded(chain: Vec<Target>) -> Result<Vec<Target>, Failure> {
    let names = || chain.iter().map(|hop| hop.name.to_ascii_lowercase()).collect::<Vec<_>>();
    if chain.len() > LONGEST_WAY { Err(too_long(&names())) } else { Ok(chain) }
}

fn loops(way: &[String]) -> Failure {
    let first = way.first().map_or("", String::as_str);
    let detail =
        format!("{first}: via= in the files of hosts goes through the same host again: {}", way.join(" -> "));
    let advice = "take via= out of one of these files, or say `ProxyJump none` for it in ~/.ssh/config";
    advised(Phase::Queued, Reason::Configuration, detail, advice)
}

fn too_long(way: &[String]) -> Failure {
    let last = way.last().map_or("", String::as_str);
    let detail = format!("the way to {last} is longer than {LONGEST_WAY} hosts: {}", way.join(" -> "));
    advised(Phase::Queued, Reason::Configuration, detail, "take ProxyJump or via= out of one of them")
}
