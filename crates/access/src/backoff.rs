//! Slows down those who guess: by source and by name, each after some wrong log-ins. A source that has logged in with a name
//! before is not slowed down because others guess for that name. Tables are bounded: of the entries the oldest one goes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Limits of a kind of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Wrong log-ins without a delay.
    pub free: u32,
    /// Delay after the first wrong log-in that is not free; it doubles with each further one.
    pub first: Duration,
    /// Longest delay. After three times as long without a wrong log-in, all is forgotten.
    pub most: Duration,
}

/// An address may try five passwords, then it waits from 1 s up to 1 min.
pub const OF_SOURCE: Rule = Rule { free: 5, first: Duration::from_secs(1), most: Duration::from_secs(60) };

/// A name may be guessed from all addresses together ten times, then there is a wait of 1 s up to 10 s.
pub const OF_NAME: Rule = Rule { free: 10, first: Duration::from_secs(1), most: Duration::from_secs(10) };

/// Entries of each table.
const MOST: usize = 4096;

/// Why a log-in must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    OfSource(Duration),
    OfName(Duration),
}

#[derive(Debug)]
pub struct Backoff<S> {
    sources: Table<S>,
    names: Table<String>,
    /// Sources that have logged in with a name, the latest time.
    known: HashMap<(S, String), Instant>,
}

impl<S> Default for Backoff<S> {
    fn default() -> Self {
        Self { sources: Table::new(OF_SOURCE), names: Table::new(OF_NAME), known: HashMap::new() }
    }
}

impl<S: Clone + Eq + Hash> Backoff<S> {
    /// Whether a source must wait before it may try anything.
    pub fn source(&self, source: &S, now: Instant) -> Option<Wait> {
        self.sources.wait(source, now).map(Wait::OfSource)
    }

    /// Whether a source must wait before it may try this name.
    pub fn name(&self, source: &S, name: &str, now: Instant) -> Option<Wait> {
        if self.known.contains_key(&(source.clone(), name.to_owned())) {
            return None;
        }
        self.names.wait(name, now).map(Wait::OfName)
    }

    /// A log-in was wrong. `name` is what the client has claimed, if it has come so far.
    pub fn wrong(&mut self, source: &S, name: Option<&str>, now: Instant) {
        self.sources.wrong(source.clone(), now);
        if let Some(name) = name {
            self.names.wrong(name.chars().take(128).collect(), now);
        }
    }

    /// A log-in was right: the source is believed again. Wrong log-ins with this name from elsewhere still count.
    pub fn right(&mut self, source: &S, name: &str, now: Instant) {
        self.sources.entries.remove(source);
        if self.known.len() >= MOST {
            forget_oldest(&mut self.known, |at| *at);
        }
        self.known.insert((source.clone(), name.to_owned()), now);
    }
}

#[derive(Debug)]
struct Table<K> {
    rule: Rule,
    entries: HashMap<K, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wrong: u32,
    last: Instant,
}

impl<K: Eq + Hash + Clone> Table<K> {
    fn wait<Q: ?Sized + Eq + Hash>(&self, key: &Q, now: Instant) -> Option<Duration>
    where
        K: std::borrow::Borrow<Q>,
    {
        let entry = self.entries.get(key)?;
        let over = entry.wrong.checked_sub(self.rule.free).filter(|over| *over > 0)?;
        let delay = self.rule.first.saturating_mul(1 << (over - 1).min(16)).min(self.rule.most);
        let left = (entry.last + delay).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn wrong(&mut self, key: K, now: Instant) {
        let forgotten = 3 * self.rule.most;
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            forget_oldest(&mut self.entries, |entry| entry.last);
        }
        let entry = self.entries.entry(key).or_insert(Entry { wrong: 0, last: now });
        if now.saturating_duration_since(entry.last) >= forgotten {
            entry.wrong = 0;
        }
        *entry = Entry { wrong: entry.wrong.saturating_add(1), last: now };
    }
}

impl<K> Table<K> {
    fn new(rule: Rule) -> Self {
        Self { rule, entries: HashMap::new() }
    }
}

/// Makes room in a full table: drops the older half, so that this is seldom done.
fn forget_oldest<K: Eq + Hash + Clone, V>(table: &mut HashMap<K, V>, at: impl Fn(&V) -> Instant) {
    let mut times: Vec<Instant> = table.values().map(&at).collect();
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    let median = *median;
    table.retain(|_, value| at(value) > median);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test needs some instant to count from")]

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_source_waits_longer_with_each_wrong_log_in_until_a_right_one() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for _ in 0..5 {
            backoff.wrong(&1, None, now);
            assert_eq!(backoff.source(&1, now), None);
        }
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            backoff.wrong(&1, None, now);
            assert_eq!(backoff.source(&1, now), Some(Wait::OfSource(SECOND * expected)));
        }
        assert_eq!(backoff.source(&1, now + 60 * SECOND), None);
        assert_eq!(backoff.source(&2, now), None, "another source does not wait");
        backoff.right(&1, "ann", now);
        assert_eq!(backoff.source(&1, now), None);
        for _ in 0..9 {
            backoff.wrong(&1, None, now);
        }
        backoff.wrong(&1, None, now + 180 * SECOND);
        assert_eq!(backoff.source(&1, now + 180 * SECOND), None, "it is forgotten");
    }

    #[test]
    fn guesses_for_a_name_from_many_sources_do_not_keep_its_owner_out() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        backoff.right(&0, "ann", now);
        for source in 1..100 {
            backoff.wrong(&source, Some("ann"), now);
        }
        assert_eq!(backoff.name(&7, "ann", now), Some(Wait::OfName(10 * SECOND)));
        assert_eq!(backoff.name(&0, "ann", now), None);
        assert_eq!(backoff.name(&7, "bob", now), None);
        assert_eq!(backoff.name(&7, "ann", now + 10 * SECOND), None);
    }

    #[test]
    fn tables_are_bounded_and_keep_the_latest() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for at in 0..100_000u32 {
            backoff.wrong(&at, Some(&format!("user{at}")), now + Duration::from_millis(at.into()));
            backoff.right(&(at + 1_000_000), "x", now + Duration::from_millis(at.into()));
        }
        assert!(backoff.sources.entries.len() <= MOST && backoff.names.entries.len() <= MOST);
        assert!(backoff.known.len() <= MOST);
        assert!(backoff.sources.entries.contains_key(&99_999));
    }
}
