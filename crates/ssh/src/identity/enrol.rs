//! Enrolment: a key becomes a pin only with a proof that the host holds the key.

use std::net::IpAddr;
use std::sync::Arc;

use hosts::fleet::ending::Failure;
use hosts::identity::{ConsoleKey, Date, HostFile, Index, Name, Pin, Proof, Root, SshfpAnswer};
use hosts::ssh::key::PublicKey;

use super::fetch::{Shown, TYPES, fetch};
use super::store::Store;
use super::{Change, Identities, IdentityError};
use crate::judge::HostVerifier;
use crate::target::Target;

/// Minimum length of a fingerprint's end: a shorter one proves nothing.
pub const FEWEST_CHARACTERS: usize = 16;
/// Length of SHA-256 in base64, without padding.
const FINGERPRINT_CHARACTERS: usize = 43;

/// Evidence that a key belongs to a host.
#[derive(Debug, Clone)]
pub enum Claim {
    /// The end of a fingerprint, at least [`FEWEST_CHARACTERS`] characters.
    Fingerprint(String),
    Console(Vec<ConsoleKey>),
    Sshfp(SshfpAnswer),
    Key(PublicKey),
    /// These trusted hosts all saw these keys.
    Witness(Vec<Name>, Vec<PublicKey>),
    FirstUse,
}

impl Claim {
    /// Parses a fingerprint, or the end of one.
    ///
    /// # Errors
    /// The text is too short, or is not base64.
    pub fn fingerprint(text: &str) -> Result<Self, IdentityError> {
        let end = text.trim().strip_prefix("SHA256:").unwrap_or(text.trim()).trim_end_matches('=');
        let is_base64 = end.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
        if !is_base64 || end.len() > FINGERPRINT_CHARACTERS {
            return Err(IdentityError::Refused(format!(
                "\"{}\" is not a SHA-256 fingerprint: paste what ssh-keygen -l shows, SHA256: and 43 characters, or the last {FEWEST_CHARACTERS} or more of them",
                text.escape_debug()
            )));
        }
        if end.len() < FEWEST_CHARACTERS {
            let message = format!(
                "{} characters of a fingerprint (it begins with SHA256:) prove nothing: paste at least the last {FEWEST_CHARACTERS}",
                end.len()
            );
            return Err(IdentityError::Refused(message));
        }
        Ok(Self::Fingerprint(end.to_owned()))
    }

    /// Returns true if the claim vouches for this key.
    #[must_use]
    pub fn speaks_for(&self, key: &PublicKey) -> bool {
        match self {
            Self::Fingerprint(end) => key.fingerprint().to_string().ends_with(end.as_str()),
            Self::Console(known) => known.iter().any(|one| one.is(key)),
            Self::Sshfp(answer) => answer.vouches_for(key),
            Self::Key(known) => known == key,
            Self::Witness(_, seen) => seen.contains(key),
            Self::FirstUse => true,
        }
    }

    fn proof(&self) -> Proof {
        match self {
            Self::Fingerprint(_) => Proof::Fingerprint,
            Self::Console(_) => Proof::Console,
            Self::Sshfp(_) => Proof::Sshfp,
            Self::Key(_) => Proof::Key,
            Self::Witness(names, _) => Proof::Witness(names.clone()),
            Self::FirstUse => Proof::FirstUse,
        }
    }

    /// Returns the keys that the claim contains in full.
    fn keys(&self) -> Vec<PublicKey> {
        match self {
            Self::Key(key) => vec![key.clone()],
            Self::Console(known) => known
                .iter()
                .filter_map(|one| if let ConsoleKey::Key(key) = one { Some(key.clone()) } else { None })
                .collect(),
            Self::Witness(_, seen) => seen.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns true if the claim names keys that are not in `keys`.
    fn names_more_than(&self, keys: &[PublicKey]) -> bool {
        match self {
            Self::Console(known) => known.iter().any(|one| !keys.iter().any(|key| one.is(key))),
            _ => false,
        }
    }

    /// Describes the claim, for a message about keys that it does not vouch for.
    fn said(&self) -> String {
        match self {
            Self::Fingerprint(whole) if whole.len() == FINGERPRINT_CHARACTERS => {
                format!("the fingerprint SHA256:{whole}")
            }
            Self::Fingerprint(end) => format!("the fingerprint ending in {end}"),
            Self::Console(known) => {
                let shown = |one: &ConsoleKey| match one {
                    ConsoleKey::Key(key) => key.fingerprint().to_string(),
                    ConsoleKey::Fingerprint(fingerprint) => fingerprint.to_string(),
                };
                format!("the console ({})", known.iter().map(shown).collect::<Vec<_>>().join(", "))
            }
            Self::Sshfp(answer) => match answer {
                SshfpAnswer::Secure(_) => "its signed SSHFP records, which are of other keys".into(),
                SshfpAnswer::Insecure(_) => {
                    "its SSHFP records: they are not signed with DNSSEC, and so prove nothing".into()
                }
                SshfpAnswer::Bogus(why) => format!("its SSHFP records fail DNSSEC validation ({why})"),
                SshfpAnswer::None | SshfpAnswer::NotAsked => "the DNS: it has no SSHFP records".into(),
                SshfpAnswer::Failed(why) => format!("the DNS: no answer ({why})"),
            },
            Self::Key(key) => format!("the given key {}", key.fingerprint()),
            Self::Witness(names, _) => {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                format!("what {} saw", names.join(" and "))
            }
            Self::FirstUse => "nothing".into(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Enrolment {
    pub name: Name,
    /// Evidence for the keys.
    pub claim: Claim,
    pub hints: Hints,
    /// Treatment of existing pins of the same type.
    pub others: Others,
    /// Treatment of a retired host or key.
    pub retired: Retired,
    pub by: Option<String>,
    pub today: Date,
}

#[derive(Debug, Clone, Default)]
pub struct Hints {
    pub addresses: Vec<IpAddr>,
    pub names: Vec<Name>,
    pub port: Option<u16>,
    /// Jump host.
    pub via: Option<Name>,
    pub aliases: Vec<Name>,
}

/// Treatment of existing pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Existing pins stay, and a second key of the same type is refused.
    Keep,
    /// Existing pins are retired, because the host was reinstalled.
    Retire,
}

/// Treatment of a host or key that an operator has retired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retired {
    /// The enrolment is refused: a person who kept an old key, or the disk of a retired host, could provide every
    /// proof.
    Refuse,
    /// The host or key is valid again.
    Revive,
}

/// Result of an enrolment.
#[derive(Debug, Clone, Default)]
pub struct Enrolled {
    /// Keys that are pinned now and were not before.
    pub pinned: Vec<PublicKey>,
    /// Keys that were pinned on first use only, and are proved now.
    pub proved: Vec<PublicKey>,
    /// Keys that are pinned without a proof.
    pub unproved: Vec<PublicKey>,
    pub retired: Vec<PublicKey>,
    pub change: Change,
}

/// Keys that a claim vouches for, and the place where they were found.
#[derive(Debug, Clone, Default)]
pub struct FoundKeys {
    pub keys: Vec<PublicKey>,
    /// Address of the host; `None` if the host was not asked, or if its address is unknown.
    pub address: Option<IpAddr>,
    /// Port that was asked; `None` if the host was not asked.
    pub port: Option<u16>,
}

/// Looks for keys that the claim vouches for: in the claim, in the enrolment queue and on the host.
///
/// # Errors
/// The host shows other keys, or cannot be reached.
pub async fn find_keys(
    identities: &Arc<Identities>,
    target: &Target,
    name: &Name,
    claim: &Claim,
) -> Result<FoundKeys, FindError> {
    let mut found = FoundKeys { keys: claim.keys(), ..FoundKeys::default() };
    if found.keys.is_empty() && !matches!(claim, Claim::FirstUse) {
        let waiting = identities.store().pending().into_iter().filter(|one| one.name == name.as_str());
        for one in waiting.filter(|one| claim.speaks_for(&one.key)) {
            found.address = one.address;
            found.port = Some(one.port);
            found.keys.push(one.key);
        }
    }
    if !found.keys.is_empty() && !claim.names_more_than(&found.keys) {
        return Ok(found);
    }
    let mut shown: Vec<Shown> = Vec::new();
    let mut first_failure = None;
    // A console lists all keys of a host, so each type needs a handshake. For other claims, one key is enough.
    for types in TYPES.iter().filter(|types| !found.keys.iter().any(|key| is_of(key, types))) {
        let mut target = target.clone();
        target.algorithms.host_keys = types.iter().map(|name| (*name).to_owned()).collect();
        match fetch(&target, types, Arc::clone(identities) as Arc<dyn HostVerifier>).await {
            Ok(one) => {
                let speaks = claim.speaks_for(&one.key);
                shown.push(one);
                if speaks && !matches!(claim, Claim::Console(_) | Claim::Sshfp(_)) {
                    break;
                }
            }
            Err(failure) => first_failure = first_failure.or(Some(failure)),
        }
        if shown.is_empty() && first_failure.as_ref().is_some_and(is_out_of_reach) {
            break;
        }
    }
    let (good, bad): (Vec<Shown>, Vec<Shown>) = shown.into_iter().partition(|one| claim.speaks_for(&one.key));
    let Some(first) = good.first() else {
        // The keys found before are proved, even if the host does not show the other keys.
        if !found.keys.is_empty() {
            return Ok(found);
        }
        return Err(match (bad.is_empty(), first_failure) {
            (true, Some(failure)) => FindError::Unreachable(failure),
            _ => FindError::Mismatch(mismatch(name, &bad, claim, identities.index())),
        });
    };
    found.address = found.address.or(first.address.map(|address| address.ip().to_canonical()));
    found.port = found.port.or(Some(target.port));
    found.keys.extend(good.into_iter().map(|one| one.key));
    Ok(found)
}

/// Returns true if the key has one of these types, which are named as host key algorithms.
fn is_of(key: &PublicKey, types: &[&str]) -> bool {
    types
        .iter()
        .any(|kind| key.algorithm() == *kind || (key.algorithm() == "ssh-rsa" && kind.starts_with("rsa-")))
}

#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The host showed other keys.
    #[error("{0}")]
    Mismatch(String),
    #[error("{}", .0.detail)]
    Unreachable(Failure),
}

fn is_out_of_reach(failure: &Failure) -> bool {
    failure.reason != hosts::fleet::ending::Reason::NoCommonAlgorithm
}

fn mismatch(name: &Name, shown: &[Shown], claim: &Claim, index: &Index) -> String {
    let speaks_for = |host: &&HostFile| host.pins().any(|pin| claim.speaks_for(&pin.key));
    let other = match claim {
        Claim::Fingerprint(_) => index.hosts().iter().filter(|host| host.name() != name).find(speaks_for),
        _ => None,
    };
    let whose = other.map_or_else(String::new, |other| {
        format!(
            " (that is the key of {}); read that of {name} on its own console: ssh-keygen -lf \
             /etc/ssh/ssh_host_ed25519_key.pub",
            other.name()
        )
    });
    let shown: Vec<String> =
        shown.iter().map(|one| format!("{} {}", one.key.algorithm(), one.key.fingerprint())).collect();
    format!(
        "{name} showed {}, which is not proved by {}: nothing was enrolled{whose}",
        shown.join(" and "),
        claim.said()
    )
}

/// Pins keys that the claim vouches for.
///
/// # Errors
/// A key is revoked, retired or another host's; or the host is retired; or the host has another key of the type and
/// `others` is [`Others::Keep`].
pub fn enrol(store: &Store, enrolment: &Enrolment, keys: &[PublicKey]) -> Result<Enrolled, IdentityError> {
    let Enrolment { name, claim, hints, others, by, today, .. } = enrolment;
    let mut enrolled = Enrolled::default();
    enrolled.change = store.change_among(name, |index, host| {
        for key in keys {
            let fingerprint = key.fingerprint();
            if index.is_revoked(key) {
                return Err(IdentityError::Refused(format!(
                    "{fingerprint} is revoked: it is refused from every host"
                )));
            }
            if let Some(other) = index.owners(key).find(|owner| owner.name() != name) {
                return Err(IdentityError::Refused(of_another(name, key, other)));
            }
        }
        let mut host = host.unwrap_or_else(|| HostFile::new(name.clone()));
        if enrolment.retired == Retired::Refuse
            && let Some(why) = out_of_service(&host, keys, *others)
        {
            return Err(IdentityError::Refused(why));
        }
        host.revive();
        let pins: Vec<Pin> = host.pins().cloned().collect();
        for old in pins.iter().filter(|pin| !keys.contains(&pin.key)) {
            let clashes = keys.iter().any(|key| key.algorithm() == old.key.algorithm());
            match others {
                Others::Retire => {
                    host.retire_key(&old.key, *today);
                    enrolled.retired.push(old.key.clone());
                }
                Others::Keep if clashes => {
                    return Err(IdentityError::Refused(format!(
                        "{name} has another {} pinned, {} (from={} {}): if it was reinstalled, add --replace",
                        old.key.algorithm(),
                        old.key.fingerprint(),
                        old.proof,
                        old.date
                    )));
                }
                Others::Keep => {}
            }
        }
        for key in keys {
            let pin =
                Pin { key: key.clone(), proof: claim.proof(), date: *today, by: by.clone(), absent: None };
            match host.pin(key).map(|known| pin.proof.settles(&known.proof)) {
                None => enrolled.pinned.push(key.clone()),
                Some(true) => enrolled.proved.push(key.clone()),
                Some(false) => continue,
            }
            host.pin_key(pin);
        }
        let unproved = host.pins().filter(|pin| pin.root() == Root::FirstUse);
        enrolled.unproved = unproved.map(|pin| pin.key.clone()).collect();
        record(&mut host, hints);
        Ok(host)
    })?;
    store.forget_pending(name.as_str())?;
    Ok(enrolled)
}

/// Message for a key that another host has or had.
fn of_another(name: &Name, key: &PublicKey, other: &HostFile) -> String {
    let (fingerprint, host) = (key.fingerprint(), other.name());
    let was = other.retired_keys().find(|(retired, _)| *retired == key).map(|(_, since)| since);
    let whose = match (was, other.retired()) {
        (Some(since), _) => format!("was the key of {host}, where it is retired since {since}"),
        (None, Some(since)) => format!("is the key of {host}, which is retired since {since}"),
        (None, None) => format!("is the key of {host}"),
    };
    let undo = match other.retired() {
        Some(_) => format!("penstock host retire {host} --undo, then "),
        None => String::new(),
    };
    format!(
        "{fingerprint} {whose}: either {name} is {host} ({undo}penstock host alias {host} {name}), or both were cloned and \
         need new keys"
    )
}

/// Message if the host or one of the keys is retired.
fn out_of_service(host: &HostFile, keys: &[PublicKey], others: Others) -> Option<String> {
    let name = host.name();
    if let Some(since) = host.retired() {
        return Some(format!(
            "{name} is retired since {since}, so nothing was enrolled: if it is in service again, add --revive (with the keys \
             that are pinned already: penstock host retire {name} --undo)"
        ));
    }
    let (key, since) = host.retired_keys().find(|(key, _)| keys.contains(key))?;
    let clashes = host.pins().any(|pin| pin.key.algorithm() == key.algorithm() && !keys.contains(&pin.key));
    let flags = if clashes && others == Others::Keep { "--revive --replace" } else { "--revive" };
    Some(format!(
        "{} is a key of {name} that is retired since {since}, so nothing was enrolled: a person who kept it can pose as {name}; if \
         {name} has it again, add {flags}",
        key.fingerprint()
    ))
}

pub fn record(host: &mut HostFile, hints: &Hints) {
    hints.names.iter().for_each(|name| host.add_dns(name.clone()));
    hints.addresses.iter().for_each(|address| host.add_address(*address));
    if let Some(port) = hints.port {
        host.set_port(port);
    }
    if let Some(via) = &hints.via {
        host.set_via(via.clone());
    }
    hints.aliases.iter().for_each(|alias| host.add_alias(alias.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_or_odd_fingerprints_prove_nothing() {
        for bad in [
            "",
            "SHA256:",
            "SHA256:abc",
            "123456789012345",
            "MD5:aa:bb:cc:dd:ee",
            "abcdefghabcdefg\u{1b}h",
            &"a".repeat(44),
        ] {
            assert!(Claim::fingerprint(bad).is_err(), "{bad:?}");
        }
        let key: PublicKey =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq"
                .parse()
                .unwrap();
        let whole = key.fingerprint().to_string();
        for good in [whole.as_str(), &whole[7..], &whole[whole.len() - 16..]] {
            assert!(Claim::fingerprint(good).unwrap().speaks_for(&key), "{good}");
        }
        let start = &whole[7..30];
        assert!(!Claim::fingerprint(start).unwrap().speaks_for(&key), "the end counts, not the beginning");
    }
}
