//! Slots of each client address: all its client connections over all workers, with their backend connections.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logic::account::{Refusal, Shares, SourceUsage, Usage};
use logic::balance::{Prefixes, StickyKey};
use logic::flood_delay::FloodDelay;

use crate::lock::lock;

/// Parts of the table with a lock each, so that workers seldom wait for each other.
const PARTS: usize = 16;

/// Sources with slots, and sources that have held slots since the last sweep.
pub struct Sources {
    parts: [Mutex<HashMap<StickyKey, Arc<Source>, Keyed>>; PARTS],
    ipv4_prefix: AtomicU8,
    ipv6_prefix: AtomicU8,
}

/// Hashes an address by multiplication with secret random numbers. Every accepted client needs a look-up, and SipHash
/// is ten times slower.
#[derive(Clone, Debug)]
struct Keyed {
    first: u64,
    second: u64,
    state: u64,
}

impl Default for Keyed {
    fn default() -> Self {
        let random = || RandomState::new().hash_one(0);
        Self { first: random(), second: random() | 1, state: 0 }
    }
}

impl BuildHasher for Keyed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Keyed {
    fn mix(&mut self, word: u64) {
        let product = u128::from(word ^ self.first ^ self.state) * u128::from(self.second);
        self.state = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Keyed {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number.cast_unsigned() as u64);
    }

    fn write_u128(&mut self, number: u128) {
        self.mix((number >> 64) as u64);
        self.mix(number as u64);
    }
}

/// Maximum number of connections of one source that are being closed for others at the same time.
const MOST_LEAVING: usize = 8;

/// An address, or a network whose addresses count as one.
#[derive(Debug, Default)]
pub struct Source {
    held: AtomicUsize,
    /// Part of `held` for additional backend connections.
    additional: AtomicUsize,
    leaving: AtomicUsize,
    /// The bits of a [`FloodDelay`].
    floods: AtomicU64,
}

impl Source {
    /// Notes at `now`, the time since the start of the process, that a connection was ended for a flood.
    fn flooded(&self, now: Duration) {
        let flooded = |bits| Some(FloodDelay::from_bits(bits).flooded(now).to_bits());
        // The closure never returns `None`.
        let _ = self.floods.fetch_update(Relaxed, Relaxed, flooded);
    }

    fn floods(&self) -> FloodDelay {
        FloodDelay::from_bits(self.floods.load(Relaxed))
    }

    fn usage(&self, held: usize) -> SourceUsage {
        SourceUsage { held, additional: self.additional.load(Relaxed) }
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            parts: Default::default(),
            ipv4_prefix: AtomicU8::new(32),
            ipv6_prefix: AtomicU8::new(StickyKey::DEFAULT_V6_PREFIX),
        }
    }
}

impl Sources {
    /// Sets the networks that identify a client, for new connections.
    pub fn set_prefixes(&self, prefixes: Prefixes) {
        self.ipv4_prefix.store(prefixes.ipv4, Relaxed);
        self.ipv6_prefix.store(prefixes.ipv6, Relaxed);
    }

    /// Key of the source of an address.
    pub fn key(&self, address: IpAddr) -> StickyKey {
        let (ipv4, ipv6) = (self.ipv4_prefix.load(Relaxed), self.ipv6_prefix.load(Relaxed));
        StickyKey::in_network(address, Prefixes { ipv4, ipv6 })
    }

    pub fn of(&self, address: IpAddr) -> Arc<Source> {
        let key = self.key(address);
        lock(&self.parts[key.spread() as usize % PARTS]).entry(key).or_default().clone()
    }

    /// Removes sources without slots. A source that has flooded stays until its floods are forgotten, unless very many
    /// sources have. Called about once per second; `now` is the time since the start of the process.
    pub fn sweep(&self, now: Duration) {
        for part in &self.parts {
            let mut part = lock(part);
            let mut most = MOST_FLOODED;
            // An accept loop that refers to the source is about to take slots.
            part.retain(|_, source| {
                if source.held.load(Relaxed) > 0 || Arc::strong_count(source) > 1 {
                    return true;
                }
                let stays = most > 0 && !source.floods().is_over(now);
                most -= usize::from(stays);
                stays
            });
            if part.is_empty() {
                part.shrink_to(SPARE);
            }
        }
    }

    /// Number of sources in the table.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| lock(part).len()).sum()
    }
}

/// Sources without slots that a part of the table keeps because they have flooded: 64 Ki in all parts, some 8 MB.
const MOST_FLOODED: usize = 4096;

/// Capacity that an empty part of the table keeps.
const SPARE: usize = 64;

/// Slots of one client connection in its source's share; returned when dropped.
#[derive(Debug)]
pub struct AtSource {
    source: Arc<Source>,
    held: Cell<usize>,
    additional: Cell<usize>,
    stay: Cell<SourceMove>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceMove {
    Stays,
    /// The connection is being closed, and its slots were moved to another connection.
    Leaves,
}

impl AtSource {
    /// Counts a new client that takes `slots`, unless its source has used its share.
    pub fn take(
        source: Arc<Source>,
        (usage, shares): (Usage, Shares),
        slots: usize,
    ) -> Result<Self, Refusal> {
        let mut refusal = Refusal::Source;
        let more = |held: usize| match usage.client(shares, Some(source.usage(held)), slots) {
            // If no slot is free at all, the caller waits for slots when it takes them.
            Ok(()) | Err(Refusal::NoDescriptors) => Some(held + slots),
            Err(why) => {
                refusal = why;
                None
            }
        };
        let taken = source.held.fetch_update(Relaxed, Relaxed, more).is_ok();
        if taken { Ok(Self::new(source, slots)) } else { Err(refusal) }
    }

    fn new(source: Arc<Source>, held: usize) -> Self {
        Self { source, held: Cell::new(held), additional: Cell::new(0), stay: Cell::new(SourceMove::Stays) }
    }

    /// Moves the slots to a new connection from the same source, for which this connection is closed. `None` if too
    /// many connections of the source are still being closed. Slots of an additional backend connection stay here: a
    /// connection still being opened for a cancelled request returns its slots later.
    pub(super) fn pass_on(&self) -> Option<Self> {
        // A connection that received a request before it was closed continues, and may be idle again later.
        if self.stay.get() == SourceMove::Leaves {
            return None;
        }
        let more = |leaving: usize| (leaving < MOST_LEAVING).then_some(leaving + 1);
        self.source.leaving.fetch_update(Relaxed, Relaxed, more).ok()?;
        self.stay.set(SourceMove::Leaves);
        let additional = self.additional.get();
        Some(Self::new(self.source.clone(), self.held.replace(additional) - additional))
    }

    pub(super) fn is_of(&self, source: &Arc<Source>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }

    /// Notes at `now`, the time since the start of the process, that this connection is ended for a flood.
    pub(super) fn flooded(&self, now: Duration) {
        self.source.flooded(now);
    }

    /// Floods of earlier connections of the source.
    pub fn floods(&self) -> FloodDelay {
        self.source.floods()
    }

    /// Slots of the whole source.
    pub fn of_source(&self) -> SourceUsage {
        self.source.usage(self.source.held.load(Relaxed))
    }

    /// Adds slots of an additional backend connection.
    pub(super) fn add(&self, slots: usize) {
        self.source.held.fetch_add(slots, Relaxed);
        self.source.additional.fetch_add(slots, Relaxed);
        self.held.set(self.held.get() + slots);
        self.additional.set(self.additional.get() + slots);
    }

    /// Removes slots of an additional backend connection.
    pub(super) fn subtract(&self, slots: usize) {
        self.source.held.fetch_sub(slots, Relaxed);
        self.source.additional.fetch_sub(slots, Relaxed);
        self.held.set(self.held.get() - slots);
        self.additional.set(self.additional.get() - slots);
    }
}

impl Drop for AtSource {
    fn drop(&mut self) {
        self.source.held.fetch_sub(self.held.get(), Relaxed);
        self.source.additional.fetch_sub(self.additional.get(), Relaxed);
        if self.stay.get() == SourceMove::Leaves {
            self.source.leaving.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use logic::account::{Division, Percent, Shares};

    use super::*;
    use crate::account::{Account, Wanted};

    fn account() -> Arc<Account> {
        let account = Account::new(1);
        let half = Percent::new(50).unwrap();
        let division = Division { traffic: 100, ..Division::default() };
        account.set(100, division, Shares { connection: half, source: half }, Wanted::default(), 1);
        account
    }

    #[test]
    fn a_source_that_has_its_share_is_refused_and_another_is_not() {
        let account = account();
        let clients: Vec<_> =
            (0..50).map_while(|_| account.count_client([192, 0, 2, 1].into(), 2).ok()).collect();
        // The account counts no slots in this test, so the share grows with the slots held.
        assert!(clients.len() >= 25, "{}", clients.len());
        let other = account.count_client([192, 0, 2, 2].into(), 2).unwrap();
        assert_eq!(other.of_source().held, 2);
        other.add(3);
        assert_eq!(other.of_source(), SourceUsage { held: 5, additional: 3 });
        assert_eq!(other.of_source().held, 5);
        other.subtract(3);
        drop(clients);
        account.sources.sweep(Duration::ZERO);
        assert_eq!(account.sources.count(), 1);
        drop(other);
        account.sources.sweep(Duration::ZERO);
        assert_eq!(account.sources.count(), 0);
    }

    #[test]
    fn a_source_holds_no_more_when_connections_pass_on_what_they_hold_and_few_do_at_once() {
        let account = account();
        let take = || account.count_client([192, 0, 2, 1].into(), 2).unwrap();
        let clients: Vec<_> = (0..20).map(|_| take()).collect();
        let newer: Vec<_> = clients.iter().map_while(AtSource::pass_on).collect();
        assert_eq!(newer.len(), MOST_LEAVING);
        assert_eq!(newer[0].of_source().held, 40);
        assert!(clients[0].pass_on().is_none());
        drop(clients);
        assert_eq!(newer[0].of_source().held, 2 * MOST_LEAVING);
        assert!(newer[0].pass_on().is_some());
        let source = newer[0].source.clone();
        drop(newer);
        assert_eq!((source.held.load(Relaxed), source.leaving.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_connection_that_is_closed_for_another_still_gives_back_its_further_backend() {
        let account = account();
        let old = account.count_client([192, 0, 2, 1].into(), 2).unwrap();
        old.add(1);
        let new = old.pass_on().unwrap();
        assert_eq!(new.of_source(), SourceUsage { held: 3, additional: 1 });
        old.subtract(1);
        assert_eq!(new.of_source(), SourceUsage { held: 2, additional: 0 });
        drop(old);
        assert_eq!(new.of_source(), SourceUsage { held: 2, additional: 0 });
    }

    #[test]
    fn a_source_that_has_flooded_is_remembered_until_its_floods_are_forgotten() {
        let (account, longest) = (account(), Duration::from_secs(1));
        let take = || account.count_client([192, 0, 2, 1].into(), 2).unwrap();
        let (begin, later) = (Duration::from_secs(5), Duration::from_secs(15));
        take().flooded(begin);
        account.sources.sweep(begin);
        assert_eq!(account.sources.count(), 1);
        assert_eq!(take().floods().wait(begin, longest), Duration::from_millis(10));
        let other = account.count_client([192, 0, 2, 2].into(), 2).unwrap();
        assert_eq!(other.floods().wait(begin, longest), Duration::ZERO);
        drop(other);
        account.sources.sweep(later);
        assert_eq!(account.sources.count(), 0);
    }

    #[test]
    fn sources_that_have_flooded_are_remembered_up_to_a_limit() {
        let account = account();
        for address in 0..2 * MOST_FLOODED * PARTS {
            let address = std::net::Ipv4Addr::from_bits(u32::try_from(address).unwrap());
            account.count_client(address.into(), 2).unwrap().flooded(Duration::ZERO);
        }
        account.sources.sweep(Duration::ZERO);
        assert!((1..=MOST_FLOODED * PARTS).contains(&account.sources.count()));
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let account = account();
        let first = account.count_client("2001:db8:0:1::1".parse().unwrap(), 2).unwrap();
        let second = account.count_client("2001:db8:0:1:ffff::1".parse().unwrap(), 2).unwrap();
        let other = account.count_client("2001:db8:0:2::1".parse().unwrap(), 2).unwrap();
        assert_eq!((first.of_source().held, second.of_source().held, other.of_source().held), (4, 4, 2));
    }
}
