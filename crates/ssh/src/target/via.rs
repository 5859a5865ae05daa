//! The jump host that an identity file names: `addr ... via=gate`. The gate is a host like any other: judged by its own
//! identity file, configured by its own block of `ssh_config`, and perhaps reached through another gate.

use std::net::IpAddr;

use hosts::fleet::ending::{Failure, Phase, Reason};
use hosts::identity::{Damage, Found, Index, Name, Verdict, refuse_damaged};
use hosts::ssh::config::Asked;

use super::{Before, LONGEST_WAY, Proxy, Target};
use crate::config::SshConfig;
use crate::trouble::advised;

impl Target {
    /// Sets `via` as the jump host, in place of any other route.
    ///
    /// # Errors
    /// A fault in the configuration of `via`, or a host that is reached through itself.
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
        // The gate resolves the name and does not know the hints, so it gets an address from the hints.
        let is_name = self.host.parse::<IpAddr>().is_err() && self.host.eq_ignore_ascii_case(&self.name);
        let hint = self.addresses.known.first().or(self.addresses.hints.first());
        if let Some(address) = hint.filter(|_| is_name && self.said.host.is_none()) {
            self.host = address.to_string();
        }
        Ok(())
    }
}

/// Applies the hints to a host and its jump hosts. `way` has the identities that are reached through this host.
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
        // The judge would refuse the host anyway. The damaged file gives no address; without this error, the DNS would
        // be reported as the cause.
        Found::Damaged(damage) => return Err(refused(&target.name, damage)),
        // Several hosts may share one HostKeyAlias, so its hints do not apply to them.
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

/// Returns true if `host` is the last jump host.
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

/// Returns the host's name in its identity file; its host name and port if there is no file, or if several hosts share
/// an identity.
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

/// Returns the jump hosts of a host, followed by the host itself.
fn unrolled(mut gate: Target) -> Vec<Target> {
    let mut hops = Vec::new();
    if let Proxy::Jump(nearer) = &mut gate.proxy {
        hops.append(nearer);
        gate.proxy = Proxy::None;
    }
    hops.push(gate);
    hops
}

/// Fails if the chain has more than [`LONGEST_WAY`] hosts.
fn bounded(chain: Vec<Target>) -> Result<Vec<Target>, Failure> {
    let names = || chain.iter().map(|hop| hop.name.to_ascii_lowercase()).collect::<Vec<_>>();
    if chain.len() > LONGEST_WAY { Err(too_long(&names())) } else { Ok(chain) }
}

fn loops(way: &[String]) -> Failure {
    let first = way.first().map_or("", String::as_str);
    let detail =
        format!("{first}: via= in the files of hosts goes through the same host again: {}", way.join(" -> "));
    let advice = "take via= out of one of these files, or say `ProxyJump none` for it in ~/.ssh/config";
    advised(Phase::Queued, Reason::BadConfiguration, detail, advice)
}

fn too_long(way: &[String]) -> Failure {
    let last = way.last().map_or("", String::as_str);
    let detail = format!("the way to {last} is longer than {LONGEST_WAY} hosts: {}", way.join(" -> "));
    advised(Phase::Queued, Reason::BadConfiguration, detail, "take ProxyJump or via= out of one of them")
}
