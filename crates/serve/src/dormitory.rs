//! Where the TCP sessions of a worker lie while nobody speaks. A sleeper has no task, and the runtime does not watch its
//! connections: what is left is its record and two entries in an epoll instance of the worker, which is itself one
//! descriptor for the runtime. The first word on either side wakes it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::plain::Parked;

/// Sessions woken in a row before the worker turns to something else.
const WAKE_AT_ONCE: usize = 128;

/// Beds that an empty dormitory keeps.
const SPARE_BEDS: usize = 1024;

/// Sessions that leave so much memory when they fall asleep (a kilobyte each) that looking for it pays.
const WORTH_GIVING_BACK: usize = 256;

/// So many do not wait until nobody falls asleep any more.
const MUCH_TO_OWE: usize = 4096;

/// A session in which neither side speaks: all that is left of it.
pub struct Sleeper {
    session: Box<dyn Asleep>,
    client: Parked,
    backend: Parked,
}

/// What a session does when its sleep ends.
pub trait Asleep {
    /// When it ends if neither side speaks.
    fn due(&self) -> Instant;

    /// Goes on with its connections.
    fn wake(self: Box<Self>, client: Parked, backend: Parked);

    /// Ends a session that lay still for too long.
    fn expire(self: Box<Self>);
}

impl Sleeper {
    /// A session with its connections: the first word on one of them wakes it.
    pub fn new(session: Box<dyn Asleep>, client: Parked, backend: Parked) -> Self {
        Self { session, client, backend }
    }

    fn connections(&self) -> [&Parked; 2] {
        [&self.client, &self.backend]
    }

    fn due(&self) -> Instant {
        self.session.due()
    }

    fn wake(self) {
        self.session.wake(self.client, self.backend);
    }

    fn expire(self) {
        self.session.expire();
    }
}

/// The sleeping sessions of one worker.
pub struct Dormitory {
    door: Rc<Door>,
    sleepers: RefCell<Slab<Sleeper>>,
    /// No sleeper is due before; `None` if there is none.
    due: Cell<Option<Instant>>,
    /// How many were laid down since somebody last looked whether there is memory to be given back.
    laid: Cell<usize>,
    /// How many were laid down before that, and their memory is still here.
    owed: Cell<usize>,
}

/// Where the connections of all sleepers are listened to.
struct Door(Epoll);

impl AsRawFd for Door {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

impl Dormitory {
    /// An empty one.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            door: Rc::new(Door(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?)),
            sleepers: RefCell::default(),
            due: Cell::new(None),
            laid: Cell::new(0),
            owed: Cell::new(0),
        })
    }

    /// Lays a session down; one whose connections cannot be listened to is woken at once.
    pub fn lay(&self, sleeper: Sleeper) {
        let mut sleepers = self.sleepers.borrow_mut();
        let bed = sleepers.vacant_entry();
        if !sleeper.connections().into_iter().all(|connection| self.listen(connection, bed.key())) {
            drop(sleepers);
            self.forget(&sleeper);
            return sleeper.wake();
        }
        let due = sleeper.due();
        self.due.set(Some(self.due.get().map_or(due, |earliest| earliest.min(due))));
        bed.insert(sleeper);
        self.laid.set(self.laid.get() + 1);
    }

    /// Wakes whoever is spoken to, for ever; gives the error that prevents it.
    pub async fn keep(&self) -> io::Error {
        #[expect(deprecated, reason = "its successor is unsafe; a `Door` keeps the one descriptor it owns")]
        let watched = AsyncFd::with_interest(self.door.clone(), Interest::READABLE);
        let door = match watched {
            Ok(door) => door,
            Err(error) => return error,
        };
        loop {
            let mut opened = match door.readable().await {
                Ok(opened) => opened,
                Err(error) => return error,
            };
            match self.wake_called() {
                Ok(WAKE_AT_ONCE..) => tokio::task::yield_now().await,
                // All who were called are gone from the instance: the next call is news to the runtime.
                Ok(_) => opened.clear_ready(),
                Err(error) => return error,
            }
        }
    }

    /// Gives back the memory that those who fell asleep no longer need, once nobody else does. To be called often.
    pub fn give_back_memory(&self) {
        let (laid, owed) = (self.laid.take(), self.owed.get());
        match laid {
            0 if owed >= WORTH_GIVING_BACK => {}
            _ if owed + laid >= MUCH_TO_OWE => {}
            _ => return self.owed.set(owed + laid),
        }
        self.owed.set(0);
        sys::memory::give_back();
    }

    /// Ends those whose time is over. To be called about once per second.
    pub fn sweep(&self, now: Instant) {
        if self.due.get().is_none_or(|due| now < due) {
            return;
        }
        let mut sleepers = self.sleepers.borrow_mut();
        let over: Vec<usize> =
            sleepers.iter().filter(|(_, sleeper)| sleeper.due() <= now).map(|(bed, _)| bed).collect();
        let over: Vec<_> = over.into_iter().map(|bed| sleepers.remove(bed)).collect();
        self.due.set(sleepers.iter().map(|(_, sleeper)| sleeper.due()).min());
        drop(sleepers);
        for sleeper in over {
            self.forget(&sleeper);
            sleeper.expire();
        }
    }

    /// Drops them all.
    pub fn clear(&self) {
        drop(self.sleepers.take());
        self.due.set(None);
    }

    /// Gives how many connections were spoken on.
    fn wake_called(&self) -> io::Result<usize> {
        let mut events = [EpollEvent::empty(); WAKE_AT_ONCE];
        let count = match self.door.0.wait(&mut events, EpollTimeout::ZERO) {
            Err(nix::errno::Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let bed = usize::try_from(event.data()).unwrap_or(usize::MAX);
            let mut sleepers = self.sleepers.borrow_mut();
            // Both its connections may have been spoken on; nobody was laid down meanwhile, so a bed that is empty is its.
            let Some(sleeper) = sleepers.try_remove(bed) else { continue };
            if sleepers.is_empty() && sleepers.capacity() > SPARE_BEDS {
                // What a flood of sessions took is given back.
                *sleepers = Slab::new();
            }
            drop(sleepers);
            self.forget(&sleeper);
            sleeper.wake();
        }
        Ok(count)
    }

    fn listen(&self, connection: &Parked, bed: usize) -> bool {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, bed as u64);
        self.door.0.add(connection, event).is_ok()
    }

    fn forget(&self, sleeper: &Sleeper) {
        for connection in sleeper.connections() {
            // One that was never entered says so, and that is as well.
            let _ = self.door.0.delete(connection);
        }
    }
}
