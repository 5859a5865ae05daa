//! Conflicts of addresses: two listeners on one address, or a backend that is one of our own listeners.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use logic::route::{Action, PoolId, Route};

use super::bound::{Bound, Owner};
use super::parser::Parser;
use crate::raw::{RawConfig, TextOr};
use crate::tree::NodeId;
use crate::types::{BackendAddress, BindAddress, Control, DnsName, Listener, Pool, Protocol, Transport};

/// Addresses whose connections one IP socket receives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Everything,
    AllIpv4,
    AllIpv6,
    One(IpAddr),
}

impl Reach {
    fn of(address: &BindAddress) -> Option<(Reach, u16)> {
        match address {
            BindAddress::AnyIp(port) => Some((Reach::Everything, *port)),
            BindAddress::Ip(address) => {
                let reach = match address.ip().to_canonical() {
                    IpAddr::V4(ip) if ip.is_unspecified() => Reach::AllIpv4,
                    IpAddr::V6(ip) if ip.is_unspecified() => Reach::AllIpv6,
                    one => Reach::One(one),
                };
                Some((reach, address.port()))
            }
            BindAddress::EveryPort(_) | BindAddress::Unix(_) | BindAddress::Systemd(_) => None,
        }
    }

    /// Reports whether the kernel would consider neither address more specific than the other.
    fn is_as_wide(self, other: Reach) -> bool {
        match (self, other) {
            (Reach::One(a), Reach::One(b)) => a == b,
            (Reach::One(_), _) | (_, Reach::One(_)) => false,
            (Reach::AllIpv4, Reach::AllIpv6) | (Reach::AllIpv6, Reach::AllIpv4) => false,
            _ => true,
        }
    }

    fn takes(self, ip: IpAddr) -> bool {
        match self {
            Reach::Everything => ip.is_loopback(),
            Reach::AllIpv4 => ip.is_ipv4() && ip.is_loopback(),
            Reach::AllIpv6 => ip.is_ipv6() && ip.is_loopback(),
            Reach::One(own) => own == ip,
        }
    }
}

impl Parser<'_> {
    pub(super) fn note_bind(
        &mut self,
        address: &BindAddress,
        id: NodeId,
        owner: Owner,
        transport: Transport,
    ) {
        self.binds.push(Bound { address: address.clone(), id, owner, transport });
    }

    /// Reports addresses that are bound twice.
    pub(super) fn collisions(&mut self, raw: &RawConfig, control: Option<&Control>) {
        let socket = raw.control.as_ref().and_then(|control| control.value.socket.as_ref());
        if let (Some(control), Some(socket)) = (control, socket) {
            let address = BindAddress::Unix(control.socket.clone());
            self.note_bind(&address, socket.id, Owner::Control, Transport::Stream);
        }
        let binds = std::mem::take(&mut self.binds);
        let mut paths: HashMap<&PathBuf, &Bound> = HashMap::new();
        // A socket unit may have both, and TCP and UDP have ports of their own.
        let mut units: HashMap<(&str, Transport), &Bound> = HashMap::new();
        let mut ones: HashMap<(IpAddr, u16, Transport), &Bound> = HashMap::new();
        // Wildcard sockets by port. Each list stays short: a further wildcard is a fault or of another address family.
        let mut wide: HashMap<(u16, Transport), Vec<(Reach, &Bound)>> = HashMap::new();
        for bound in &binds {
            let first = match &bound.address {
                BindAddress::Unix(path) => paths.insert(path, bound),
                BindAddress::Systemd(name) => units.insert((name, bound.transport), bound),
                // A service of one port is before one of every port.
                BindAddress::EveryPort(ip) => ones.insert((ip.to_canonical(), 0, bound.transport), bound),
                BindAddress::AnyIp(0) => None,
                BindAddress::Ip(address) if address.port() == 0 => None,
                BindAddress::AnyIp(_) | BindAddress::Ip(_) => match Reach::of(&bound.address) {
                    Some((Reach::One(ip), port)) => ones.insert((ip, port, bound.transport), bound),
                    Some((reach, port)) => {
                        let others = wide.entry((port, bound.transport)).or_default();
                        let first =
                            others.iter().find(|(other, _)| other.is_as_wide(reach)).map(|(_, bound)| *bound);
                        if first.is_none() {
                            others.push((reach, bound));
                        }
                        first
                    }
                    None => None,
                },
            };
            if let Some(first) = first {
                self.collision(first, bound);
            }
        }
        self.specific_beside_wide(&ones, &wide);
        self.binds = binds;
    }

    fn collision(&mut self, first: &Bound, second: &Bound) {
        let place = self.report.whereabouts(self.nodes, first.id);
        let whose = if first.owner == second.owner {
            "by the same section".to_owned()
        } else {
            format!("by {}", first.owner.name())
        };
        let message = format!("this address is already taken {whose}{place}");
        drop(self.report.at(self.nodes, second.id, message));
    }

    /// Warns of `127.0.0.1:80` beside `:80`, which is allowed: the more specific socket receives the connection.
    fn specific_beside_wide(
        &mut self,
        ones: &HashMap<(IpAddr, u16, Transport), &Bound>,
        wide: &HashMap<(u16, Transport), Vec<(Reach, &Bound)>>,
    ) {
        for ((ip, port, transport), bound) in ones {
            let wider = wide.get(&(*port, *transport)).and_then(|wide| {
                wide.iter().find(|(reach, _)| match reach {
                    Reach::Everything => true,
                    Reach::AllIpv4 => ip.is_ipv4(),
                    Reach::AllIpv6 => ip.is_ipv6(),
                    Reach::One(_) => false,
                })
            });
            if let Some((_, wider)) = wider {
                let place = self.report.whereabouts(self.nodes, wider.id);
                let message = format!(
                    "{} listens on every address of this port{place}: connections to this one come here",
                    wider.owner.name()
                );
                drop(self.report.at(self.nodes, bound.id, message).warning());
            }
        }
    }

    /// Reports loops. A backend may be one of our listeners (TLS in front of another listener), but a session that
    /// returned to its own pool would use up all connections.
    pub(super) fn loops(&mut self, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        // Of packets there are none: a backend has another address than the service.
        for transport in [Transport::Stream, Transport::Datagram] {
            self.loops_of(transport, raw, listeners, pools);
        }
    }

    /// Sessions keep their transport: those of a udp listener reach no listener of connections.
    fn loops_of(&mut self, transport: Transport, raw: &RawConfig, listeners: &[Listener], pools: &[Pool]) {
        let has = |listener: &Listener| listener.protocol.transport() == transport;
        let uses = listeners.iter();
        let uses: Vec<Vec<PoolId>> =
            uses.map(|listener| if has(listener) { pools_of(listener, pools) } else { Vec::new() }).collect();
        let entries = raw.pool.as_ref().map(|pools| pools.value.0.as_slice()).unwrap_or_default();
        let own = OwnAddresses::new(listeners, transport);
        // The backends of each pool that are listeners: indexes of backend and listener.
        let targets: Vec<Vec<(usize, usize)>> = pools
            .iter()
            .map(|pool| {
                let found = pool.backends.iter().enumerate();
                found
                    .filter_map(|(at, backend)| own.listener(&backend.address).map(|listener| (at, listener)))
                    .collect()
            })
            .collect();
        for (pool, targets_here) in targets.iter().enumerate() {
            for (at, listener) in targets_here {
                if !comes_back(*listener, PoolId(pool), &uses, &targets) {
                    continue;
                }
                let list = entries.get(pool).and_then(|(_, pool)| pool.value.backends.as_ref());
                let Some(entry) = list.and_then(|list| list.value.get(*at)) else {
                    continue;
                };
                let id = match &entry.value {
                    TextOr::Text(_) => entry.id,
                    TextOr::Table(table) => table.address.as_ref().map_or(entry.id, |address| address.id),
                };
                let message = format!(
                    "this backend is listener.{}, which sends sessions to this pool: a loop",
                    listeners[*listener].name
                );
                drop(self.report.at(self.nodes, id, message));
            }
        }
    }
}

/// Finds the listener that has a backend's address.
struct OwnAddresses<'a> {
    paths: HashMap<&'a PathBuf, usize>,
    ports: HashMap<u16, Vec<(Reach, usize)>>,
}

impl<'a> OwnAddresses<'a> {
    fn new(listeners: &'a [Listener], transport: Transport) -> Self {
        let mut own = OwnAddresses { paths: HashMap::new(), ports: HashMap::new() };
        let listeners = listeners.iter().enumerate();
        for (at, listener) in listeners.filter(|(_, one)| one.protocol.transport() == transport) {
            for bind in &listener.binds {
                match (bind, Reach::of(bind)) {
                    (BindAddress::Unix(path), _) => drop(own.paths.insert(path, at)),
                    (_, Some((reach, port))) => own.ports.entry(port).or_default().push((reach, at)),
                    (_, None) => {}
                }
            }
        }
        own
    }

    fn listener(&self, address: &BackendAddress) -> Option<usize> {
        match address {
            BackendAddress::Unix(path) => self.paths.get(path).copied(),
            BackendAddress::Ip(address) => self.at(address.ip(), address.port()),
            BackendAddress::Name { host, port } => {
                this_machine(host).iter().find_map(|address| self.at(*address, *port))
            }
            BackendAddress::Dns(DnsName::Addresses { host, port }) => {
                this_machine(host).iter().find_map(|address| self.at(*address, *port))
            }
            BackendAddress::Discovered { address, .. } => self.at(address.ip(), address.port()),
            BackendAddress::Ssh { .. } | BackendAddress::Dns(DnsName::Services { .. }) => None,
        }
    }

    fn at(&self, ip: IpAddr, port: u16) -> Option<usize> {
        let here = self.ports.get(&port).map(Vec::as_slice).unwrap_or_default();
        let exact = here.iter().find(|(reach, _)| *reach == Reach::One(ip));
        exact.or_else(|| here.iter().find(|(reach, _)| reach.takes(ip))).map(|(_, listener)| *listener)
    }
}

/// Returns the addresses of names for the local machine: RFC 6761 section 6.3, and Debian's /etc/hosts.
fn this_machine(host: &str) -> &'static [IpAddr] {
    const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let host = host.strip_suffix('.').unwrap_or(host);
    match host {
        "localhost" => &[V4, V6],
        "ip6-localhost" | "ip6-loopback" => &[V6],
        _ if host.ends_with(".localhost") => &[V4, V6],
        _ => &[],
    }
}

fn pools_of(listener: &Listener, pools: &[Pool]) -> Vec<PoolId> {
    let mut named = match &listener.protocol {
        Protocol::Tcp(tcp) => vec![tcp.pool],
        Protocol::Udp(udp) => vec![udp.pool],
        Protocol::Dsr(dsr) => vec![dsr.pool],
        Protocol::Http(http) => routed(&http.routes, http.pool),
        Protocol::TlsPassthrough(passthrough) => routed(&passthrough.routes, passthrough.pool),
    };
    named.extend(listener.denied_pool);
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    while let Some(pool) = named.pop() {
        if seen.insert(pool) {
            all.push(pool);
            named.extend(pools.get(pool.0).and_then(|pool| pool.fallback));
        }
    }
    all
}

fn routed(routes: &[Route], fallback: Option<PoolId>) -> Vec<PoolId> {
    let routed = routes.iter().filter_map(|route| match &route.action {
        Action::Pool(pool) => Some(*pool),
        Action::Redirect { .. } | Action::Respond(_) => None,
    });
    let pools: HashSet<_> = routed.chain(fallback).collect();
    pools.into_iter().collect()
}

/// Reports whether sessions of a listener can reach a pool, also through backends that are listeners.
fn comes_back(listener: usize, pool: PoolId, uses: &[Vec<PoolId>], targets: &[Vec<(usize, usize)>]) -> bool {
    let mut next = vec![listener];
    let mut seen = HashSet::from([listener]);
    while let Some(listener) = next.pop() {
        for used in &uses[listener] {
            if *used == pool {
                return true;
            }
            for (_, target) in &targets[used.0] {
                if seen.insert(*target) {
                    next.push(*target);
                }
            }
        }
    }
    false
}
