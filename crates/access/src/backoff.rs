//! Slows down those who guess: by source and by subject, each after some wrong log-ins. A subject is a name with the kind of its
//! proof: the certificate `ann` is not the user `ann`. A source that has logged in as a subject before is not slowed down because
//! others guess for that subject. Tables are bounded: of the entries the older half goes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::policy::Subject;

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

/// Characters of a name that count.
const LONGEST: usize = 128;

/// Why a log-in must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    OfSource(Duration),
    OfName(Duration),
}

/// A source begins to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOff {
    pub wait: Duration,
    /// Its wrong log-ins that count.
    pub wrong: u32,
}

#[derive(Debug)]
pub struct Backoff<S> {
    sources: Table<S>,
    /// Wrong log-ins that name no subject: broken messages, by which no password is guessed.
    unnamed: Table<S>,
    /// Of the wrong log-ins of a source, those with one subject.
    guesses: Table<(S, Subject)>,
    subjects: Table<Subject>,
    /// Sources that have logged in as a subject, the latest time.
    known: HashMap<(S, Subject), Instant>,
}

impl<S> Default for Backoff<S> {
    fn default() -> Self {
        Self {
            sources: Table::new(OF_SOURCE),
            unnamed: Table::new(OF_SOURCE),
            guesses: Table::new(OF_SOURCE),
            subjects: Table::new(OF_NAME),
            known: HashMap::new(),
        }
    }
}

impl<S: Clone + Eq + Hash> Backoff<S> {
    /// Whether a source must wait before it may try anything.
    pub fn source(&self, source: &S, now: Instant) -> Option<Wait> {
        self.sources.wait(source, now).map(Wait::OfSource)
    }

    /// Whether a source must wait before it may log in as this subject.
    pub fn subject(&self, source: &S, subject: &Subject, now: Instant) -> Option<Wait> {
        let subject = subject.cut(LONGEST);
        if self.known.contains_key(&(source.clone(), subject.clone())) {
            return None;
        }
        self.subjects.wait(&subject, now).map(Wait::OfName)
    }

    /// A log-in was wrong. `subject` is whom the client has claimed to be, if it has come so far. Tells if the source must wait
    /// from now on, and had not to before: once for each wait, however many log-ins had begun before it.
    pub fn wrong(&mut self, source: &S, subject: Option<&Subject>, now: Instant) -> Option<HeldOff> {
        let waited = self.sources.wait(source, now).is_some();
        self.sources.wrong(source.clone(), now);
        match subject {
            Some(subject) => {
                let subject = subject.cut(LONGEST);
                self.guesses.wrong((source.clone(), subject.clone()), now);
                self.subjects.wrong(subject, now);
            }
            None => self.unnamed.wrong(source.clone(), now),
        }
        let wait = self.sources.wait(source, now).filter(|_| !waited)?;
        let wrong = self.sources.entries.get(source).map_or(0, |entry| entry.wrong);
        Some(HeldOff { wait, wrong })
    }

    /// A log-in was right: the source is believed again as far as this subject goes. Its wrong log-ins with other subjects still
    /// count, and those with this one from elsewhere: an account of one's own is no licence to guess at others.
    pub fn right(&mut self, source: &S, subject: &Subject, now: Instant) {
        let pair = (source.clone(), subject.cut(LONGEST));
        let forgiven = self.guesses.take(&pair, now).saturating_add(self.unnamed.take(source, now));
        self.sources.forgive(source, forgiven);
        if self.known.len() >= MOST {
            forget_oldest(&mut self.known, |at| *at);
        }
        self.known.insert(pair, now);
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
        let forgotten = self.forgotten();
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            forget_oldest(&mut self.entries, |entry| entry.last);
        }
        let entry = self.entries.entry(key).or_insert(Entry { wrong: 0, last: now });
        if now.saturating_duration_since(entry.last) >= forgotten {
            entry.wrong = 0;
        }
        *entry = Entry { wrong: entry.wrong.saturating_add(1), last: now };
    }

    /// Removes an entry; returns how many wrong log-ins it still counts.
    fn take(&mut self, key: &K, now: Instant) -> u32 {
        let entry = self.entries.remove(key);
        let counts = |entry: &Entry| now.saturating_duration_since(entry.last) < self.forgotten();
        entry.filter(counts).map_or(0, |entry| entry.wrong)
    }

    fn forgive(&mut self, key: &K, wrong: u32) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.wrong = entry.wrong.saturating_sub(wrong);
            if entry.wrong == 0 {
                self.entries.remove(key);
            }
        }
    }
}

impl<K> Table<K> {
    fn new(rule: Rule) -> Self {
        Self { rule, entries: HashMap::new() }
    }

    fn forgotten(&self) -> Duration {
        3 * self.rule.most
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

    fn user(name: &str) -> Subject {
        Subject::User(name.to_owned())
    }

    #[test]
    fn a_source_waits_longer_with_each_wrong_log_in_until_a_right_one() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for _ in 0..5 {
            backoff.wrong(&1, Some(&user("ann")), now);
            assert_eq!(backoff.source(&1, now), None);
        }
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            backoff.wrong(&1, None, now);
            assert_eq!(backoff.source(&1, now), Some(Wait::OfSource(SECOND * expected)));
        }
        assert_eq!(backoff.source(&1, now + 60 * SECOND), None);
        assert_eq!(backoff.source(&2, now), None, "another source does not wait");
        backoff.right(&1, &user("ann"), now);
        assert_eq!(backoff.source(&1, now), None);
        for _ in 0..9 {
            backoff.wrong(&1, None, now);
        }
        backoff.wrong(&1, None, now + 180 * SECOND);
        assert_eq!(backoff.source(&1, now + 180 * SECOND), None, "it is forgotten");
    }

    #[test]
    fn a_right_log_in_does_not_clear_the_guesses_of_its_address_at_another_user() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let waits = |backoff: &Backoff<i32>, at| backoff.source(&1, at).is_some();
        for guess in 0..9 {
            backoff.wrong(&1, Some(&user("ann")), now);
            // The attacker has an account too.
            backoff.right(&1, &user("eve"), now);
            assert_eq!(waits(&backoff, now), guess >= 5, "after {} guesses", guess + 1);
        }
        backoff.wrong(&1, Some(&user("eve")), now);
        backoff.right(&1, &user("eve"), now);
        assert_eq!(backoff.source(&1, now), Some(Wait::OfSource(8 * SECOND)), "one forgives its own only");
        backoff.right(&1, &user("ann"), now);
        assert!(!waits(&backoff, now));
        // What is forgotten is not forgiven a second time.
        backoff.wrong(&1, Some(&user("eve")), now);
        let later = now + 180 * SECOND;
        for _ in 0..6 {
            backoff.wrong(&1, Some(&user("ann")), later);
        }
        backoff.right(&1, &user("eve"), later);
        assert!(waits(&backoff, later));
    }

    #[test]
    fn each_wait_of_a_source_is_told_once() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let told: Vec<Option<HeldOff>> = (0..9).map(|_| backoff.wrong(&1, Some(&user("ann")), now)).collect();
        let first = HeldOff { wait: SECOND, wrong: 6 };
        assert_eq!(told, [None, None, None, None, None, Some(first), None, None, None]);
        assert_eq!(backoff.source(&1, now), Some(Wait::OfSource(8 * SECOND)));
        assert_eq!(backoff.wrong(&1, None, now + 7 * SECOND), None);
        let second = backoff.wrong(&1, None, now + 23 * SECOND);
        assert_eq!(second, Some(HeldOff { wait: 32 * SECOND, wrong: 11 }));
    }

    #[test]
    fn guesses_for_a_name_from_many_sources_do_not_keep_its_owner_out() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        backoff.right(&0, &user("ann"), now);
        for source in 1..100 {
            backoff.wrong(&source, Some(&user("ann")), now);
        }
        assert_eq!(backoff.subject(&7, &user("ann"), now), Some(Wait::OfName(10 * SECOND)));
        assert_eq!(backoff.subject(&0, &user("ann"), now), None);
        assert_eq!(backoff.subject(&7, &user("bob"), now), None);
        let certificate = Subject::Certificate("ann".to_owned());
        assert_eq!(backoff.subject(&7, &certificate, now), None, "it has another proof");
        assert_eq!(backoff.subject(&7, &user("ann"), now + 10 * SECOND), None);
    }

    #[test]
    fn tables_are_bounded_and_keep_the_latest() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for at in 0..100_000u32 {
            let now = now + Duration::from_millis(at.into());
            backoff.wrong(&at, Some(&user(&format!("user{at}"))), now);
            backoff.wrong(&at, None, now);
            backoff.right(&(at + 1_000_000), &user("x"), now);
        }
        assert!(backoff.sources.entries.len() <= MOST && backoff.subjects.entries.len() <= MOST);
        assert!(backoff.guesses.entries.len() <= MOST && backoff.unnamed.entries.len() <= MOST);
        assert!(backoff.known.len() <= MOST);
        assert!(backoff.sources.entries.contains_key(&99_999));
    }
}
