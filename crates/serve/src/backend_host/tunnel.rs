//! Tunnels to a server that this machine is: their device, and rules of nft(8) about segments.

use std::net::IpAddr;

use logic::dsr::backend_host::Device;
use logic::dsr::backend_host::Facts;
use logic::dsr::backend_host::Key;
use logic::dsr::backend_host::tunnel::{Lacks, device, module, rules, segment_of, table};
use sys::interfaces::{Interface, Link};

use super::machine::{HostError, program, read_setting};

/// Reads the tunnel devices.
pub(super) fn read(facts: &mut Facts, interfaces: &[Interface]) -> Result<(), HostError> {
    for name in [IpAddr::from([0; 4]), IpAddr::from([0; 16])].map(device) {
        if let Some(found) = interfaces.iter().find(|one| one.name == name) {
            let state = if found.link == Link::Down { Device::Down } else { Device::Up };
            facts.devices.insert(name.to_owned(), state);
            read_setting(facts, name, Key::RpFilter)?;
        }
    }
    Ok(())
}

/// Reads the rules for these addresses. A machine that does not show them has none.
pub fn read_rules(facts: &mut Facts, vips: &[IpAddr]) {
    for ip in vips {
        let listed = program("nft", &["list", "table", "inet", &table(*ip)], "nftables");
        if let Some(segment) = listed.ok().as_deref().and_then(segment_of) {
            facts.segments.insert(*ip, segment);
        }
    }
}

pub(super) fn make(lacks: Lacks) -> Result<(), HostError> {
    match lacks {
        Lacks::Device(ip) => {
            let name = device(ip);
            if sys::packet::index_of(name).is_none() {
                program("modprobe", &[module(ip)], "kmod").map_err(without_module)?;
            }
            program("ip", &["link", "set", name, "up"], "iproute2").map(drop)
        }
        Lacks::Rule(ip, segment) => program("nft", &[&rules(ip, segment)], "nftables").map(drop),
    }
}

/// Says what can be done without the module of a tunnel.
fn without_module(error: HostError) -> HostError {
    match error {
        HostError::Program(words, said) => {
            let hint = "this kernel has no such tunnels: install its further modules (linux-modules-extra), load the module \
                        outside of the container, or set mode = \"l2\" for a server on the balancer's network";
            HostError::Program(words, format!("{said} ({hint})"))
        }
        error => error,
    }
}

/// Deletes the table of an address, and sets a device down.
pub(super) fn take_back(
    of: Option<IpAddr>,
    device: Option<&str>,
    tell: &mut impl FnMut(&str),
) -> Result<(), HostError> {
    if let Some(name) = of.map(table) {
        // An administrator may have deleted it.
        if program("nft", &["list", "table", "inet", &name], "nftables").is_ok() {
            program("nft", &["delete", "table", "inet", &name], "nftables")?;
            tell(&format!("nft delete table inet {name}"));
        }
    }
    if let Some(name) = device.filter(|name| sys::packet::index_of(name).is_some()) {
        program("ip", &["link", "set", name, "down"], "iproute2")?;
        tell(&format!("ip link set {name} down"));
    }
    Ok(())
}
