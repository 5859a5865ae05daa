//! Server to test: its address, and the server name for the handshake.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::{DnsName, ServerName};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// DNS name or IP address.
    pub host: String,
    pub port: u16,
    /// Name that the certificate must be valid for; sent in the handshake unless it is an IP address.
    pub name: ServerName<'static>,
}

/// Reason why the target is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text is not of the form `HOST`, `HOST:PORT` or `[IPv6]:PORT`.
    #[error("\"{0}\" is not an address: write HOST, HOST:PORT or [IPv6]:PORT")]
    Address(String),
    /// The name is neither a DNS name nor an IP address.
    #[error("\"{0}\" is not a name that a certificate could be for")]
    Name(String),
}

impl Target {
    /// Parses `HOST`, `HOST:PORT`, `[IPv6]:PORT` or an https URL; `name` overrides the server name.
    pub fn parse(text: &str, name: Option<&str>) -> Result<Self, TargetError> {
        let bad = || TargetError::Address(text.to_owned());
        let rest = text.strip_prefix("https://").unwrap_or(text);
        let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let (host, port) = if let Ok(ip) = rest.parse::<IpAddr>() {
            (ip.to_string(), None)
        } else if let Some(rest) = rest.strip_prefix('[') {
            let (ip, rest) = rest.split_once(']').ok_or_else(bad)?;
            let ip: IpAddr = ip.parse().map_err(|_| bad())?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(bad)?) };
            (ip.to_string(), port)
        } else {
            match rest.split_once(':') {
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (rest.to_owned(), None),
            }
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?,
            None => 443,
        };
        if host.is_empty() {
            return Err(bad());
        }
        let wanted = name.unwrap_or(&host).trim_end_matches('.').to_owned();
        let name = ServerName::try_from(wanted.clone()).map_err(|_| TargetError::Name(wanted))?.to_owned();
        Ok(Self { host, port, name })
    }

    /// Server name for the handshake; never an IP address (RFC 6066 section 3).
    pub(crate) fn sni(&self) -> Option<&str> {
        match &self.name {
            ServerName::DnsName(name) => Some(DnsName::as_ref(name)),
            _ => None,
        }
    }

    /// Value of the Host field.
    pub(crate) fn authority(&self) -> String {
        let host = match &self.name {
            ServerName::IpAddress(_) => {
                SocketAddr::new(self.ip().unwrap_or(IpAddr::from([0; 4])), 0).to_string()
            }
            name => format!("{}:0", name.to_str()),
        };
        let host = host.trim_end_matches(":0");
        if self.port == 443 { host.to_owned() } else { format!("{host}:{}", self.port) }
    }

    fn ip(&self) -> Option<IpAddr> {
        match &self.name {
            ServerName::IpAddress(ip) => Some((*ip).into()),
            _ => None,
        }
    }

    /// Looks up the addresses within `limit`.
    pub(crate) fn addresses(&self, limit: Duration) -> Result<Vec<SocketAddr>, String> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let (send, receive) = mpsc::channel();
        let (host, port) = (self.host.clone(), self.port);
        // The system's DNS lookup has no time limit; after `limit` its thread is abandoned.
        let look_up = move || send.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
        thread::Builder::new().spawn(look_up).map_err(|error| format!("no thread to look it up: {error}"))?;
        match receive.recv_timeout(limit) {
            Ok(Ok(found)) if found.is_empty() => Err("it has no address".to_owned()),
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_usual_form() {
        for (text, host, port) in [
            ("a.example", "a.example", 443),
            ("a.example:8443", "a.example", 8443),
            ("https://a.example/x?y", "a.example", 443),
            ("127.0.0.1:1", "127.0.0.1", 1),
            ("::1", "::1", 443),
            ("[::1]", "::1", 443),
            ("[::1]:8443", "::1", 8443),
        ] {
            let target = Target::parse(text, None).unwrap();
            assert_eq!((target.host.as_str(), target.port), (host, port), "{text}");
        }
        for bad in ["", ":443", "a:b", "a:0", "a:65536", "[::1", "[x]:1", "a b", "[::1]x"] {
            assert!(Target::parse(bad, None).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_ip_address_is_never_sent_as_a_name_and_a_given_name_is() {
        assert_eq!(Target::parse("127.0.0.1", None).unwrap().sni(), None);
        let named = Target::parse("127.0.0.1:8443", Some("a.example")).unwrap();
        assert_eq!((named.sni(), named.authority().as_str()), (Some("a.example"), "a.example:8443"));
        assert_eq!(Target::parse("[::1]:8443", None).unwrap().authority(), "[::1]:8443");
    }
}
