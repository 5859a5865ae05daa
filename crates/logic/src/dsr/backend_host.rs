//! A server behind a `dsr` listener: it has the virtual address (VIP) on its loopback interface, and answers no ARP
//! request for it, because clients are to find the balancer. (Neighbour discovery of IPv6 never answers for an address of
//! another interface.)
//!
//! - `crates/logic/src/dsr/backend_host/settings.rs`: settings of the kernel that are needed, and their changes
//! - `crates/logic/src/dsr/backend_host/verify.rs`: is all so?
//! - `crates/logic/src/dsr/backend_host/setup.rs`: what makes it so, as a script for any server or as steps for this one
//! - `crates/logic/src/dsr/backend_host/tunnel.rs`: what it has beside that if packets come through a tunnel
//! - `crates/logic/src/dsr/backend_host/persist.rs`: files that make it last over a restart of the machine
//! - `crates/logic/src/dsr/backend_host/undo.rs`: what takes it back
//!
//! What the machine has now is passed in: `crates/serve/src/backend_host.rs` reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

pub mod persist;
pub mod settings;
pub mod setup;
#[cfg(test)]
mod tests;
pub mod tunnel;
pub mod undo;
pub mod verify;

use super::Transports;

/// Name of the loopback interface.
pub const LOOPBACK: &str = "lo";

text::words! {
    /// A setting of the kernel for IPv4 on an interface, or on `all` of them.
    pub enum Key: "setting" {
        ArpIgnore = "arp_ignore",
        ArpAnnounce = "arp_announce",
        RpFilter = "rp_filter",
    }
}

/// A virtual address, and the service on it if its port is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    pub ip: IpAddr,
    pub service: Option<(u16, Transports)>,
}

/// An address as words of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipText {
    pub ip: IpAddr,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VipError {
    #[error("it is no IP address: 192.0.2.10, 192.0.2.10:80, 2001:db8::10 or [2001:db8::10]:80")]
    NoAddress,
    #[error("no client can send packets to this address")]
    NotForClients,
    #[error("a port is a number from 1 to 65535")]
    NoPort,
}

impl FromStr for VipText {
    type Err = VipError;

    fn from_str(text: &str) -> Result<Self, VipError> {
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let (ip, port) = match (inner.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(ip), _) => (ip, None),
            (_, Ok(address)) if address.port() == 0 => return Err(VipError::NoPort),
            (_, Ok(address)) => (address.ip(), Some(address.port())),
            _ => return Err(VipError::NoAddress),
        };
        let is_local = match ip {
            IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
        };
        match is_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
            true => Err(VipError::NotForClients),
            false => Ok(Self { ip, port }),
        }
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service {
            Some((port, _)) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
    pub prefix: u8,
}

/// A tunnel device, as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Down,
    Up,
}

/// Largest segment that a server announces.
pub type Segment = u16;

/// What a machine has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Interfaces on which packets of clients may come in.
    pub interfaces: Vec<String>,
    pub addresses: Vec<Address>,
    /// Values of settings, by the interface or `all`.
    pub settings: BTreeMap<(String, Key), u32>,
    /// Interfaces to which IPv4 default routes lead.
    pub default_routes: Vec<String>,
    /// Tunnel devices that are there.
    pub devices: BTreeMap<String, Device>,
    /// Largest segments that rules of ours let connections to addresses announce.
    pub segments: BTreeMap<IpAddr, Segment>,
}

impl Facts {
    pub fn value(&self, conf: &str, key: Key) -> u32 {
        self.settings.get(&(conf.to_owned(), key)).copied().unwrap_or(0)
    }

    /// The value that the kernel goes by (Documentation/networking/ip-sysctl.rst: "the max value from conf/{all,interface}").
    pub fn effective(&self, interface: &str, key: Key) -> u32 {
        self.value(ALL, key).max(self.value(interface, key))
    }

    /// Prefixes of an address on an interface: the same address may be there several times.
    pub fn prefixes(&self, interface: &str, ip: IpAddr) -> impl Iterator<Item = u8> {
        let there = move |one: &&Address| one.interface == interface && one.ip == ip;
        self.addresses.iter().filter(there).map(|one| one.prefix).collect::<Vec<_>>().into_iter()
    }

    pub fn has(&self, ip: IpAddr) -> bool {
        self.prefixes(LOOPBACK, ip).any(|prefix| prefix == single(ip))
    }
}

/// Where settings hold for every interface.
pub const ALL: &str = "all";

/// Length of a prefix that has one address alone.
pub fn single(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// Interfaces of the IPv4 default routes in a text of `/proc/net/route`.
pub fn default_routes(text: &str) -> Vec<String> {
    let interface = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        // Interface, destination, gateway, flags, references, uses, metric, mask.
        let [interface, "00000000", _, _, _, _, _, "00000000", ..] = words[..] else { return None };
        Some(interface.to_owned())
    };
    let mut found: Vec<_> = text.lines().filter_map(interface).collect();
    found.dedup();
    found
}

/// Whether a socket in a text of `/proc/net/udp` or `/proc/net/udp6` receives what is sent to an address.
pub fn receives(text: &str, address: SocketAddr) -> bool {
    let local = |line: &str| -> Option<(Vec<u8>, u16)> {
        let (ip, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        // Words of 32 bits in the order of this machine.
        let words = (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok());
        let bytes = words.collect::<Option<Vec<_>>>()?.into_iter().flat_map(u32::to_ne_bytes);
        Some((bytes.collect(), u16::from_str_radix(port, 16).ok()?))
    };
    let wanted = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let is_it = |(ip, port): (Vec<u8>, u16)| {
        let is_any = ip.iter().all(|byte| *byte == 0) && ip.len() >= wanted.len();
        port == address.port() && (ip == wanted || is_any)
    };
    text.lines().skip(1).filter_map(local).any(is_it)
}
