//! `tarpit-networks` of a `dsr` listener: addresses that no machine has.

use ipnet::IpNet;
use logic::dsr::tarpit::{NETWORKS, Rules};
use logic::peers::PeerSetEntry;

use crate::de::At;
use crate::parse::parser::{Parser, small};
use crate::raw::{RawConfig, RawListener};
use crate::types::Listener;

impl Parser<'_> {
    pub(super) fn unused_addresses(&mut self, at: &At<RawListener>) -> Option<Option<Rules>> {
        let raw = &at.value;
        let key = raw.tarpit_networks.as_ref()?;
        let mut networks = Vec::new();
        let mut faults = 0;
        for entry in &key.value {
            let reason = match entry.value.as_ref().parse::<PeerSetEntry>() {
                Ok(PeerSetEntry::Network(network)) => match wrong(&network) {
                    None => {
                        networks.push(network);
                        continue;
                    }
                    Some(reason) => reason.to_owned(),
                },
                Ok(PeerSetEntry::Unix) => "is no network".to_owned(),
                Err(error) => {
                    faults += 1;
                    drop(self.refuse_with(entry, &error));
                    continue;
                }
            };
            faults += 1;
            drop(self.refuse(entry, &reason).hint("tarpit-networks = [\"192.0.2.128/25\"]"));
        }
        if networks.len() > NETWORKS {
            let message = format!("a listener has at most {NETWORKS} networks of unused addresses");
            drop(self.report.at_key(self.nodes, key.id, message).hint("name larger networks"));
            return None;
        }
        if networks.is_empty() {
            return (faults == 0).then_some(None);
        }
        let rate = small(raw.tarpit_rate.as_ref()?.value);
        (faults == 0).then_some(Some(Rules { networks, rate }))
    }

    /// Reports networks of which two listeners would answer for the same addresses.
    pub(in crate::parse) fn tarpits_of_dsr(&mut self, raw: &RawConfig, listeners: &[Listener]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        let all: Vec<_> = listeners
            .iter()
            .zip(entries)
            .filter_map(|(listener, (_, entry))| {
                let dsr = listener.dsr()?;
                Some((
                    &listener.name,
                    &dsr.interface,
                    dsr.tarpit.as_ref()?,
                    entry.value.tarpit_networks.as_ref()?,
                ))
            })
            .collect();
        for (at, (_, interface, rules, key)) in all.iter().enumerate() {
            let earlier = all[..at].iter().filter(|(_, other, ..)| other == interface);
            let both =
                earlier.flat_map(|(name, _, earlier, _)| earlier.networks.iter().map(move |one| (name, one)));
            let same = both.into_iter().find(|(_, one)| rules.networks.iter().any(|own| overlap(own, one)));
            if let Some((name, one)) = same {
                let message =
                    format!("listener \"{name}\" answers for addresses of {one} on {interface} already");
                drop(
                    self.report.at_key(self.nodes, key.id, message).hint("name each address in one listener"),
                );
            }
        }
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Why a network is none of unused addresses.
fn wrong(network: &IpNet) -> Option<&'static str> {
    let address = network.addr();
    if address.is_multicast() || address.is_loopback() || address.is_unspecified() {
        return Some("has no addresses of machines");
    }
    let least = if address.is_ipv4() { 16 } else { 64 };
    (network.prefix_len() < least).then_some("is larger than a network of machines: /16 at most, of IPv6 /64")
}
