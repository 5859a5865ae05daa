//! Writes the changes that a run noticed about the identities of hosts, all at once.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hosts::identity::{Effect, Facts, Name, RefusedKey, Rotation, rotate};
use hosts::ssh::key::PublicKey;

use super::IdentityError;
use super::facts::{self, Seen};
use super::judge::{Identities, now};
use super::pending::{self, Pending};
use super::store::Change;

#[derive(Debug, Default)]
pub struct Flushed {
    pub written: Vec<Name>,
    /// Keys that a rotation added, removed or refused.
    pub rotations: Vec<(Name, Rotation)>,
    pub failed: Vec<IdentityError>,
}

impl Identities {
    /// Writes the changes since the last call: moves, pins, rotations, the queue, and the last good connection of each
    /// host. Files without a change are not written.
    pub fn flush(&self) -> Flushed {
        let noticed = {
            let mut kept = self.noticed();
            let taken = std::mem::take(&mut *kept);
            // These stay for the rest of the run; they are not written to files.
            kept.changed.clone_from(&taken.changed);
            kept.shown.clone_from(&taken.shown);
            kept.showed_other.clone_from(&taken.showed_other);
            kept.notes.clone_from(&taken.notes);
            taken
        };
        let mut flushed = Flushed::default();
        let mut changes: BTreeMap<Name, Vec<Effect>> = BTreeMap::new();
        let (mut good, mut refused, mut queue) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for effect in noticed.effects {
            match effect {
                Effect::Good(host, address) => drop(good.insert(host, address)),
                Effect::Queue { name, address, port, key } => {
                    queue.push(Pending { name, address, port, key: *key, date: now().date() });
                }
                Effect::Changed { host, key } => drop(refused.insert(host, key)),
                Effect::ShowedKeyOf { .. } => {}
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
        self.write_seen(&good, &refused, &noticed.facts, &mut flushed);
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
                    // Another process removed the host meanwhile: it stays removed.
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
        refused: &BTreeMap<Name, Box<PublicKey>>,
        facts: &BTreeMap<Name, Facts>,
        flushed: &mut Flushed,
    ) {
        let today = now().date();
        let note = |all: &mut BTreeMap<Name, Seen>| {
            for (name, address) in good {
                let seen = all.entry(name.clone()).or_default();
                seen.date = Some(today);
                seen.address = address.or(seen.address);
                seen.facts.refused = None;
            }
            for (name, facts) in facts {
                if let Some(seen) = all.get_mut(name) {
                    seen.facts.clone_from(facts);
                }
            }
            for (name, key) in refused {
                let refused = RefusedKey { fingerprint: key.fingerprint(), date: today };
                all.entry(name.clone()).or_default().facts.refused = Some(refused);
            }
        };
        // The lock is taken only if something has changed: most runs write nothing.
        let mut after = self.seen.clone();
        note(&mut after);
        if after != self.seen {
            flushed.failed.extend(facts::change(self.store.places(), note).err());
        }
    }
}
