//! Access lists: ordered entries that permit or deny clients by address. The first entry that matches decides, and the
//! list's default decides for the others.
//!
//! A list is compiled once into the addresses at which the verdict changes: a look-up is one binary search for any
//! number of entries, also where they overlap.

use std::cmp::Reverse;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::balance::hash_bytes;
use crate::peers::{Peer, PeerSetEntry, PeerSetEntryError, unmapped};

mod country;

pub use country::{Countries, Country};

text::words! {
    /// Verdict of an access list on a client.
    pub enum Verdict: "verdict" {
        Permit = "permit",
        Deny = "deny",
    }
}

impl Verdict {
    fn opposite(self) -> Self {
        match self {
            Self::Permit => Self::Deny,
            Self::Deny => Self::Permit,
        }
    }
}

/// Entry of a list as written: `permit 10.0.0.0/8`, `deny 2001:db8::7`, `permit unix`, `deny country:DE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub verdict: Verdict,
    pub who: Who,
}

/// Clients that an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Peers(PeerSetEntry),
    /// Clients whose address a GeoIP database has in this country.
    Country(Country),
}

/// Begins the country of an entry.
const COUNTRY: &str = "country:";

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peers(peers) => peers.fmt(f),
            Self::Country(country) => write!(f, "{COUNTRY}{country}"),
        }
    }
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let verdict = match word.parse::<Verdict>() {
            Ok(verdict) => verdict,
            Err(_) if word.parse::<PeerSetEntry>().is_ok() || word.starts_with(COUNTRY) => {
                return Err(EntryError::OnlyAddress(shortened(word)));
            }
            Err(_) => return Err(EntryError::NoVerdict(shortened(word))),
        };
        let who = rest.trim();
        if who.is_empty() {
            return Err(EntryError::NoAddress(verdict));
        }
        if let Some(code) = who.strip_prefix(COUNTRY) {
            return match code.parse() {
                Ok(country) => Ok(Self { verdict, who: Who::Country(country) }),
                Err(_) => Err(EntryError::NotACountry(shortened(code))),
            };
        }
        match who.parse() {
            Ok(who) => Ok(Self { verdict, who: Who::Peers(who) }),
            Err(PeerSetEntryError::NotAnAddress(_)) => Err(EntryError::NotAnAddress(shortened(who))),
            Err(error) => Err(EntryError::Address(error)),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verdict, self.who)
    }
}

/// Cuts a text of any length for a message.
fn shortened(text: &str) -> Box<str> {
    text.chars().take(80).collect::<String>().into()
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("`{}` is neither `permit` nor `deny`: an entry is like `permit 10.0.0.0/8`", .0.escape_debug())]
    NoVerdict(Box<str>),
    #[error("`{0}` has no `permit` or `deny` before it")]
    OnlyAddress(Box<str>),
    #[error("`{0}` has no address after it: an entry is like `{0} 10.0.0.0/8`")]
    NoAddress(Verdict),
    #[error("`{}` is not an IP address, a network like 10.0.0.0/8, or `unix`", .0.escape_debug())]
    NotAnAddress(Box<str>),
    #[error("`{}` is not the code of a country: two letters, as in `deny country:DE`", .0.escape_debug())]
    NotACountry(Box<str>),
    #[error("`country:{0}` needs a database of countries, and there is no `database` in [geoip]")]
    NoDatabase(Country),
    #[error("the GeoIP database has no network of country {0}: codes are those of ISO 3166, such as DE")]
    UnknownCountry(Country),
    #[error(transparent)]
    Address(PeerSetEntryError),
}

/// What is known of countries.
#[derive(Clone, Copy, Debug)]
pub enum Geography<'a> {
    /// There is no database.
    None,
    Known(&'a Countries),
    /// The database could not be read, which is a fault of its own.
    Broken,
}

impl Geography<'_> {
    /// Whether an entry can be used.
    pub fn check(self, entry: &Entry) -> Result<(), EntryError> {
        match (entry.who, self) {
            (Who::Country(country), Self::None) => Err(EntryError::NoDatabase(country)),
            (Who::Country(country), Self::Known(countries)) if countries.networks(country).is_none() => {
                Err(EntryError::UnknownCountry(country))
            }
            (Who::Peers(_) | Who::Country(_), _) => Ok(()),
        }
    }
}

/// Largest number of entries of one list.
pub const MOST_ENTRIES: usize = 1_000_000;

/// Parses the text of a file: an entry on each line, comments from `#` to the end of the line. Calls `fault` with the
/// number of each line that is wrong, from 1.
pub fn parse_lines(
    text: &str,
    geography: Geography<'_>,
    mut fault: impl FnMut(usize, EntryError),
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match line.parse::<Entry>().and_then(|entry| geography.check(&entry).map(|()| entry)) {
            Ok(entry) => entries.push(entry),
            Err(error) => fault(at + 1, error),
        }
    }
    entries
}

/// Compiled list.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessList {
    name: Box<str>,
    default: Verdict,
    unix: Verdict,
    v4: Changes<u32>,
    v6: Changes<u128>,
    entries: usize,
    /// The entries, unless there are very many: they tell which of them decides.
    written: Box<[Entry]>,
}

/// Largest number of entries that a list keeps as they were written.
const MOST_WRITTEN: usize = 65_536;

/// Addresses at which the verdict changes, in order; it begins with the default.
#[derive(Clone, PartialEq, Eq)]
struct Changes<T>(Box<[T]>);

impl<T: Copy + Ord> Changes<T> {
    fn verdict(&self, address: T, default: Verdict) -> Verdict {
        let passed = self.0.partition_point(|change| *change <= address);
        if passed % 2 == 0 { default } else { default.opposite() }
    }
}

/// An entry that never decides anything, because an earlier one holds all of its addresses and says the opposite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// Index of the entry.
    pub entry: usize,
    /// Index of the earlier one.
    pub by: usize,
}

impl AccessList {
    /// Compiles a list. Also returns the entries that can never decide, in their order; those of countries are not
    /// among them.
    pub fn new(
        name: &str,
        default: Verdict,
        entries: &[Entry],
        geography: Geography<'_>,
    ) -> (Self, Vec<Shadowed>) {
        let empty = Countries::default();
        let countries = if let Geography::Known(countries) = geography { countries } else { &empty };
        let (mut v4, mut v6, mut unix, mut shadowed) = (Vec::new(), Vec::new(), None, Vec::new());
        for (at, entry) in entries.iter().enumerate() {
            let rule = Rule { at, verdict: entry.verdict };
            match entry.who {
                Who::Country(country) => {
                    for network in countries.networks(country).unwrap_or_default() {
                        add(*network, rule, &mut v4, &mut v6);
                    }
                }
                Who::Peers(PeerSetEntry::Unix) => {
                    let first = *unix.get_or_insert(rule);
                    if first.verdict != rule.verdict {
                        shadowed.push(Shadowed { entry: at, by: first.at });
                    }
                }
                Who::Peers(PeerSetEntry::Network(network)) => add(network, rule, &mut v4, &mut v6),
            }
        }
        // Every change is an address of the family.
        let v4 = changes(v4, default, &mut shadowed).into_iter();
        let v4 = v4.filter_map(|change| u32::try_from(change).ok()).collect();
        let v6 = changes(v6, default, &mut shadowed).into();
        // Of a country some networks may be hidden, and others not.
        shadowed.retain(|shadowed| matches!(entries[shadowed.entry].who, Who::Peers(_)));
        shadowed.sort_unstable_by_key(|shadowed| shadowed.entry);
        let list = Self {
            name: name.into(),
            default,
            unix: unix.map_or(default, |rule| rule.verdict),
            v4: Changes(v4),
            v6: Changes(v6),
            entries: entries.len(),
            written: if entries.len() > MOST_WRITTEN { Box::default() } else { entries.into() },
        };
        (list, shadowed)
    }

    /// The entry that decides about a client, whose address is in this country. `None` if the default decides, or the
    /// list is too long to tell.
    pub fn deciding(&self, peer: &Peer, country: Option<Country>) -> Option<Entry> {
        let holds = |entry: &&Entry| match (entry.who, peer.ip()) {
            (Who::Country(of), _) => country == Some(of),
            (Who::Peers(PeerSetEntry::Unix), ip) => ip.is_none(),
            (Who::Peers(PeerSetEntry::Network(network)), Some(ip)) => unmapped(network.trunc()).contains(&ip),
            (Who::Peers(PeerSetEntry::Network(_)), None) => false,
        };
        self.written.iter().find(holds).copied()
    }

    /// NAME of `[acl.NAME]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// An IPv4-mapped IPv6 address is looked up as IPv4.
    pub fn verdict(&self, peer: &Peer) -> Verdict {
        match peer.ip() {
            Some(IpAddr::V4(ip)) => self.v4.verdict(ip.to_bits(), self.default),
            Some(IpAddr::V6(ip)) => self.v6.verdict(ip.to_bits(), self.default),
            None => self.unix,
        }
    }

    /// Equal for lists that give every client the same verdict, also with other entries.
    pub fn digest(&self) -> u64 {
        let words = [self.default, self.unix].map(|verdict| verdict == Verdict::Permit);
        let seed = u64::from(words[0]) * 2 + u64::from(words[1]);
        let v4 = self.v4.0.iter().fold(seed, |hash, change| hash_bytes(hash, &change.to_le_bytes()));
        self.v6.0.iter().fold(!v4, |hash, change| hash_bytes(hash, &change.to_le_bytes()))
    }
}

/// The name only: a list may have a million entries.
impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessList").field(&self.name).finish()
    }
}

#[derive(Clone, Copy)]
struct Rule {
    /// Index of the entry: the lower one decides.
    at: usize,
    verdict: Verdict,
}

fn add(network: IpNet, rule: Rule, v4: &mut Vec<Block>, v6: &mut Vec<Block>) {
    match unmapped(network.trunc()) {
        IpNet::V4(network) => {
            let (first, last) = (network.network().to_bits(), network.broadcast().to_bits());
            v4.push(Block { first: first.into(), last: last.into(), rule });
        }
        IpNet::V6(network) => {
            let (first, last) = (network.network().to_bits(), network.broadcast().to_bits());
            v6.push(Block { first, last, rule });
        }
    }
}

#[derive(Clone, Copy)]
struct Block {
    first: u128,
    last: u128,
    rule: Rule,
}

/// Computes where the verdict changes. Of two networks, one holds the other or they share no address: so a stack of the
/// networks around an address has the deciding rule at its top.
fn changes(mut blocks: Vec<Block>, default: Verdict, shadowed: &mut Vec<Shadowed>) -> Vec<u128> {
    blocks.sort_unstable_by_key(|block| (block.first, Reverse(block.last), block.rule.at));
    // Each with the rule that decides inside it.
    let mut around: Vec<Block> = Vec::new();
    let mut marks = Marks { list: Vec::new() };
    for block in blocks {
        leave(&mut around, Some(block.first), default, &mut marks);
        let rule = match around.last() {
            Some(outer) if outer.rule.at < block.rule.at => {
                if outer.rule.verdict != block.rule.verdict {
                    shadowed.push(Shadowed { entry: block.rule.at, by: outer.rule.at });
                }
                outer.rule
            }
            _ => block.rule,
        };
        marks.set(block.first, rule.verdict);
        around.push(Block { rule, ..block });
    }
    leave(&mut around, None, default, &mut marks);
    let mut now = default;
    let changing =
        marks.list.into_iter().filter(|(_, verdict)| std::mem::replace(&mut now, *verdict) != *verdict);
    changing.map(|(address, _)| address).collect()
}

/// Removes from `around` the networks that end before `next`, and marks where the verdict changes back.
fn leave(around: &mut Vec<Block>, next: Option<u128>, default: Verdict, marks: &mut Marks) {
    while let Some(block) = around.pop_if(|block| next.is_none_or(|next| block.last < next)) {
        // Behind the last address of the family nothing changes: IPv4 look-ups never come that far.
        if let Some(behind) = block.last.checked_add(1) {
            marks.set(behind, around.last().map_or(default, |outer| outer.rule.verdict));
        }
    }
}

/// Verdicts from an address on, in order.
struct Marks {
    list: Vec<(u128, Verdict)>,
}

impl Marks {
    /// Of several at one address, the last one counts.
    fn set(&mut self, address: u128, verdict: Verdict) {
        match self.list.last_mut() {
            Some(last) if last.0 == address => last.1 = verdict,
            _ => self.list.push((address, verdict)),
        }
    }
}

#[cfg(test)]
mod tests;
