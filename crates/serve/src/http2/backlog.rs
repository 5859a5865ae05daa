//! What one HTTP/2 connection holds in memory: heads of requests, and bytes of responses that its client has not taken. A task that
//! reads from a backend asks here how many bytes it may read: the more wait, the fewer, and none while the client's socket is full.
//! So backends of a client that reads nothing are not read either, and it costs no more than the configuration says.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use super::backend::Width;

/// Bytes that a stream may read at once in any case, as streams whose windows are closed must not stop those whose windows are open:
/// once its response has begun, and before that, when it is not known whether its window is open.
const LEAST: usize = 4096;
const LEAST_OF_HEAD: usize = 256;

/// The same where the window is closed: what is read may be the end of the body, which needs no window.
pub(super) const LEAST_WITHOUT_WINDOW: usize = 256;

/// Bytes that a stream may read at once at most, and the part of what is free that it may read.
const MOST: usize = 64 * 1024;
const PART: usize = 4;

/// Part of the limit that may be held for streams whose window is not known to be open.
const HELD_PART: usize = 16;

/// Requests at once whose HTTP/2 backends may send as much ahead as those of clients with one request at a time.
const MOST_WIDE: usize = 2;

/// What one connection holds.
#[derive(Debug)]
pub(super) struct Backlog {
    limit: usize,
    /// Read from backends, and not yet with the frame layer.
    held: Cell<usize>,
    /// With the frame layer: an upper bound, set to 0 whenever the frame layer has sent everything.
    queued: Cell<usize>,
    /// The client's socket takes nothing.
    is_blocked: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    heads: Cell<usize>,
    most_heads: usize,
    /// Requests whose HTTP/2 backends may send much ahead.
    wide: Cell<usize>,
}

impl Backlog {
    /// With limits in bytes: of responses, and of heads of requests.
    pub(super) fn new(limit: usize, most_heads: usize) -> Self {
        Self {
            limit,
            held: Cell::new(0),
            queued: Cell::new(0),
            is_blocked: Cell::new(false),
            waiting: RefCell::default(),
            heads: Cell::new(0),
            most_heads,
            wide: Cell::new(0),
        }
    }

    fn all(&self) -> usize {
        self.held.get() + self.queued.get()
    }

    /// How much a stream whose window is open may read from its backend now: what it reads goes on to the client's socket.
    pub(super) fn room(&self) -> usize {
        (self.limit.saturating_sub(self.all()) / PART).clamp(LEAST, MOST)
    }

    /// How much a stream may read before it is known whether its window is open: it may have to be held.
    pub(super) fn room_of_head(&self) -> usize {
        let limit = self.limit / HELD_PART;
        (limit.saturating_sub(self.held.get()) / PART).clamp(LEAST_OF_HEAD, MOST)
    }

    /// Waits while half of the limit, or all of it, is on its way to the client's socket.
    pub(super) fn poll_flows(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Half of it is for streams that have read and not yet written.
        let waits = self.queued.get() >= self.limit / 2 || self.is_blocked.get() && self.all() >= self.limit;
        if waits { self.wait(cx) } else { Poll::Ready(()) }
    }

    /// Waits until the frame layer has sent what it could: before that, a stream without room may only have filled its part of
    /// it.
    pub(super) fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.queued.get() {
            0 => Poll::Ready(()),
            _ => self.wait(cx),
        }
    }

    fn wait(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// A stream has read `more` bytes from its backend.
    pub(super) fn hold(&self, more: usize) {
        self.held.set(self.held.get() + more);
    }

    /// A stream has handed `less` bytes to the frame layer.
    pub(super) fn let_go(&self, less: usize) {
        self.held.set(self.held.get() - less);
    }

    /// The frame layer got `bytes` more.
    pub(super) fn queue(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// The client's socket took `bytes`.
    pub(super) fn written(&self, bytes: usize) {
        self.queued.set(self.queued.get().saturating_sub(bytes));
        if self.is_blocked.replace(false) {
            self.wake_all();
        }
    }

    /// The client's socket took nothing.
    pub(super) fn block(&self) {
        self.is_blocked.set(true);
    }

    /// The frame layer has sent what it could: what it still has waits for a full socket.
    pub(super) fn turned(&self) {
        if !self.is_blocked.get() {
            self.queued.set(0);
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// How much an HTTP/2 backend may send ahead for one more request. That waits in the frame layer of the backend's connection,
    /// where it can be limited only before it comes.
    pub(super) fn take_width(&self) -> Width {
        if self.wide.get() >= MOST_WIDE {
            return Width::Narrow;
        }
        self.wide.set(self.wide.get() + 1);
        Width::Wide
    }

    /// A request has ended that had this width.
    pub(super) fn give_width(&self, width: Width) {
        if width == Width::Wide {
            self.wide.set(self.wide.get() - 1);
        }
    }

    /// Counts the head of a new request, if the heads of the others leave room for it.
    pub(super) fn begin(&self, head: usize) -> Admission {
        let heads = self.heads.get().saturating_add(head);
        if heads > self.most_heads {
            return Admission::TooMuch;
        }
        self.heads.set(heads);
        Admission::Begun
    }

    /// A request with a head of this size has ended.
    pub(super) fn end(&self, head: usize) {
        self.heads.set(self.heads.get() - head);
    }
}

/// Whether a request may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may, and must be ended.
    Begun,
    /// The heads of the open requests would be too large together.
    TooMuch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_streams_may_hold_together_is_bounded_and_never_nothing() {
        let backlog = Backlog::new(1024 * 1024, 0);
        for _ in 0..100 {
            backlog.hold(backlog.room_of_head());
        }
        assert!(backlog.all() <= 64 * 1024 + 100 * LEAST_OF_HEAD, "{}", backlog.all());
        for _ in 0..100 {
            backlog.queue(backlog.room());
        }
        assert!(backlog.all() <= 1024 * 1024 + 100 * LEAST, "{}", backlog.all());
        assert_eq!((backlog.room_of_head(), backlog.room()), (LEAST_OF_HEAD, LEAST));
    }

    #[test]
    fn a_full_socket_stops_streams_once_enough_waits_and_wakes_them_when_it_moves() {
        let backlog = Backlog::new(1000, 0);
        struct Unnoticed;
        impl std::task::Wake for Unnoticed {
            fn wake(self: std::sync::Arc<Self>) {}
        }
        let waker = Waker::from(std::sync::Arc::new(Unnoticed));
        let mut cx = Context::from_waker(&waker);
        backlog.queue(499);
        assert!(backlog.poll_flows(&mut cx).is_ready());
        backlog.queue(501);
        backlog.block();
        assert!(backlog.poll_flows(&mut cx).is_pending() && backlog.poll_flows(&mut cx).is_pending());
        assert_eq!(backlog.waiting.borrow().len(), 1);
        backlog.turned();
        assert_eq!(backlog.all(), 1000);
        backlog.written(10);
        assert!(backlog.waiting.borrow().is_empty() && backlog.poll_flows(&mut cx).is_pending());
        backlog.turned();
        assert!(backlog.waiting.borrow().is_empty() && backlog.poll_flows(&mut cx).is_ready());
        assert_eq!(backlog.all(), 0);
    }

    #[test]
    fn the_first_requests_of_a_connection_get_wide_backend_connections_and_so_does_the_next_when_one_ends() {
        let backlog = Backlog::new(0, 0);
        for _ in 0..MOST_WIDE {
            assert_eq!(backlog.take_width(), Width::Wide);
        }
        assert_eq!(backlog.take_width(), Width::Narrow);
        backlog.give_width(Width::Narrow);
        assert_eq!(backlog.take_width(), Width::Narrow);
        backlog.give_width(Width::Wide);
        assert_eq!(backlog.take_width(), Width::Wide);
        assert_eq!(backlog.take_width(), Width::Narrow);
    }

    #[test]
    fn heads_are_let_in_until_they_are_too_large_together() {
        let backlog = Backlog::new(0, 100);
        assert_eq!(backlog.begin(60), Admission::Begun);
        assert_eq!(backlog.begin(60), Admission::TooMuch);
        backlog.end(60);
        assert_eq!(backlog.begin(100), Admission::Begun);
    }
}
