//! Clients of one listener by source: how many connections are open, and how fast they came. A source is a network of
//! `process.shares.ipv4-prefix` or `ipv6-prefix`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use logic::balance::StickyKey;
use logic::rate::{Rate, Set, WAYS};

use crate::account::Taken;
use crate::lock::lock;

/// Sources in a table of rates. It takes 3 MB, from the first event on.
pub const REMEMBERED: usize = 65_536;

/// Parts of the table of open connections with a lock each.
const PARTS: usize = 16;

/// Rates of the sources that were seen last.
#[derive(Default)]
pub struct Rates {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// A secret: without it no client can find sources that share a set with another one.
    hasher: RandomState,
}

impl Rates {
    /// Counts an event at `now`, the time since the start of the process. Returns how long the source must wait if it may
    /// not cause one.
    pub fn take(&self, source: StickyKey, rate: Rate, now: Duration) -> Result<(), Duration> {
        let sets = self.sets.get_or_init(|| (0..REMEMBERED / WAYS).map(|_| Mutex::default()).collect());
        let at = self.hasher.hash_one(source) as usize % sets.len();
        lock(&sets[at]).take(source, rate, now)
    }
}

/// Open connections by source. An entry is removed with its last connection.
#[derive(Default)]
pub struct OpenConnections {
    parts: [Mutex<HashMap<StickyKey, u32>>; PARTS],
}

impl OpenConnections {
    /// Counts a connection, unless its source has `most` of them.
    pub fn take(&self, source: StickyKey, most: u32) -> Taken {
        let mut part = lock(self.part(source));
        let open = part.entry(source).or_insert(0);
        if *open >= most {
            return Taken::No;
        }
        *open += 1;
        Taken::Yes
    }

    pub fn give_back(&self, source: StickyKey) {
        let mut part = lock(self.part(source));
        if let Some(open) = part.get_mut(&source) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                part.remove(&source);
            }
        }
    }

    fn part(&self, source: StickyKey) -> &Mutex<HashMap<StickyKey, u32>> {
        &self.parts[source.spread() as usize % PARTS]
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> StickyKey {
        StickyKey::from(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn a_source_has_no_more_connections_than_its_limit_and_leaves_nothing_behind() {
        let open = OpenConnections::default();
        let taken: Vec<_> = (0..4).map(|_| open.take(source(1), 3)).collect();
        assert_eq!(taken, [Taken::Yes, Taken::Yes, Taken::Yes, Taken::No]);
        assert_eq!(open.take(source(2), 3), Taken::Yes);
        open.give_back(source(1));
        assert_eq!(open.take(source(1), 3), Taken::Yes);
        (0..3).for_each(|_| open.give_back(source(1)));
        open.give_back(source(2));
        open.give_back(source(2));
        assert!(open.parts.iter().all(|part| lock(part).is_empty()));
    }

    #[test]
    fn rates_of_many_sources_are_kept_apart() {
        let (rates, rate) = (Rates::default(), Rate { burst: 2, per_second: 1 });
        for round in 0..3 {
            for last in 0..=255 {
                let taken = rates.take(source(last), rate, Duration::from_millis(1));
                assert_eq!(taken.is_ok(), round < 2, "{last} in round {round}");
            }
        }
    }
}
