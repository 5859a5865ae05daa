//! The requests of one worker that wait for room on the connections to one HTTP/2 backend. Of one client only the request that
//! came first looks whether there is room, so that its requests are served in their order; what room there is goes to the
//! client whose request came first, if its share allows.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use logic::account::Refusal;
use tokio::sync::Notify;

use crate::worker::Control;

/// Those that wait.
#[derive(Default)]
pub(super) struct Room {
    next: Cell<u64>,
    /// In the order in which they came.
    waiters: RefCell<Vec<Waiter>>,
}

struct Waiter {
    number: u64,
    client: Rc<Control>,
    /// Why it got nothing when it last looked.
    last: Rc<Cell<Refusal>>,
    wake: Rc<Notify>,
}

impl Room {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    /// Why the first request of `client` that waits got nothing; `None` if none waits.
    pub(super) fn refusal_of(&self, client: &Rc<Control>) -> Option<Refusal> {
        let waiters = self.waiters.borrow();
        waiters.iter().find(|one| Rc::ptr_eq(&one.client, client)).map(|one| one.last.get())
    }

    /// There may be room, or `client` may open a connection.
    pub(super) fn freed(&self, client: Option<&Rc<Control>>) {
        let waiters = self.waiters.borrow();
        let Some(first) = waiters.first() else { return };
        first.wake.notify_one();
        if let Some(own) =
            client.and_then(|client| waiters.iter().find(|one| Rc::ptr_eq(&one.client, client)))
        {
            own.wake.notify_one();
        }
    }

    /// Stands at the end. `last` is why the request got nothing when it last looked.
    pub(super) fn stand(self: &Rc<Self>, client: &Rc<Control>, last: &Rc<Cell<Refusal>>) -> Standing {
        let (number, wake) = (self.next.get(), Rc::new(Notify::new()));
        self.next.set(number + 1);
        self.waiters.borrow_mut().push(Waiter {
            number,
            client: client.clone(),
            last: last.clone(),
            wake: wake.clone(),
        });
        Standing { room: self.clone(), number, client: client.clone(), wake }
    }
}

/// A request that waits, until it is dropped.
pub(super) struct Standing {
    room: Rc<Room>,
    number: u64,
    client: Rc<Control>,
    wake: Rc<Notify>,
}

impl Standing {
    /// Waits until it is to look.
    pub(super) async fn called(&self) {
        self.wake.notified().await;
    }

    /// Whether no request of its client came earlier.
    pub(super) fn is_first_of_client(&self) -> bool {
        let waiters = self.room.waiters.borrow();
        let first = waiters.iter().find(|one| Rc::ptr_eq(&one.client, &self.client));
        first.is_some_and(|first| first.number == self.number)
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut waiters = self.room.waiters.borrow_mut();
        if let Ok(at) = waiters.binary_search_by_key(&self.number, |one| one.number) {
            waiters.remove(at);
        }
        drop(waiters);
        // It may have been called for what it did not take, and was the first of its client.
        self.room.freed(Some(&self.client));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_called(standing: &Standing) -> bool {
        tokio::time::timeout(Duration::ZERO, standing.called()).await.is_ok()
    }

    #[tokio::test]
    async fn the_first_of_all_and_the_first_of_the_client_are_called_and_the_next_ones_when_they_go() {
        let (room, one, other) = (Rc::<Room>::default(), Rc::<Control>::default(), Rc::<Control>::default());
        let clients = [&one, &one, &other, &other];
        let last = Rc::new(Cell::new(Refusal::Source));
        let [first, second, third, fourth] = clients.map(|client| room.stand(client, &last));
        assert_eq!((room.refusal_of(&one), room.refusal_of(&Rc::default())), (Some(Refusal::Source), None));
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
}
