//! `dsr_if`: a listener for direct server return, its pool, and the addresses of `tarpit_acl`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::acl;
use super::emitter::Emitter;
use super::model::{Acl, Clients, Entry, Given, Said, Verdict, is_on, place_of};
use super::place::{Listen, Place};
use super::pool::{HEAVIEST, MAIN};
use crate::document::{Document, Section, list, quoted};
use crate::{Effect, Fault, Faults};

/// Most entries of `tarpit-networks`.
const NETWORKS: usize = 16;
/// The shortest prefix of one of them.
const WIDEST: u32 = 16;
/// The default of `tarpit-rate`.
const RATE: u64 = 100;
/// Port of servers of a service on every port, where nothing is sent to.
const NO_PORT: u16 = 80;

/// Writes the listener and its pool.
pub(super) fn service(
    emitter: &mut Emitter,
    document: &mut Document,
    listen: &Said<Listen>,
    interface: &Said<String>,
) -> Result<(), Faults> {
    let (address, port) = match listen.value {
        Listen::Ip { address, port } if is_service(address) => (address, Some(port)),
        Listen::EveryPort(address) if is_service(address) => (address, None),
        Listen::Ip { .. } | Listen::EveryPort(_) | Listen::Unix(_) => {
            let message =
                "direct server return (dsr_if) needs the address of the service, to which clients send";
            let hint = "penstock import pen -O 'dsr_if eth1' 192.0.2.10:80 192.0.2.21 192.0.2.22";
            return Err(fault(&listen.place, message.to_owned(), Some(hint)));
        }
    };
    without_effect(emitter);
    let servers = servers(emitter, address)?;
    let section = document.section("listener.main");
    let bind = match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => format!("{address}:*"),
    };
    section.put("bind", quoted(&bind), &[]);
    section.put("protocol", quoted("dsr"), &[]);
    section.put("interface", quoted(&interface.value), &[]);
    let transport = if is_on(&emitter.pen.udp) { "udp" } else { "tcp" };
    section.put("transport", quoted(transport), &[]);
    section.put("pool", quoted(MAIN), &[]);
    tarpit(emitter, section);
    let text = "Pen checks no server here, and never leaves out one that fails: `health` does (docs/dsr.md)";
    let comment = emitter.note(Effect::Same, &interface.place, text);
    let section = document.section(format!("pool.{MAIN}"));
    section.comment(comment);
    pool(emitter, section, &servers, port);
    Ok(())
}

fn fault(place: &str, message: String, hint: Option<&str>) -> Faults {
    Faults(vec![Fault { place: place.to_owned(), message, hint: hint.map(str::to_owned) }])
}

fn is_service(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Notes what has no effect on packets.
fn without_effect(emitter: &mut Emitter) {
    fn place<T>(given: &Given<T>) -> Option<String> {
        given.as_ref().map(|said| said.place.clone())
    }
    let pen = &emitter.pen;
    let (choice, tls) = (&pen.choice, &pen.tls);
    let tarpit = pen.tarpit.as_ref().map(|said| said.value);
    let lists = pen.acls.iter().filter(|(number, _)| Some(**number) != tarpit);
    let lists = lists.filter_map(|(_, Acl(entries))| entries.last().map(|said| said.place.clone()));
    let texts = [&pen.source, &tls.certificate, &tls.key, &tls.ca_file, &tls.ca_directory, &tls.names];
    let switches = [
        &pen.http,
        &pen.transparent,
        &pen.keepalive,
        &choice.hash,
        &choice.weight,
        &choice.prio,
        &choice.stubborn,
        &tls.require,
    ];
    let switches = switches.into_iter().filter(|switch| is_on(switch));
    let numbers = [
        &pen.blacklist,
        &pen.tracking,
        &pen.timeout,
        &pen.idle_timeout,
        &pen.clients_max,
        &pen.conn_max,
        &pen.backlog,
    ];
    let limited = pen.servers.values().filter(|server| server.soft > 0 || server.hard > 0);
    let places: Vec<_> = [place(&pen.emergency), place(&pen.abuse), place(&pen.client_acl)]
        .into_iter()
        .chain(texts.into_iter().map(place))
        .chain(std::iter::once(place(&pen.fast_close)))
        .chain(switches.map(place))
        .chain(numbers.into_iter().map(place))
        .flatten()
        .chain(pen.servers.values().filter_map(|server| place(&server.blacklist)))
        .chain(limited.map(|server| format!("limit of {}", server.said_at)))
        .chain(lists)
        .collect();
    for place in places {
        emitter.note(Effect::Dropped, &place, "no effect in Pen with dsr_if either");
    }
}

/// The servers with the weights that they have, each once: Pen looks at their addresses alone.
fn servers(emitter: &mut Emitter, service: IpAddr) -> Result<Vec<(Ipv4Addr, Option<u16>, u64)>, Faults> {
    let mut servers: Vec<(Ipv4Addr, Option<u16>, u64)> = Vec::new();
    for (_, server) in std::mem::take(&mut emitter.pen.servers) {
        let Some(place) = server.place.filter(|place| !place.is_unused()) else { continue };
        let Place::Host { host, port } = place else {
            emitter.note(Effect::Dropped, &server.said_at, "no packets of the network go to a Unix socket");
            continue;
        };
        let address = match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address,
            Ok(IpAddr::V6(_)) => {
                emitter.note(Effect::Dropped, &server.said_at, "with dsr_if Pen has no IPv6");
                continue;
            }
            Err(_) => {
                let text = format!("{host} is a name, and packets need an address: write that of the server");
                emitter.note(Effect::Missing, &server.said_at, &text);
                continue;
            }
        };
        if IpAddr::V4(address) == service.to_canonical() {
            let message =
                format!("{address} is the address of the service itself: name the server by its own");
            return Err(fault(&server.said_at, message, None));
        }
        let weight = server.weight.max(1);
        match servers.iter_mut().find(|(known, ..)| *known == address) {
            Some((.., known)) => *known += weight,
            None => servers.push((address, port, weight)),
        }
    }
    match servers.is_empty() {
        true => Err(fault("Pen", "it has no server with an IPv4 address".to_owned(), None)),
        false => Ok(servers),
    }
}

fn pool(
    emitter: &mut Emitter,
    section: &mut Section,
    servers: &[(Ipv4Addr, Option<u16>, u64)],
    service: Option<u16>,
) {
    let heaviest = servers.iter().map(|(.., weight)| *weight).max().unwrap_or(1);
    let entries: Vec<_> = servers
        .iter()
        .map(|(address, port, weight)| {
            let address = quoted(&format!("{address}:{}", service.or(*port).unwrap_or(NO_PORT)));
            let weight = if heaviest > HEAVIEST { (weight * HEAVIEST / heaviest).max(1) } else { *weight };
            match weight {
                1 => address,
                weight => format!("{{ address = {address}, weight = {weight} }}"),
            }
        })
        .collect();
    let ports = match service {
        Some(_) => "packets keep their port: servers have that of the service",
        None => "packets keep their port: these ports only say where a check goes",
    };
    section.put("backends", list(&entries), &[ports.to_owned()]);
    let text = if is_on(&emitter.pen.choice.roundrobin) {
        "another hash: a connection may go to another server than in Pen, and stays there"
    } else {
        "Pen gives all connections of a client's address to one server; here each one is given to a server, and stays there"
    };
    let place = place_of(&emitter.pen.choice.roundrobin, "-r");
    let comment = emitter.note(Effect::Changed, &place, text);
    section.put("balance", quoted("maglev"), &[comment]);
}

/// Writes the networks of `tarpit_acl`.
fn tarpit(emitter: &mut Emitter, section: &mut Section) {
    let Some(tarpit) = emitter.pen.tarpit.clone() else { return };
    let entries = emitter.list(tarpit.value).map(|Acl(entries)| entries.clone()).unwrap_or_default();
    let (mut networks, mut comments) = (Vec::new(), Vec::new());
    if entries.last().is_none_or(|last| last.value.verdict == Verdict::Deny) {
        let text = format!(
            "with list {} Pen answers for all other addresses: name the networks of unused ones in `tarpit-networks`",
            tarpit.value
        );
        comments.push(emitter.note(Effect::Missing, &tarpit.place, &text));
    }
    for (at, Said { value, place }) in entries.iter().enumerate() {
        match network(value) {
            Ok(network) if entries[..at].iter().any(|earlier| denies(&earlier.value, &value.clients)) => {
                let text = format!("an entry before it denies {network}");
                comments.push(emitter.note(Effect::Dropped, place, &text));
            }
            Ok(_) if networks.len() == NETWORKS => {
                let text = format!("`tarpit-networks` has at most {NETWORKS} networks: name larger ones");
                comments.push(emitter.note(Effect::Missing, place, &text));
            }
            Ok(network) => networks.push(quoted(&network)),
            Err((effect, why)) => comments.push(emitter.note(effect, place, &why)),
        }
    }
    if networks.is_empty() {
        comments.into_iter().for_each(|comment| section.comment(comment));
        return;
    }
    section.put("tarpit-networks", list(&networks), &comments);
    let text = "packets a second; Pen has no limit, and takes addresses of machines too";
    let comment = emitter.note(Effect::Changed, &tarpit.place, text);
    section.put("tarpit-rate", RATE.to_string(), &[comment]);
}

/// Whether an entry denies all of these addresses.
fn denies(entry: &Entry, clients: &Clients) -> bool {
    match (&entry.clients, clients) {
        (Clients::Ipv4 { address, mask }, Clients::Ipv4 { address: other, mask: narrower }) => {
            entry.verdict == Verdict::Deny && other & mask == *address && narrower & mask == *mask
        }
        _ => false,
    }
}

/// The network of an entry, or what becomes of it.
fn network(entry: &Entry) -> Result<String, (Effect, String)> {
    let (address, mask) = match &entry.clients {
        Clients::Ipv4 { address, mask } => (Ipv4Addr::from_bits(*address), mask),
        Clients::Ipv6 { .. } => return Err((Effect::Dropped, "with dsr_if Pen has no IPv6".to_owned())),
        Clients::Country(_) => {
            let why = "a country is no network: name the unused addresses in `tarpit-networks`";
            return Err((Effect::Missing, why.to_owned()));
        }
    };
    let text = acl::network(&entry.clients)?;
    if entry.verdict == Verdict::Deny {
        let why = format!("{text} is held only while no machine has it: a machine keeps its address");
        return Err((Effect::Changed, why));
    }
    if mask.leading_ones() < WIDEST {
        let why = format!("{text} is too large: networks of `tarpit-networks` are /{WIDEST} or smaller");
        return Err((Effect::Missing, why));
    }
    if !is_service(IpAddr::V4(address)) {
        return Err((Effect::Dropped, format!("{text} has no addresses of machines")));
    }
    Ok(text)
}
