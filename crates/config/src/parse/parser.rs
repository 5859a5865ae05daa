//! Reader of single values, used for every section: converts a value or reports a fault.

use std::collections::HashSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use logic::peers::{PeerSet, PeerSetEntry};
use logic::route::PoolId;

use super::bound::Bound;
use super::names::{AclNames, AcmeNames, PoolNames};
use super::refused::Refused;
use super::{address, duration, size};
use crate::de::{At, Key};
use crate::error::{Draft, Report};
use crate::quote::quote;
use crate::raw::{DurationText, NetworkText, SizeText};
use crate::tree::{NodeId, Nodes};
use text::nearest::nearest;

pub(super) struct Parser<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) report: &'a mut Report,
    pub(super) pools: PoolNames,
    pub(super) acme: AcmeNames,
    pub(super) acls: AclNames,
    /// Names of the listeners that answer the validation of one-time passwords.
    pub(super) validating: HashSet<String>,
    /// All bound addresses, for the check of collisions.
    pub(super) binds: Vec<Bound>,
    /// Number of routes of all listeners so far.
    pub(super) routes: usize,
}

impl Parser<'_> {
    pub(super) fn file<T: AsRef<str>>(&mut self, path: &At<T>) -> Option<PathBuf> {
        self.read(path, address::absolute_path)
    }

    /// Reads a set of trusted peers.
    pub(super) fn peers(&mut self, key: &Key<Vec<At<NetworkText>>>) -> Option<PeerSet> {
        let mut entries = Vec::new();
        let mut faults = 0;
        for entry in &key.as_ref()?.value {
            match entry.value.as_ref().parse::<PeerSetEntry>() {
                Ok(parsed) => {
                    if matches!(parsed, PeerSetEntry::Network(network) if network.prefix_len() == 0) {
                        let message = "this network is the whole internet: every client is trusted";
                        drop(self.report.at(self.nodes, entry.id, message).warning());
                    }
                    entries.push(parsed);
                }
                Err(error) => {
                    faults += 1;
                    drop(self.refuse_with(entry, &error));
                }
            }
        }
        (faults == 0).then(|| entries.into_iter().collect())
    }

    /// Finds the pool with this name.
    pub(super) fn pool_id(&mut self, name: &At<String>) -> Option<PoolId> {
        if let Some((id, _)) = self.pools.ids.get(&name.value) {
            self.pools.used.insert(*id);
            return Some(*id);
        }
        if self.nodes.is_broken(Nodes::ROOT, "pool") {
            // The pool may be in the refused section.
            return None;
        }
        let shown = self.nodes.show(name.id, &name.value);
        let near = nearest(&name.value, self.pools.order.iter().map(|(name, _)| name.as_str()));
        let near = near.and_then(|near| self.pools.ids.get_key_value(near));
        let hint = near.map(|(near, (_, id))| {
            format!("did you mean {}?{}", quote(near), self.report.whereabouts(self.nodes, *id))
        });
        let known: Vec<_> = self.pools.order.iter().take(8).map(|(name, _)| name.as_str()).collect();
        let known = match known.as_slice() {
            [] => "there is no [pool.NAME] section".to_owned(),
            known => format!("the pools are: {}", known.join(", ")),
        };
        let draft = self.report.at(self.nodes, name.id, format!("no pool named {shown}"));
        drop(match hint {
            Some(hint) => draft.hint_from_value(hint),
            None => draft.hint(known),
        });
        None
    }

    pub(super) fn unused_pools(&mut self) {
        for (at, (_, id)) in self.pools.order.iter().enumerate() {
            if !self.pools.used.contains(&PoolId(at)) {
                drop(self.report.at_key(self.nodes, *id, "no listener uses this pool").warning());
            }
        }
    }

    /// Checks a name of a listener or pool, because it appears in logs, metrics and commands.
    pub(super) fn name(&mut self, name: &str, id: NodeId) -> Option<()> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
            return Some(());
        }
        let message = format!("{} is not a valid name: up to 64 of A-Z a-z 0-9 _ -", quote(name));
        drop(self.report.at_key(self.nodes, id, message));
        None
    }

    pub(super) fn time(&mut self, key: &Key<DurationText>, zero: Zero, most: Duration) -> Option<Duration> {
        let key = key.as_ref()?;
        let time = self.read(key, duration::parse)?;
        if time.is_zero() && zero == Zero::Refused {
            drop(self.refuse(key, "is not a usable time limit").hint("write at least \"1ms\""));
            return None;
        }
        if time > most {
            let hint = format!("at most {}", quote(&duration::write(most)));
            drop(self.refuse(key, "is too long").hint(hint));
            return None;
        }
        Some(time)
    }

    pub(super) fn size(&mut self, key: &Key<SizeText>, least: u64, most: u64) -> Option<u64> {
        let key = key.as_ref()?;
        // Zero needs no unit.
        let is_zero = key.value.as_ref() == "0" && least > 0;
        let size = if is_zero { 0 } else { self.read(key, size::parse)? };
        if (least..=most).contains(&size) {
            return Some(size);
        }
        let (least, most) = (size::write(least), size::write(most));
        let draft = self.refuse(key, &format!("is out of range: from {least} to {most}"));
        drop(match size {
            0 => draft.hint(format!("write {} or more: zero does not mean \"no limit\" here", quote(&least))),
            _ => draft,
        });
        None
    }

    /// Converts a text with `read`, or reports its fault.
    pub(super) fn read<T: AsRef<str>, V>(
        &mut self,
        at: &At<T>,
        read: impl FnOnce(&str) -> Result<V, Refused>,
    ) -> Option<V> {
        match read(at.value.as_ref()) {
            Ok(value) => Some(value),
            Err(Refused { reason, instead, in_general }) => {
                let mut draft = self.refuse(at, &reason);
                if let Some(hint) = in_general {
                    draft = draft.hint(hint);
                }
                if let Some(instead) = instead {
                    drop(draft.hint_from_value(instead));
                }
                None
            }
        }
    }

    /// Adds a fault with the quoted text (or a placeholder for a secret) and the reason.
    pub(super) fn refuse<T: AsRef<str>>(&mut self, at: &At<T>, reason: &str) -> Draft<'_> {
        let shown = self.nodes.show(at.id, at.value.as_ref());
        self.report.at(self.nodes, at.id, format!("{shown} {reason}"))
    }

    /// Adds a fault with a message of `logic`, unless the message could contain a secret text.
    pub(super) fn refuse_with<T: AsRef<str>>(&mut self, at: &At<T>, error: &dyn Display) -> Draft<'_> {
        if self.nodes.may_be_shown(at.id) {
            return self.report.at(self.nodes, at.id, error.to_string());
        }
        self.refuse(at, "stands for a value that is not valid here")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zero {
    Allowed,
    Refused,
}

/// Converts a number that the schema limits to 0 and above.
pub(super) fn count(integer: i64) -> usize {
    usize::try_from(integer).unwrap_or(0)
}

/// Like [`count`], for numbers that the schema limits to 32 bits.
pub(super) fn small(integer: i64) -> u32 {
    u32::try_from(integer).unwrap_or(0)
}
