//! Queue of sessions that wait for a busy backend of one pool, over all workers: first come, first served.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use logic::balance::turn::has_room;
use tokio::sync::Notify;

use crate::lock::lock;
use crate::metrics::LatencySum;

mod waits;

use waits::Waits;

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
    /// Present since a session has waited, with the moment from which its times are.
    waits: Option<(Box<Waits>, Instant)>,
}

#[derive(Debug)]
struct Waiter {
    wake: Arc<Notify>,
    since: Instant,
    /// The waiter was called and has not tried to take a backend yet.
    is_called: bool,
}

/// How long sessions wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueTimes {
    /// Time for which the one that has waited longest has waited.
    pub longest: Option<Duration>,
    /// Waits that ended in the last minute, also those that ended without a backend.
    pub last_minute: LatencySum,
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

    pub fn times(&self, now: Instant) -> QueueTimes {
        let line = lock(&self.line);
        let first = line.waiters.first_key_value();
        QueueTimes {
            longest: first.map(|(_, first)| now.saturating_duration_since(first.since)),
            last_minute: line.waits.as_ref().map_or_else(LatencySum::default, |(waits, began)| {
                waits.sum(now.saturating_duration_since(*began))
            }),
        }
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
        line.waiters
            .insert(number, Waiter { wake: Arc::clone(&wake), since: Instant::now(), is_called: false });
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
        if let Some(own) = &own {
            let now = Instant::now();
            let (waits, began) = line.waits.get_or_insert_with(|| (Box::default(), now));
            waits.note(now.saturating_duration_since(own.since), now.saturating_duration_since(*began));
        }
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
    fn waits_are_told_while_they_last_and_for_a_minute_after() {
        let queue = Queue::default();
        let later = Instant::now() + Duration::from_secs(5);
        assert!(queue.times(later).longest.is_none());
        let (first, second) = (queue.stand(9).unwrap(), queue.stand(9).unwrap());
        assert!(queue.times(later).longest.unwrap() >= Duration::from_secs(5) - Duration::from_secs(1));
        drop(second);
        assert_eq!((queue.times(later).last_minute.count(), queue.waiting()), (1, 1));
        drop(first);
        let times = queue.times(later);
        assert!(times.longest.is_none() && times.last_minute.count() == 2);
        assert_eq!(queue.times(later + Duration::from_secs(70)).last_minute.count(), 0);
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
