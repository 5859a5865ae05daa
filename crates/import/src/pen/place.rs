//! Where Pen listens, and where its servers are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where Pen listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Ip {
        address: IpAddr,
        port: u16,
    },
    /// Every port of an address, with direct server return.
    EveryPort(IpAddr),
    Unix(String),
}

impl Listen {
    /// Whether connections to a server's address arrive here.
    pub(crate) fn takes(&self, server: &str) -> bool {
        match (self, server.parse::<SocketAddr>()) {
            (Self::Unix(path), _) => server.strip_prefix("unix:") == Some(path),
            (Self::Ip { address, port }, Ok(server)) => {
                let (own, there) = (address.to_canonical(), server.ip().to_canonical());
                let is_wide = own.is_unspecified() && own.is_ipv4() == there.is_ipv4() && there.is_loopback();
                *port == server.port() && (own == there || is_wide)
            }
            (Self::EveryPort(_), _) | (Self::Ip { .. }, Err(_)) => false,
        }
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host { host: String, port: Option<u16> },
    Unix(String),
}

impl Place {
    /// The address as our configuration has it; `None` without a port.
    pub(crate) fn written(&self, default: Option<u16>) -> Option<String> {
        match self {
            Self::Unix(path) => Some(format!("unix:{path}")),
            Self::Host { host, port } => {
                let port = port.or(default)?;
                let is_ipv6 = host.parse::<Ipv6Addr>().is_ok();
                Some(if is_ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
            }
        }
    }

    /// Whether Pen takes this server for an unused entry of its table.
    pub(crate) fn is_unused(&self) -> bool {
        matches!(self, Self::Host { host, .. } if host.parse() == Ok(Ipv4Addr::UNSPECIFIED))
    }
}
