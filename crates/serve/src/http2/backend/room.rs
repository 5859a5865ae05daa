//! The requests of one worker that wait for room on the connections to one HTTP/2 backend, or for one that is being opened. Of
//! one client only the request that came first gets either, so that its requests are served in their order; what room there is
//! goes to the client whose request came first, if its share allows.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use logic::account::Refusal;
use logic::health::Cause;
use tokio::sync::Notify;

use crate::worker::Control;

/// Those that wait.
#[derive(Default)]
pub(super) struct Room {
    next: Cell<u64>,
    /// Connections that were opened so far.
    opened: Cell<u64>,
    /// In the order in which they came.
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    number: u64,
    client: Rc<Control>,
    /// Why it got nothing when it last looked, if that was its share. It then waits by `queue`, the others no longer than it
    /// may take to open a connection.
    refused: Cell<Option<Refusal>>,
    /// What was wrong with the connection that it waited for.
    failed: Cell<Option<Cause>>,
    wake: Notify,
}

impl Waiter {
    fn is_of(&self, client: &Rc<Control>) -> bool {
        Rc::ptr_eq(&self.client, client)
    }
}

impl Room {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    /// Whether a request of `client` waits.
    pub(super) fn has(&self, client: &Rc<Control>) -> bool {
        self.waiters.borrow().iter().any(|one| one.is_of(client))
    }

    /// How many connections were opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// A connection was opened.
    pub(super) fn count_opened(&self) {
        self.opened.set(self.opened.get() + 1);
    }

    /// There may be room, or `client` may open a connection.
    pub(super) fn freed(&self, client: Option<&Rc<Control>>) {
        let waiters = self.waiters.borrow();
        let Some(first) = waiters.front() else { return };
        first.wake.notify_one();
        if let Some(own) = client.and_then(|client| waiters.iter().find(|one| one.is_of(client))) {
            own.wake.notify_one();
        }
    }

    /// No connection could be opened: those that waited for it have failed.
    pub(super) fn failed(&self, cause: &Cause) {
        for one in self.waiters.borrow().iter().filter(|one| one.refused.get().is_none()) {
            one.failed.set(Some(cause.clone()));
            one.wake.notify_one();
        }
    }

    /// Stands at the end.
    pub(super) fn stand(self: &Rc<Self>, client: &Rc<Control>) -> Waiting {
        let number = self.next.get();
        self.next.set(number + 1);
        let own = Rc::new(Waiter {
            number,
            client: client.clone(),
            refused: Cell::default(),
            failed: Cell::default(),
            wake: Notify::new(),
        });
        self.waiters.borrow_mut().push_back(own.clone());
        Waiting { room: self.clone(), own }
    }
}

/// A request that waits, until it is dropped.
pub(super) struct Waiting {
    room: Rc<Room>,
    own: Rc<Waiter>,
}

impl Waiting {
    /// Where it waits.
    pub(super) fn room(&self) -> &Rc<Room> {
        &self.room
    }

    /// Whose request it is.
    pub(super) fn client(&self) -> &Rc<Control> {
        &self.own.client
    }

    /// Waits until it is to look.
    pub(super) async fn called(&self) {
        self.own.wake.notified().await;
    }

    /// What was wrong with the connection that it waited for.
    pub(super) fn failure(&self) -> Option<Cause> {
        self.own.failed.take()
    }

    /// Whether no request of its client came earlier.
    pub(super) fn is_first_of_client(&self) -> bool {
        let waiters = self.room.waiters.borrow();
        let first = waiters.iter().find(|one| one.is_of(&self.own.client));
        first.is_some_and(|first| first.number == self.own.number)
    }

    /// Whether every request before it was refused by a share: those that were not look first.
    pub(super) fn is_next(&self) -> bool {
        let waiters = self.room.waiters.borrow();
        waiters.iter().take_while(|one| one.number < self.own.number).all(|one| one.refused.get().is_some())
    }

    /// Why the first request of its client that waits was refused, if it was.
    pub(super) fn refusal_of_client(&self) -> Option<Refusal> {
        let waiters = self.room.waiters.borrow();
        waiters.iter().find(|one| one.is_of(&self.own.client))?.refused.get()
    }

    /// Its share allows nothing. What there is may be for the next one.
    pub(super) fn refused(&self, why: Refusal) {
        self.own.refused.set(Some(why));
        self.pass_on();
    }

    /// Calls the next one that was not refused.
    pub(super) fn pass_on(&self) {
        let waiters = self.room.waiters.borrow();
        let mut behind = waiters.iter().skip_while(|one| one.number <= self.own.number);
        if let Some(next) = behind.find(|one| one.refused.get().is_none()) {
            next.wake.notify_one();
        }
    }

    /// Why its share allowed nothing when it last looked.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.own.refused.get()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiters = self.room.waiters.borrow_mut();
        if let Ok(at) = waiters.binary_search_by_key(&self.own.number, |one| one.number) {
            waiters.remove(at);
        }
        drop(waiters);
        // It may have been called for what it did not take, and was the first of its client.
        self.room.freed(Some(&self.own.client));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_called(waiting: &Waiting) -> bool {
        tokio::time::timeout(Duration::ZERO, waiting.called()).await.is_ok()
    }

    #[tokio::test]
    async fn the_first_of_all_and_the_first_of_the_client_are_called_and_the_next_ones_when_they_go() {
        let (room, one, other) = (Rc::<Room>::default(), Rc::<Control>::default(), Rc::<Control>::default());
        let clients = [&one, &one, &other, &other];
        let [first, second, third, fourth] = clients.map(|client| room.stand(client));
        assert!(room.has(&one) && !room.has(&Rc::default()));
        assert!(first.is_first_of_client() && third.is_first_of_client());
        assert!(!second.is_first_of_client() && !fourth.is_first_of_client());
        room.freed(Some(&other));
        assert!(is_called(&first).await && is_called(&third).await);
        assert!(!is_called(&second).await && !is_called(&fourth).await);
        drop(third);
        assert!(fourth.is_first_of_client() && is_called(&fourth).await);
        drop(first);
        assert!(second.is_first_of_client() && is_called(&second).await);
        drop((second, fourth));
        assert!(room.is_empty());
    }

    #[tokio::test]
    async fn one_that_its_share_refuses_calls_the_next_that_was_not_and_lets_it_open() {
        let (room, one, other) = (Rc::<Room>::default(), Rc::<Control>::default(), Rc::<Control>::default());
        let clients = [&one, &other, &one];
        let [first, second, third] = clients.map(|client| room.stand(client));
        assert!(first.is_next() && !second.is_next() && !third.is_next());
        first.refused(Refusal::Connection);
        assert!(second.is_next() && is_called(&second).await);
        assert!(!third.is_next() && !is_called(&third).await);
        assert_eq!(
            (second.refusal_of_client(), third.refusal_of_client()),
            (None, Some(Refusal::Connection))
        );
        second.refused(Refusal::Source);
        assert!(third.is_next() && is_called(&third).await);
        // It waits for its share, and for no connection that is being opened.
        room.failed(&Cause::ConnectRefused);
        assert!(first.failure().is_none() && third.failure().is_some());
    }
}
