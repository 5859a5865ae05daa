//! Types of `protocol = "dsr"` listeners.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use logic::dsr::Transports;
use logic::dsr::path::{AtStop, DataPath};
use logic::dsr::quic::QuicId;
use logic::dsr::tarpit::Rules;
use logic::dsr::tunnel::Mode;
use logic::route::PoolId;

use super::{BindAddress, Listener, Protocol, TcpSettings, UdpSettings};

/// A `protocol = "dsr"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsrSettings {
    /// Pool of all flows. Its backends have the ports of the listener.
    pub pool: PoolId,
    /// Network interface where packets come in and go out.
    pub interface: Box<str>,
    /// How packets reach the backends.
    pub mode: Mode,
    /// Transport protocols that are forwarded.
    pub transports: Transports,
    /// Largest number of flows that are remembered, for each address.
    pub max_flows: usize,
    /// Silence after which a TCP flow is forgotten.
    pub tcp_idle: Duration,
    /// The same of a UDP flow.
    pub udp_idle: Duration,
    /// Where packets are forwarded.
    pub data_path: DataPath,
    /// What becomes of a program in the kernel at a stop.
    pub at_stop: AtStop,
    /// This machine answers for the address of the service while it also has this one; `None`: always.
    pub owner_address: Option<IpAddr>,
    /// File with the key of the hash; `None`: it is chosen at each start.
    pub hash_key_file: Option<PathBuf>,
    /// Where connection ids of QUIC have the number of a server; `None`: they are not looked at.
    pub quic_id: Option<QuicId>,
    /// Unused addresses that hold clients.
    pub tarpit: Option<Rules>,
    /// How connections are served where no packet can be forwarded.
    pub proxied_tcp: TcpSettings,
    /// The same of datagrams.
    pub proxied_udp: UdpSettings,
}

impl Listener {
    /// Settings of a `dsr` listener; `None` for other protocols.
    pub fn dsr(&self) -> Option<&DsrSettings> {
        match &self.protocol {
            Protocol::Dsr(settings) => Some(settings),
            Protocol::Tcp(_) | Protocol::Http(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) => None,
        }
    }
}

impl BindAddress {
    /// The virtual address of a service, which a `dsr` listener has alone; with port 0 for a service on every port.
    pub fn vip(&self) -> Option<SocketAddr> {
        match self {
            BindAddress::Ip(address) => Some(*address),
            BindAddress::EveryPort(ip) => Some(SocketAddr::new(*ip, 0)),
            BindAddress::AnyIp(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => None,
        }
    }
}
