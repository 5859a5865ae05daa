//! Proves the services of `dsr` listeners from the balancer: reads its network, and asks the machines on it with a packet
//! socket. What is asked and what answers mean is decided by `crates/logic/src/dsr/doctor.rs`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use config::Config;
use config::types::BackendAddress;
use logic::dsr::doctor::frames::{Asker, filter};
use logic::dsr::doctor::{
    self, Backlog, Balancer, Examination, FIRST_PORT, Leg, Link, Offloads, Service, Step, Switch, Target,
};
use logic::dsr::machine::Forwarder;
use logic::dsr::path::DataPath;
use logic::dsr::tunnel::{Mode, Tunnel};
use logic::finding::Finding;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use state::claim;
use sys::interfaces::{self, Interface};
use sys::neighbour::Neighbours;
use sys::packet::{FrameBatch, PacketError, PacketSocket, send_frame};

#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("cannot read the network of this machine: {0}")]
    Network(#[source] io::Error),
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error("{0}")]
    Programs(String),
}

/// What was found of one address of a listener.
#[derive(Debug)]
pub struct Report {
    pub listener: String,
    pub vip: SocketAddr,
    pub interface: String,
    pub findings: Vec<Finding>,
}

/// An address in a process that serves now.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Who forwards packets.
    pub forwarder: Forwarder,
    /// Why a crash of the process ends the program, if it does.
    pub unpinned: Option<String>,
}

/// All of them, by the names of listeners and their addresses as in `bind`.
pub type Running = HashMap<(String, String), Serving>;

/// Examines every address of the `dsr` listeners of a configuration, one after the other. Waits up to two seconds for the
/// answers to each. `file` is that of the configuration.
pub fn examine(config: &Config, file: Option<&Path>, running: &Running) -> Result<Vec<Report>, DoctorError> {
    let overlaps = state::data_path::overlapping(config, file).map_err(DoctorError::Programs)?;
    let mut reports = Vec::new();
    for listener in &config.listeners {
        let Some(settings) = listener.dsr() else { continue };
        for bind in &listener.binds {
            let Some(vip) = bind.vip() else { continue };
            let serving = running.get(&(listener.name.to_string(), bind.to_string()));
            let paths = Paths {
                asked: settings.data_path,
                forwarder: serving
                    .map(|serving| serving.forwarder)
                    .or_else(|| doctor::forwarder(settings.data_path, vip.port())),
            };
            let backends = config.pools[settings.pool.0].backends.iter().filter_map(|backend| {
                let BackendAddress::Ip(address) = &backend.address else { return None };
                let (name, ip) = (backend.address.to_string(), address.ip().to_canonical());
                let leg = if settings.mode == Mode::Ipip { Leg::NoRoute } else { Leg::Near };
                // A listener of every port has none of its own: the port of the backend is asked.
                let port = if vip.port() == 0 { address.port() } else { vip.port() };
                Some(Target { name, ip, port, asker: unspecified(ip), leg })
            });
            let service = Service {
                interface: settings.interface.to_string(),
                vip,
                transports: settings.transports,
                backends: backends.collect(),
            };
            let mut findings = service_findings(service.clone(), paths, settings.owner_address)?;
            if serving.is_none()
                && let Some(why) = state::data_path::refusal(&listener.name, vip, settings)
            {
                findings.push(doctor::refused(settings.data_path, &settings.interface, &why));
            }
            if serving.is_none()
                && let Some(socket) = claim::of_another(&settings.interface, vip, settings.transports)
            {
                findings.push(doctor::claimed(&settings.interface, &socket));
            }
            let overlaps = overlaps.iter().filter(|one| *one.listener == *listener.name && one.vip == vip);
            findings.extend(overlaps.map(|one| doctor::overlapped(&one.why, &one.command)));
            findings.extend(serving.and_then(|it| it.unpinned.as_deref()).map(doctor::unpinned));
            reports.push(Report {
                listener: listener.name.to_string(),
                vip,
                interface: service.interface.clone(),
                findings,
            });
        }
    }
    Ok(reports)
}

/// How packets are forwarded, as far as it is known.
#[derive(Clone, Copy)]
struct Paths {
    asked: DataPath,
    forwarder: Option<Forwarder>,
}

fn service_findings(
    mut service: Service,
    paths: Paths,
    owner_address: Option<IpAddr>,
) -> Result<Vec<Finding>, DoctorError> {
    let all = interfaces::all().map_err(DoctorError::Network)?;
    let own = all.iter().find(|one| one.name == service.interface);
    if paths.forwarder == Some(Forwarder::Kernel) {
        let link = own.map_or(Link::Missing, link_of);
        return Ok(doctor::machine(&balancer(&service, paths, &all, link), service.vip.ip()));
    }
    let socket = PacketSocket::new()?;
    let program = filter(service.vip.ip()).into_iter().map(|one| (one.code, one.jt, one.jf, one.k));
    let bound = socket.bind(&service.interface, &program.collect::<Vec<_>>());
    let link = match (own, &bound) {
        (None, _) | (_, Err(PacketError::NoInterface(_))) => Link::Missing,
        (_, Err(PacketError::NotEthernet(_))) => Link::NotEthernet,
        (Some(own), _) => link_of(own),
    };
    let mut findings = doctor::machine(&balancer(&service, paths, &all, link), service.vip.ip());
    if link != Link::Up {
        // No question would arrive.
        findings.retain(|finding| finding.is_fault());
        return Ok(findings);
    }
    let (Some(own), interface) = (own, bound?) else { return Ok(findings) };
    let mut routes = Neighbours::open().map_err(DoctorError::Network)?;
    for target in &mut service.backends {
        if has(&all, target.ip) {
            target.leg = Leg::Own;
        }
        if target.leg == Leg::NoRoute {
            let hop = routes.route(target.ip, interface.index).map_err(DoctorError::Network)?;
            let leg = hop.and_then(|hop| {
                Some(Leg::Tunnel { next: hop.next, tunnel: Tunnel::new(hop.from, target.ip)? })
            });
            target.leg = leg.unwrap_or(Leg::NoRoute);
        }
        target.asker = address(own, target.machine().unwrap_or(target.ip));
    }
    let asker = Asker { mac: interface.mac, ip: address(own, service.vip.ip()) };
    let mtu = interfaces::mtu(&own.name).map_err(DoctorError::Network)?;
    let chosen = (fastrand::u16(FIRST_PORT..), fastrand::u32(..));
    let mut examination = Examination::new(service, asker, mtu, chosen);
    if let Some(lacks) = owner_address.filter(|it| !has(&all, *it)) {
        examination.stand_by(lacks);
    }
    for step in Step::ALL {
        ask(&mut examination, step, &socket)?;
    }
    findings.extend(examination.findings());
    Ok(findings)
}

fn link_of(interface: &Interface) -> Link {
    match interface.link {
        interfaces::Link::Down => Link::Down,
        interfaces::Link::NoCarrier => Link::NoCarrier,
        interfaces::Link::Up => Link::Up,
    }
}

fn has(all: &[Interface], ip: IpAddr) -> bool {
    all.iter().flat_map(|one| &one.addresses).any(|address| address.ip == ip)
}

fn balancer(service: &Service, paths: Paths, all: &[Interface], link: Link) -> Balancer {
    let (ip, name) = (service.vip.ip(), &service.interface);
    let on = all.iter().find_map(|one| {
        let address = one.addresses.iter().find(|address| address.ip == ip)?;
        Some((one.name.clone(), address.prefix))
    });
    let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    let forwarding = std::fs::read(format!("/proc/sys/net/{family}/conf/{name}/forwarding"));
    let is_on = forwarding.is_ok_and(|text| text.trim_ascii() == b"1");
    let offloads = interfaces::offloads(name).ok().map(|found| Offloads {
        driver: found.driver,
        lro: switch(found.lro == interfaces::Switch::On),
        vlan: switch(found.vlan == interfaces::Switch::On),
        on: [("tso", found.tso), ("gso", found.gso), ("gro", found.gro)]
            .into_iter()
            .filter(|(_, switch)| *switch == interfaces::Switch::On)
            .map(|(name, _)| name)
            .collect(),
    });
    let (interface, forwarding) = (name.clone(), switch(is_on));
    let card = state::data_path::card(name);
    let longest = interfaces::details(name).ok().map(|details| details.longest_frame);
    let longest_frame = longest.filter(|length| *length > 0);
    let Paths { asked: data_path, forwarder } = paths;
    Balancer {
        interface,
        link,
        vip_on: on,
        forwarding,
        forwarder,
        offloads,
        data_path,
        card,
        longest_frame,
        backlog: backlog(),
    }
}

/// What cannot be read has dropped nothing.
fn backlog() -> Backlog {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    // A line for each processor; the second number is that of dropped packets, in hexadecimal digits.
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    Backlog {
        limit: read("/proc/sys/net/core/netdev_max_backlog").trim().parse().ok(),
        dropped: read("/proc/net/softnet_stat").lines().filter_map(dropped).sum(),
    }
}

fn switch(is_on: bool) -> Switch {
    if is_on { Switch::On } else { Switch::Off }
}

/// Our address from which another one is asked: one in its network, or any one of its family.
fn address(own: &Interface, of: IpAddr) -> IpAddr {
    let family = || own.addresses.iter().filter(|one| one.ip.is_ipv4() == of.is_ipv4() && one.ip != of);
    let near = family().find(|one| is_near(one, of));
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let near = near.or_else(|| family().find(|one| !is_link_local(one.ip)));
    near.or_else(|| family().next()).map_or(unspecified(of), |one| one.ip)
}

fn is_near(own: &interfaces::Address, of: IpAddr) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let host = u128::MAX.checked_shr(own.prefix.into()).unwrap_or(0);
    own.prefix > 0 && (bits(own.ip) ^ bits(of)) & !host == 0
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

/// How often a question is asked, and how long answers are waited for each time.
const TURNS: u32 = 3;
const WAIT: Duration = Duration::from_millis(350);

fn ask(examination: &mut Examination, step: Step, socket: &PacketSocket) -> Result<(), DoctorError> {
    let mut batch = FrameBatch::default();
    for _ in 0..TURNS {
        for frame in examination.questions(step) {
            // One that finds no room is asked again in the next turn.
            let _ = send_frame(socket.as_fd(), &frame);
        }
        let end = Instant::now() + WAIT;
        while !examination.is_done(step) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let wait = PollTimeout::from(u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX));
            let mut descriptors = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut descriptors, wait) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(DoctorError::Network(error.into())),
            }
            let count = match batch.receive(socket.as_fd()) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                // The interface went down: what has no answer until now stays so.
                Err(error) if error.kind() == io::ErrorKind::NetworkDown => return Ok(()),
                Err(error) => return Err(DoctorError::Network(error)),
            };
            for slot in 0..count {
                if let Some(frame) = examination.handle(batch.frame(slot)) {
                    let _ = send_frame(socket.as_fd(), &frame);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_the_network_of_the_other_one_asks() {
        let address_of = |ip: &str, prefix| interfaces::Address { ip: ip.parse().unwrap(), prefix };
        let own = Interface {
            name: "eth0".to_owned(),
            kind: interfaces::Kind::Answers,
            link: interfaces::Link::Up,
            addresses: vec![
                address_of("fe80::1", 64),
                address_of("10.0.0.1", 8),
                address_of("192.0.2.1", 24),
                address_of("2001:db8::1", 64),
            ],
        };
        for (of, expected) in [
            ("192.0.2.10", "192.0.2.1"),
            ("10.9.9.9", "10.0.0.1"),
            ("198.51.100.1", "10.0.0.1"),
            ("2001:db8::10", "2001:db8::1"),
            ("2001:db9::10", "2001:db8::1"),
            ("192.0.2.1", "10.0.0.1"),
        ] {
            assert_eq!(address(&own, of.parse().unwrap()), expected.parse::<IpAddr>().unwrap(), "{of}");
        }
        let none = Interface { addresses: Vec::new(), ..own };
        assert_eq!(address(&none, "192.0.2.10".parse().unwrap()), IpAddr::from([0; 4]));
    }
}
