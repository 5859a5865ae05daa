//! What a worker can do to one of its client connections from outside the task of the connection: close it while it is idle, wake
//! it when the process ends.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::account::{Granted, Share};

/// What the worker can do to one of its client connections from outside its task.
#[derive(Debug, Default)]
pub struct Control {
    pub(super) phase: Cell<Phase>,
    /// Among the connections of the worker.
    pub(super) number: u32,
    /// When the phase became [`Phase::Idle`].
    idle_since: Cell<Option<Instant>>,
    /// For a client of another worker that takes its place.
    pub(super) granted: RefCell<Option<Granted>>,
    waker: RefCell<Option<Waker>>,
    /// What it holds, and may hold, of the account of descriptors.
    pub(crate) share: Share,
}

/// What a client connection is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// In a session.
    #[default]
    Busy,
    /// Between two requests: nothing is lost when it is closed.
    Idle,
    /// Asked to close.
    Closing,
    /// It has ended.
    Gone,
}

/// The end of a wait for a client's next request.
pub enum Woken<T> {
    /// What was waited for.
    By(T),
    /// The worker wants the connection closed.
    Closing,
}

impl Control {
    /// For a connection that has this number among those of its worker.
    pub(super) fn new(number: u32, share: Share) -> Self {
        Self { number, share, ..Self::default() }
    }

    /// Waits with `poll` for the next request; ends early when the worker wants the connection closed. `since` is when the
    /// wait began.
    pub fn poll_idle<T>(
        &self,
        cx: &mut Context<'_>,
        since: Instant,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Woken<T>> {
        match poll(cx) {
            Poll::Ready(value) => {
                self.go_on();
                Poll::Ready(Woken::By(value))
            }
            Poll::Pending if self.phase.get() == Phase::Closing => Poll::Ready(Woken::Closing),
            Poll::Pending => {
                self.phase.set(Phase::Idle);
                self.idle_since.set(Some(since));
                let mut waker = self.waker.borrow_mut();
                if !waker.as_ref().is_some_and(|before| before.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    fn go_on(&self) {
        if self.phase.replace(Phase::Busy) == Phase::Closing {
            // It may take a minute: the new client asks for another one.
            drop(self.granted.take());
        }
    }

    /// Wakes the task of `cx` when the process begins to end, although the connection is busy: for those that carry several
    /// sessions and must say so to their client.
    pub fn wake_for_drain(&self, cx: &mut Context<'_>) {
        self.go_on();
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|before| before.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Asks the connection to close as soon as it has nothing to do.
    pub fn close_when_idle(&self) {
        self.phase.set(Phase::Closing);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The wait for a request ended without one: from here on the connection closes by itself.
    pub fn stop_waiting(&self) {
        if self.phase.get() != Phase::Closing {
            self.phase.set(Phase::Busy);
        }
    }

    /// Whether it was asked to close, and has neither ended nor gone on with a request that had come meanwhile.
    pub(crate) fn is_closing(&self) -> bool {
        self.phase.get() == Phase::Closing
    }

    /// Since when it has been idle, if it is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get().filter(|_| self.phase.get() == Phase::Idle)
    }

    pub(super) fn begin_drain(&self) {
        if self.phase.get() == Phase::Idle {
            self.close_when_idle();
        } else if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
