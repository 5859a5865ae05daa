//! The pools of a translated Pen: its servers, and the emergency and the abuse server.

use std::collections::BTreeMap;

use super::emitter::Emitter;
use super::model::{Said, Server, is_on, place_of};
use super::upstream;
use crate::document::{Document, Section, list, quoted, seconds};
use crate::keys::{NewKey, State};
use crate::{Effect, Fault, Faults, fits};

/// Name of the listener's pool.
pub(super) const MAIN: &str = "main";
pub(super) const ABUSE: &str = "abuse";
const EMERGENCY: &str = "emergency";

/// Pen's default of `-b`, in seconds.
const BLACKLIST: u64 = 30;
/// Pen's default of `-t`, in seconds.
const TIMEOUT: u64 = 3;
const DAY: u64 = 86400;
/// The largest `weight` of a backend.
pub(super) const HEAVIEST: u64 = 1000;

/// How a server is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    Sticky,
    RoundRobin,
    LeastConnections,
    Hash,
}

impl Balance {
    const fn word(self) -> &'static str {
        match self {
            Self::Sticky => "sticky",
            Self::RoundRobin => "round-robin",
            Self::LeastConnections => "least-connections",
            Self::Hash => "hash",
        }
    }
}

/// Writes the pool of the listener; `port` is that of servers that have none.
pub(super) fn main(emitter: &mut Emitter, document: &mut Document, port: Option<u16>) -> Result<(), Faults> {
    let servers = servers(emitter, port);
    if servers.is_empty() {
        return Err(Faults(vec![Fault {
            place: "Pen".to_owned(),
            message: "it has no server".to_owned(),
            hint: Some(
                "servers follow after the port: penstock import pen 80 www1:8000 www2:8000".to_owned(),
            ),
        }]));
    }
    let section = document.section(format!("pool.{MAIN}"));
    backends(emitter, section, &servers);
    balance(emitter, section, &servers);
    if servers.iter().any(|(_, server)| server.soft > 0) {
        section.put(
            "queue",
            "0",
            &["no client waits for a server that has all its connections, as in Pen".to_owned()],
        );
    }
    let choice = &emitter.pen.choice;
    let retries = if is_on(&choice.stubborn) { 0 } else { servers.len().saturating_sub(1).min(100) };
    let place = place_of(&choice.stubborn, "-s");
    section.put("retries", retries.to_string(), &[place]);
    let emergency = emitter.pen.emergency.clone();
    let emergency = emergency.filter(|said| has_address(emitter, said, port));
    let emergency = emergency.filter(|said| emitter.key(NewKey::Fallback, &said.place) == State::Here);
    if emergency.is_some() {
        section.put("fallback", quoted(EMERGENCY), &[]);
    }
    failures(emitter, section);
    let addresses: Vec<_> = servers.into_iter().map(|(address, _)| address).collect();
    upstream::keys(emitter, section, &addresses);
    if let Some(emergency) = emergency {
        single(emitter, document, EMERGENCY, &emergency, port);
    }
    Ok(())
}

/// Whether a server has an address here; if not, a note says it.
pub(super) fn has_address(emitter: &mut Emitter, server: &Said<Server>, port: Option<u16>) -> bool {
    let place = server.value.place.as_ref();
    if place.is_some_and(|place| !place.is_unused() && place.written(port).is_some()) {
        return true;
    }
    emitter.note(Effect::Missing, &server.place, "this server has no port, so Pen cannot use it");
    false
}

/// Writes a pool with one server.
pub(super) fn single(
    emitter: &mut Emitter,
    document: &mut Document,
    name: &str,
    server: &Said<Server>,
    port: Option<u16>,
) {
    let section = document.section(format!("pool.{name}"));
    if let Some(address) = server.value.place.as_ref().and_then(|place| place.written(port)) {
        section.put("backends", list(&[quoted(&address)]), &[]);
        let mut comments = Vec::new();
        let connect = connect_timeout(emitter, &mut comments);
        section.put("timeouts", format!("{{ connect = {connect} }}"), &comments);
        upstream::keys(emitter, section, &[address]);
    }
}

/// The servers that Pen uses, with the addresses that they have here. A server that is listed twice is there once, with
/// the weight of both.
fn servers(emitter: &mut Emitter, port: Option<u16>) -> Vec<(String, Server)> {
    let mut servers: Vec<(String, Server)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut twice: BTreeMap<String, u64> = BTreeMap::new();
    for (number, mut server) in std::mem::take(&mut emitter.pen.servers) {
        let Some(place) = &server.place else {
            let place = format!("server {number}");
            emitter.note(Effect::Dropped, &place, "it has no address, so Pen does not use it");
            continue;
        };
        if place.is_unused() {
            emitter.note(Effect::Dropped, &server.said_at, "Pen takes this address for an unused entry");
            continue;
        }
        let Some(address) = place.written(port) else {
            emitter.note(Effect::Dropped, &server.said_at, "it has no port, so Pen does not use it");
            continue;
        };
        if let Some(Said { value: seconds @ 1.., place }) = server.blacklist.take() {
            let text = format!(
                "a server that runs is taken out for a time by a command: `penstock ctl drain {address} --for {seconds}s`"
            );
            emitter.note(Effect::Changed, &place, &text);
        }
        if !is_on(&emitter.pen.choice.weight) {
            if server.weight > 0 {
                let text = "its weight has no effect in Pen without -W, and is left out";
                emitter.note(Effect::Dropped, &server.said_at, text);
            }
            server.weight = 1;
        }
        let one = fits::canonical(&address);
        match places.get(&one).and_then(|at| servers.get_mut(*at)) {
            Some((_, known)) => {
                known.weight += server.weight;
                twice.insert(address, known.weight);
            }
            None => {
                places.insert(one, servers.len());
                servers.push((address, server));
            }
        }
    }
    for (address, weight) in twice {
        let text = format!("listed more than once: here it has the weight {weight}");
        emitter.note(Effect::Changed, &address, &text);
    }
    servers
}

fn backends(emitter: &mut Emitter, section: &mut Section, servers: &[(String, Server)]) {
    let heaviest = servers.iter().map(|(_, server)| server.weight).max().unwrap_or(0);
    let mut comments = Vec::new();
    if heaviest == 0 {
        let place = place_of(&emitter.pen.choice.weight, "-W");
        let text = "no server has a weight, and then Pen serves no client: here all have the same";
        comments.push(emitter.note(Effect::Changed, &place, text));
    } else if heaviest > HEAVIEST {
        let place = place_of(&emitter.pen.choice.weight, "-W");
        let text = format!("weights are scaled: at most {HEAVIEST} here");
        comments.push(emitter.note(Effect::Changed, &place, &text));
    }
    for (_, server) in servers.iter().filter(|(_, server)| heaviest > 0 && server.weight == 0) {
        let text = "weight 0: it gets no client, as in Pen with -W";
        comments.push(emitter.note(Effect::Changed, &server.said_at, text));
    }
    let entries: Vec<_> = servers
        .iter()
        .map(|(address, server)| {
            let mut words = Vec::new();
            let weight = match (heaviest, server.weight) {
                (0, _) => 1,
                (heaviest, weight) if heaviest > HEAVIEST && weight > 0 => {
                    (weight * HEAVIEST / heaviest).max(1)
                }
                (_, weight) => weight,
            };
            if weight != 1 {
                words.push(format!("weight = {weight}"));
            }
            words.extend(limits(emitter, server));
            if is_on(&emitter.pen.choice.prio)
                && emitter.key(NewKey::Priority, &server.said_at) == State::Here
            {
                words.push(format!("priority = {}", server.prio));
            }
            words.extend(list_of(emitter, server));
            if words.is_empty() {
                quoted(address)
            } else {
                format!("{{ address = {}, {} }}", quoted(address), words.join(", "))
            }
        })
        .collect();
    section.put("backends", list(&entries), &comments);
}

/// The limits of a server. `hard` counts only for clients that Pen remembers, and only above `soft`.
fn limits(emitter: &mut Emitter, server: &Server) -> Vec<String> {
    if server.soft == 0 {
        if server.hard > 0 {
            let text = "its hard limit has no effect in Pen without a soft one, and is left out";
            emitter.note(Effect::Dropped, &server.said_at, text);
        }
        return Vec::new();
    }
    if server.hard <= server.soft {
        return vec![format!("max-connections = {}", server.soft)];
    }
    if is_on(&emitter.pen.choice.roundrobin) {
        let text =
            "the hard limit is for clients that return to their server, which -r does not remember: left out";
        emitter.note(Effect::Changed, &server.said_at, text);
        return vec![format!("max-connections = {}", server.soft)];
    }
    let mut words = vec![format!("max-connections = {}", server.hard)];
    if emitter.key(NewKey::SoftMaxConnections, &server.said_at) == State::Here {
        words.insert(0, format!("soft-max-connections = {}", server.soft));
    }
    words
}

/// The access list of a server, where it is not that of all clients.
fn list_of(emitter: &mut Emitter, server: &Server) -> Option<String> {
    let for_clients = emitter.pen.client_acl.as_ref().map_or(0, |said| said.value);
    if server.acl == for_clients || emitter.list(server.acl).is_none() {
        return None;
    }
    let state = emitter.key(NewKey::BackendAcl, &server.said_at);
    (state == State::Here).then(|| format!("acl = {}", quoted(&format!("list-{}", server.acl))))
}

fn balance(emitter: &mut Emitter, section: &mut Section, servers: &[(String, Server)]) {
    let choice = &emitter.pen.choice;
    let place = |name: &str, given| place_of(given, name);
    let remembers = !is_on(&choice.roundrobin);
    let prio = is_on(&choice.prio);
    let (balance, told) = match (is_on(&choice.weight) && !prio, is_on(&choice.hash) && !prio, remembers) {
        (true, _, false) => (Balance::LeastConnections, None),
        (false, true, false) => {
            let text = "with -r Pen hashes the client's port as well, which only spreads connections: here they go in turn";
            (Balance::RoundRobin, Some((place("-h", &choice.hash), text)))
        }
        (false, true, true) => {
            let text = "another hash: a client may get another server than in Pen; a change of one server moves few clients";
            (Balance::Hash, Some((place("-h", &choice.hash), text)))
        }
        (false, false, false) => (Balance::RoundRobin, None),
        (true, _, true) => (Balance::Sticky, None),
        (false, false, true) => {
            let text = "a client stays at its server, as in Pen; a new one goes to the server with the fewest sessions, and \
                        Pen takes them in turn";
            (Balance::Sticky, Some((place("-r", &choice.roundrobin), text)))
        }
    };
    let equal = servers.windows(2).any(|pair| pair[0].1.prio == pair[1].1.prio);
    let shared = (prio && equal).then(|| place("prio", &choice.prio));
    let mut comments = Vec::new();
    if let Some((place, text)) = told.filter(|_| servers.len() > 1) {
        comments.push(emitter.note(Effect::Changed, &place, text));
    }
    if let Some(place) = shared {
        let text =
            "of several servers with the same priority Pen uses the first only; here they share the sessions";
        comments.push(emitter.note(Effect::Changed, &place, text));
    }
    section.put("balance", quoted(balance.word()), &comments);
    if balance == Balance::Sticky {
        sticky(emitter, section);
    }
}

fn sticky(emitter: &mut Emitter, section: &mut Section) {
    let mut comments = Vec::new();
    let place = place_of(&emitter.pen.tracking, "-T");
    let ttl = match emitter.pen.tracking.as_ref().map_or(0, |said| said.value) {
        0 => {
            let text = "Pen remembers clients for ever, and 2048 of them; here it is a year, and 65536 unless -c says another \
                        number";
            comments.push(emitter.note(Effect::Changed, &place, text));
            seconds(365 * DAY)
        }
        time => emitter.duration(time, 366 * DAY, &place, &mut comments),
    };
    let entries = emitter.pen.clients_max.as_ref().map(|said| format!(", entries = {}", said.value.max(1)));
    section.put("sticky", format!("{{ ttl = {ttl}{} }}", entries.unwrap_or_default()), &comments);
}

/// What a server that does not answer causes.
fn failures(emitter: &mut Emitter, section: &mut Section) {
    let time = emitter.pen.blacklist.as_ref().map_or(BLACKLIST, |said| said.value);
    let place = place_of(&emitter.pen.blacklist, "-b");
    let mut comments = Vec::new();
    if time == 0 {
        section.put("passive", quoted("off"), &[place]);
    } else {
        let text = "a server that fails again at its return stays out twice as long; the last one that works is never taken out";
        comments.push(emitter.note(Effect::Changed, &place, text));
        let time = emitter.duration(time, DAY, &place, &mut comments);
        section.put("passive", format!("{{ failures = 1, ejection = {time} }}"), &comments);
    }
    let mut comments = Vec::new();
    let connect = connect_timeout(emitter, &mut comments);
    section.put("timeouts", format!("{{ connect = {connect} }}"), &comments);
}

fn connect_timeout(emitter: &mut Emitter, comments: &mut Vec<String>) -> String {
    let time = emitter.pen.timeout.as_ref().map_or(TIMEOUT, |said| said.value.max(1));
    let place = place_of(&emitter.pen.timeout, "-t");
    emitter.duration(time, DAY, &place, comments)
}
