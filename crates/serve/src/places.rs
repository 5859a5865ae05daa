//! The places of the control socket and the admin listener. Who must give up its place is decided in `logic/places.rs`; here its
//! task is ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use logic::places::{Admitted, Doing, GRACE, PlaceId, Places, Standing};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::lock::lock;

/// How many clients there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Clients.
    pub places: usize,
    /// Of these, clients that follow events, at most.
    pub following: usize,
}

impl Size {
    /// Clients that have lost their places and whose connections are not closed yet, at most.
    const fn ending(self) -> usize {
        self.places.div_ceil(ENDING_OF)
    }

    /// What is open at most: these clients, clients that have lost their places, and one that waits for a place.
    pub(crate) const fn descriptors(self) -> usize {
        self.places + self.ending() + 1
    }

    /// Smaller, where there are fewer descriptors.
    pub(crate) fn within(self, descriptors: usize) -> Self {
        let places = descriptors.saturating_sub(1) * ENDING_OF / (ENDING_OF + 1);
        let places = places.clamp(1, self.places);
        Self { places, following: self.following * places / self.places }
    }
}

/// For each 8 places there may be one connection of a client that has lost its place and is not closed yet.
const ENDING_OF: usize = 8;

/// A fixed number of places, and the tasks of the clients that have them.
#[derive(Debug)]
pub(crate) struct PlaceSet {
    size: Size,
    inner: Mutex<Inner>,
    /// A client has left, or does something else.
    changed: Notify,
    /// Clients sent away for others.
    evicted: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Inner {
    places: Places,
    /// Clients whose connections are open, those that have lost their places included.
    open: usize,
    /// Ends the task of a client.
    ends: HashMap<PlaceId, AbortHandle>,
}

impl PlaceSet {
    /// Clients that are sent away for others are counted in `evicted`.
    pub(crate) fn new(size: Size, evicted: Arc<AtomicU64>) -> Arc<Self> {
        let places = Places::new(size.places, size.following);
        let inner = Inner { places, open: 0, ends: HashMap::new() };
        Arc::new(Self { size, inner: Mutex::new(inner), changed: Notify::new(), evicted })
    }

    /// A place, once there is one that no other client needs.
    pub(crate) async fn place(self: &Arc<Self>) -> Place {
        loop {
            if let Some(place) = self.admit() {
                return place;
            }
            // Either one comes free, or its client has had it for long enough.
            let _ = timeout(GRACE, self.changed.notified()).await;
        }
    }

    /// A place within so long.
    pub(crate) async fn place_within(self: &Arc<Self>, limit: Duration) -> Option<Place> {
        timeout(limit, self.place()).await.ok()
    }

    fn admit(self: &Arc<Self>) -> Option<Place> {
        let mut inner = lock(&self.inner);
        if inner.open >= self.size.places + self.size.ending() {
            return None;
        }
        let id = match inner.places.admit(Instant::now()) {
            Admitted::Free(id) => id,
            Admitted::InsteadOf(id, evicted) => {
                if let Some(end) = inner.ends.remove(&evicted) {
                    end.abort();
                }
                self.evicted.fetch_add(1, Relaxed);
                id
            }
            Admitted::Full => return None,
        };
        inner.open += 1;
        Some(Place { places: self.clone(), id })
    }

    /// Tells how the client of a place is ended, if it is still there.
    pub(crate) fn keep(&self, id: PlaceId, end: AbortHandle) {
        let mut inner = lock(&self.inner);
        match inner.places.holds(id) {
            true => drop(inner.ends.insert(id, end)),
            // It has lost its place before it began.
            false => end.abort(),
        }
    }
}

/// A client's place; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<PlaceSet>,
    id: PlaceId,
}

impl Place {
    /// Names it for [`PlaceSet::keep`].
    pub(crate) fn id(&self) -> PlaceId {
        self.id
    }

    /// How many clients may follow events.
    pub(crate) fn most_following(&self) -> usize {
        self.places.size.following
    }

    /// Says what its client does now. One that gives way has lost its place already.
    pub(crate) fn set(&self, doing: Doing) -> Standing {
        let standing = lock(&self.places.inner).places.set(self.id, doing, Instant::now());
        match (standing, doing) {
            (Standing::GivesWay, _) => drop(self.places.evicted.fetch_add(1, Relaxed)),
            (_, Doing::Waiting) => self.places.changed.notify_one(),
            _ => {}
        }
        standing
    }

    /// Whether its client is to go with the answer that it gets now.
    pub(crate) fn give_way(&self) -> Standing {
        let standing = lock(&self.places.inner).places.give_way(self.id, Instant::now());
        if standing == Standing::GivesWay {
            self.places.evicted.fetch_add(1, Relaxed);
        }
        standing
    }

    /// Its client stands in the line of a pace.
    pub(crate) fn stands_in_line(&self) {
        lock(&self.places.inner).places.stands_in_line(self.id);
    }

    /// Its client had its turn.
    pub(crate) fn was_served(&self) {
        lock(&self.places.inner).places.was_served(self.id, Instant::now());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inner = lock(&self.places.inner);
        inner.open -= 1;
        inner.places.leave(self.id);
        inner.ends.remove(&self.id);
        drop(inner);
        self.places.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { places: 64, following: 56 };

    #[test]
    fn places_fit_the_descriptors_that_there_are() {
        assert_eq!(SIZE.within(SIZE.descriptors()), SIZE);
        assert_eq!(SIZE.within(1000), SIZE);
        assert_eq!(SIZE.within(0), Size { places: 1, following: 0 });
        for descriptors in 3..100 {
            let size = SIZE.within(descriptors);
            assert!(size.descriptors() <= descriptors, "{descriptors}: {size:?}");
            assert!(size.following < size.places, "{size:?}");
        }
    }

    #[tokio::test]
    async fn clients_that_have_lost_their_places_and_are_not_gone_are_bounded() {
        let size = Size { places: 8, following: 0 };
        let places = PlaceSet::new(size, Arc::default());
        let mut held = Vec::new();
        for _ in 0..size.places + size.ending() {
            let place = places.place_within(20 * GRACE).await.unwrap();
            place.set(Doing::Waiting);
            held.push(place);
        }
        assert!(places.place_within(4 * GRACE).await.is_none());
        held.remove(0);
        assert!(places.place_within(4 * GRACE).await.is_some());
    }
}
