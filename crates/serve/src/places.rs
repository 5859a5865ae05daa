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

use crate::state::lock;

/// A fixed number of places, and the tasks of the clients that have them.
#[derive(Debug)]
pub(crate) struct PlaceSet {
    inner: Mutex<Inner>,
    /// A client has left, or does something else.
    changed: Notify,
    /// Clients sent away for others.
    evicted: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Inner {
    places: Places,
    /// Ends the task of a client.
    ends: HashMap<PlaceId, AbortHandle>,
}

impl PlaceSet {
    /// So many places, of which so many may follow events. Clients that are sent away for others are counted in `evicted`.
    pub(crate) fn new(most: usize, most_following: usize, evicted: Arc<AtomicU64>) -> Arc<Self> {
        let inner = Inner { places: Places::new(most, most_following), ends: HashMap::new() };
        Arc::new(Self { inner: Mutex::new(inner), changed: Notify::new(), evicted })
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
        inner.places.leave(self.id);
        inner.ends.remove(&self.id);
        drop(inner);
        self.places.changed.notify_one();
    }
}
