//! Witnesses: trusted hosts that read the key of a new host from their networks. The key counts only if all witnesses
//! saw the same keys; the error names witnesses that saw others.

use std::collections::BTreeMap;

use thiserror::Error;

use super::name::Name;
use crate::ssh::key::PublicKey;

/// One witness sees only one network.
pub const FEWEST_WITNESSES: usize = 2;

/// Reason why the witnesses prove nothing.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum WitnessError {
    /// Fewer than [`FEWEST_WITNESSES`] witnesses.
    #[error(
        "a single witness sees only one network: name at least {FEWEST_WITNESSES} hosts, in different networks"
    )]
    TooFew,
    /// The witnesses saw different keys, or one saw none.
    #[error("the witnesses see different keys: {0}; nothing was enrolled")]
    Disagree(String),
}

/// Returns the keys that all witnesses saw.
///
/// # Errors
/// There are too few witnesses, or they saw different keys.
pub fn agree(seen: &BTreeMap<Name, Vec<PublicKey>>) -> Result<Vec<PublicKey>, WitnessError> {
    if seen.len() < FEWEST_WITNESSES {
        return Err(WitnessError::TooFew);
    }
    let mut sights: BTreeMap<Vec<&PublicKey>, Vec<&Name>> = BTreeMap::new();
    for (name, keys) in seen {
        let mut keys: Vec<&PublicKey> = keys.iter().collect();
        keys.sort();
        keys.dedup();
        sights.entry(keys).or_default().push(name);
    }
    if let Some((keys, _)) =
        sights.first_key_value().filter(|(keys, _)| sights.len() == 1 && !keys.is_empty())
    {
        return Ok(keys.iter().map(|key| (*key).clone()).collect());
    }
    let mut sights: Vec<(Vec<&PublicKey>, Vec<&Name>)> = sights.into_iter().collect();
    // The keys that most witnesses saw come first.
    sights.sort_by(|(_, a), (_, b)| (b.len(), a).cmp(&(a.len(), b)));
    let told: Vec<String> = sights.iter().map(|(keys, names)| told(keys, names)).collect();
    Err(WitnessError::Disagree(told.join(", but ")))
}

fn told(keys: &[&PublicKey], names: &[&Name]) -> String {
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let keys: Vec<String> =
        keys.iter().map(|key| format!("{} {}", key.algorithm(), key.fingerprint())).collect();
    let keys = if keys.is_empty() { "no key".to_owned() } else { keys.join(" and ") };
    format!("{} saw {keys}", names.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> PublicKey {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend_from_slice(&[seed; 32]);
        PublicKey::from_blob(&blob).unwrap()
    }

    fn seen(all: &[(&str, &[u8])]) -> BTreeMap<Name, Vec<PublicKey>> {
        let one = |(name, seeds): &(&str, &[u8])| {
            (name.parse().unwrap(), seeds.iter().map(|seed| key(*seed)).collect())
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn all_of_at_least_two_must_have_seen_the_same() {
        assert_eq!(agree(&seen(&[("a", &[1]), ("b", &[1])])), Ok(vec![key(1)]));
        assert_eq!(agree(&seen(&[("a", &[2, 1]), ("b", &[1, 2, 2]), ("c", &[1, 2])])).unwrap().len(), 2);
        assert_eq!(agree(&seen(&[])), Err(WitnessError::TooFew));
        assert_eq!(agree(&seen(&[("a", &[1])])), Err(WitnessError::TooFew));
        for odd in [&[2][..], &[], &[1, 2]] {
            assert!(agree(&seen(&[("a", &[1]), ("b", &[1]), ("c", odd)])).is_err(), "{odd:?}");
        }
        assert!(agree(&seen(&[("a", &[]), ("b", &[])])).is_err(), "nothing is not a key");
    }

    #[test]
    fn who_saw_something_else_is_named_behind_the_others() {
        let error = agree(&seen(&[("a", &[2]), ("b", &[1]), ("c", &[1]), ("d", &[])])).unwrap_err();
        let (most, odd) = (key(1).fingerprint(), key(2).fingerprint());
        assert_eq!(
            error.to_string(),
            format!(
                "the witnesses see different keys: b and c saw ssh-ed25519 {most}, but a saw ssh-ed25519 {odd}, but d saw no \
                 key; nothing was enrolled"
            )
        );
    }
}
