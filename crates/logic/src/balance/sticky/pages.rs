//! Reads a table page by page, so that its lock is held for a short time only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use super::{Entry, Family, NONE, Seen, StickyKey, StickyTable};

/// A client in the order of [`StickyTable::latest`], from which the next page goes on.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    at: u32,
    client: StickyKey,
    seen: Instant,
}

impl StickyTable {
    /// Up to `most` clients, the latest first, beginning after the client at `after`. `None` if that client was seen
    /// again or removed since.
    pub fn page(&self, after: Option<Place>, most: usize, now: Instant) -> Option<Vec<(Seen, Place)>> {
        let mut at = match after {
            None => self.newest,
            Some(place) => self.entry_of(place)?.older,
        };
        let mut page = Vec::new();
        while at != NONE && page.len() < most {
            let entry = &self.entries[at as usize];
            let ago = now.saturating_duration_since(entry.seen);
            let Some(left) = self.ttl.checked_sub(ago).filter(|left| !left.is_zero()) else { break };
            let place = Place { at, client: entry.client, seen: entry.seen };
            page.push((Seen { client: entry.client, backend: entry.backend, ago, left }, place));
            at = entry.older;
        }
        Some(page)
    }

    fn entry_of(&self, place: Place) -> Option<&Entry> {
        let entry = self.entries.get(place.at as usize)?;
        let is_linked = self.places.get(&place.client) == Some(&place.at);
        (is_linked && entry.seen == place.seen).then_some(entry)
    }
}

impl StickyKey {
    /// The address, or the first address of the network.
    pub fn address(self) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::from_bits(self.network as u32).into(),
            Family::V6 => Ipv6Addr::from_bits(self.network).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an Instant can only be made from the clock")]
    fn start() -> Instant {
        Instant::now()
    }

    fn key(n: u32) -> StickyKey {
        StickyKey::from(IpAddr::from(n.to_be_bytes()))
    }

    #[test]
    fn pages_have_every_client_once_in_the_order_of_the_list() {
        let (start, second) = (start(), Duration::from_secs(1));
        let mut table = StickyTable::new(100, 60 * second);
        for n in 0..10 {
            table.remember(key(n), u64::from(n), start + n * second);
        }
        let now = start + 62 * second;
        let expected: Vec<_> = table.latest(now).collect();
        assert_eq!(expected.len(), 7, "three have expired");
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = table.page(after, 3, now).unwrap();
            let Some((_, last)) = page.last() else { break };
            after = Some(*last);
            found.extend(page.into_iter().map(|(seen, _)| seen));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_place_that_moved_or_is_gone_is_no_place_to_go_on_from() {
        let (start, second) = (start(), Duration::from_secs(1));
        let mut table = StickyTable::new(2, 60 * second);
        table.remember(key(1), 1, start);
        table.remember(key(2), 2, start + second);
        let place = |table: &StickyTable, at: usize| table.page(None, 2, start + second).unwrap()[at].1;
        let (second_place, first_place) = (place(&table, 0), place(&table, 1));
        assert_eq!(table.lookup(key(1), start + 2 * second), Some(1));
        assert!(table.page(Some(first_place), 2, start + 2 * second).is_none(), "it was seen again");
        table.remember(key(3), 3, start + 3 * second);
        assert!(
            table.page(Some(second_place), 2, start + 3 * second).is_none(),
            "another client has its place"
        );
    }

    #[test]
    fn a_key_is_made_again_from_its_address() {
        for (text, prefix) in [("192.0.2.1", 64), ("2001:db8::7", 64), ("2001:db8::7", 128), ("::1", 128)] {
            let key = StickyKey::new(text.parse().unwrap(), prefix);
            assert_eq!(StickyKey::new(key.address(), prefix), key);
        }
    }
}
