//! File of one host, kept line by line, so that a change preserves comments and unknown lines.

use std::fmt;
use std::net::IpAddr;

use super::date::Date;
use super::line::Fault;
use super::name::Name;
use super::pattern::Patterns;
use super::proof::{Proof, Root};
use crate::ssh::key::PublicKey;

mod change;
mod read;

pub(super) use read::{address as read_address, key as read_key};

/// Limit of pins in one file; a server has three or four keys.
pub const PINS_KEPT: usize = 32;
/// Limit of moves in one file; the oldest moves are removed.
pub const MOVES_KEPT: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    name: Name,
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    text: String,
    /// `None` for comments, blank lines and lines with a keyword that this version does not know.
    entry: Option<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// `id NAME`
    Id(Name),
    /// `alias NAME...`: other names of the host.
    Alias(Vec<Name>),
    /// `addr ...`: addresses where the host was found. Hints prove nothing.
    Address(Address),
    /// `pin KEY FINGERPRINT from=PROOF DATE`
    Pin(Pin),
    /// `ca KEY|@NAME principals=...`
    Signer(Signer),
    /// `sshfp require-secure|off`
    Sshfp(Sshfp),
    /// `seen A → B DATE (same key)`
    Seen(Move),
    /// `revoked KEY DATE`: the key is refused from every host.
    Revoked(PublicKey, Option<Date>),
    /// `retired KEY DATE`: a former key of the host.
    RetiredKey(PublicKey, Date),
    /// `retired DATE`: the host is gone. Its keys are still recognised.
    RetiredHost(Date),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address {
    /// `dns:NAME`
    pub names: Vec<Name>,
    pub addresses: Vec<IpAddr>,
    /// `port=N`
    pub port: Option<u16>,
    /// `via=NAME`: the jump host.
    pub via: Option<Name>,
}

/// Key that the host may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub key: PublicKey,
    pub proof: Proof,
    pub date: Date,
    pub by: Option<String>,
    /// Date since which the host no longer announces the key (hostkeys-00).
    pub absent: Option<Date>,
}

/// Authority whose certificates the host may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    pub authority: Binding,
    /// Principals that a certificate may have; `None` for the names of the host.
    pub principals: Option<Patterns>,
}

/// Reference to an authority in the file of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    Key(PublicKey),
    /// Name of the authority file, written with `@`.
    Named(Name),
}

/// Use of SSHFP records in the DNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sshfp {
    Off,
    /// SSHFP records count if Penstock validated DNSSEC.
    RequireSecure,
}

/// A change of the address of a host with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub from: IpAddr,
    pub to: IpAddr,
    pub date: Date,
}

impl Pin {
    /// Root of the chain of proofs of the key.
    #[must_use]
    pub fn root(&self) -> Root {
        self.proof.root()
    }
}

impl HostFile {
    /// File of a new host, with only an `id` line.
    #[must_use]
    pub fn new(name: Name) -> Self {
        let id = Entry::Id(name.clone());
        Self { name, lines: vec![Line { text: id.to_string(), entry: Some(id) }] }
    }

    /// Parses the file of the host `name`.
    ///
    /// # Errors
    /// All faults of the file. The caller must refuse a host whose file is wrong.
    pub fn parse(name: &Name, text: &str) -> Result<Self, Vec<Fault>> {
        read::read(name, text)
    }

    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Parsed entries in the order of the lines.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().filter_map(|line| line.entry.as_ref())
    }

    pub fn pins(&self) -> impl Iterator<Item = &Pin> {
        self.entries().filter_map(|entry| if let Entry::Pin(pin) = entry { Some(pin) } else { None })
    }

    #[must_use]
    pub fn pin(&self, key: &PublicKey) -> Option<&Pin> {
        self.pins().find(|pin| pin.key == *key)
    }

    pub fn retired_keys(&self) -> impl Iterator<Item = (&PublicKey, Date)> {
        self.entries().filter_map(|entry| match entry {
            Entry::RetiredKey(key, date) => Some((key, *date)),
            _ => None,
        })
    }

    /// Keys that are refused from every host.
    pub fn revoked(&self) -> impl Iterator<Item = &PublicKey> {
        self.entries().filter_map(|entry| if let Entry::Revoked(key, _) = entry { Some(key) } else { None })
    }

    /// Date since which the host is retired.
    #[must_use]
    pub fn retired(&self) -> Option<Date> {
        self.entries().find_map(|entry| if let Entry::RetiredHost(date) = entry { Some(*date) } else { None })
    }

    /// Authorities whose certificates the host may show.
    pub fn signers(&self) -> impl Iterator<Item = &Signer> {
        self.entries().filter_map(|entry| if let Entry::Signer(signer) = entry { Some(signer) } else { None })
    }

    /// Use of SSHFP records for the host. The last line counts.
    #[must_use]
    pub fn sshfp(&self) -> Sshfp {
        let said = self
            .entries()
            .filter_map(|entry| if let Entry::Sshfp(said) = entry { Some(*said) } else { None });
        said.last().unwrap_or(Sshfp::Off)
    }

    /// Hints of all `addr` lines together.
    #[must_use]
    pub fn address(&self) -> Address {
        let mut all = Address::default();
        for entry in self.entries() {
            if let Entry::Address(some) = entry {
                all.names.extend(some.names.iter().cloned());
                all.addresses.extend(&some.addresses);
                all.port = all.port.or(some.port);
                all.via = all.via.or_else(|| some.via.clone());
            }
        }
        all
    }

    /// Port in the hints or in the name of the host.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.address().port.or(self.name.split_port().1)
    }

    /// True if a server on `port` is another server than the host, as for OpenSSH: the host has a different port.
    #[must_use]
    pub fn is_elsewhere(&self, port: u16) -> bool {
        self.port().is_some_and(|own| own != port)
    }

    /// Moves, oldest first.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.entries().filter_map(|entry| if let Entry::Seen(seen) = entry { Some(seen) } else { None })
    }

    /// True if a move led from or to `address`.
    #[must_use]
    pub fn was_at(&self, address: IpAddr) -> bool {
        self.moves().any(|seen| seen.from == address || seen.to == address)
    }

    /// Addresses in the hints and in the moves.
    pub fn known_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let hints = self.address().addresses;
        hints.into_iter().chain(self.moves().flat_map(|seen| [seen.from, seen.to]))
    }

    /// Names of the host: the identity, aliases, and DNS names.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let others = self.entries().flat_map(|entry| match entry {
            Entry::Alias(names) => names.as_slice(),
            Entry::Address(address) => address.names.as_slice(),
            _ => &[],
        });
        std::iter::once(&self.name).chain(others)
    }

    /// Number and text of lines whose keyword this version does not know.
    pub fn unknown_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate();
        let unknown =
            lines.filter(|(_, line)| line.entry.is_none() && !super::line::words(&line.text).is_empty());
        unknown.map(|(at, line)| (at + 1, line.text.as_str()))
    }
}

impl fmt::Display for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{}", line.text))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(name) => write!(f, "id      {name}"),
            Self::Alias(names) => {
                write!(f, "alias  ")?;
                names.iter().try_for_each(|name| write!(f, " {name}"))
            }
            Self::Address(address) => write!(f, "addr    {address}"),
            Self::Pin(pin) => {
                write!(f, "pin     {} {} from={} {}", pin.key, pin.key.fingerprint(), pin.proof, pin.date)?;
                if let Some(by) = &pin.by {
                    write!(f, " by={by}")?;
                }
                pin.absent.map_or(Ok(()), |date| write!(f, " absent={date}"))
            }
            Self::Signer(signer) => {
                write!(f, "ca      {}", signer.authority)?;
                signer.principals.as_ref().map_or(Ok(()), |names| write!(f, " principals={names}"))
            }
            Self::Sshfp(Sshfp::Off) => f.write_str("sshfp   off"),
            Self::Sshfp(Sshfp::RequireSecure) => f.write_str("sshfp   require-secure"),
            Self::Seen(seen) => write!(f, "seen    {} → {} {} (same key)", seen.from, seen.to, seen.date),
            Self::Revoked(key, date) => {
                write!(f, "revoked {key} {}", key.fingerprint())?;
                date.map_or(Ok(()), |date| write!(f, " {date}"))
            }
            Self::RetiredKey(key, date) => write!(f, "retired {key} {} {date}", key.fingerprint()),
            Self::RetiredHost(date) => write!(f, "retired {date}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.iter().map(|name| format!("dns:{name}"));
        let addresses = self.addresses.iter().map(ToString::to_string);
        let port = self.port.iter().map(|port| format!("port={port}"));
        let via = self.via.iter().map(|via| format!("via={via}"));
        f.write_str(&names.chain(addresses).chain(port).chain(via).collect::<Vec<_>>().join("  "))
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "{key}"),
            Self::Named(name) => write!(f, "@{name}"),
        }
    }
}

#[cfg(test)]
mod tests;
