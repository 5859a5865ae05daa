//! What a run noticed of the identities of hosts: which changes follow, and all of them written at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use logic::identity::{Effect, Facts, Name, Rotation, rotate};
use logic::ssh::key::PublicKey;

use super::IdentityError;
use super::facts::{self, Seen};
use super::judge::{Identities, now};
use super::pending::{self, Pending};
use super::store::Change;

/// What is to be written.
#[derive(Default)]
pub(super) struct Noticed {
    pub(super) effects: Vec<Effect>,
    /// Identities whose key changed.
    pub(super) changed: HashSet<Name>,
    /// The pinned key that a host showed: it vouches for those it announces.
    pub(super) shown: HashMap<String, (Name, PublicKey)>,
    pub(super) announced: BTreeMap<Name, (PublicKey, Vec<PublicKey>)>,
    pub(super) facts: BTreeMap<Name, Facts>,
    /// What is to be said of each host, by the name it was asked for.
    pub(super) notes: BTreeMap<String, String>,
}

/// What a flush wrote.
#[derive(Debug, Default)]
pub struct Flushed {
    /// Files of hosts that were written.
    pub written: Vec<Name>,
    /// Keys that came, went or were refused by rotation.
    pub rotations: Vec<(Name, Rotation)>,
    /// What could not be written.
    pub failed: Vec<IdentityError>,
}

impl Noticed {
    pub(super) fn is_empty(&self) -> bool {
        self.effects.is_empty() && self.announced.is_empty() && self.facts.is_empty()
    }
}

impl Identities {
    /// Writes what was noticed since the last time: moves, pins, rotations, the queue, when each host was last good.
    /// Where nothing changed, nothing is written.
    pub fn flush(&self) -> Flushed {
        let noticed = {
            let mut kept = self.noticed();
            let taken = std::mem::take(&mut *kept);
            // These are the run's memory, not work to be done.
            kept.changed.clone_from(&taken.changed);
            kept.shown.clone_from(&taken.shown);
            kept.notes.clone_from(&taken.notes);
            taken
        };
        let mut flushed = Flushed::default();
        let mut changes: BTreeMap<Name, Vec<Effect>> = BTreeMap::new();
        let (mut good, mut queue) = (BTreeMap::new(), Vec::new());
        for effect in noticed.effects {
            match effect {
                Effect::Good(host, address) => drop(good.insert(host, address)),
                Effect::Queue { name, address, port, key } => {
                    queue.push(Pending { name, address, port, key: *key, date: now().date() });
                }
                Effect::Changed(_) => {}
                Effect::Moved { ref host, .. }
                | Effect::WentBack { ref host, .. }
                | Effect::AddressFound(ref host, _)
                | Effect::Pin(ref host, _) => {
                    changes.entry(host.clone()).or_default().push(effect);
                }
            }
        }
        for host in noticed.announced.keys() {
            changes.entry(host.clone()).or_default();
        }
        if !changes.is_empty() {
            self.write_hosts(changes, &noticed.announced, &mut flushed);
        }
        if !queue.is_empty() {
            flushed.failed.extend(pending::add(self.store.places(), queue).err());
        }
        self.write_seen(&good, &noticed.facts, &mut flushed);
        flushed
    }

    fn write_hosts(
        &self,
        changes: BTreeMap<Name, Vec<Effect>>,
        announced: &BTreeMap<Name, (PublicKey, Vec<PublicKey>)>,
        flushed: &mut Flushed,
    ) {
        let today = now().date();
        let lock = match self.store.lock() {
            Ok(lock) => lock,
            Err(error) => return flushed.failed.push(error),
        };
        for (name, effects) in changes {
            let mut rotation = None;
            let result = self.store.change_locked(
                &name,
                |host| {
                    // Somebody removed it meanwhile: it stays removed.
                    let mut host = host.ok_or_else(|| IdentityError::Unknown(name.to_string()))?;
                    for effect in effects {
                        match effect {
                            Effect::Moved { to, .. } | Effect::WentBack { to, .. }
                                if host.address().addresses.contains(&to) => {}
                            Effect::Moved { from, to, .. } => host.record_move(from, to, today),
                            Effect::WentBack { from, to, .. } => host.record_return(from, to),
                            Effect::AddressFound(_, address) => host.add_address(address),
                            Effect::Pin(_, pin)
                                if host.pin(&pin.key).is_none_or(|known| pin.proof.settles(&known.proof)) =>
                            {
                                host.pin_key(*pin);
                            }
                            _ => {}
                        }
                    }
                    if let Some((shown, keys)) = announced.get(&name)
                        && let Some((rotated, what)) = rotate(&host, shown, keys, &self.index, today)
                    {
                        host = rotated;
                        rotation = Some(what);
                    }
                    Ok(host)
                },
                &lock,
            );
            match result {
                Ok(change) => {
                    flushed.written.extend((change == Change::Written).then_some(name.clone()));
                    flushed.rotations.extend(rotation.map(|rotation| (name, rotation)));
                }
                Err(error) => flushed.failed.push(error),
            }
        }
    }

    fn write_seen(
        &self,
        good: &BTreeMap<Name, Option<IpAddr>>,
        facts: &BTreeMap<Name, Facts>,
        flushed: &mut Flushed,
    ) {
        let today = now().date();
        let note = |all: &mut BTreeMap<Name, Seen>| {
            for (name, address) in good {
                let fresh = Seen { date: today, address: None, facts: Facts::default() };
                let seen = all.entry(name.clone()).or_insert(fresh);
                seen.date = today;
                seen.address = address.or(seen.address);
            }
            for (name, facts) in facts {
                if let Some(seen) = all.get_mut(name) {
                    seen.facts.clone_from(facts);
                }
            }
        };
        // The lock is taken only where something is new: an ordinary run writes nothing.
        let mut after = self.seen.clone();
        note(&mut after);
        if after != self.seen {
            flushed.failed.extend(facts::change(self.store.places(), note).err());
        }
    }
}
