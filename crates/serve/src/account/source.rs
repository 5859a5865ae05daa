//! What each address holds: all client connections from it, over all workers, with the backend connections that they use.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use logic::account::{Refusal, Shares, SourceUsage, Usage};
use logic::balance::StickyKey;

use crate::lock::lock;

/// Parts of the table, so that workers seldom wait for each other.
const PARTS: usize = 16;

/// Sources that hold something, and those that did a moment ago.
pub struct Sources {
    parts: [Mutex<HashMap<StickyKey, Arc<Source>, Keyed>>; PARTS],
    ipv6_prefix: AtomicU8,
}

/// Hashes an address by a product with random numbers that no client knows. Every accepted client is looked up, and SipHash costs
/// ten times as much.
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

/// Connections of one source that were closed for others and have not ended: no more are closed for others meanwhile.
const MOST_LEAVING: usize = 8;

/// One address, or one network of IPv6.
#[derive(Debug, Default)]
pub struct Source {
    held: AtomicUsize,
    /// Of these, for further backend connections.
    further: AtomicUsize,
    leaving: AtomicUsize,
}

impl Source {
    fn usage(&self, held: usize) -> SourceUsage {
        SourceUsage { held, further: self.further.load(Relaxed) }
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self { parts: Default::default(), ipv6_prefix: AtomicU8::new(StickyKey::DEFAULT_V6_PREFIX) }
    }
}

impl Sources {
    /// How much of an IPv6 address counts, for clients that connect from now on.
    pub fn set_ipv6_prefix(&self, prefix: u8) {
        self.ipv6_prefix.store(prefix, Relaxed);
    }

    /// The source of an address.
    pub fn of(&self, address: IpAddr) -> Arc<Source> {
        let key = StickyKey::new(address, self.ipv6_prefix.load(Relaxed));
        lock(&self.parts[key.spread() as usize % PARTS]).entry(key).or_default().clone()
    }

    /// Removes the sources that hold nothing. To be called about once per second.
    pub fn sweep(&self) {
        for part in &self.parts {
            let mut part = lock(part);
            // An accept loop that refers to it is about to take something.
            part.retain(|_, source| source.held.load(Relaxed) > 0 || Arc::strong_count(source) > 1);
            if part.is_empty() {
                part.shrink_to(SPARE);
            }
        }
    }

    /// How many are known.
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| lock(part).len()).sum()
    }
}

/// Sources that an empty part keeps room for.
const SPARE: usize = 64;

/// What one client connection holds of its source's share; given back when dropped.
#[derive(Debug)]
pub struct AtSource {
    source: Arc<Source>,
    held: Cell<usize>,
    further: Cell<usize>,
    stay: Cell<Stay>,
}

/// Whether a connection stays at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Stays,
    /// It is being closed, and what it held was passed on.
    Leaves,
}

impl AtSource {
    /// Counts a new client that takes `places`, unless its source has its share.
    pub fn take(
        source: Arc<Source>,
        (usage, shares): (Usage, Shares),
        places: usize,
    ) -> Result<Self, Refusal> {
        let mut refusal = Refusal::Source;
        let more = |held: usize| match usage.client(shares, Some(source.usage(held)), places) {
            // Where no place is free at all, the caller that takes the places waits for them.
            Ok(()) | Err(Refusal::Full) => Some(held + places),
            Err(why) => {
                refusal = why;
                None
            }
        };
        let taken = source.held.fetch_update(Relaxed, Relaxed, more).is_ok();
        if taken { Ok(Self::new(source, places)) } else { Err(refusal) }
    }

    fn new(source: Arc<Source>, held: usize) -> Self {
        Self { source, held: Cell::new(held), further: Cell::new(0), stay: Cell::new(Stay::Stays) }
    }

    /// The connection is to be closed for a new one from the same source, which gets what it holds. `None` if too many that were
    /// closed so are still open. A further backend stays counted here: one that is still being opened for a request that was
    /// given up is given back later.
    pub(super) fn pass_on(&self) -> Option<Self> {
        // A connection that had a request on its way when it was to be closed goes on, and is idle again later.
        if self.stay.get() == Stay::Leaves {
            return None;
        }
        let more = |leaving: usize| (leaving < MOST_LEAVING).then_some(leaving + 1);
        self.source.leaving.fetch_update(Relaxed, Relaxed, more).ok()?;
        self.stay.set(Stay::Leaves);
        let further = self.further.get();
        Some(Self::new(self.source.clone(), self.held.replace(further) - further))
    }

    /// Whether it is of this source.
    pub(super) fn is_of(&self, source: &Arc<Source>) -> bool {
        Arc::ptr_eq(&self.source, source)
    }

    /// What the whole source holds.
    pub fn of_source(&self) -> SourceUsage {
        self.source.usage(self.source.held.load(Relaxed))
    }

    /// The connection takes places for a further backend.
    pub(super) fn add(&self, places: usize) {
        self.source.held.fetch_add(places, Relaxed);
        self.source.further.fetch_add(places, Relaxed);
        self.held.set(self.held.get() + places);
        self.further.set(self.further.get() + places);
    }

    /// The connection gives those of a further backend back.
    pub(super) fn subtract(&self, places: usize) {
        self.source.held.fetch_sub(places, Relaxed);
        self.source.further.fetch_sub(places, Relaxed);
        self.held.set(self.held.get() - places);
        self.further.set(self.further.get() - places);
    }
}

impl Drop for AtSource {
    fn drop(&mut self) {
        self.source.held.fetch_sub(self.held.get(), Relaxed);
        self.source.further.fetch_sub(self.further.get(), Relaxed);
        if self.stay.get() == Stay::Leaves {
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
        let seats: Vec<_> = (0..50).map_while(|_| account.seat([192, 0, 2, 1].into(), 2).ok()).collect();
        // Nothing is taken of the account here, so that the share grows with what is held.
        assert!(seats.len() >= 25, "{}", seats.len());
        let other = account.seat([192, 0, 2, 2].into(), 2).unwrap();
        assert_eq!(other.of_source().held, 2);
        other.add(3);
        assert_eq!(other.of_source(), SourceUsage { held: 5, further: 3 });
        assert_eq!(other.of_source().held, 5);
        other.subtract(3);
        drop(seats);
        account.sources.sweep();
        assert_eq!(account.sources.count(), 1);
        drop(other);
        account.sources.sweep();
        assert_eq!(account.sources.count(), 0);
    }

    #[test]
    fn a_source_holds_no_more_when_connections_pass_on_what_they_hold_and_few_do_at_once() {
        let account = account();
        let take = || account.seat([192, 0, 2, 1].into(), 2).unwrap();
        let seats: Vec<_> = (0..20).map(|_| take()).collect();
        let newer: Vec<_> = seats.iter().map_while(AtSource::pass_on).collect();
        assert_eq!(newer.len(), MOST_LEAVING);
        assert_eq!(newer[0].of_source().held, 40);
        assert!(seats[0].pass_on().is_none());
        drop(seats);
        assert_eq!(newer[0].of_source().held, 2 * MOST_LEAVING);
        assert!(newer[0].pass_on().is_some());
        let source = newer[0].source.clone();
        drop(newer);
        assert_eq!((source.held.load(Relaxed), source.leaving.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_connection_that_is_closed_for_another_still_gives_back_its_further_backend() {
        let account = account();
        let old = account.seat([192, 0, 2, 1].into(), 2).unwrap();
        old.add(1);
        let new = old.pass_on().unwrap();
        assert_eq!(new.of_source(), SourceUsage { held: 3, further: 1 });
        old.subtract(1);
        assert_eq!(new.of_source(), SourceUsage { held: 2, further: 0 });
        drop(old);
        assert_eq!(new.of_source(), SourceUsage { held: 2, further: 0 });
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let account = account();
        let first = account.seat("2001:db8:0:1::1".parse().unwrap(), 2).unwrap();
        let second = account.seat("2001:db8:0:1:ffff::1".parse().unwrap(), 2).unwrap();
        let other = account.seat("2001:db8:0:2::1".parse().unwrap(), 2).unwrap();
        assert_eq!((first.of_source().held, second.of_source().held, other.of_source().held), (4, 4, 2));
    }
}
