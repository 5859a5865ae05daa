//! `protocol = "dsr"`: its settings, and what its pools may not have.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use logic::balance::{HashKey, Policy};
use logic::dsr::Transports;
use logic::dsr::path::DataPath;
use logic::dsr::tunnel::Mode;

use super::duration::YEAR;
use super::parser::{Parser, Zero, count};
use crate::de::At;
use crate::quote::quote;
use crate::raw::{RawConfig, RawListener};
use crate::types::{Backend, BackendAddress, BackendHttp, BindAddress, DsrSettings, Listener, Pool};

/// Silence after which a TCP connection is forgotten. Most systems send a packet of their own only after two hours, but
/// few programs are silent that long; what is forgotten still goes to its backend, unless backends have changed.
const TCP_IDLE: Duration = Duration::from_secs(3600);

/// The same of a UDP flow: longer than a query is tried again.
const UDP_IDLE: Duration = Duration::from_secs(30);

/// Flows that are remembered: they take about 150 MB then.
const FLOWS: usize = 1_000_000;

/// Fewest that a table in the kernel has: `crates/sys/src/bpf.rs` says why.
const FEWEST_FLOWS: usize = 4096;

/// Longest name of an interface (IFNAMSIZ, with the zero at its end).
const LONGEST_INTERFACE: usize = 15;

mod paths;
mod proxied;
mod quic_id;
mod unused;

impl Parser<'_> {
    pub(super) fn dsr(&mut self, at: &At<RawListener>, binds: Option<&[BindAddress]>) -> Option<DsrSettings> {
        let raw = &at.value;
        let pool = self.only_pool(at);
        let interface = self.interface(at);
        let hash_key_file = match &raw.hash_key_file {
            None => (!self.nodes.is_broken(at.id, "hash-key-file")).then_some(None),
            Some(path) => self.file(path).map(Some),
        };
        let transports = raw.transport.as_ref().and_then(|word| word.value.parse().ok());
        let mode = raw.mode.as_ref().and_then(|word| word.value.parse().ok());
        let data_path = raw.data_path.as_ref().and_then(|word| word.value.parse().ok());
        self.path_of_tunnels(raw, mode, data_path);
        let at_stop = raw.at_stop.as_ref().and_then(|word| word.value.parse().ok());
        let owner_address = self.owner_address(at, binds);
        let idle = match &raw.idle_timeout {
            None => (!self.nodes.is_broken(at.id, "idle-timeout")).then_some(None),
            given => self.time(given, Zero::Refused, YEAR).map(Some),
        };
        let max_flows = match &raw.max_flows {
            None => (!self.nodes.is_broken(at.id, "max-flows")).then_some(FLOWS),
            Some(most) => {
                let count = count(most.value);
                if count < FEWEST_FLOWS {
                    let message = format!(
                        "a table in the kernel has at least {FEWEST_FLOWS} places; with so few, flows of clients are forgotten soon"
                    );
                    drop(self.report.at(self.nodes, most.id, message).warning());
                }
                Some(count)
            }
        };
        if let Some(key) = &raw.bind {
            for bind in binds? {
                let (message, hint) = match bind.vip() {
                    Some(vip) if vip.port() == 0 && matches!(bind, BindAddress::Ip(_)) => {
                        ("needs a port", "bind = \"192.0.2.10:80\", or \"192.0.2.10:*\" for every port")
                    }
                    Some(vip)
                        if vip.ip().is_unspecified() || vip.ip().is_multicast() || vip.ip().is_loopback() =>
                    {
                        ("is not an address that clients send packets to", "bind = \"192.0.2.10:80\"")
                    }
                    Some(_) => continue,
                    None => (
                        "is not one address: a dsr listener has that of its service",
                        "bind = \"192.0.2.10:80\"",
                    ),
                };
                drop(self.report.at_key(self.nodes, key.id, format!("{bind} {message}")).hint(hint));
                return None;
            }
        }
        let quic_id = self.quic_id(at, transports);
        let tarpit = self.unused_addresses(at);
        self.keys_of_packets(at, binds, data_path);
        let (pool, transports, idle, max_flows) = (pool?, transports?, idle?, max_flows?);
        let tcp_idle = idle.unwrap_or(TCP_IDLE);
        let udp_idle = idle.filter(|_| transports == Transports::Udp).unwrap_or(UDP_IDLE);
        Some(DsrSettings {
            pool,
            interface: interface?,
            mode: mode?,
            transports,
            max_flows,
            tcp_idle,
            udp_idle,
            data_path: data_path?,
            at_stop: at_stop?,
            owner_address: owner_address?,
            hash_key_file: hash_key_file?,
            quic_id: quic_id?,
            tarpit: tarpit?,
            proxied_tcp: proxied::tcp(pool, tcp_idle),
            proxied_udp: proxied::udp(pool, udp_idle, max_flows),
        })
    }

    /// Reports a data path that loses what travels through tunnels.
    fn path_of_tunnels(&mut self, raw: &RawListener, mode: Option<Mode>, path: Option<DataPath>) {
        if (mode, path) != (Some(Mode::Ipip), Some(DataPath::XdpGeneric)) {
            return;
        }
        if let Some(key) = &raw.data_path {
            let reason = "loses large packets on their way into tunnels (mode = \"ipip\"): what the kernel or a network card has put \
                          together cannot be cut again there";
            drop(self.refuse(key, reason).hint("data-path = \"auto\", or \"tc\", which cuts them"));
        }
    }

    /// The address that the owner of the service has; `None` if it is wrong.
    fn owner_address(
        &mut self,
        at: &At<RawListener>,
        binds: Option<&[BindAddress]>,
    ) -> Option<Option<IpAddr>> {
        let Some(key) = &at.value.owner_address else {
            return (!self.nodes.is_broken(at.id, "owner-address")).then_some(None);
        };
        let hint = "an unused address that keepalived moves: owner-address = \"169.254.77.10\"";
        let Ok(address) = key.value.parse::<IpAddr>() else {
            drop(self.refuse(key, "is no IP address").hint(hint));
            return None;
        };
        let address = address.to_canonical();
        let is_own = |vip: SocketAddr| vip.ip().to_canonical() == address;
        let reason = match () {
            () if address.is_loopback() => "is an address that every machine has",
            () if address.is_unspecified() || address.is_multicast() => "is not the address of one machine",
            () if binds.unwrap_or_default().iter().filter_map(BindAddress::vip).any(is_own) => {
                "is the address of the service, which must be on no interface"
            }
            () => return Some(Some(address)),
        };
        drop(self.refuse(key, reason).hint(hint));
        None
    }

    fn interface(&mut self, at: &At<RawListener>) -> Option<Box<str>> {
        let Some(key) = &at.value.interface else {
            if !self.nodes.is_broken(at.id, "interface") {
                let message = "interface is missing: the one where packets of clients come in";
                drop(self.report.at_key(self.nodes, at.id, message).hint("interface = \"eth0\""));
            }
            return None;
        };
        let is_name = (1..=LONGEST_INTERFACE).contains(&key.value.len())
            && key.value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if !is_name {
            let reason = "is no name of a network interface: up to 15 letters, digits and signs";
            drop(self.refuse(key, reason).hint("`ip link` shows them"));
            return None;
        }
        Some(key.value.as_str().into())
    }

    /// Reports pools of dsr listeners whose backends packets cannot reach, or with settings of connections.
    pub(super) fn pools_of_dsr(&mut self, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        for (listener, (_, entry)) in listeners.iter().zip(entries) {
            let (Some(dsr), Some(key)) = (listener.dsr(), &entry.value.pool) else { continue };
            let Some(pool) = pools.get(dsr.pool.0) else { continue };
            let wrong =
                wrong_pool(pool, &listener.binds, dsr).or_else(|| quic_id::wrong_numbers(pool, dsr.quic_id?));
            if let Some((message, hint)) = wrong {
                drop(self.report.at(self.nodes, key.id, message).hint(hint));
            }
            let is_owner = |backend: &&Backend| match &backend.address {
                BackendAddress::Ip(address) => Some(address.ip().to_canonical()) == dsr.owner_address,
                _ => false,
            };
            if let (Some(backend), Some(key)) =
                (pool.backends.iter().find(is_owner), &entry.value.owner_address)
            {
                let message =
                    format!("is the address of the backend {}, which is another machine", backend.address);
                let hint = "an unused address that keepalived moves: owner-address = \"169.254.77.10\"";
                drop(self.refuse(key, &message).hint(hint));
            }
        }
    }
}

/// Why a pool cannot have packets, and what to do.
fn wrong_pool(pool: &Pool, binds: &[BindAddress], dsr: &DsrSettings) -> Option<(String, String)> {
    let on_vips = || binds.iter().filter_map(BindAddress::vip);
    for backend in &pool.backends {
        let BackendAddress::Ip(address) = &backend.address else {
            let message = format!("a dsr listener cannot reach {} of this pool", backend.address);
            return Some((message, "its backends need IP addresses: \"10.0.0.21:80\"".to_owned()));
        };
        if let Some(fault) = on_vips().find_map(|vip| wrong_backend(*address, vip, dsr.mode)) {
            return Some(fault);
        }
        if let Some(key) = setting_of_connections(backend) {
            let message =
                format!("{address} of this pool has {key}, and a dsr listener sees no connection end");
            return Some((message, format!("use a pool without {key}")));
        }
    }
    if pool.balance != Policy::Maglev {
        let message = format!(
            "this pool balances by {}, and a dsr listener gives flows to backends by a hash of addresses and ports",
            pool.balance
        );
        return Some((message, "balance = \"maglev\"".to_owned()));
    }
    let is_proxied = dsr.data_path == DataPath::Proxy;
    let tells = is_proxied && dsr.transports == Transports::Tcp;
    let keys = [
        (pool.hash_key != HashKey::Client, "hash-key"),
        (pool.balance_bound.is_some(), "balance-bound"),
        (pool.tls.is_some(), "tls"),
        (pool.sticky_cookie.is_some(), "sticky.cookie"),
        (pool.send_proxy.is_some() && !tells, "send-proxy"),
        (pool.http == BackendHttp::Http2 && is_proxied, "http2"),
        (pool.fallback.is_some(), "fallback"),
    ];
    let (_, key) = keys.into_iter().find(|(is_set, _)| *is_set)?;
    let message = format!("this pool has {key}, and a dsr listener forwards packets as they are");
    Some((message, format!("use a pool without {key}")))
}

fn wrong_backend(address: SocketAddr, vip: SocketAddr, mode: Mode) -> Option<(String, String)> {
    // To a service on every port, that of a backend says where its checks go.
    if vip.port() != 0 && address.port() != vip.port() {
        let message = format!("{address} of this pool has another port than {vip}: packets are not changed");
        let right = SocketAddr::new(address.ip(), vip.port()).to_string();
        return Some((message, format!("write {}", quote(&right))));
    }
    if mode == Mode::Ipip && address.ip().to_canonical().is_ipv4() != vip.ip().to_canonical().is_ipv4() {
        let (inner, outer) = if vip.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
        let message = format!(
            "{address} of this pool is an {outer} address, and packets to {vip} travel in {inner} ones"
        );
        let hint = "give each family a listener and a pool of its own, or use mode = \"l2\"".to_owned();
        return Some((message, hint));
    }
    (address.ip().to_canonical() == vip.ip().to_canonical()).then(|| {
        let message = format!("{address} of this pool is the address of the service itself");
        (message, "name the backend by an address of its own".to_owned())
    })
}

fn setting_of_connections(backend: &Backend) -> Option<&'static str> {
    let keys = [
        (backend.max_connections.is_some(), "max-connections"),
        (backend.soft_max_connections.is_some(), "soft-max-connections"),
        (backend.acl.is_some(), "acl"),
        (backend.priority != 0, "priority"),
    ];
    keys.into_iter().find(|(is_set, _)| *is_set).map(|(_, key)| key)
}
