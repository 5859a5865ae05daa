//! Says of each thing that a server behind a `dsr` listener needs whether it is so, and the command that mends it.

use std::net::IpAddr;

use super::settings::{self, announces_own, drops_clients, ignores_others};
use super::setup::add;
use super::{ALL, Address, Facts, Key, LOOPBACK, Vip, single};
use crate::dsr::finding::Finding;

/// Whether a process has the port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    Yes,
    No,
    /// The kernel answers nothing at all.
    Silent,
}

/// The settings that keep a server from answering for the addresses, which are IPv4 ones.
pub fn settings(facts: &Facts, conf: &str) -> Vec<Finding> {
    let changes = settings::changes(facts, conf);
    let mend = |interface: &str, key| {
        let of = |set: &&settings::Set| set.key == key && (set.conf == ALL || set.conf == interface);
        changes.iter().filter(of).map(settings::Set::command).collect::<Vec<_>>()
    };
    let mut findings = Vec::new();
    for interface in &facts.interfaces {
        let value = |key| facts.effective(interface, key);
        let ignore = value(Key::ArpIgnore);
        findings.push(match ignore {
            ignore if ignores_others(ignore) => Finding::ok(
                "arp-ignore",
                format!("arp_ignore of {interface} is {ignore}: it answers ARP requests for its own addresses only"),
            ),
            8.. => Finding::fault(
                "arp-ignore",
                format!("arp_ignore of {interface} is {ignore}: it answers no ARP request at all, and the balancer does not find this server"),
                mend(interface, Key::ArpIgnore),
            ),
            _ => Finding::fault(
                "arp-ignore",
                format!("arp_ignore of {interface} is {ignore}: this server answers ARP requests for addresses on {LOOPBACK}, and takes clients away from the balancer"),
                mend(interface, Key::ArpIgnore),
            ),
        });
        let announce = value(Key::ArpAnnounce);
        findings.push(match announces_own(announce) {
            true => Finding::ok(
                "arp-announce",
                format!("arp_announce of {interface} is {announce}: its ARP requests name its own addresses only"),
            ),
            false => Finding::fault(
                "arp-announce",
                format!("arp_announce of {interface} is {announce}: its ARP requests may name an address on {LOOPBACK}, and who hears that sends packets here instead of to the balancer"),
                mend(interface, Key::ArpAnnounce),
            ),
        });
        let filter = value(Key::RpFilter);
        findings.push(match drops_clients(facts, interface) {
            false => Finding::ok(
                "rp-filter",
                format!("rp_filter of {interface} is {filter}: it drops no packet of a client"),
            ),
            true => Finding::fault(
                "rp-filter",
                format!("rp_filter of {interface} is {filter} (strict), and the way back to clients leads through {}: their packets are dropped", facts.default_routes.join(", ")),
                mend(interface, Key::RpFilter),
            ),
        });
    }
    findings
}

/// What an address needs. `listening` is `None` if that was not looked at.
pub fn address(facts: &Facts, vip: &Vip, listening: Option<Listening>) -> Vec<Finding> {
    let ip = vip.ip;
    let wide: Vec<_> = facts.prefixes(LOOPBACK, ip).filter(|prefix| *prefix != single(ip)).collect();
    let mut mend = Vec::new();
    if !facts.has(ip) {
        mend.push(add(ip));
    }
    mend.extend(wide.iter().map(|prefix| delete(ip, *prefix, LOOPBACK)));
    let length = single(ip);
    let mut findings = vec![match (facts.has(ip), wide.first()) {
        (true, None) => Finding::ok("loopback", format!("{LOOPBACK} has {ip}/{length}")),
        (_, Some(wide)) => Finding::fault(
            "loopback",
            format!(
                "{LOOPBACK} has {ip}/{wide}, which is a whole network: other machines in it cannot be reached from here; it must be /{length}"
            ),
            mend,
        ),
        (false, None) => Finding::fault(
            "loopback",
            format!("{LOOPBACK} lacks {ip}/{length}: packets that the balancer sends here are dropped"),
            mend,
        ),
    }];
    findings.push(elsewhere(facts, ip));
    findings.extend(port(facts, vip, listening));
    findings
}

fn elsewhere(facts: &Facts, ip: IpAddr) -> Finding {
    let there = facts.addresses.iter().filter(|one| one.ip == ip && one.interface != LOOPBACK);
    let there: Vec<_> = there.collect();
    let Some(first) = there.first() else {
        return Finding::ok("other-interface", format!("no other interface has {ip}"));
    };
    if let Some(own) = own_address(facts, ip) {
        return Finding::fault("other-interface", own.clone(), vec![NAME_ANOTHER.to_owned()]);
    }
    Finding::fault(
        "other-interface",
        format!(
            "{} has {ip}: this server answers for it there, and takes clients away from the balancer",
            first.interface
        ),
        there.iter().map(|one| delete(ip, one.prefix, &one.interface)).collect(),
    )
}

const NAME_ANOTHER: &str =
    "# name the VIP of the service instead, which clients know and the balancer answers for";

/// Says that an address is the machine's own one: the only one of its family on an interface other than loopback. Without
/// it the machine would be cut off.
pub fn own_address(facts: &Facts, ip: IpAddr) -> Option<String> {
    let is_global = |one: &&Address| match one.ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    // Some have virtual addresses on an interface of their own, where clients do not come in.
    let is_real = |one: &&Address| facts.interfaces.contains(&one.interface) || one.prefix < single(ip);
    let there =
        facts.addresses.iter().filter(is_real).find(|one| one.ip == ip && one.interface != LOOPBACK)?;
    let same = |one: &&Address| one.interface == there.interface && one.ip.is_ipv4() == ip.is_ipv4();
    let others = facts.addresses.iter().filter(same).filter(is_global).any(|one| one.ip != ip);
    (!others).then(|| {
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        format!(
            "{ip} is the only {family} address of {}: it is this machine's own one, and no VIP",
            there.interface
        )
    })
}

fn port(facts: &Facts, vip: &Vip, listening: Option<Listening>) -> Option<Finding> {
    let (_, transports) = vip.service?;
    if !facts.has(vip.ip) {
        let text = format!("whether a process serves {vip} can be told once {LOOPBACK} has the address");
        return Some(Finding::unknown("port", text));
    }
    Some(match listening? {
        Listening::Yes => Finding::ok("port", format!("a process serves {vip} ({transports})")),
        Listening::No => Finding::fault(
            "port",
            format!("no process serves {vip} ({transports}): connections to it are refused"),
            vec![format!("# start the service, or let it listen on {vip} or on all addresses")],
        ),
        Listening::Silent => Finding::fault(
            "port",
            format!("{vip} ({transports}) does not answer this server itself: a filter drops it"),
            vec!["nft list ruleset".to_owned()],
        ),
    })
}

fn delete(ip: IpAddr, prefix: u8, interface: &str) -> String {
    format!("ip address del {ip}/{prefix} dev {}", text::shell::word(interface))
}
