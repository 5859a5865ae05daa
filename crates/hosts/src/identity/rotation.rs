//! Rotation of host keys that a host announces and proves (hostkeys-00@openssh.com of OpenSSH): new keys become pins,
//! and keys that the host stops announcing are retired later.

use super::date::Date;
use super::host::{HostFile, PINS_KEPT, Pin};
use super::index::Index;
use super::proof::Proof;
use crate::ssh::key::PublicKey;

/// Days for which a pin stays valid that the host no longer announces: a restored backup can bring the old key back.
pub const RETIRE_AFTER_DAYS: i64 = 14;

/// Changes from one announcement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rotation {
    pub pinned: Vec<PublicKey>,
    /// Pins that the host no longer announces.
    pub absent: Vec<PublicKey>,
    pub retired: Vec<PublicKey>,
    /// Keys that were refused, with the reason.
    pub refused: Vec<(PublicKey, String)>,
}

/// Applies an announcement. The connection showed the pinned key `shown`, and the host proved that it has every key of
/// `announced`. Returns the changed file; `None` if nothing changes.
#[must_use]
pub fn rotate(
    host: &HostFile,
    shown: &PublicKey,
    announced: &[PublicKey],
    index: &Index,
    today: Date,
) -> Option<(HostFile, Rotation)> {
    // Only a pinned key can prove others: a certificate says nothing about other keys. Trust on first use extends to
    // keys that it proves, and a pinned key keeps its mark whichever host announces the key.
    let root = host.pin(shown)?.root();
    let mut changed = host.clone();
    let mut rotation = Rotation::default();
    for key in announced {
        if changed.pin(key).is_some() {
            continue;
        }
        let other = index.owners(key).find(|owner| owner.name() != host.name());
        let refusal = if index.is_revoked(key) {
            Some("it is revoked".to_owned())
        } else if let Some(other) = other {
            Some(format!("it is a key of {}", other.name()))
        } else if let Some((_, since)) = host.retired_keys().find(|(retired, _)| *retired == key) {
            // An operator retired the key; an announcement by the server does not change that.
            Some(format!("it is retired since {since}"))
        } else if changed.pins().count() >= PINS_KEPT {
            Some(format!("{PINS_KEPT} keys are pinned already"))
        } else if key.algorithm().contains("-cert-v01@") {
            Some("it is a certificate".to_owned())
        } else {
            None
        };
        match refusal {
            Some(why) => rotation.refused.push((key.clone(), why)),
            None => {
                let proof = Proof::Rotation(shown.fingerprint(), root);
                changed.pin_key(Pin { key: key.clone(), proof, date: today, by: None, absent: None });
                rotation.pinned.push(key.clone());
            }
        }
    }
    let pins: Vec<Pin> = host.pins().cloned().collect();
    for pin in pins {
        // The key that was just shown is active even if the announcement omits it.
        let is_announced = announced.contains(&pin.key) || pin.key == *shown;
        match pin.absent {
            _ if announced.is_empty() => {}
            None if !is_announced => {
                rotation.absent.push(pin.key.clone());
                changed.pin_key(Pin { absent: Some(today), ..pin });
            }
            Some(_) if is_announced => changed.pin_key(Pin { absent: None, ..pin }),
            Some(since) if since.days_until(today) >= RETIRE_AFTER_DAYS => {
                rotation.retired.push(pin.key.clone());
                changed.retire_key(&pin.key, today);
            }
            _ => {}
        }
    }
    let is_same = changed == *host;
    (!is_same || !rotation.refused.is_empty()).then_some((changed, rotation))
}

#[cfg(test)]
mod tests;
