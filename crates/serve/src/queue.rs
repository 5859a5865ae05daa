//! Sessions that wait for a busy backend of one pool, over all workers: whoever came first is called first.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::lock::lock;

/// The line of one pool.
#[derive(Debug, Default)]
pub struct Queue {
    /// As many as there are in the line; who finds none needs no lock.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    waiters: BTreeMap<u64, Waiter>,
    /// A backend became free when everybody had been called already.
    is_spare: bool,
}

#[derive(Debug)]
struct Waiter {
    wake: Arc<Notify>,
    /// It was called and has not looked yet.
    is_called: bool,
}

impl Line {
    /// Calls the first one behind `after` that has not been called.
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
    /// How many wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// A backend may have become free: whoever waits longest is called.
    pub fn freed(&self) {
        if self.waiting() > 0 {
            lock(&self.line).call(None);
        }
    }

    /// Stands at the end, unless so many stand there.
    pub fn stand(&self, most: usize) -> Option<Place<'_>> {
        let mut line = lock(&self.line);
        if line.waiters.len() >= most {
            return None;
        }
        let (number, wake) = (line.next, Arc::new(Notify::new()));
        line.next += 1;
        let may_look = line.waiters.is_empty() || std::mem::take(&mut line.is_spare);
        line.waiters.insert(number, Waiter { wake: Arc::clone(&wake), is_called: false });
        self.count(&line);
        drop(line);
        Some(Place { queue: self, number, wake, may_look })
    }

    fn count(&self, line: &MutexGuard<'_, Line>) {
        self.waiting.store(line.waiters.len(), Relaxed);
    }
}

/// A place in the line, given up when dropped. Whoever looks without success keeps it.
pub struct Place<'q> {
    queue: &'q Queue,
    number: u64,
    wake: Arc<Notify>,
    /// Whether to look before anybody calls: nobody is before us, or something is free for us too.
    pub may_look: bool,
}

impl Place<'_> {
    /// Waits to be called.
    pub async fn called(&self) {
        self.wake.notified().await;
    }

    /// Whether nobody is before us.
    pub fn is_first(&self) -> bool {
        lock(&self.queue.line).waiters.first_key_value().is_some_and(|(first, _)| *first == self.number)
    }

    /// We are about to look: a call from here on is another one.
    pub fn looks(&self) {
        if let Some(own) = lock(&self.queue.line).waiters.get_mut(&self.number) {
            own.is_called = false;
        }
    }

    /// There was nothing for us. It may be something for the next one, who may go elsewhere than we.
    pub fn pass_on(&self) {
        lock(&self.queue.line).call(Some(self.number));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.queue.line);
        let own = line.waiters.remove(&self.number);
        self.queue.count(&line);
        // A call that we did not follow is the next one's, and so is what was free when all had been called.
        if std::mem::take(&mut line.is_spare) | own.is_some_and(|own| own.is_called) {
            line.call(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_called(place: &Place<'_>) -> bool {
        lock(&place.queue.line).waiters[&place.number].is_called
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
        // Two became free while one waited: the next to come need not be called.
        queue.freed();
        assert!(queue.stand(9).unwrap().may_look);
        drop(second);
        assert_eq!(queue.waiting(), 0);
        queue.freed();
        assert!(!lock(&queue.line).is_spare);
    }
}
