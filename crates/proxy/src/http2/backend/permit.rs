//! Counts the connections to HTTP/2 backends. The first connection to each backend uses a descriptor that the process
//! reserves; an additional one takes slots in the account and in a client's share (`logic/account.rs`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use logic::account::Refusal;
use state::account::{Kind, SlotCache, Taken};

use crate::connect::Shortage;
use crate::worker::ConnectionHandle;

/// What a connection reserves; dropped with the connection.
pub(super) enum ConnectionPermit {
    /// The descriptor that the process reserves for the first connection.
    First(#[expect(dead_code, reason = "it lives as long as the connection")] Rc<()>),
    Additional(Rc<Additional>),
}

impl ConnectionPermit {
    pub(super) fn additional(&self) -> Option<&Rc<Additional>> {
        match self {
            Self::First(_) => None,
            Self::Additional(additional) => Some(additional),
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Self::Additional(additional) = self {
            additional.close();
        }
    }
}

/// The slots of an additional connection in the account.
pub(super) struct Additional {
    slot_cache: Rc<SlotCache>,
    slots: usize,
    usage: Cell<Use>,
    /// The client of each open request on the connection, oldest first. The share of the first client counts the slots.
    users: RefCell<Vec<Rc<ConnectionHandle>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Used,
    /// The connection carries no request and counts as an idle backend connection.
    Idle,
    Ended,
}

impl Additional {
    /// Takes the slots of a connection that is opened for a request of `client`.
    pub(super) fn take(
        slot_cache: &Rc<SlotCache>,
        client: &Rc<ConnectionHandle>,
        slots: usize,
    ) -> Result<Rc<Self>, Shortage> {
        client.share.may_have_line(slot_cache, slots).map_err(Shortage::OfShare)?;
        if slot_cache.take_of(Kind::Lines, slots) == Taken::No {
            return Err(Shortage::OfPlaces);
        }
        client.share.add_line(slots);
        Ok(Rc::new(Self {
            slot_cache: slot_cache.clone(),
            slots,
            usage: Cell::new(Use::Used),
            users: RefCell::new(vec![client.clone()]),
        }))
    }

    /// Counts a request of `client`. A connection that was idle is charged to the share of that client; an error if the
    /// share is full.
    pub(super) fn enter(&self, client: &Rc<ConnectionHandle>) -> Result<(), Refusal> {
        if self.usage.get() == Use::Idle {
            client.share.may_have_line(&self.slot_cache, self.slots)?;
            client.share.add_line(self.slots);
            self.count_as(Kind::Idle, Kind::Lines);
            self.usage.set(Use::Used);
        }
        self.users.borrow_mut().push(client.clone());
        Ok(())
    }

    /// Counts the end of a request of `client`.
    pub(super) fn leave(&self, client: &Rc<ConnectionHandle>) {
        let mut users = self.users.borrow_mut();
        // Removes the client's last entry: the first client's share counts the slots while that client has requests.
        let Some(at) = users.iter().rposition(|one| Rc::ptr_eq(one, client)) else { return };
        users.remove(at);
        if at > 0 || self.usage.get() != Use::Used {
            return;
        }
        client.share.subtract_line(self.slots);
        match users.first() {
            Some(next) => next.share.add_line(self.slots),
            None => {
                self.count_as(Kind::Lines, Kind::Idle);
                self.usage.set(Use::Idle);
            }
        }
    }

    /// Returns the slots that closing the connection frees: 0 while it carries requests.
    pub(super) fn spare(&self) -> usize {
        if self.usage.get() == Use::Idle { self.slots } else { 0 }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.slot_cache.account().is_waited_for()
    }

    fn count_as(&self, before: Kind, now: Kind) {
        self.slot_cache.note(before, -self.slots.cast_signed());
        self.slot_cache.note(now, self.slots.cast_signed());
    }

    fn close(&self) {
        match self.usage.replace(Use::Ended) {
            Use::Used => {
                if let Some(client) = self.users.borrow().first() {
                    client.share.subtract_line(self.slots);
                }
                self.slot_cache.give_of(Kind::Lines, self.slots);
            }
            Use::Idle => self.slot_cache.give_of(Kind::Idle, self.slots),
            Use::Ended => {}
        }
    }
}
