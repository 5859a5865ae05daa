//! Import of `known_hosts` as identities: lines about one host become one file; lines of no use are reported.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::authority::{Authority, AuthorityFile};
use super::date::Date;
use super::host::{HostFile, Pin};
use super::index::{Found, Index};
use super::known_hosts::{KnownHosts, KnownLine, Marker, Names};
use super::location::dns_name;
use super::name::Name;
use super::pattern::Patterns;
use super::proof::{Proof, Root};
use crate::ssh::key::PublicKey;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Import {
    pub hosts: Vec<HostFile>,
    pub authorities: Vec<AuthorityFile>,
    /// Keys that are refused from every host.
    pub revoked: Vec<PublicKey>,
    /// Number of lines without new information.
    pub known: usize,
    pub left: Vec<Left>,
    /// Hosts that got a key of another host.
    pub shared: Vec<Shared>,
}

/// Two hosts with one key: the same machine, or a clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// Host that got the key now.
    pub host: Name,
    /// Other host with the key.
    pub other: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub line: usize,
    /// Reason and advice.
    pub why: String,
}

/// Name of a host whose keys OpenSSH stores under another name: a `Host` of `ssh_config` with a `HostName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    pub name: Name,
    /// Address or name in `known_hosts`; `[...]:port` for another port than 22.
    pub place: Name,
}

/// Converts a file to identities. Hashed names are compared with `candidates`: names from the operator, aliases of
/// `ssh_config`, known hosts. A host in `called` gets that name; of several names the first is the identity, and the
/// others are aliases.
#[must_use]
pub fn import(
    file: &KnownHosts,
    candidates: &[String],
    called: &[Called],
    index: &Index,
    today: Date,
) -> Import {
    let mut import = Import::default();
    import.left.extend(file.faults.iter().map(|fault| Left { line: fault.line, why: fault.message.clone() }));
    let mut work = Work::new(called, index, today, import);
    // Lines with names come first: a line with only an address is then assigned to the host that has the key.
    let (named, bare): (Vec<&KnownLine>, Vec<&KnownLine>) =
        file.lines.iter().partition(|line| !names_of(line, candidates).iter().all(|name| is_address(name)));
    for line in named.into_iter().chain(bare) {
        work.take(line, candidates);
    }
    work.name_without_ports();
    let Work { hosts, mut import, .. } = work;
    import.hosts = hosts.into_values().filter(|host| is_changed(host, index)).collect();
    import.left.sort_by_key(|left| left.line);
    import.shared = shared(&import.hosts, index);
    import
}

/// Finds new keys that another host has too; each pair of hosts once.
fn shared(hosts: &[HostFile], index: &Index) -> Vec<Shared> {
    let mut shared: Vec<Shared> = Vec::new();
    let mut told: HashSet<(&Name, &Name)> = HashSet::new();
    let mut owners: HashMap<&PublicKey, &Name> = HashMap::new();
    for host in hosts {
        let name = host.name();
        for pin in host.pins() {
            let is_known = |known: &HostFile| known.name() == name && known.pin(&pin.key).is_some();
            if matches!(index.find(name.as_str(), 22), Found::Host(known) if is_known(known)) {
                continue;
            }
            let known = index.owners(&pin.key).map(HostFile::name).next();
            let here = *owners.entry(&pin.key).or_insert(name);
            let other = known.or(Some(here).filter(|here| *here != name));
            if let Some(other) = other.filter(|other| told.insert((name, other))) {
                shared.push(Shared { host: name.clone(), other: other.clone() });
            }
        }
    }
    shared
}

struct Work<'i> {
    hosts: BTreeMap<Name, HostFile>,
    /// Host of each name in earlier lines.
    names: BTreeMap<Name, Name>,
    /// For each key, the host with the key that is first by name.
    owners: HashMap<PublicKey, Name>,
    called: &'i [Called],
    /// Indexes in `called` for each place.
    places: HashMap<&'i Name, Vec<usize>>,
    /// Host patterns of each authority key.
    authorities: HashMap<PublicKey, Vec<Patterns>>,
    revoked: HashSet<PublicKey>,
    index: &'i Index,
    today: Date,
    import: Import,
}

impl<'i> Work<'i> {
    fn new(called: &'i [Called], index: &'i Index, today: Date, import: Import) -> Self {
        let mut places: HashMap<&Name, Vec<usize>> = HashMap::new();
        for (at, one) in called.iter().enumerate() {
            places.entry(&one.place).or_default().push(at);
        }
        let mut authorities: HashMap<PublicKey, Vec<Patterns>> = HashMap::new();
        for authority in index.authorities() {
            for key in &authority.keys {
                authorities.entry(key.clone()).or_default().extend(authority.names.clone());
            }
        }
        let (hosts, names, owners) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
        Self {
            hosts,
            names,
            owners,
            called,
            places,
            authorities,
            revoked: HashSet::new(),
            index,
            today,
            import,
        }
    }

    fn take(&mut self, line: &KnownLine, candidates: &[String]) {
        let result = match line.marker {
            Marker::None => self.take_key(line, candidates),
            Marker::Authority => self.take_authority(line),
            Marker::Revoked => self.take_revoked(line),
        };
        if let Err(why) = result {
            self.import.left.push(Left { line: line.number, why });
        }
    }

    fn take_key(&mut self, line: &KnownLine, candidates: &[String]) -> Result<(), String> {
        if let Names::Plain(patterns) = &line.names
            && !patterns.are_names()
        {
            return Err(format!(
                "{patterns} is a pattern: one key for many hosts identifies none of them; use an authority"
            ));
        }
        if line.key.algorithm().contains("-cert-v01@") {
            return Err("it is a certificate: name its authority instead".into());
        }
        let names = names_of(line, candidates);
        if names.is_empty() {
            return Err("the name is hashed and none of the given names fits: give it with --name, or a file with --names".into());
        }
        let names: Vec<Name> = names
            .iter()
            .map(|name| name.parse())
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{error}"))?;
        if names.len() > MOST_NAMES {
            return Err(format!("it has more than {MOST_NAMES} names: they are not of one host"));
        }
        let places: BTreeSet<usize> =
            names.iter().filter_map(|name| self.places.get(name)).flatten().copied().collect();
        let called: Vec<&Called> = places.into_iter().map(|at| &self.called[at]).collect();
        let id = self.identity(&names, &called, &line.key);
        let known = match self.index.find(id.as_str(), 22) {
            Found::Host(host) if !is_another(host, &id, &line.key) => Some(host.clone()),
            Found::Damaged(damage) => return Err(format!("{} is damaged: repair it first", damage.path)),
            _ => None,
        };
        let id = known.as_ref().map_or(id, |host| host.name().clone());
        let host = match self.hosts.entry(id.clone()) {
            Entry::Occupied(host) => host.into_mut(),
            Entry::Vacant(place) => {
                let host = known.clone().unwrap_or_else(|| HostFile::new(id.clone()));
                host.pins().for_each(|pin| note_owner(&mut self.owners, &pin.key, &id));
                place.insert(host)
            }
        };
        if host.names().count() + host.address().addresses.len() >= MOST_NAMES {
            return Err(format!(
                "{id} has {MOST_NAMES} names and addresses already: penstock host show {id}; hosts with one key need new keys"
            ));
        }
        let before = host.clone();
        let was_pinned = known.as_ref().is_some_and(|known| known.pin(&line.key).is_some());
        if host.pin(&line.key).is_none() {
            if let Some((_, since)) = host.retired_keys().find(|(key, _)| *key == &line.key) {
                return Err(format!(
                    "{id} had this key until {since}, when it was retired: the line is out of date"
                ));
            }
            if self.index.is_revoked(&line.key) {
                return Err("the key is revoked".into());
            }
            let trusted = known.as_ref().into_iter().flat_map(HostFile::pins);
            if trusted.map(|pin| pin.key.algorithm()).any(|algorithm| algorithm == line.key.algorithm()) {
                let is_other = |host: &&HostFile| *host.name() != id && host.pin(&line.key).is_some();
                if let Some(other) = self.index.owners(&line.key).find(is_other) {
                    return Err(format!(
                        "it gives {id} the key of {}, but {id} has another {} pinned: the line is wrong, or one machine was \
                         cloned from the other and needs new keys",
                        other.name(),
                        line.key.algorithm(),
                    ));
                }
                return Err(format!(
                    "{id} has another {} pinned: if this one is right, penstock host add {id} --replace --fingerprint {}",
                    line.key.algorithm(),
                    line.key.fingerprint()
                ));
            }
            let proof = match line.root {
                Root::Proved => Proof::KnownHosts,
                Root::FirstUse => Proof::FirstUse,
            };
            host.pin_key(Pin { key: line.key.clone(), proof, date: self.today, by: None, absent: None });
            note_owner(&mut self.owners, &line.key, &id);
        }
        for one in &called {
            let (place, port) = one.place.split_port();
            match place.parse::<std::net::IpAddr>() {
                Ok(address) => host.add_address(address),
                Err(_) if place != one.name.as_str() => {
                    dns_name(place).into_iter().for_each(|place| host.add_dns(place));
                }
                Err(_) => {}
            }
            if let Some(port) = port {
                host.set_port(port);
            }
        }
        for name in called.iter().map(|one| one.name.clone()).chain(names) {
            // An address with the port of the host becomes a hint: an alias would remain when the host moves.
            let (place, port) = name.split_port();
            let address = place.parse().ok().filter(|_| port.is_none() || port == host.port());
            // Also a later import finds the name without its port, which is the hint.
            let is_itself = place == id.as_str() && port.is_none_or(|port| host.port() == Some(port));
            match address {
                _ if name == id || is_itself => {}
                Some(address) => host.add_address(address),
                None => host.add_alias(name.clone()),
            }
            self.names.entry(name).or_insert_with(|| id.clone());
        }
        self.import.known += usize::from(was_pinned || *host == before);
        Ok(())
    }

    /// Identity of a line: a known host with one of the names; else the name in `called`; for addresses alone, the host
    /// that has the key; else the first name.
    fn identity(&self, names: &[Name], called: &[&Called], key: &PublicKey) -> Name {
        let known = called.iter().map(|one| &one.name).chain(names).find_map(|name| {
            let here = self.names.get(name).cloned();
            here.or_else(|| match self.index.find(name.as_str(), 22) {
                Found::Host(host) if !is_another(host, name, key) => Some(host.name().clone()),
                _ => None,
            })
        });
        if let Some(known) = known {
            return known;
        }
        if let Some(one) = called.first() {
            return one.name.clone();
        }
        match names.iter().find(|name| name.address().is_none()) {
            Some(name) if !is_address(name.as_str()) => name.clone(),
            _ => self.owners.get(key).unwrap_or(&names[0]).clone(),
        }
    }

    /// Names a new host `[web1]:2222` `web1`, with the port as a hint, unless another host has the name or the address:
    /// no command takes the name with brackets for a host.
    fn name_without_ports(&mut self) {
        let mut ids: HashMap<Name, Vec<Name>> = HashMap::new();
        for id in self.hosts.keys() {
            if let Ok(place) = id.split_port().0.parse() {
                ids.entry(place).or_default().push(id.clone());
            }
        }
        for (place, ids) in ids {
            let [id] = ids.as_slice() else { continue };
            let Some(port) = id.split_port().1 else { continue };
            let is_taken = self.names.contains_key(&place)
                || self.index.find(place.as_str(), 22) != Found::Unknown
                || self.index.find(id.as_str(), 22) != Found::Unknown;
            let address = place.address();
            let is_hint =
                |host: &HostFile| address.is_some_and(|one| host.known_addresses().any(|known| known == one));
            if is_taken || self.hosts.iter().any(|(other, host)| other != id && is_hint(host)) {
                continue;
            }
            if let Some(mut host) = self.hosts.remove(id) {
                host.name_by_place(place.clone(), port);
                self.hosts.insert(place, host);
            }
        }
    }

    fn take_authority(&mut self, line: &KnownLine) -> Result<(), String> {
        let Names::Plain(names) = &line.names else {
            return Err("the name of an authority's hosts is hashed: write the pattern instead".into());
        };
        if self.authorities.get(&line.key).is_some_and(|known| known.contains(names)) {
            self.import.known += 1;
            return Ok(());
        }
        let name = authority_name(names, &line.key);
        let name = name.parse().map_err(|error| format!("{error}"))?;
        let authority = Authority { name, names: Some(names.clone()), keys: vec![line.key.clone()] };
        self.authorities.entry(line.key.clone()).or_default().push(names.clone());
        self.import.authorities.push(AuthorityFile { authority, proof: Proof::KnownHosts, date: self.today });
        Ok(())
    }

    fn take_revoked(&mut self, line: &KnownLine) -> Result<(), String> {
        if self.index.is_revoked(&line.key) || !self.revoked.insert(line.key.clone()) {
            self.import.known += 1;
        } else {
            self.import.revoked.push(line.key.clone());
        }
        Ok(())
    }
}

/// Records the host of a key. Of several hosts the first by name counts.
fn note_owner(owners: &mut HashMap<PublicKey, Name>, key: &PublicKey, host: &Name) {
    match owners.get_mut(key) {
        Some(known) if host < known => *known = host.clone(),
        Some(_) => {}
        None => drop(owners.insert(key.clone(), host.clone())),
    }
}

/// True if a line is about another server than `host`, which its name led to. An address is a hint together with its
/// port, and only the key distinguishes servers that share an address.
fn is_another(host: &HostFile, name: &Name, key: &PublicKey) -> bool {
    let (place, port) = name.split_port();
    if host.pin(key).is_some() || host.names().any(|known| known == name) {
        return false;
    }
    match place.parse::<std::net::IpAddr>() {
        Ok(_) => host.port().unwrap_or(22) != port.unwrap_or(22),
        Err(_) => port.is_some_and(|port| host.is_elsewhere(port)),
    }
}

/// Plain names of a line. A hashed name is looked up among the candidates.
fn names_of(line: &KnownLine, candidates: &[String]) -> Vec<String> {
    match &line.names {
        Names::Plain(patterns) => {
            patterns.parts().map(str::to_owned).map(|name| without_port_22(&name)).collect()
        }
        Names::Hashed { .. } => candidates.iter().filter(|name| line.names.matches(name)).cloned().collect(),
    }
}

fn without_port_22(name: &str) -> String {
    let plain = name.strip_prefix('[').and_then(|rest| rest.strip_suffix("]:22"));
    plain.unwrap_or(name).to_owned()
}

/// True for an address or `[address]:port`.
fn is_address(name: &str) -> bool {
    let inside =
        name.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:")).map_or(name, |(inside, _)| inside);
    inside.parse::<std::net::IpAddr>().is_ok()
}

/// Builds a name for an authority without one: from its first pattern and its key.
fn authority_name(names: &Patterns, key: &PublicKey) -> String {
    let first = names.parts().next().unwrap_or_default();
    let letters: String =
        first.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.' || *c == '-').collect();
    let fingerprint: String =
        key.fingerprint().to_string().chars().skip(7).filter(char::is_ascii_alphanumeric).take(8).collect();
    let letters = letters.trim_start_matches(['.', '-']).to_owned();
    let start = if letters.is_empty() { "any".to_owned() } else { letters.chars().take(100).collect() };
    format!("{start}-{fingerprint}").to_ascii_lowercase()
}

fn is_changed(host: &HostFile, index: &Index) -> bool {
    match index.find(host.name().as_str(), 22) {
        Found::Host(known) => known != host,
        _ => host.pins().next().is_some(),
    }
}

/// Limit of names and addresses of one host. Each new one is compared with all earlier ones; no host has more.
const MOST_NAMES: usize = 1000;

#[cfg(test)]
mod tests;
