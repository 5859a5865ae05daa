//! Where Pen listens, and where its servers are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where Pen listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Ip { address: IpAddr, port: u16 },
    Unix(String),
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
