//! Keys that a host announces and proves that it holds (OpenSSH's hostkeys-00@openssh.com): new ones become pins, and
//! those it no longer announces are retired after a while.

use super::date::Date;
use super::host::{HostFile, PINS_KEPT, Pin};
use super::index::Index;
use super::proof::Proof;
use crate::ssh::key::PublicKey;

/// For so many days a pin that the host no longer announces stays good: a backup may bring the old key back.
pub const RETIRE_AFTER_DAYS: i64 = 14;

/// What an announcement changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Keys that are pinned now.
    pub pinned: Vec<PublicKey>,
    /// Pins that the host no longer announces.
    pub absent: Vec<PublicKey>,
    /// Keys that are retired now.
    pub retired: Vec<PublicKey>,
    /// Keys that were not taken, and why.
    pub refused: Vec<(PublicKey, String)>,
}

/// Takes an announcement over a connection in which the host showed the pinned key `shown`, and in which it proved that
/// it holds every key of `announced`. Gives the changed file, or `None` where nothing changes.
#[must_use]
pub fn rotate(
    host: &HostFile,
    shown: &PublicKey,
    announced: &[PublicKey],
    index: &Index,
    today: Date,
) -> Option<(HostFile, Rotation)> {
    // Only a pin can vouch: a certificate says nothing of the other keys. What hangs on first use stays so in all that it
    // vouches for, and a key that is pinned already keeps its mark whoever announces it.
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
            // Somebody took it out of service; that the server still has it says nothing against that.
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
        // The key that was just shown is in service whatever the announcement says.
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
