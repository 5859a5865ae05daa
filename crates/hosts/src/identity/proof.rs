//! Proof that a key belongs to a host. Trust on first use stays marked until the same key is really proved.

use std::fmt;
use std::str::FromStr;

use super::name::Name;
use crate::ssh::key::Fingerprint;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// The fingerprint matched one from the operator.
    Fingerprint,
    /// The operator gave the whole key.
    Key,
    /// The console output of the machine had the key.
    Console,
    /// SSHFP record in the DNS; Penstock validated DNSSEC up to the trust anchor.
    Sshfp,
    /// A certificate of this authority named the host.
    Authority(String),
    /// Copied from another identity.
    Copy(Name),
    /// These trusted hosts saw the same key from their networks.
    Witness(Vec<Name>),
    /// The host proved that it has the key, over a connection that the pin with this fingerprint proved.
    Rotation(Fingerprint, Root),
    /// A known_hosts file had the key.
    KnownHosts,
    /// No proof: the operator asked to trust the key. The mark stays until the same key is proved.
    FirstUse,
}

/// Root of a chain of proofs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    Proved,
    FirstUse,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fingerprint => f.write_str("fingerprint"),
            Self::Key => f.write_str("key"),
            Self::Console => f.write_str("console"),
            Self::Sshfp => f.write_str("sshfp"),
            Self::Authority(name) => write!(f, "ca({name})"),
            Self::Copy(name) => write!(f, "copy({name})"),
            Self::Witness(names) => {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                write!(f, "witness({})", names.join(","))
            }
            Self::Rotation(by, Root::Proved) => write!(f, "rotation(proved by {by})"),
            Self::Rotation(by, Root::FirstUse) => write!(f, "rotation(proved by {by}, first use)"),
            Self::KnownHosts => f.write_str("known_hosts"),
            Self::FirstUse => f.write_str("first-use"),
        }
    }
}

impl FromStr for Proof {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (word, inside) = match text.split_once('(') {
            Some((word, rest)) => (word, Some(rest.strip_suffix(')').ok_or(())?)),
            None => (text, None),
        };
        Ok(match (word, inside) {
            ("fingerprint", None) => Self::Fingerprint,
            ("key", None) => Self::Key,
            ("console", None) => Self::Console,
            ("sshfp", None) => Self::Sshfp,
            ("known_hosts", None) => Self::KnownHosts,
            ("first-use", None) => Self::FirstUse,
            ("ca", Some(name)) if is_word(name) => Self::Authority(name.to_owned()),
            ("copy", Some(name)) => Self::Copy(name.parse().map_err(|_| ())?),
            ("witness", Some(names)) => {
                Self::Witness(names.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| ())?)
            }
            ("rotation", Some(inside)) => {
                let by = inside.strip_prefix("proved by ").ok_or(())?;
                let (by, root) = match by.strip_suffix(", first use") {
                    Some(by) => (by, Root::FirstUse),
                    None => (by, Root::Proved),
                };
                Self::Rotation(by.parse().map_err(|_| ())?, root)
            }
            _ => return Err(()),
        })
    }
}

impl Proof {
    /// Root of the chain: a proof, or only trust on first use.
    #[must_use]
    pub fn root(&self) -> Root {
        match self {
            Self::FirstUse | Self::Rotation(_, Root::FirstUse) => Root::FirstUse,
            _ => Root::Proved,
        }
    }

    /// True if `self` replaces the proof `known` of the same key. Only an independent proof replaces trust on first
    /// use, and nothing replaces a proof. A known_hosts file was mostly trusted on first use itself, and a rotation
    /// only proves that the host has the key: neither removes the mark.
    #[must_use]
    pub fn settles(&self, known: &Self) -> bool {
        let is_brought = match self {
            Self::Fingerprint
            | Self::Key
            | Self::Console
            | Self::Sshfp
            | Self::Authority(_)
            | Self::Witness(_) => true,
            Self::Copy(_) | Self::Rotation(..) | Self::KnownHosts | Self::FirstUse => false,
        };
        is_brought && known.root() == Root::FirstUse
    }
}

/// True for one word without characters that would break the line.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && !"()#".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proof_from_outside_ends_trust_on_first_use_and_nothing_replaces_a_proof() {
        let by = Fingerprint([7; 32]);
        let names = || vec!["gate".parse().unwrap(), "db2".parse().unwrap()];
        let (unproved, proved) = (Proof::Rotation(by, Root::FirstUse), Proof::Rotation(by, Root::Proved));
        let outside = [
            Proof::Fingerprint,
            Proof::Key,
            Proof::Console,
            Proof::Sshfp,
            Proof::Authority("fleet-ca".into()),
            Proof::Witness(names()),
        ];
        let inside = [
            Proof::FirstUse,
            unproved.clone(),
            proved.clone(),
            Proof::KnownHosts,
            Proof::Copy("db2".parse().unwrap()),
        ];
        for known in [Proof::FirstUse, unproved.clone()] {
            assert_eq!(known.root(), Root::FirstUse);
            assert!(outside.iter().all(|new| new.settles(&known)), "{known}");
            assert!(inside.iter().all(|new| !new.settles(&known)), "{known}");
        }
        for known in outside.iter().chain([&proved, &Proof::KnownHosts]) {
            assert_eq!(known.root(), Root::Proved);
            assert!(outside.iter().chain(&inside).all(|new| !new.settles(known)), "{known}");
        }
    }
}
