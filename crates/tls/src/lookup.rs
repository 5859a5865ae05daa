//! Finds a certificate by server name. Immutable: a change builds a new lookup, which replaces the old one.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::SignatureAlgorithm;
use smallvec::SmallVec;

use super::facts::Validity;
use super::pair::Pair;

/// Certificates for one name, one for each key type, the preferred one first.
pub(super) type Slot = SmallVec<[Arc<Pair>; 1]>;

#[derive(Debug, Default)]
pub(super) struct Lookup {
    exact: HashMap<Box<str>, Slot>,
    /// Wildcard certificates: `*.example.com` is stored under `example.com`.
    wildcard: HashMap<Box<str>, Slot>,
    files: HashMap<Box<str>, Slot>,
    /// The certificate, if the directory has only one.
    only: Option<Slot>,
}

impl Lookup {
    /// Builds the lookup from pairs, each with the NAME of its files. If two certificates have the same name and key
    /// type, the valid one is used; otherwise the one issued last.
    pub(super) fn new<'a>(pairs: impl Iterator<Item = (&'a str, &'a Arc<Pair>)>, now: SystemTime) -> Self {
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_key(|(name, pair)| {
            let rank = match pair.facts.validity(now) {
                Validity::Valid => 0,
                Validity::NotYet | Validity::Expired => 1,
            };
            (rank, Reverse(pair.facts.not_before), *name)
        });
        let mut lookup = Self::default();
        for (name, pair) in &pairs {
            enter(&mut lookup.files, name, pair);
            for host in &pair.facts.names {
                match host.strip_prefix("*.") {
                    Some(parent) => enter(&mut lookup.wildcard, parent, pair),
                    None => enter(&mut lookup.exact, host, pair),
                }
            }
        }
        if let Some((_, first)) = pairs.first()
            && pairs.iter().all(|(_, pair)| pair.facts.names == first.facts.names)
        {
            let mut only = Slot::new();
            pairs.iter().for_each(|(_, pair)| insert(&mut only, pair));
            lookup.only = Some(only);
        }
        lookup
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Finds the certificates for a server name; upper and lower case are equal.
    pub(super) fn find(&self, name: &str) -> Option<&Slot> {
        let name = match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(name.to_ascii_lowercase()),
            false => Cow::Borrowed(name),
        };
        let name = name.strip_suffix('.').unwrap_or(&name);
        let by_wildcard = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(name).or_else(by_wildcard)
    }

    /// Finds the default certificate: `wanted` is the NAME of files or a DNS name.
    pub(super) fn named(&self, wanted: &str) -> Option<&Slot> {
        let Some(of_files) = self.files.get(wanted) else { return self.find(wanted) };
        // The certificate for the same name with another key type is in files with another NAME.
        let first =
            of_files.first().and_then(|pair| pair.facts.names.first()).and_then(|name| self.find(name));
        first
            .filter(|slot| of_files.iter().all(|pair| slot.iter().any(|other| Arc::ptr_eq(pair, other))))
            .or(Some(of_files))
    }

    /// Returns the certificate of a directory that holds only one (or one for each key type).
    pub(super) fn only(&self) -> Option<&Slot> {
        self.only.as_ref()
    }

    /// Returns true if at least one client could get `pair`.
    pub(super) fn serves(&self, pair: &Arc<Pair>) -> bool {
        pair.facts.names.is_empty()
            || pair.facts.names.iter().any(|name| {
                let slot = match name.strip_prefix("*.") {
                    Some(parent) => self.wildcard.get(parent),
                    None => self.exact.get(&**name),
                };
                slot.is_some_and(|slot| slot.iter().any(|other| Arc::ptr_eq(other, pair)))
            })
    }

    pub(super) fn names(&self) -> usize {
        self.exact.len() + self.wildcard.len()
    }
}

fn enter(map: &mut HashMap<Box<str>, Slot>, name: &str, pair: &Arc<Pair>) {
    match map.get_mut(name) {
        Some(slot) => insert(slot, pair),
        None => {
            map.insert(name.into(), SmallVec::from_iter([pair.clone()]));
        }
    }
}

fn insert(slot: &mut Slot, pair: &Arc<Pair>) {
    if slot.iter().all(|other| other.algorithm() != pair.algorithm()) {
        slot.push(pair.clone());
        slot.sort_by_key(|pair| preference(pair.algorithm()));
    }
}

/// Ranks key types: an ECDSA signature costs a tenth of an RSA one; few browsers support Ed25519.
fn preference(algorithm: SignatureAlgorithm) -> u8 {
    match algorithm {
        SignatureAlgorithm::ECDSA => 0,
        SignatureAlgorithm::RSA => 1,
        _ => 2,
    }
}
