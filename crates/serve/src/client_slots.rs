//! The slots of the control socket and of the admin listener. `logic/client_slots.rs` decides which client loses its
//! slot; this file aborts the client's task.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use logic::client_slots::{
    Admitted, ClientActivity, ClientDecision, ClientId, ClientSlots, GRACE, Limit, Party,
};
use state::client_slots::Size;
use state::lock::lock;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// A fixed number of slots, with the tasks of the clients that hold them.
#[derive(Debug)]
pub(crate) struct ClientSlotSet {
    size: Size,
    inner: Mutex<Inner>,
    /// Notified when a client has disconnected or changed its activity.
    changed: Notify,
    /// Number of clients that lost their slot to a new client.
    evicted: Arc<AtomicU64>,
}

/// Why a client gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    AllBusy,
    OverShare(Limit),
}

#[derive(Debug)]
struct Inner {
    slots: ClientSlots,
    /// Number of open client connections, including clients that have lost their slots but not yet ended.
    open: usize,
    /// Abort handles of the clients' tasks.
    ends: HashMap<ClientId, AbortHandle>,
}

impl ClientSlotSet {
    /// Makes a set of slots that counts evicted clients in `evicted`.
    pub(crate) fn new(size: Size, evicted: Arc<AtomicU64>) -> Arc<Self> {
        let slots = ClientSlots::new(size.slots, size.following);
        let inner = Inner { slots, open: 0, ends: HashMap::new() };
        Arc::new(Self { size, inner: Mutex::new(inner), changed: Notify::new(), evicted })
    }

    /// Waits for a free slot, or for one that its client must give up.
    pub(crate) async fn slot(self: &Arc<Self>, party: Party) -> ClientSlot {
        loop {
            if let Ok(slot) = self.admit(party) {
                return slot;
            }
            // A slot may become free, or the grace period of a busy client may end.
            let _ = timeout(GRACE, self.changed.notified()).await;
        }
    }

    /// The same with a time limit. A client beyond the share of its party does not wait: those behind it would wait too.
    pub(crate) async fn slot_within(
        self: &Arc<Self>,
        party: Party,
        limit: Duration,
    ) -> Result<ClientSlot, NoSlot> {
        match self.admit(party) {
            Err(NoSlot::AllBusy) => timeout(limit, self.slot(party)).await.map_err(|_| NoSlot::AllBusy),
            result => result,
        }
    }

    /// The limit with which a client of this party would get [`NoSlot::OverShare`].
    pub(crate) fn over_share(&self, party: Party) -> Option<Limit> {
        lock(&self.inner).slots.over_share(party, Instant::now())
    }

    /// Whether a client of this party must not wait, because others would wait behind it: it is counted as evicted.
    pub(crate) fn turns_away(&self, party: Party) -> bool {
        let is_turned_away = lock(&self.inner).slots.is_turned_away(party, Instant::now());
        if is_turned_away {
            self.evicted.fetch_add(1, Relaxed);
        }
        is_turned_away
    }

    fn admit(self: &Arc<Self>, party: Party) -> Result<ClientSlot, NoSlot> {
        let mut inner = lock(&self.inner);
        if inner.open >= self.size.slots + self.size.ending() {
            return Err(NoSlot::AllBusy);
        }
        let id = match inner.slots.admit(party, Instant::now()) {
            Admitted::Free(id) => id,
            Admitted::InsteadOf(id, evicted) => {
                if let Some(end) = inner.ends.remove(&evicted) {
                    end.abort();
                }
                self.evicted.fetch_add(1, Relaxed);
                id
            }
            Admitted::Full => return Err(NoSlot::AllBusy),
            Admitted::OverShare(limit) => return Err(NoSlot::OverShare(limit)),
        };
        inner.open += 1;
        Ok(ClientSlot { slots: self.clone(), id })
    }

    /// Stores the abort handle of a client's task, if the client still holds its slot.
    pub(crate) fn keep(&self, id: ClientId, end: AbortHandle) {
        let mut inner = lock(&self.inner);
        match inner.slots.holds(id) {
            true => drop(inner.ends.insert(id, end)),
            // The client lost its slot before its task began.
            false => end.abort(),
        }
    }
}

/// The slot of one client. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    slots: Arc<ClientSlotSet>,
    id: ClientId,
}

impl ClientSlot {
    /// The client's number, for [`ClientSlotSet::keep`].
    pub(crate) fn id(&self) -> ClientId {
        self.id
    }

    /// Reports the client's current activity. After `GivesWay`, the client no longer has its slot.
    pub(crate) fn set(&self, doing: ClientActivity) -> ClientDecision {
        let standing = lock(&self.slots.inner).slots.set(self.id, doing, Instant::now());
        match (standing, doing) {
            (ClientDecision::GivesWay, _) => drop(self.slots.evicted.fetch_add(1, Relaxed)),
            (_, ClientActivity::Waiting) => self.slots.changed.notify_one(),
            _ => {}
        }
        standing
    }

    /// Decides whether the client must disconnect after the answer that is about to be sent.
    pub(crate) fn give_way(&self) -> ClientDecision {
        let standing = lock(&self.slots.inner).slots.give_way(self.id, Instant::now());
        if standing == ClientDecision::GivesWay {
            self.slots.evicted.fetch_add(1, Relaxed);
        }
        standing
    }

    /// Reports that the client waits for its turn in a [`crate::pace::Pace`].
    pub(crate) fn stands_in_line(&self) {
        lock(&self.slots.inner).slots.stands_in_line(self.id);
    }

    pub(crate) fn was_served(&self) {
        lock(&self.slots.inner).slots.was_served(self.id, Instant::now());
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut inner = lock(&self.slots.inner);
        inner.open -= 1;
        inner.slots.leave(self.id);
        inner.ends.remove(&self.id);
        drop(inner);
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clients_that_have_lost_their_places_and_are_not_gone_are_bounded() {
        let size = Size { slots: 8, following: 0 };
        let slots = ClientSlotSet::new(size, Arc::default());
        let mut held = Vec::new();
        for _ in 0..size.slots + size.ending() {
            let slot = slots.slot_within(Party::Owner, 20 * GRACE).await.unwrap();
            slot.set(ClientActivity::Waiting);
            held.push(slot);
        }
        assert!(slots.slot_within(Party::Owner, 4 * GRACE).await.is_err());
        held.remove(0);
        assert!(slots.slot_within(Party::Owner, 4 * GRACE).await.is_ok());
    }
}
