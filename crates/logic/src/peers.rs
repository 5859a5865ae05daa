//! Remote end of a connection, and sets of trusted peers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

/// Remote end of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    Ip(SocketAddr),
    /// A client of a Unix socket, which has no address.
    Unix,
}

impl Peer {
    /// IP address, with IPv4-mapped IPv6 as IPv4; `None` for a Unix socket.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Ip(address) => Some(address.ip().to_canonical()),
            Peer::Unix => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Ip(address) => address.fmt(f),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

/// Set of peers that are trusted for PROXY headers or `X-Forwarded-*`. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSet {
    networks: Vec<IpNet>,
    unix: UnixPeers,
}

/// Whether clients of Unix sockets belong to a [`PeerSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnixPeers {
    Listed,
    #[default]
    NotListed,
}

impl PeerSet {
    pub fn new(networks: Vec<IpNet>, unix: UnixPeers) -> Self {
        let networks = networks.into_iter().map(|network| unmapped(network.trunc())).collect();
        PeerSet { networks, unix }
    }

    /// An IPv4-mapped IPv6 address is compared as IPv4.
    pub fn contains(&self, peer: &Peer) -> bool {
        match peer.ip() {
            Some(ip) => self.networks.iter().any(|network| network.contains(&ip)),
            None => self.unix == UnixPeers::Listed,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.unix == UnixPeers::NotListed
    }

    /// Entries, networks first.
    pub fn entries(&self) -> impl Iterator<Item = PeerSetEntry> + '_ {
        let unix = (self.unix == UnixPeers::Listed).then_some(PeerSetEntry::Unix);
        self.networks.iter().copied().map(PeerSetEntry::Network).chain(unix)
    }
}

impl FromIterator<PeerSetEntry> for PeerSet {
    fn from_iter<I: IntoIterator<Item = PeerSetEntry>>(entries: I) -> Self {
        let mut networks = Vec::new();
        let mut unix = UnixPeers::NotListed;
        for entry in entries {
            match entry {
                PeerSetEntry::Network(network) => networks.push(network),
                PeerSetEntry::Unix => unix = UnixPeers::Listed,
            }
        }
        PeerSet::new(networks, unix)
    }
}

/// Converts an IPv6 network inside `::ffff:0:0/96` to the IPv4 network: peers are compared in that form.
pub(crate) fn unmapped(network: IpNet) -> IpNet {
    if let IpNet::V6(v6) = network
        && v6.prefix_len() >= 96
        && let Some(v4) = v6.addr().to_ipv4_mapped()
    {
        return Ipv4Net::new(v4, v6.prefix_len() - 96).map_or(network, IpNet::V4);
    }
    network
}

/// Entry of a [`PeerSet`] as written in the configuration: `10.0.0.0/8`, `192.0.2.7`, `::1` or `unix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerSetEntry {
    /// Network; a single address is a network with one address.
    Network(IpNet),
    /// Every client of a Unix socket.
    Unix,
}

impl FromStr for PeerSetEntry {
    type Err = PeerSetEntryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unix" {
            return Ok(PeerSetEntry::Unix);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(PeerSetEntry::Network(address.into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            if network != network.trunc() {
                return Err(PeerSetEntryError::HostBits { written: text.into(), network: network.trunc() });
            }
            return Ok(PeerSetEntry::Network(network));
        }
        Err(match text.rsplit_once('/') {
            Some((address, prefix)) if address.parse::<IpAddr>().is_ok() => {
                let longest = if address.parse::<Ipv4Addr>().is_ok() { 32 } else { 128 };
                PeerSetEntryError::PrefixLength { written: prefix.into(), longest }
            }
            _ => PeerSetEntryError::NotAnAddress(text.into()),
        })
    }
}

impl fmt::Display for PeerSetEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerSetEntry::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            PeerSetEntry::Network(network) => network.fmt(f),
            PeerSetEntry::Unix => f.write_str("unix"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerSetEntryError {
    #[error("`{0}` is not an IP address, a network like 10.0.0.0/8, or `unix`")]
    NotAnAddress(Box<str>),
    /// Invalid prefix length for the address family.
    #[error("prefix length `{written}` is not between 0 and {longest}")]
    PrefixLength {
        written: Box<str>,
        /// Longest prefix of the address family.
        longest: u8,
    },
    /// The address is not the first one of the network: the operator has mistyped the address or the prefix length.
    #[error(
        "`{written}` is an address inside {network}, not a network: write {network} or the address alone"
    )]
    HostBits {
        written: Box<str>,
        /// Network with this prefix length.
        network: IpNet,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(entries: &[&str]) -> PeerSet {
        entries.iter().map(|entry| entry.parse::<PeerSetEntry>().unwrap()).collect()
    }

    fn ip(address: &str) -> Peer {
        Peer::Ip(SocketAddr::new(address.parse().unwrap(), 4711))
    }

    #[test]
    fn a_network_holds_its_first_and_last_address_and_no_neighbour() {
        let set = set(&["10.0.0.0/8", "2001:db8::/32"]);
        for inside in ["10.0.0.0", "10.255.255.255", "2001:db8::", "2001:db8:ffff::1"] {
            assert!(set.contains(&ip(inside)), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "2001:db7::1", "2001:db9::", "::a00:1"] {
            assert!(!set.contains(&ip(outside)), "{outside}");
        }
        assert!(!set.contains(&Peer::Unix));
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address_on_both_sides_of_the_comparison() {
        assert!(set(&["192.0.2.0/24"]).contains(&ip("::ffff:192.0.2.9")));
        assert!(set(&["::ffff:192.0.2.0/120"]).contains(&ip("192.0.2.9")));
        assert!(set(&["::ffff:192.0.2.9"]).contains(&ip("192.0.2.9")));
        assert!(!set(&["::ffff:192.0.2.0/120"]).contains(&ip("192.0.3.9")));
    }

    #[test]
    fn an_ipv6_default_route_does_not_list_ipv4_peers() {
        assert!(!set(&["::/0"]).contains(&ip("192.0.2.9")));
        assert!(!set(&["0.0.0.0/0"]).contains(&ip("2001:db8::1")));
    }

    #[test]
    fn unix_peers_are_listed_only_by_name() {
        assert!(set(&["unix"]).contains(&Peer::Unix));
        assert!(!set(&["0.0.0.0/0", "::/0"]).contains(&Peer::Unix));
        assert!(PeerSet::default().is_empty());
        assert!(!set(&["unix"]).is_empty());
    }

    #[test]
    fn an_entry_prints_as_it_is_written() {
        for text in ["10.0.0.0/8", "192.0.2.7", "::1", "2001:db8::/32", "unix"] {
            assert_eq!(text.parse::<PeerSetEntry>().unwrap().to_string(), text);
        }
        let printed: Vec<_> = set(&["unix", "::1"]).entries().map(|entry| entry.to_string()).collect();
        assert_eq!(printed, ["::1", "unix"]);
    }

    #[test]
    fn wrong_entries_say_what_is_wrong() {
        let message = |text: &str| text.parse::<PeerSetEntry>().unwrap_err().to_string();
        assert_eq!(message("10.0.0.0/33"), "prefix length `33` is not between 0 and 32");
        assert_eq!(message("::1/x"), "prefix length `x` is not between 0 and 128");
        assert!(message("10.0.0.1/8").contains("write 10.0.0.0/8 or the address alone"));
        for text in ["", "localhost", "10.0.0", "10.0.0.1:80", "Unix", " 10.0.0.1", "/8"] {
            assert!(message(text).contains("not an IP address"), "{text}");
        }
    }

    #[test]
    fn peers_print_as_in_logs() {
        assert_eq!(ip("192.0.2.1").to_string(), "192.0.2.1:4711");
        assert_eq!(ip("2001:db8::1").to_string(), "[2001:db8::1]:4711");
        assert_eq!(Peer::Unix.to_string(), "unix");
    }
}
