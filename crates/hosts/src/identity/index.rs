//! Index of all hosts by name and by key.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::authority::Authority;
use super::host::{Binding, HostFile};
use super::line::Fault;
use super::name::Name;
use super::pattern::Patterns;
use crate::ssh::key::PublicKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub path: String,
    pub faults: Vec<Fault>,
}

/// Result of a look-up of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<'i> {
    Host(&'i HostFile),
    Damaged(&'i Damage),
    /// No identity has the name, but several hosts have it as a hint.
    Ambiguous(Vec<&'i Name>),
    Unknown,
}

/// Authority that counts for one host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'i> {
    pub(super) key: &'i PublicKey,
    /// Name of the authority; `None` if the file of the host holds its key.
    pub(super) authority: Option<&'i Name>,
    /// Principals that a certificate may have; `None` for the names of the host.
    pub(super) principals: Option<&'i Patterns>,
}

/// All hosts, by name and by key.
#[derive(Debug, Default)]
pub struct Index {
    hosts: Vec<HostFile>,
    by_id: HashMap<Name, usize>,
    by_hint: HashMap<Name, Vec<usize>>,
    /// Ports of identities that are named `[name]:port`, by `name`.
    ports: HashMap<Box<str>, u16>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    by_key: HashMap<PublicKey, Vec<usize>>,
    damaged: HashMap<Name, Damage>,
    authorities: Vec<Authority>,
    damaged_authorities: Vec<(Name, Damage)>,
    /// Keys of the list `revoked`, for all hosts.
    listed: HashSet<PublicKey>,
    /// Keys that files of hosts revoke.
    revoked_by_hosts: HashSet<PublicKey>,
}

impl Index {
    #[must_use]
    pub fn new(
        hosts: Vec<HostFile>,
        damaged: Vec<(Name, Damage)>,
        authorities: Vec<Result<Authority, (Name, Damage)>>,
        revoked: impl IntoIterator<Item = PublicKey>,
    ) -> Self {
        let mut index = Self {
            by_id: HashMap::with_capacity(hosts.len()),
            by_key: HashMap::with_capacity(hosts.len() * 2),
            damaged: damaged.into_iter().collect(),
            listed: revoked.into_iter().collect(),
            ..Self::default()
        };
        for authority in authorities {
            match authority {
                Ok(authority) => index.authorities.push(authority),
                Err(damage) => index.damaged_authorities.push(damage),
            }
        }
        for host in hosts {
            index.insert(host);
        }
        index
    }

    fn insert(&mut self, host: HostFile) {
        let at = self.hosts.len();
        for key in host.pins().map(|pin| &pin.key).chain(host.retired_keys().map(|(key, _)| key)) {
            note(&mut self.by_key, key.clone(), at);
        }
        self.revoked_by_hosts.extend(host.revoked().cloned());
        for name in host.names().skip(1) {
            note(&mut self.by_hint, name.clone(), at);
        }
        for address in host.address().addresses {
            note(&mut self.by_address, address, at);
        }
        if let (name, Some(port)) = host.name().split_port() {
            self.ports.insert(name.into(), port);
        }
        self.by_id.insert(host.name().clone(), at);
        self.hosts.push(host);
    }

    pub fn replace(&mut self, host: HostFile) {
        let name = host.name().clone();
        self.damaged.remove(&name);
        let mut hosts = std::mem::take(&mut self.hosts);
        match self.by_id.get(&name) {
            Some(at) => hosts[*at] = host,
            None => hosts.push(host),
        }
        self.by_id.clear();
        self.by_hint.clear();
        self.by_address.clear();
        self.by_key.clear();
        self.revoked_by_hosts.clear();
        for host in hosts {
            self.insert(host);
        }
    }

    /// Finds the host of a name: an identity; else an alias, a DNS name or an address that is a hint of one host. For
    /// another port than 22, `[name]:port` is looked up first, as by OpenSSH.
    #[must_use]
    pub fn find(&self, name: &str, port: u16) -> Found<'_> {
        let with_port = if port == 22 { None } else { Name::with_port(name, port).ok() };
        let plain = name.parse::<Name>().ok();
        // `[web1]:2222` from OpenSSH means web1 if no host has the full name.
        let without =
            plain.as_ref().and_then(|name| name.split_port().1.map(|_| name.split_port().0.to_owned()));
        let without = without.and_then(|name| name.parse::<Name>().ok());
        // A host whose file has this port precedes a host that only has name and port as an alias.
        if let (Some(exactly), Some(plain)) = (&with_port, &plain)
            && !self.by_id.contains_key(exactly)
            && !self.damaged.contains_key(exactly)
            && let Some(host) = self.by_id.get(plain).map(|at| &self.hosts[*at])
            && host.port() == Some(port)
            && !self.damaged.contains_key(plain)
        {
            return Found::Host(host);
        }
        for name in [with_port, plain, without].iter().flatten() {
            match self.find_exactly(name) {
                Found::Unknown => {}
                found => return found,
            }
        }
        Found::Unknown
    }

    fn find_exactly(&self, name: &Name) -> Found<'_> {
        if let Some(damage) = self.damaged.get(name) {
            return Found::Damaged(damage);
        }
        if let Some(at) = self.by_id.get(name) {
            return Found::Host(&self.hosts[*at]);
        }
        let hinted = match self.by_hint.get(name) {
            Some(hinted) => hinted.clone(),
            None => self.at_address(name),
        };
        match hinted.as_slice() {
            [] => Found::Unknown,
            [at] => Found::Host(&self.hosts[*at]),
            several => Found::Ambiguous(several.iter().map(|at| self.hosts[*at].name()).collect()),
        }
    }

    /// Hosts with this address as a hint; with a port (`[10.0.0.1]:2222`), only hosts on the same port.
    fn at_address(&self, name: &Name) -> Vec<usize> {
        let (place, port) = name.split_port();
        let Ok(address) = place.parse::<IpAddr>() else { return Vec::new() };
        let here = self.by_address.get(&address).into_iter().flatten();
        here.filter(|at| port.is_none() || self.hosts[**at].port() == port).copied().collect()
    }

    /// Hosts that have or had this key.
    pub fn owners<'i>(&'i self, key: &PublicKey) -> impl Iterator<Item = &'i HostFile> + use<'i> {
        self.by_key.get(key).into_iter().flatten().map(|at| &self.hosts[*at])
    }

    /// True if the list `revoked` or the file of any host revokes the key.
    #[must_use]
    pub fn is_revoked(&self, key: &PublicKey) -> bool {
        self.listed.contains(key) || self.revoked_by_hosts.contains(key)
    }

    /// True if the list `revoked` or the file of `host` revokes a key of the host or of its authority. No file of
    /// another host is needed.
    #[must_use]
    pub fn revokes(&self, key: &PublicKey, host: Option<&HostFile>) -> bool {
        self.listed.contains(key) || host.is_some_and(|host| host.revoked().any(|revoked| revoked == key))
    }

    pub fn revoked(&self) -> impl Iterator<Item = &PublicKey> {
        self.listed.iter().chain(self.revoked_by_hosts.difference(&self.listed))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
            && self.damaged.is_empty()
            && self.authorities.is_empty()
            && self.damaged_authorities.is_empty()
            && self.listed.is_empty()
    }

    /// Hosts in the order in which their files were read.
    #[must_use]
    pub fn hosts(&self) -> &[HostFile] {
        &self.hosts
    }

    #[must_use]
    pub fn damaged(&self) -> &HashMap<Name, Damage> {
        &self.damaged
    }

    #[must_use]
    pub fn damaged_authorities(&self) -> &[(Name, Damage)] {
        &self.damaged_authorities
    }

    #[must_use]
    pub fn authorities(&self) -> &[Authority] {
        &self.authorities
    }

    /// Authorities that count for `name`, with their keys. `host` is the host of the name, if known. The authority has
    /// no name if only the file of the host holds its key. Empty if an authority is missing or damaged.
    #[must_use]
    pub fn authorities_of<'i>(
        &'i self,
        name: &str,
        host: Option<&'i HostFile>,
    ) -> Vec<(Option<&'i Name>, &'i PublicKey)> {
        let bound = self.bound(name, host).unwrap_or_default();
        bound.into_iter().map(|one| (one.authority, one.key)).collect()
    }

    /// Authorities that count for `name`; `host` is the host of the name, if known. The error names an authority of the
    /// host that is missing or damaged: the host must be refused, or a damaged file would weaken its check.
    pub(super) fn bound<'i>(
        &'i self,
        name: &str,
        host: Option<&'i HostFile>,
    ) -> Result<Vec<Bound<'i>>, &'i Name> {
        let mut bound = Vec::new();
        for signer in host.into_iter().flat_map(HostFile::signers) {
            let principals = signer.principals.as_ref();
            match &signer.authority {
                Binding::Key(key) => bound.push(Bound { key, authority: None, principals }),
                Binding::Named(wanted) => {
                    let authority =
                        self.authorities.iter().find(|authority| authority.name == *wanted).ok_or(wanted)?;
                    let authority_name = Some(&authority.name);
                    let keys = authority.keys.iter();
                    bound.extend(keys.map(|key| Bound { key, authority: authority_name, principals }));
                }
            }
        }
        let id = host.map(|host| host.name().as_str());
        for authority in &self.authorities {
            if authority.speaks_for(name) || id.is_some_and(|id| authority.speaks_for(id)) {
                let (name, principals) = (Some(&authority.name), authority.names.as_ref());
                bound.extend(authority.keys.iter().map(|key| Bound { key, authority: name, principals }));
            }
        }
        Ok(bound)
    }
    /// Host key algorithms to request, best first: certificates if an authority counts for the host, then the types of
    /// its pins, then the others. Empty for an unknown host.
    #[must_use]
    pub fn wanted(&self, name: &str, port: Option<u16>) -> Vec<&'static str> {
        // Without a port, the identity with the plain name or with its own port is meant.
        let guess = || self.ports.get(name.to_ascii_lowercase().as_str()).copied();
        let host = match self.find(name, port.or_else(guess).unwrap_or(22)) {
            Found::Host(host) => Some(host),
            _ => None,
        };
        let certificates = self.bound(name, host).is_ok_and(|bound| !bound.is_empty());
        let mut pinned: Vec<&str> =
            host.into_iter().flat_map(HostFile::pins).map(|pin| pin.key.algorithm()).collect();
        if pinned.is_empty() && !certificates {
            return Vec::new();
        }
        pinned.sort_by_key(|algorithm| std::cmp::Reverse(super::strength(algorithm)));
        let plain = pinned.iter().flat_map(|pinned| SIGNATURES.iter().filter(move |(of, _)| of == pinned));
        let plain = plain.chain(SIGNATURES).map(|(_, signature)| *signature);
        let all = CERTIFICATES.iter().copied().filter(|_| certificates).chain(plain);
        let mut wanted = Vec::new();
        for algorithm in all {
            if !wanted.contains(&algorithm) {
                wanted.push(algorithm);
            }
        }
        wanted
    }
}

/// Adds `host` to the entry of `key`, once. Hosts are added in order, so only the last one can be equal. Comparing all
/// hosts would take quadratic time in a fleet of clones with one key.
fn note<K: std::hash::Hash + Eq, H: PartialEq>(map: &mut HashMap<K, Vec<H>>, key: K, host: H) {
    let all = map.entry(key).or_default();
    if all.last() != Some(&host) {
        all.push(host);
    }
}

/// Signature algorithms by key type, strongest first (RFC 8332 for RSA with SHA-2). No SHA-1.
const SIGNATURES: &[(&str, &str)] = &[
    ("ssh-ed25519", "ssh-ed25519"),
    ("sk-ssh-ed25519@openssh.com", "sk-ssh-ed25519@openssh.com"),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256"),
    ("ecdsa-sha2-nistp384", "ecdsa-sha2-nistp384"),
    ("ecdsa-sha2-nistp521", "ecdsa-sha2-nistp521"),
    ("sk-ecdsa-sha2-nistp256@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
    ("ssh-rsa", "rsa-sha2-512"),
    ("ssh-rsa", "rsa-sha2-256"),
];

const CERTIFICATES: &[&str] = &[
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
];

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Counts comparisons of hosts.
    struct Counted<'c>(usize, &'c Cell<usize>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn each_host_of_one_key_is_compared_with_one_other() {
        let (compared, mut map) = (Cell::new(0), HashMap::new());
        // Each host has the key twice, as a pin and as a former key.
        for host in 0..1000 {
            note(&mut map, "key", Counted(host, &compared));
            note(&mut map, "key", Counted(host, &compared));
        }
        let hosts: Vec<usize> = map["key"].iter().map(|host| host.0).collect();
        assert_eq!(hosts, (0..1000).collect::<Vec<_>>());
        assert!(compared.get() <= 2000, "{} comparisons for 1,000 hosts", compared.get());
    }
}
