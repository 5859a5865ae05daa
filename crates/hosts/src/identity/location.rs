//! Location of a host: an address or a DNS name, with an optional port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use super::name::Name;

/// `10.0.7.9`, `10.0.7.9:2222`, `2001:db8::9`, `[2001:db8::9]:2222`, `web1.example.com` or `web1.example.com:2222`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    pub place: AddressOrName,
    pub port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressOrName {
    Address(IpAddr),
    /// DNS name, or scoped IPv6 address (`fe80::1%eth0`).
    Dns(Name),
}

impl AddressOrName {
    /// Parses an address or a name, without a port.
    fn read(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(address) => Some(Self::Address(address)),
            Err(_) => dns_name(text).ok().map(Self::Dns),
        }
    }
}

/// Parses a name for the resolver.
///
/// # Errors
/// The text is neither a name nor an address.
pub fn dns_name(text: &str) -> Result<Name, LocationError> {
    let fault = || LocationError { text: text.escape_debug().to_string().chars().take(80).collect() };
    let is_scoped = text.split_once('%').is_some_and(|(address, zone)| {
        address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && !zone.contains(['[', ']', ':', '%'])
    });
    let is_address = text.parse::<IpAddr>().is_ok();
    let is_name = || {
        let last = text.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        // No top-level domain is a number (RFC 3696 section 2), so such a text is a mistyped address.
        let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
            && !(is_number && text.contains('.'))
    };
    if !is_scoped && !is_address && !is_name() {
        return Err(fault());
    }
    text.parse().map_err(|_| fault())
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let fault = || LocationError { text: text.escape_debug().to_string().chars().take(80).collect() };
        if let Some(place) = AddressOrName::read(text) {
            return Ok(Self { place, port: None });
        }
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0).ok_or_else(fault);
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, behind) = rest.split_once(']').ok_or_else(fault)?;
            let place = AddressOrName::read(inside).ok_or_else(fault)?;
            return match behind.strip_prefix(':') {
                Some(behind) => Ok(Self { place, port: Some(port(behind)?) }),
                None if behind.is_empty() => Ok(Self { place, port: None }),
                None => Err(fault()),
            };
        }
        // Text with several colons could only be an IPv6 address, and parsing as an address failed before.
        let (inside, behind) =
            text.split_once(':').filter(|(_, behind)| !behind.contains(':')).ok_or_else(fault)?;
        let place = AddressOrName::read(inside).ok_or_else(fault)?;
        Ok(Self { place, port: Some(port(behind)?) })
    }
}

impl fmt::Display for AddressOrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Dns(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string();
        match self.port {
            Some(port) if place.contains(':') => write!(f, "[{place}]:{port}"),
            Some(port) => write!(f, "{place}:{port}"),
            None => f.write_str(&place),
        }
    }
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error(
    "\"{text}\" is neither an address nor a name in the DNS, such as 10.0.7.9, 2001:db8::9 or web1.example.com"
)]
pub struct LocationError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_read_with_and_without_a_port() {
        for (text, place, port) in [
            ("10.0.7.9", "10.0.7.9", None),
            ("10.0.7.9:2222", "10.0.7.9", Some(2222)),
            ("2001:db8::9", "2001:db8::9", None),
            ("[2001:db8::9]:2222", "2001:db8::9", Some(2222)),
            ("[2001:db8::9]", "2001:db8::9", None),
            ("web1.example.com", "web1.example.com", None),
            ("web_1:22", "web_1", Some(22)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
        ] {
            let read: Location = text.parse().unwrap();
            assert_eq!((read.place.to_string().as_str(), read.port), (place, port), "{text}");
            let is_address = matches!(read.place, AddressOrName::Address(_));
            assert_eq!(is_address, place.parse::<IpAddr>().is_ok(), "{text}");
            assert_eq!(read.to_string().parse(), Ok(read), "{text}");
        }
    }

    #[test]
    fn what_is_neither_name_nor_address_is_refused() {
        for bad in [
            "",
            "a:b",
            "10.0.7.9:0",
            "10.0.7.9:65536",
            "10.0.7.9:",
            ":22",
            "2001:db8::9::1",
            "10.0.7.900",
            "10.0.7:22x",
            "[10.0.7.9",
            "[10.0.7.9]22",
            "[a]:b",
            "web 1",
            "-o",
            "a%b",
            "web1:22:22",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad:?}");
        }
        for bad in ["127.10.0.22:41893", "[web1]:22", "a:b", "10.0.7.900", "fe80::1%"] {
            assert!(dns_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(dns_name("2001:db8::9").unwrap().as_str(), "2001:db8::9");
    }
}
