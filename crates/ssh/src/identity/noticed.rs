//! Changes that connections noticed about the identities of hosts, before they are written.

use std::collections::{BTreeMap, HashMap, HashSet};

use hosts::identity::{Effect, Facts, Name};
use hosts::ssh::key::PublicKey;

#[derive(Default)]
pub(super) struct Noticed {
    pub(super) effects: Vec<Effect>,
    /// Hosts whose key has changed.
    pub(super) changed: HashSet<Name>,
    /// Pinned key that a host showed, by host name: this key vouches for the keys that the host announces.
    pub(super) shown: HashMap<String, (Name, PublicKey)>,
    /// Hosts that showed the key of another host, with the other host.
    pub(super) showed_other: BTreeMap<Name, Name>,
    pub(super) announced: BTreeMap<Name, (PublicKey, Vec<PublicKey>)>,
    pub(super) facts: BTreeMap<Name, Facts>,
    /// Message about each host, by the name that the caller used.
    pub(super) notes: BTreeMap<String, String>,
}

impl Noticed {
    pub(super) fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.announced.is_empty() && self.facts.is_empty()
    }
}
