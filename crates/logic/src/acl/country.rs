//! Countries, as a GeoIP database names them, and the networks of each.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Two-letter code of a country (ISO 3166-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

/// The text is no code of a country.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCountry;

impl FromStr for Country {
    type Err = NoCountry;

    fn from_str(text: &str) -> Result<Self, NoCountry> {
        match *text.as_bytes() {
            [first, second] if first.is_ascii_alphabetic() && second.is_ascii_alphabetic() => {
                Ok(Self([first.to_ascii_uppercase(), second.to_ascii_uppercase()]))
            }
            _ => Err(NoCountry),
        }
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", char::from(self.0[0]), char::from(self.0[1]))
    }
}

/// The networks of countries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Countries(BTreeMap<Country, Vec<IpNet>>);

impl Countries {
    /// Adds a network. Networks come in the order of their addresses; both halves of one become one.
    pub fn add(&mut self, country: Country, network: IpNet) {
        let networks = self.0.entry(country).or_default();
        networks.push(network);
        while let [.., left, right] = networks[..]
            && let (Some(parent), Some(same)) = (left.supernet(), right.supernet())
            && parent == same
            && left != right
        {
            networks.truncate(networks.len() - 2);
            networks.push(parent);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The networks of a country; `None` if it has none.
    pub fn networks(&self, country: Country) -> Option<&[IpNet]> {
        self.0.get(&country).map(Vec::as_slice)
    }

    /// Country of an address.
    pub fn of(&self, ip: IpAddr) -> Option<Country> {
        let ip = ip.to_canonical();
        let has = |networks: &Vec<IpNet>| {
            // IPv4 comes before IPv6, as in the order of `IpNet`.
            let behind = networks.partition_point(|network| network.network() <= ip);
            networks[..behind].last().is_some_and(|network| network.contains(&ip))
        };
        self.0.iter().find_map(|(country, networks)| has(networks).then_some(*country))
    }
}
