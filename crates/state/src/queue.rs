//! Queue of sessions that wait for a busy backend of one pool, over all workers: first come, first served.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use logic::balance::turn::has_room;
use tokio::sync::Notify;

use crate::lock::lock;

#[derive(Debug, Default)]
pub struct Queue {
    /// Number of waiters; a session that finds none needs no lock.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    waiters: BTreeMap<u64, Waiter>,
    /// A backend became free when all waiters had already been called.
    is_spare: bool,
}

#[derive(Debug)]
struct Waiter {
    wake: Arc<Notify>,
    /// The waiter was called and has not tried to take a backend yet.
    is_called: bool,
}

impl Line {
    /// Calls the first waiter after `after` that was not called yet.
    fn call(&mut self, after: Option<u64>) {
        let behind = after.map_or(Unbounded, Excluded);
        match self.waiters.range_mut((behind, Unbounded)).map(|(_, one)| one).find(|one| !one.is_called) {
            Some(one) => {
                one.is_called = true;
                one.wake.notify_one();
            }
            None => self.is_spare |= after.is_none() && !self.waiters.is_empty(),
        }
    }
}

impl Queue {
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Calls the session that has waited longest, because a backend may be free.
    pub fn freed(&self) {
        if self.waiting() > 0 {
            lock(&self.line).call(None);
        }
    }

    /// Adds a session at the end; `None` if `most` sessions wait already.
    pub fn stand(&self, most: usize) -> Option<QueueEntry<'_>> {
        let mut line = lock(&self.line);
        if !has_room(line.waiters.len(), most) {
            return None;
        }
        let (number, wake) = (line.next, Arc::new(Notify::new()));
        line.next += 1;
        let may_look = line.waiters.is_empty() || std::mem::take(&mut line.is_spare);
        line.waiters.insert(number, Waiter { wake: Arc::clone(&wake), is_called: false });
        self.count(&line);
        drop(line);
        Some(QueueEntry { queue: self, number, wake, may_look })
    }

    fn count(&self, line: &MutexGuard<'_, Line>) {
        self.waiting.store(line.waiters.len(), Relaxed);
    }
}

/// Session in the queue; removed when dropped. A session that finds no backend keeps its place.
pub struct QueueEntry<'q> {
    queue: &'q Queue,
    number: u64,
    wake: Arc<Notify>,
    /// The session may try without a call: it is the first, or a backend is free.
    pub may_look: bool,
}

impl QueueEntry<'_> {
    pub async fn wait_for_turn(&self) {
        self.wake.notified().await;
    }

    pub fn is_first(&self) -> bool {
        lock(&self.queue.line).waiters.first_key_value().is_some_and(|(first, _)| *first == self.number)
    }

    /// Marks the session as not called, before it tries to take a backend: a later call counts as new.
    pub fn looks(&self) {
        if let Some(own) = lock(&self.queue.line).waiters.get_mut(&self.number) {
            own.is_called = false;
        }
    }

    /// Calls the next waiter when this session found no backend: the next one may accept another backend.
    pub fn pass_on(&self) {
        lock(&self.queue.line).call(Some(self.number));
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.queue.line);
        let own = line.waiters.remove(&self.number);
        self.queue.count(&line);
        // An unanswered call is passed to the next waiter, and so is a backend that became free when all had been
        // called.
        if std::mem::take(&mut line.is_spare) | own.is_some_and(|own| own.is_called) {
            line.call(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(entry: &QueueEntry<'_>) -> bool {
        lock(&entry.queue.line).waiters[&entry.number].is_called
    }

    #[test]
    fn first_to_come_is_called_first_and_keeps_its_place_when_there_was_nothing_for_it() {
        let queue = Queue::default();
        let places: Vec<_> = (0..3).map(|_| queue.stand(3).unwrap()).collect();
        assert!(queue.stand(3).is_none());
        assert_eq!(places.iter().map(|place| place.may_look).collect::<Vec<_>>(), [true, false, false]);
        queue.freed();
        assert_eq!(places.iter().map(is_called).collect::<Vec<_>>(), [true, false, false]);
        places[0].looks();
        places[0].pass_on();
        assert_eq!(places.iter().map(is_called).collect::<Vec<_>>(), [false, true, false]);
        places[1].looks();
        queue.freed();
        assert_eq!(places.iter().map(is_called).collect::<Vec<_>>(), [true, false, false]);
    }

    #[test]
    fn call_that_nobody_follows_is_for_the_next_one() {
        let queue = Queue::default();
        let (first, second) = (queue.stand(9).unwrap(), queue.stand(9).unwrap());
        queue.freed();
        drop(first);
        assert!(is_called(&second) && second.is_first());
        // Two backends became free with one waiter: the next session tries without a call.
        queue.freed();
        assert!(queue.stand(9).unwrap().may_look);
        drop(second);
        assert_eq!(queue.waiting(), 0);
        queue.freed();
        assert!(!lock(&queue.line).is_spare);
    }
}
