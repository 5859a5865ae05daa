//! Table from client to backend with bounded size: the client seen least recently is removed first.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

mod pages;

pub use pages::Place;

/// Client address or network; all addresses of a network count as one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StickyKey {
    family: Family,
    network: u128,
}

/// Lengths of the prefixes of networks whose addresses count as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    pub ipv4: u8,
    pub ipv6: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Family {
    #[default]
    V4,
    V6,
}

impl StickyKey {
    /// Bits of an IPv6 address that identify a client: devices change the other bits at will.
    pub const DEFAULT_V6_PREFIX: u8 = 64;

    /// Key of a complete IPv4 address (also IPv4-mapped), or of the first `v6_prefix` bits of an IPv6 address.
    pub fn new(ip: IpAddr, v6_prefix: u8) -> Self {
        Self::in_network(ip, Prefixes { ipv4: 32, ipv6: v6_prefix })
    }

    /// Key of the network of an address.
    pub fn in_network(ip: IpAddr, prefixes: Prefixes) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(v4) => {
                let host_bits = 32_u32.saturating_sub(u32::from(prefixes.ipv4));
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                StickyKey { family: Family::V4, network: u128::from(u32::from(v4) & mask) }
            }
            IpAddr::V6(v6) => {
                let host_bits = 128_u32.saturating_sub(u32::from(prefixes.ipv6));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                StickyKey { family: Family::V6, network: u128::from(v6) & mask }
            }
        }
    }
}

impl StickyKey {
    /// The address, or the network of an IPv6 client with this prefix length, as text.
    pub fn network(self, v6_prefix: u8) -> String {
        match self.family {
            Family::V4 => Ipv4Addr::from_bits(self.network as u32).to_string(),
            Family::V6 if v6_prefix >= 128 => Ipv6Addr::from_bits(self.network).to_string(),
            Family::V6 => format!("{}/{v6_prefix}", Ipv6Addr::from_bits(self.network)),
        }
    }

    /// Hash that distributes clients over several tables. Not secret: clients can choose their hash.
    pub fn spread(self) -> u64 {
        let [upper, lower] = [(self.network >> 64) as u64, self.network as u64];
        (upper ^ lower).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}

impl From<IpAddr> for StickyKey {
    fn from(ip: IpAddr) -> Self {
        StickyKey::new(ip, StickyKey::DEFAULT_V6_PREFIX)
    }
}

const NONE: u32 = u32::MAX;

/// Table from client to backend identity ([`super::backend_identity`]). Every operation takes constant time; the number
/// of entries never exceeds the capacity.
#[derive(Clone, Debug)]
pub struct StickyTable {
    capacity: usize,
    ttl: Duration,
    places: HashMap<StickyKey, u32>,
    /// Linked list from the client seen most recently to the one seen least recently.
    entries: Vec<Entry>,
    newest: u32,
    oldest: u32,
    /// First unused entry; unused entries are linked through `older`.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    client: StickyKey,
    backend: u64,
    seen: Instant,
    newer: u32,
    older: u32,
}

/// What a table knows of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub client: StickyKey,
    /// Identity of its backend.
    pub backend: u64,
    /// Time since it was seen.
    pub ago: Duration,
    /// Time until it is forgotten.
    pub left: Duration,
}

impl StickyTable {
    /// Creates a table for at most `capacity` clients; an entry expires when its client is not seen for `ttl`.
    pub fn new(capacity: usize, ttl: Duration) -> Self {
        StickyTable {
            capacity: capacity.min(NONE as usize),
            ttl,
            places: HashMap::new(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
            free: NONE,
        }
    }

    /// Backend of a client. Sets the time at which the client was last seen.
    pub fn lookup(&mut self, client: StickyKey, now: Instant) -> Option<u64> {
        let place = *self.places.get(&client)?;
        if self.is_expired(place, now) {
            self.remove(place);
            return None;
        }
        self.touch(place, now);
        Some(self.entries[place as usize].backend)
    }

    /// Like [`Self::lookup`], but changes nothing; also returns how long ago the client was last seen.
    pub fn peek(&self, client: StickyKey, now: Instant) -> Option<(u64, Duration)> {
        let place = *self.places.get(&client)?;
        let entry = &self.entries[place as usize];
        (!self.is_expired(place, now)).then(|| (entry.backend, now.saturating_duration_since(entry.seen)))
    }

    /// Stores the backend of a client. A full table removes the client seen least recently.
    pub fn remember(&mut self, client: StickyKey, backend: u64, now: Instant) {
        if self.capacity == 0 {
            return;
        }
        // Two expired entries at most per call: the table shrinks when clients leave, and each call takes constant
        // time.
        for _ in 0..2 {
            if self.oldest != NONE && self.is_expired(self.oldest, now) {
                self.remove(self.oldest);
            }
        }
        if let Some(place) = self.places.get(&client).copied() {
            self.entries[place as usize].backend = backend;
            self.touch(place, now);
            return;
        }
        if self.places.len() >= self.capacity {
            self.remove(self.oldest);
        }
        let entry = Entry { client, backend, seen: now, newer: NONE, older: NONE };
        let place = self.store(entry);
        self.places.insert(client, place);
        self.link_newest(place);
    }

    /// The clients, the one seen latest first, without expired ones.
    pub fn latest(&self, now: Instant) -> impl Iterator<Item = Seen> + '_ {
        let entry = |place: u32| self.entries.get(place as usize);
        let entries = std::iter::successors(entry(self.newest), move |last| entry(last.older));
        entries.map_while(move |entry| {
            let ago = now.saturating_duration_since(entry.seen);
            let left = self.ttl.checked_sub(ago).filter(|left| !left.is_zero())?;
            Some(Seen { client: entry.client, backend: entry.backend, ago, left })
        })
    }

    /// Number of entries, with expired ones not yet removed.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn is_expired(&self, place: u32, now: Instant) -> bool {
        now.saturating_duration_since(self.entries[place as usize].seen) >= self.ttl
    }

    fn store(&mut self, entry: Entry) -> u32 {
        if self.free == NONE {
            self.entries.push(entry);
            return (self.entries.len() - 1) as u32;
        }
        let place = self.free;
        self.free = self.entries[place as usize].older;
        self.entries[place as usize] = entry;
        place
    }

    fn touch(&mut self, place: u32, now: Instant) {
        self.entries[place as usize].seen = now;
        if self.newest != place {
            self.unlink(place);
            self.link_newest(place);
        }
    }

    fn remove(&mut self, place: u32) {
        self.unlink(place);
        self.places.remove(&self.entries[place as usize].client);
        self.entries[place as usize].older = self.free;
        self.free = place;
    }

    fn unlink(&mut self, place: u32) {
        let Entry { newer, older, .. } = self.entries[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let previous = self.newest;
        self.entries[place as usize].newer = NONE;
        self.entries[place as usize].older = previous;
        match previous {
            NONE => self.oldest = place,
            previous => self.entries[previous as usize].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "an Instant can only be made from the clock; tests count from here"
    )]
    fn start() -> Instant {
        Instant::now()
    }

    fn key(n: u32) -> StickyKey {
        StickyKey::from(IpAddr::from(n.to_be_bytes()))
    }

    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn clients_are_told_apart_by_address_and_ipv6_sites_by_prefix() {
        let key = |text: &str, prefix| StickyKey::new(text.parse().unwrap(), prefix);
        assert_eq!(key("192.0.2.1", 64), key("::ffff:192.0.2.1", 64));
        assert_ne!(key("192.0.2.1", 64), key("192.0.2.2", 64));
        assert_eq!(key("2001:db8::1", 64), key("2001:db8::ffff:2", 64));
        assert_ne!(key("2001:db8::1", 64), key("2001:db8:0:1::1", 64));
        assert_ne!(key("2001:db8::1", 128), key("2001:db8::2", 128));
        assert_eq!(key("2001:db8::1", 0), key("fe80::2", 0));
        assert_ne!(key("::c000:201", 255), key("192.0.2.1", 255), "the families do not meet");
        let source =
            |text: &str, ipv4| StickyKey::in_network(text.parse().unwrap(), Prefixes { ipv4, ipv6: 64 });
        assert_eq!(source("192.0.2.1", 24), source("::ffff:192.0.2.200", 24));
        assert_ne!(source("192.0.2.1", 24), source("192.0.3.1", 24));
        assert_ne!(source("192.0.2.1", 32), source("192.0.2.2", 32));
        assert_eq!(source("192.0.2.1", 0), source("10.0.0.1", 0));
    }

    #[test]
    fn a_client_is_forgotten_when_not_seen_for_the_ttl_and_kept_by_being_seen() {
        let (start, second) = (start(), Duration::from_secs(1));
        let mut table = StickyTable::new(10, TTL);
        table.remember(key(1), 7, start);
        assert_eq!(table.lookup(key(1), start + TTL - second), Some(7));
        assert_eq!(table.lookup(key(1), start + 2 * TTL - 2 * second), Some(7));
        assert_eq!(table.lookup(key(1), start + 3 * TTL), None);
        assert!(table.is_empty());
    }

    #[test]
    fn at_capacity_the_client_not_seen_for_longest_goes() {
        let start = start();
        let mut table = StickyTable::new(3, TTL);
        for n in 1..=3 {
            table.remember(key(n), u64::from(n), start);
        }
        assert_eq!(table.lookup(key(1), start), Some(1));
        table.remember(key(4), 4, start);
        assert_eq!(table.len(), 3);
        assert_eq!(table.lookup(key(2), start), None);
        for n in [1, 3, 4] {
            assert_eq!(table.lookup(key(n), start), Some(u64::from(n)));
        }
    }

    #[test]
    fn the_clients_are_listed_with_the_latest_first_until_they_are_forgotten() {
        let (start, second) = (start(), Duration::from_secs(1));
        let mut table = StickyTable::new(10, TTL);
        for n in 1..=3 {
            table.remember(key(n), u64::from(n), start + n * second);
        }
        assert_eq!(table.lookup(key(1), start + 4 * second), Some(1));
        let listed = |now| table.latest(now).map(|seen| (seen.client, seen.backend)).collect::<Vec<_>>();
        assert_eq!(listed(start + 5 * second), [(key(1), 1), (key(3), 3), (key(2), 2)]);
        assert_eq!(listed(start + TTL + 2 * second), [(key(1), 1), (key(3), 3)]);
        assert!(listed(start + 2 * TTL).is_empty());
        let seen = table.latest(start + 5 * second).nth(1).unwrap();
        assert_eq!((seen.ago, seen.left), (2 * second, TTL - 2 * second));
        assert_eq!(key(0x7f00_0001).network(64), "127.0.0.1");
        let six: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(StickyKey::new(six, 64).network(64), "2001:db8::/64");
        assert_eq!(StickyKey::new(six, 128).network(128), "2001:db8::1");
    }

    #[test]
    fn a_client_can_move_to_another_backend() {
        let start = start();
        let mut table = StickyTable::new(3, TTL);
        table.remember(key(1), 1, start);
        table.remember(key(1), 2, start);
        assert_eq!((table.lookup(key(1), start), table.len()), (Some(2), 1));
    }

    #[test]
    fn a_table_without_room_remembers_nothing() {
        let mut table = StickyTable::new(0, TTL);
        table.remember(key(1), 1, start());
        assert_eq!((table.lookup(key(1), start()), table.len()), (None, 0));
    }

    #[test]
    fn clients_that_left_make_room_before_the_table_is_full() {
        let start = start();
        let mut table = StickyTable::new(1000, TTL);
        for n in 0..500 {
            table.remember(key(n), 1, start);
        }
        for n in 1000..1500 {
            table.remember(key(n), 1, start + TTL);
        }
        assert_eq!(table.len(), 500);
        assert!(table.entries.len() <= 502, "entries are used again");
    }

    #[test]
    fn the_table_agrees_with_a_simple_model_over_random_use() {
        let start = start();
        let capacity = 16;
        let mut table = StickyTable::new(capacity, Duration::from_secs(20));
        let mut model: Vec<(u32, u64, Instant)> = Vec::new(); // oldest first
        let (mut random, mut now) = (1_u64, start);
        for step in 0..20_000_u64 {
            random = super::super::mix(random.wrapping_add(step));
            now += Duration::from_secs((random >> 60) / 8);
            let client = ((random >> 8) % 40) as u32;
            let known = model.iter().position(|(c, ..)| *c == client);
            if random & 1 == 0 {
                let expected =
                    known.map(|at| model.remove(at)).filter(|(_, _, seen)| (now - *seen).as_secs() < 20);
                if let Some((_, backend, _)) = expected {
                    model.push((client, backend, now));
                }
                assert_eq!(
                    table.lookup(key(client), now),
                    expected.map(|(_, backend, _)| backend),
                    "step {step}"
                );
            } else {
                known.map(|at| model.remove(at));
                if known.is_none() && model.len() == capacity {
                    model.remove(0);
                }
                model.push((client, step, now));
                table.remember(key(client), step, now);
            }
            assert!(table.len() <= capacity);
        }
    }
}
