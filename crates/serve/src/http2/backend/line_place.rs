//! What a connection to an HTTP/2 backend is counted in: the first one to each backend in what the process keeps for itself,
//! a further one in the account and in the share of a client. `logic/account.rs` decides whose.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use logic::account::Refusal;

use crate::account::{Kind, PlaceCache, Taken};
use crate::connect::Shortage;
use crate::worker::Control;

/// Given back when dropped, with the connection.
pub(super) enum LinePlace {
    /// What the process keeps for itself.
    First(#[expect(dead_code, reason = "it lives as long as the connection")] Rc<()>),
    /// The account.
    Further(Rc<Further>),
}

impl LinePlace {
    /// If it is in the account.
    pub(super) fn further(&self) -> Option<&Rc<Further>> {
        match self {
            Self::First(_) => None,
            Self::Further(further) => Some(further),
        }
    }
}

impl Drop for LinePlace {
    fn drop(&mut self) {
        if let Self::Further(further) = self {
            further.close();
        }
    }
}

/// The places of a further connection.
pub(super) struct Further {
    place_cache: Rc<PlaceCache>,
    places: usize,
    usage: Cell<Use>,
    /// The client of each request on the connection. It counts in the share of the first of them.
    users: RefCell<Vec<Rc<Control>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It carries requests.
    Used,
    /// It carries none, and counts as an idle backend connection.
    Idle,
    /// It has ended.
    Ended,
}

impl Further {
    /// Takes the places of a connection that is opened for a request of `client`.
    pub(super) fn take(
        place_cache: &Rc<PlaceCache>,
        client: &Rc<Control>,
        places: usize,
    ) -> Result<Rc<Self>, Shortage> {
        client.share.may_have_line(place_cache, places).map_err(Shortage::OfShare)?;
        if place_cache.take_of(Kind::Lines, places) == Taken::No {
            return Err(Shortage::OfPlaces);
        }
        client.share.add_line(places);
        Ok(Rc::new(Self {
            place_cache: place_cache.clone(),
            places,
            usage: Cell::new(Use::Used),
            users: RefCell::new(vec![client.clone()]),
        }))
    }

    /// Counts one more request, of `client`. If it is the only one, the connection is to count in the share of its client.
    pub(super) fn enter(&self, client: &Rc<Control>) -> Result<(), Refusal> {
        if self.usage.get() == Use::Idle {
            client.share.may_have_line(&self.place_cache, self.places)?;
            client.share.add_line(self.places);
            self.count_as(Kind::Idle, Kind::Lines);
            self.usage.set(Use::Used);
        }
        self.users.borrow_mut().push(client.clone());
        Ok(())
    }

    /// A request of `client` has ended.
    pub(super) fn leave(&self, client: &Rc<Control>) {
        let mut users = self.users.borrow_mut();
        // The last of them: the share of the first counts it as long as that client has any.
        let Some(at) = users.iter().rposition(|one| Rc::ptr_eq(one, client)) else { return };
        users.remove(at);
        if at > 0 || self.usage.get() != Use::Used {
            return;
        }
        client.share.subtract_line(self.places);
        match users.first() {
            Some(next) => next.share.add_line(self.places),
            None => {
                self.count_as(Kind::Lines, Kind::Idle);
                self.usage.set(Use::Idle);
            }
        }
    }

    /// How many places are free for others as soon as they are wanted.
    pub(super) fn spare(&self) -> usize {
        if self.usage.get() == Use::Idle { self.places } else { 0 }
    }

    /// Whether a client waits for places.
    pub(super) fn is_wanted(&self) -> bool {
        self.place_cache.account().is_waited_for()
    }

    fn count_as(&self, before: Kind, now: Kind) {
        self.place_cache.note(before, -self.places.cast_signed());
        self.place_cache.note(now, self.places.cast_signed());
    }

    fn close(&self) {
        match self.usage.replace(Use::Ended) {
            Use::Used => {
                if let Some(client) = self.users.borrow().first() {
                    client.share.subtract_line(self.places);
                }
                self.place_cache.give_of(Kind::Lines, self.places);
            }
            Use::Idle => self.place_cache.give_of(Kind::Idle, self.places),
            Use::Ended => {}
        }
    }
}
