//! What a server has beside an address if packets come to it through a tunnel (`mode = "ipip"`): a tunnel device of the
//! kernel, which takes the packets out of those that they travel in, and a rule by which it tells clients of segments that
//! fit, because the reply in which it does so does not pass the balancer.

use std::net::IpAddr;

use super::settings::Set;
use super::{Device, Facts, Key, Segment};
use crate::dsr::finding::Finding;
use crate::dsr::tunnel::overhead;

/// What a server lacks for a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// The device, for packets to this address, or it is down.
    Device(IpAddr),
    /// The rule about segments of connections to this address.
    Rule(IpAddr, Segment),
}

/// The device that takes packets of any sender (ip-tunnel(8)): the kernel makes it with its module.
pub const fn device(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "tunl0" } else { "ip6tnl0" }
}

/// The module of the kernel with the device.
pub const fn module(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ipip" } else { "ip6_tunnel" }
}

/// The largest segment that fits into the tunnel, if packets between balancer and server may be as long as `mtu`.
pub fn segment(ip: IpAddr, mtu: u16) -> Segment {
    // Headers of IP and TCP.
    let headers = if ip.is_ipv4() { 40 } else { 60 };
    mtu.saturating_sub(overhead(ip) + headers).max(LEAST)
}

/// Smallest segment size that is announced: every TCP implementation takes segments of this size (RFC 9293 section 3.7.1).
const LEAST: Segment = 536;

/// Name of the table of nft(8) for an address, which has nothing else.
pub fn table(ip: IpAddr) -> String {
    format!("penstock_{}", ip.to_string().replace(['.', ':'], "_"))
}

/// The input of nft(8) that makes the table anew.
pub fn rules(ip: IpAddr, segment: Segment) -> String {
    let (table, family) = (table(ip), if ip.is_ipv4() { "ip" } else { "ip6" });
    format!(
        "table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n  chain output {{\n    \
         type filter hook output priority mangle; policy accept;\n    \
         {family} saddr {ip} tcp flags syn tcp option maxseg size set {segment}\n  }}\n}}\n"
    )
}

/// The largest segment of a table, in a text of `nft list table`.
pub fn segment_of(text: &str) -> Option<Segment> {
    let (_, behind) = text.split_once("maxseg size set ")?;
    behind.split_whitespace().next()?.parse().ok()
}

/// Commands for a shell, on any server.
pub fn commands(lacks: Lacks) -> Vec<String> {
    match lacks {
        Lacks::Device(ip) => {
            let (device, module) = (device(ip), module(ip));
            let is_there = format!("ip link show {device} > /dev/null 2>&1");
            vec![format!("{is_there} || modprobe {module}"), format!("ip link set {device} up")]
        }
        Lacks::Rule(ip, segment) => {
            let rules = rules(ip, segment).lines().map(str::trim).collect::<Vec<_>>().join("; ");
            vec![format!("nft '{}'", rules.replace("{;", "{").replace(";;", ";"))]
        }
    }
}

/// What this machine lacks for tunnels to these addresses through which packets of up to `mtu` bytes come.
pub fn lacks(vips: &[IpAddr], facts: &Facts, mtu: u16) -> Vec<Lacks> {
    let mut found = Vec::new();
    for first in [true, false].iter().filter_map(|is_v4| vips.iter().find(|ip| ip.is_ipv4() == *is_v4)) {
        if facts.devices.get(device(*first)) != Some(&Device::Up) {
            found.push(Lacks::Device(*first));
        }
    }
    for ip in vips {
        let wanted = segment(*ip, mtu);
        if facts.segments.get(ip) != Some(&wanted) {
            found.push(Lacks::Rule(*ip, wanted));
        }
    }
    found
}

/// The change without which the kernel drops packets of clients that come out of the device, because the way back to them
/// leads elsewhere.
pub fn filter_change(facts: &Facts) -> Option<Set> {
    let device = device(IpAddr::from([0; 4]));
    let is_strict = facts.devices.contains_key(device) && facts.effective(device, Key::RpFilter) == 1;
    is_strict.then(|| loose_filter(device))
}

/// The setting that every server may have.
pub fn loose_filter(device: &str) -> Set {
    Set { conf: device.to_owned(), key: Key::RpFilter, to: 2 }
}

/// What a tunnel to an address needs.
pub fn findings(facts: &Facts, ip: IpAddr, mtu: u16) -> Vec<Finding> {
    let (device, module) = (device(ip), module(ip));
    let mut found = vec![match facts.devices.get(device) {
        Some(Device::Up) => {
            Finding::ok("tunnel", format!("{device} is up: it takes packets out of their tunnel"))
        }
        Some(Device::Down) => Finding::fault(
            "tunnel",
            format!("{device} is down: packets through the tunnel are dropped"),
            vec![format!("ip link set {device} up")],
        ),
        None => Finding::fault(
            "tunnel",
            format!(
                "there is no {device}: the kernel has not loaded its module {module}, and drops packets through the tunnel"
            ),
            commands(Lacks::Device(ip)),
        ),
    }];
    if ip.is_ipv4() && facts.devices.contains_key(device) {
        found.push(match filter_change(facts) {
            None => Finding::ok(
                "tunnel-rp-filter",
                format!("rp_filter of {device} is {}: it drops no packet of a client", facts.effective(device, Key::RpFilter)),
            ),
            Some(change) => Finding::fault(
                "tunnel-rp-filter",
                format!("rp_filter of {device} is 1 (strict): packets of clients are dropped, because the way back to them does not lead through {device}"),
                vec![change.command()],
            ),
        });
    }
    let wanted = segment(ip, mtu);
    found.push(match facts.segments.get(&ip) {
        Some(now) if *now <= wanted => Finding::ok(
            "segments",
            format!("connections to {ip} announce segments of at most {now} bytes, which fit into the tunnel"),
        ),
        _ => Finding::fault(
            "segments",
            format!("connections to {ip} announce segments that do not fit into a tunnel with an MTU of {mtu}: uploads begin with packets that are refused"),
            commands(Lacks::Rule(ip, wanted)),
        ),
    });
    found
}
