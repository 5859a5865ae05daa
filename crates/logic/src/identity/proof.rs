//! How a key was proved to be a host's, and what of it nobody proved: trust on first use stays visible until a real proof
//! of the same key comes.

use std::fmt;
use std::str::FromStr;

use super::name::Name;
use crate::ssh::key::Fingerprint;

/// How a key was proved to be the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// Its fingerprint was compared with one that somebody brought.
    Fingerprint,
    /// The whole key was given.
    Key,
    /// It stood in the console output of the machine.
    Console,
    /// DNS, validated here up to the trust anchor.
    Sshfp,
    /// A certificate of this authority named the host.
    Authority(String),
    /// Taken over from another identity of ours.
    Copy(Name),
    /// These trusted hosts saw the same key from where they are.
    Witness(Vec<Name>),
    /// The host proved that it holds it, over a connection proved by this pin.
    Rotation(Fingerprint, Root),
    /// It stood in a known_hosts file.
    KnownHosts,
    /// Nothing: taken because somebody said so. Marked until that very key is proved.
    FirstUse,
}

/// What the chain of a rotation hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// A proof.
    Proved,
    /// Trust on first use.
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
    /// Whether nothing but trust on first use stands behind it.
    #[must_use]
    pub fn root(&self) -> Root {
        match self {
            Self::FirstUse | Self::Rotation(_, Root::FirstUse) => Root::FirstUse,
            _ => Root::Proved,
        }
    }

    /// Whether it takes the place of `known` for the same key: a proof that is brought from outside ends trust on first
    /// use, and nothing replaces a proof. What a known_hosts file says was mostly taken on first use itself, and a
    /// rotation proves only that the host holds the key: both leave the mark where it is.
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

/// One word without marks that would break the line.
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
