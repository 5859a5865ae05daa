//! Where clients arrive.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BindAddress {
    /// `:80`: every address, IPv6 and IPv4 (IPv4 alone where the kernel has no IPv6).
    AnyIp(u16),
    /// One address and port; port 0 lets the kernel choose.
    Ip(SocketAddr),
    /// `192.0.2.10:*`: one address and every port, of a `dsr` listener.
    EveryPort(IpAddr),
    /// `unix:/path`.
    Unix(PathBuf),
    /// `systemd:NAME`: every socket that systemd passes under this name.
    Systemd(String),
}

impl BindAddress {
    /// Whether sockets of both may get the same datagrams. A port that the kernel chooses is not known here.
    pub fn may_share(&self, other: &Self) -> bool {
        let parts = |bind: &Self| match bind {
            Self::AnyIp(port) => Some((IpAddr::from(Ipv6Addr::UNSPECIFIED), *port)),
            Self::Ip(address) => Some((address.ip().to_canonical(), address.port())),
            Self::EveryPort(_) | Self::Unix(_) | Self::Systemd(_) => None,
        };
        match (parts(self), parts(other)) {
            (Some((ip, port)), Some((other_ip, other_port))) if port != 0 => {
                port == other_port && (ip == other_ip || ip.is_unspecified() || other_ip.is_unspecified())
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyIp(port) => write!(f, ":{port}"),
            Self::Ip(address) => address.fmt(f),
            Self::EveryPort(IpAddr::V4(ip)) => write!(f, "{ip}:*"),
            Self::EveryPort(IpAddr::V6(ip)) => write!(f, "[{ip}]:*"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Systemd(name) => write!(f, "systemd:{name}"),
        }
    }
}
