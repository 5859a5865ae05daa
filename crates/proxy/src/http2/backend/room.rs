//! Queues the requests of one worker that wait for a free stream, or for a connection being opened, to one HTTP/2
//! backend. Only the oldest request of each client may take a stream or open a connection, so the requests of a client
//! are served in order. A free stream goes to the oldest request whose client's share allows it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use logic::account::Refusal;
use logic::health::Cause;
use tokio::sync::Notify;

use crate::worker::ConnectionHandle;

#[derive(Default)]
pub(super) struct Room {
    next: Cell<u64>,
    /// Number of connections opened so far.
    opened: Cell<u64>,
    /// Oldest first.
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    number: u64,
    client: Rc<ConnectionHandle>,
    /// Why the share of the client refused the request at its last attempt. A refused request is subject to the queue
    /// timeout, any other one only to the connect timeout.
    refused: Cell<Option<Refusal>>,
    /// Why the connection that the request waited for could not be opened.
    failed: Cell<Option<Cause>>,
    wake: Notify,
}

impl Waiter {
    fn is_of(&self, client: &Rc<ConnectionHandle>) -> bool {
        Rc::ptr_eq(&self.client, client)
    }
}

impl Room {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    pub(super) fn has(&self, client: &Rc<ConnectionHandle>) -> bool {
        self.waiters.borrow().iter().any(|one| one.is_of(client))
    }

    /// Returns the number of connections opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.get()
    }

    pub(super) fn count_opened(&self) {
        self.opened.set(self.opened.get() + 1);
    }

    /// Wakes the oldest request (a stream may be free) and that of `client` (its share may allow a connection).
    pub(super) fn freed(&self, client: Option<&Rc<ConnectionHandle>>) {
        let waiters = self.waiters.borrow();
        let Some(first) = waiters.front() else { return };
        first.wake.notify_one();
        if let Some(own) = client.and_then(|client| waiters.iter().find(|one| one.is_of(client))) {
            own.wake.notify_one();
        }
    }

    /// Fails the requests that wait for a connection that could not be opened; refused requests do not wait for it.
    pub(super) fn failed(&self, cause: &Cause) {
        for one in self.waiters.borrow().iter().filter(|one| one.refused.get().is_none()) {
            one.failed.set(Some(cause.clone()));
            one.wake.notify_one();
        }
    }

    pub(super) fn stand(self: &Rc<Self>, client: &Rc<ConnectionHandle>) -> Waiting {
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

/// A request in the queue. Dropping it leaves the queue.
pub(super) struct Waiting {
    room: Rc<Room>,
    own: Rc<Waiter>,
}

impl Waiting {
    pub(super) fn room(&self) -> &Rc<Room> {
        &self.room
    }

    pub(super) fn client(&self) -> &Rc<ConnectionHandle> {
        &self.own.client
    }

    /// Waits until the request should look for a free stream again.
    pub(super) async fn wait_for_turn(&self) {
        self.own.wake.notified().await;
    }

    /// Takes the error of the connection that the request waited for.
    pub(super) fn failure(&self) -> Option<Cause> {
        self.own.failed.take()
    }

    /// Whether the request is the oldest waiting one of its client.
    pub(super) fn is_first_of_client(&self) -> bool {
        let waiters = self.room.waiters.borrow();
        let first = waiters.iter().find(|one| one.is_of(&self.own.client));
        first.is_some_and(|first| first.number == self.own.number)
    }

    /// Whether a share refused every older request. An older request that was not refused tries first.
    pub(super) fn is_next(&self) -> bool {
        let waiters = self.room.waiters.borrow();
        waiters.iter().take_while(|one| one.number < self.own.number).all(|one| one.refused.get().is_some())
    }

    /// Returns the refusal of the client's oldest waiting request, if any.
    pub(super) fn refusal_of_client(&self) -> Option<Refusal> {
        let waiters = self.room.waiters.borrow();
        waiters.iter().find(|one| one.is_of(&self.own.client))?.refused.get()
    }

    /// Records that the share of the client refused the request, and wakes the next request.
    pub(super) fn refused(&self, why: Refusal) {
        self.own.refused.set(Some(why));
        self.pass_on();
    }

    /// Wakes the next request in the queue that was not refused.
    pub(super) fn pass_on(&self) {
        let waiters = self.room.waiters.borrow();
        let mut behind = waiters.iter().skip_while(|one| one.number <= self.own.number);
        if let Some(next) = behind.find(|one| one.refused.get().is_none()) {
            next.wake.notify_one();
        }
    }

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
        // A stream may be free that this request did not take, and another request is now the client's oldest.
        self.room.freed(Some(&self.own.client));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_called(waiting: &Waiting) -> bool {
        tokio::time::timeout(Duration::ZERO, waiting.wait_for_turn()).await.is_ok()
    }

    #[tokio::test]
    async fn the_first_of_all_and_the_first_of_the_client_are_called_and_the_next_ones_when_they_go() {
        let (room, one, other) =
            (Rc::<Room>::default(), Rc::<ConnectionHandle>::default(), Rc::<ConnectionHandle>::default());
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
        let (room, one, other) =
            (Rc::<Room>::default(), Rc::<ConnectionHandle>::default(), Rc::<ConnectionHandle>::default());
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
        // A refused request waits for its share, not for a connection that is being opened.
        room.failed(&Cause::ConnectRefused);
        assert!(first.failure().is_none() && third.failure().is_some());
    }
}
