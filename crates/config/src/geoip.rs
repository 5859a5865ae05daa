//! The networks of countries in a GeoIP database (MaxMind DB format).

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use logic::acl::{Countries, Country};
use maxminddb::{PathElement, Reader, WithinOptions};

/// Largest database, in bytes.
pub(crate) const MAX_FILE: usize = 512 * 1024 * 1024;

/// IPv6 networks through which a database leads to its IPv4 networks once more.
const ALIASES: [(u128, u32); 3] = [(0xffff << 32, 96), (0x2001_0000 << 96, 32), (0x2002 << 112, 16)];

/// Reads a database. The error says what is wrong with it.
pub(crate) fn read(bytes: &[u8]) -> Result<Countries, String> {
    let damaged = |error: &dyn std::fmt::Display| format!("is no sound GeoIP database: {error}");
    let reader = Reader::from_source(bytes).map_err(|error| damaged(&error))?;
    let metadata = reader.metadata();
    // A tree has one leaf more than it has nodes; IPv4 is reached five times. A damaged one may have circles.
    let most = (u64::from(metadata.node_count) + 1) * 5;
    let all = WithinOptions::default().include_networks_without_data().include_aliased_networks();
    let mut countries = Countries::default();
    let mut known: HashMap<usize, Option<Country>> = HashMap::new();
    for (number, found) in (0_u64..).zip(reader.networks(all).map_err(|error| damaged(&error))?) {
        if number > most {
            return Err(damaged(&"its networks form a circle"));
        }
        let found = found.map_err(|error| damaged(&error))?;
        let Some(offset) = found.offset() else { continue };
        let country = match known.get(&offset) {
            Some(country) => *country,
            None => {
                let path = [PathElement::Key("country"), PathElement::Key("iso_code")];
                let code: Option<&str> = found.decode_path(&path).map_err(|error| damaged(&error))?;
                let country = code.and_then(|code| code.parse().ok());
                known.insert(offset, country);
                country
            }
        };
        let Some(country) = country else { continue };
        let network = found.network().map_err(|error| damaged(&error))?;
        if let Some(network) = network_of(network.ip(), network.prefix()) {
            countries.add(country, network);
        }
    }
    if countries.is_empty() {
        return Err(format!(
            "has no countries: it is of the type {}, and a database of countries or cities is needed",
            text::terminal::line(&metadata.database_type)
        ));
    }
    Ok(countries)
}

fn network_of(ip: IpAddr, prefix: u8) -> Option<IpNet> {
    match ip {
        IpAddr::V4(ip) => Ipv4Net::new(ip, prefix).ok().map(IpNet::V4),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            let is_alias = ALIASES.iter().any(|(alias, length)| {
                u32::from(prefix) >= *length && (bits ^ alias).leading_zeros() >= *length
            });
            Ipv6Net::new(ip, prefix).ok().filter(|_| !is_alias).map(IpNet::V6)
        }
    }
}
