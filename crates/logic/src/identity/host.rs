//! The file of one host: what is in it, kept line by line, so that comments and lines we do not know survive a change.

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

pub(super) use read::key as read_key;

/// More pins than this in one file are refused: a server has three or four keys.
pub const PINS_KEPT: usize = 32;
/// How many moves a file remembers; older ones are dropped.
pub const MOVES_KEPT: usize = 16;

/// What is known of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    name: Name,
    lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    text: String,
    /// `None` for comments, blank lines and words that this version does not know.
    entry: Option<Entry>,
}

/// What one line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// `id NAME`
    Id(Name),
    /// `alias NAME...`: other names under which it is asked for.
    Alias(Vec<Name>),
    /// `addr ...`: where it was found. Hints: they prove nothing.
    Address(Address),
    /// `pin KEY FINGERPRINT from=PROOF DATE`
    Pin(Pin),
    /// `ca KEY|@NAME principals=...`
    Signer(Signer),
    /// `sshfp require-secure|off`
    Sshfp(Sshfp),
    /// `seen A → B DATE (same key)`
    Seen(Move),
    /// `revoked KEY DATE`: never again, from nobody.
    Revoked(PublicKey, Option<Date>),
    /// `retired KEY DATE`: was its key once.
    RetiredKey(PublicKey, Date),
    /// `retired DATE`: the host is gone; its keys are still known as its.
    RetiredHost(Date),
}

/// Hints for finding a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address {
    /// `dns:NAME`
    pub names: Vec<Name>,
    /// Addresses as they are.
    pub addresses: Vec<IpAddr>,
    /// `port=N`
    pub port: Option<u16>,
    /// `via=NAME`: the host to go through.
    pub via: Option<Name>,
}

/// A key that the host may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The key.
    pub key: PublicKey,
    /// How it was proved.
    pub proof: Proof,
    /// When.
    pub date: Date,
    /// By whom.
    pub by: Option<String>,
    /// Since when the host itself no longer announces it (hostkeys-00).
    pub absent: Option<Date>,
}

/// An authority whose certificates a host may show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Its key, or the name of its file.
    pub authority: Binding,
    /// The names that a certificate may carry; `None`: those of the host.
    pub principals: Option<Patterns>,
}

/// How an authority is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// By its key.
    Key(PublicKey),
    /// By the name of its file, written with `@`.
    Named(Name),
}

/// Whether the DNS may vouch for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sshfp {
    /// No.
    Off,
    /// If DNSSEC was validated here.
    RequireSecure,
}

/// The same key was found at another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where it was.
    pub from: IpAddr,
    /// Where it is.
    pub to: IpAddr,
    /// When that was noticed.
    pub date: Date,
}

impl Pin {
    /// What the chain of its proofs hangs on.
    #[must_use]
    pub fn root(&self) -> Root {
        self.proof.root()
    }
}

impl HostFile {
    /// A host of which nothing is known.
    #[must_use]
    pub fn new(name: Name) -> Self {
        let id = Entry::Id(name.clone());
        Self { name, lines: vec![Line { text: id.to_string(), entry: Some(id) }] }
    }

    /// Reads the file of the host called `name`.
    ///
    /// # Errors
    /// All that is wrong with it. A host whose file is wrong must be refused.
    pub fn parse(name: &Name, text: &str) -> Result<Self, Vec<Fault>> {
        read::read(name, text)
    }

    /// Its identity.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What its lines say, in their order.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.lines.iter().filter_map(|line| line.entry.as_ref())
    }

    /// The keys it may show.
    pub fn pins(&self) -> impl Iterator<Item = &Pin> {
        self.entries().filter_map(|entry| if let Entry::Pin(pin) = entry { Some(pin) } else { None })
    }

    /// The pin of this key.
    #[must_use]
    pub fn pin(&self, key: &PublicKey) -> Option<&Pin> {
        self.pins().find(|pin| pin.key == *key)
    }

    /// Keys it had once.
    pub fn retired_keys(&self) -> impl Iterator<Item = (&PublicKey, Date)> {
        self.entries().filter_map(|entry| match entry {
            Entry::RetiredKey(key, date) => Some((key, *date)),
            _ => None,
        })
    }

    /// Keys that are refused whoever shows them.
    pub fn revoked(&self) -> impl Iterator<Item = &PublicKey> {
        self.entries().filter_map(|entry| if let Entry::Revoked(key, _) = entry { Some(key) } else { None })
    }

    /// Since when the host is retired.
    #[must_use]
    pub fn retired(&self) -> Option<Date> {
        self.entries().find_map(|entry| if let Entry::RetiredHost(date) = entry { Some(*date) } else { None })
    }

    /// The authorities it is bound to.
    pub fn signers(&self) -> impl Iterator<Item = &Signer> {
        self.entries().filter_map(|entry| if let Entry::Signer(signer) = entry { Some(signer) } else { None })
    }

    /// Whether the DNS may vouch for it.
    #[must_use]
    pub fn sshfp(&self) -> Sshfp {
        let said = self
            .entries()
            .filter_map(|entry| if let Entry::Sshfp(said) = entry { Some(*said) } else { None });
        said.last().unwrap_or(Sshfp::Off)
    }

    /// Its hints, all lines together.
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

    /// Its port, where its hints or its name have one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.address().port.or(self.name.split_port().1)
    }

    /// Whether a server on this port is another one, as it is for OpenSSH: the identity has a port, and not this.
    #[must_use]
    pub fn is_elsewhere(&self, port: u16) -> bool {
        self.port().is_some_and(|own| own != port)
    }

    /// Its moves, oldest first.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.entries().filter_map(|entry| if let Entry::Seen(seen) = entry { Some(seen) } else { None })
    }

    /// Whether a move led from or to this address.
    #[must_use]
    pub fn was_at(&self, address: IpAddr) -> bool {
        self.moves().any(|seen| seen.from == address || seen.to == address)
    }

    /// Every address at which it was before or may be.
    pub fn known_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let hints = self.address().addresses;
        hints.into_iter().chain(self.moves().flat_map(|seen| [seen.from, seen.to]))
    }

    /// Its names: the identity, aliases, and names in the DNS.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let others = self.entries().flat_map(|entry| match entry {
            Entry::Alias(names) => names.as_slice(),
            Entry::Address(address) => address.names.as_slice(),
            _ => &[],
        });
        std::iter::once(&self.name).chain(others)
    }

    /// Lines that begin with a word this version does not know: number and text.
    pub fn unknown_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate();
        let unknown =
            lines.filter(|(_, line)| line.entry.is_none() && !super::line::words(&line.text).is_empty());
        unknown.map(|(at, line)| (at + 1, line.text.as_str()))
    }
}

/// The file's text.
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
