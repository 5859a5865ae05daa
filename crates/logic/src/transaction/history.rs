//! What was served before: for `undo` and `history`. Its size has limits.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use super::operator::Operator;

/// Largest number of entries.
pub(super) const MOST_ENTRIES: usize = 50;

/// Largest total size of texts in bytes. The last entry is kept in any case.
pub(super) const MOST_BYTES: usize = 16 * 1024 * 1024;

/// Why a text is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Change,
    Undo,
    /// An undo because no confirmation came.
    Expiry,
    Reload,
    /// The process started again, with what the file says.
    Start,
}

impl Cause {
    pub(super) fn is_undo(self) -> bool {
        matches!(self, Self::Undo | Self::Expiry)
    }
}

/// One event after which another text is served.
#[derive(Clone, Debug)]
pub struct Entry {
    pub number: u64,
    pub at: SystemTime,
    /// `None` for what no operator asked for over the control socket.
    pub by: Option<Operator>,
    pub cause: Cause,
    pub what: String,
    /// The text that was served before.
    pub before: Arc<str>,
    /// The change that was the last one in effect before; `None` at the start.
    pub head_before: Option<u64>,
    /// Changes that the file did not have, and that a reload or a start therefore took out of effect.
    pub dropped: Vec<u64>,
}

/// What became of a change.
#[derive(Clone, Copy, Debug)]
pub enum Standing<'a> {
    InEffect,
    Undone,
    /// By this reload or start.
    Dropped(&'a Entry),
}

/// A history as plain values, for a file.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// Oldest first.
    pub entries: Vec<Entry>,
    pub newest: Option<u64>,
    pub head: Option<u64>,
    pub saved: Option<u64>,
}

#[derive(Debug, Default)]
pub struct History {
    entries: VecDeque<Entry>,
    bytes: usize,
    newest: Option<u64>,
    /// The last change in effect: an undo moves it back.
    head: Option<u64>,
    /// The last change that the file has.
    saved: Option<u64>,
}

impl History {
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    pub fn get(&self, number: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.number == number)
    }

    /// Returns the text served after an entry.
    pub fn after<'a>(&'a self, entry: &Entry, served: &'a Arc<str>) -> &'a Arc<str> {
        self.get(entry.number + 1).map_or(served, |next| &next.before)
    }

    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Says whether a change is served, and if not, why.
    pub fn standing(&self, entry: &Entry) -> Standing<'_> {
        if self.chain(self.head).any(|number| number == entry.number) {
            return Standing::InEffect;
        }
        self.back(self.head)
            .filter_map(|number| self.get(number))
            .find(|by| by.dropped.contains(&entry.number))
            .map_or(Standing::Undone, Standing::Dropped)
    }

    /// The newest undo that took a change out of effect.
    pub(super) fn undone_by(&self, number: u64) -> Option<u64> {
        let has = |head: Option<u64>| self.chain(head).any(|one| one == number);
        let undo = |(at, entry): &(usize, &Entry)| {
            let after = self.entries.get(at + 1).map_or(self.head, |next| next.head_before);
            entry.cause.is_undo() && has(entry.head_before) && !has(after)
        };
        self.entries.iter().enumerate().rev().find(undo).map(|(_, entry)| entry.number)
    }

    /// The last event, if it is an undo, with the last change that it took out of effect.
    pub(super) fn last_undo(&self) -> Option<(u64, u64)> {
        let last = self.entries.back().filter(|last| last.cause.is_undo())?;
        Some((last.head_before?, last.number))
    }

    /// Changes in effect that would not be any more if `entry` were undone, oldest first.
    pub(super) fn with_it(&self, entry: &Entry) -> Vec<u64> {
        let stay: HashSet<u64> = self.chain(entry.head_before).collect();
        let mut also: Vec<u64> = self
            .chain(self.head)
            .filter(|number| *number != entry.number && !stay.contains(number))
            .collect();
        also.sort_unstable();
        also
    }

    /// Changes in effect that the file does not have, oldest first.
    pub(super) fn not_in_the_file(&self) -> Vec<u64> {
        let of_file: HashSet<u64> = self.chain(self.saved).collect();
        let mut all: Vec<u64> = self.chain(self.head).filter(|number| !of_file.contains(number)).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn last_in_effect(&self) -> Option<&Entry> {
        self.get(self.head?)
    }

    pub(super) fn push(
        &mut self,
        cause: Cause,
        by: Option<Operator>,
        what: String,
        before: Arc<str>,
        at: SystemTime,
    ) -> u64 {
        self.push_dropping(Vec::new(), cause, by, what, before, at)
    }

    /// Adds what takes `dropped` out of effect.
    pub(super) fn push_dropping(
        &mut self,
        dropped: Vec<u64>,
        cause: Cause,
        by: Option<Operator>,
        what: String,
        before: Arc<str>,
        at: SystemTime,
    ) -> u64 {
        let number = self.keep(cause, by, what, before, at);
        if let Some(entry) = self.entries.back_mut() {
            entry.dropped = dropped;
        }
        self.head = Some(number);
        number
    }

    /// Adds an undo, after which the changes before `undone` are in effect.
    pub(super) fn push_undo(
        &mut self,
        undone: u64,
        cause: Cause,
        by: Option<Operator>,
        what: String,
        before: Arc<str>,
        at: SystemTime,
    ) -> u64 {
        let head = self.get(undone).and_then(|entry| entry.head_before);
        let number = self.keep(cause, by, what, before, at);
        self.head = head;
        number
    }

    fn keep(
        &mut self,
        cause: Cause,
        by: Option<Operator>,
        what: String,
        before: Arc<str>,
        at: SystemTime,
    ) -> u64 {
        let number = self.newest.map_or(1, |newest| newest + 1);
        self.newest = Some(number);
        self.bytes += before.len();
        self.entries.push_back(Entry {
            number,
            at,
            by,
            cause,
            what,
            before,
            head_before: self.head,
            dropped: Vec::new(),
        });
        self.forget_oldest();
        number
    }

    fn forget_oldest(&mut self) {
        while self.entries.len() > MOST_ENTRIES || (self.bytes > MOST_BYTES && self.entries.len() > 1) {
            if let Some(oldest) = self.entries.pop_front() {
                self.bytes -= oldest.before.len();
            }
        }
    }

    pub(super) fn remembered(&self) -> Remembered {
        Remembered { entries: self.entries.iter().cloned().collect(), ..self.points() }
    }

    /// The numbers of [`Self::remembered`] without the entries.
    pub(super) fn points(&self) -> Remembered {
        Remembered { entries: Vec::new(), newest: self.newest, head: self.head, saved: self.saved }
    }

    /// Makes a history of one that was remembered. `None` if its numbers do not rise, or point forward.
    pub(super) fn of(remembered: Remembered) -> Option<Self> {
        let Remembered { entries, newest, head, saved } = remembered;
        let rises = entries.windows(2).all(|pair| pair[0].number < pair[1].number);
        let points_back = |entry: &Entry| entry.head_before.is_none_or(|before| before < entry.number);
        let last = entries.last().map(|entry| entry.number);
        let is_known = |number: Option<u64>| number <= newest;
        let room = newest.is_none_or(|newest| newest < u64::MAX / 2);
        let drops_back = |entry: &Entry| {
            entry.dropped.len() <= MOST_ENTRIES && entry.dropped.iter().all(|of| *of < entry.number)
        };
        if !(rises
            && entries.iter().all(points_back)
            && entries.iter().all(drops_back)
            && last <= newest
            && room)
        {
            return None;
        }
        if !(is_known(head) && is_known(saved)) {
            return None;
        }
        let mut history = Self { newest, head, saved, ..Self::default() };
        for entry in entries {
            history.bytes += entry.before.len();
            history.entries.push_back(entry);
            history.forget_oldest();
        }
        Some(history)
    }

    pub(super) fn saved(&mut self) {
        self.saved = self.head;
    }

    /// Number of changes between what the file has and what is in effect, in both directions.
    pub(super) fn distance(&self) -> usize {
        // A reload that only dropped changes has none of its own.
        let own = |number: &u64| self.get(*number).is_none_or(|entry| entry.dropped.is_empty());
        let in_effect: HashSet<u64> = self.chain(self.head).filter(own).collect();
        let of_file: HashSet<u64> = self.chain(self.saved).filter(own).collect();
        in_effect.symmetric_difference(&of_file).count()
    }

    /// The changes in effect at one of them, newest first, as far as they are known.
    fn chain(&self, from: Option<u64>) -> impl Iterator<Item = u64> + '_ {
        let mut dropped: Vec<u64> = Vec::new();
        self.back(from).filter(move |number| {
            dropped.extend(self.get(*number).into_iter().flat_map(|entry| &entry.dropped));
            !dropped.contains(number)
        })
    }

    /// One change and those before it, newest first, with those that one of them dropped.
    fn back(&self, from: Option<u64>) -> impl Iterator<Item = u64> + '_ {
        std::iter::successors(from, |number| self.get(*number)?.head_before)
    }
}
