//! Limits the memory of one HTTP/2 connection: heads of requests, and bytes of responses that the client has not read
//! yet. A task asks here how many bytes it may read from a backend: the more bytes wait for the client, the fewer; none
//! while the client's socket is full and the limit is reached. If a client does not read, penstock reads nothing from
//! its backends.
//!
//! Streams that wait for the same socket get equal parts of it: when it moves, those that have read least recently begin,
//! and each stops after its part until the others have had theirs.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use super::rules::Width;

/// Bytes that a stream may always read at once: streams whose flow-control windows are closed must not stop the others.
/// `LEAST` applies once the response has begun; `LEAST_OF_HEAD` before that, while the window is not known.
const LEAST: usize = 4096;
const LEAST_OF_HEAD: usize = 256;

/// Bytes that a stream may read while its window is closed: the end of the body needs no window.
pub(super) const LEAST_WITHOUT_WINDOW: usize = 256;

/// A stream may read one `PART`th of the free bytes at once, but at most `MOST` bytes, or `MOST_OF_MANY` if more than `FEW`
/// requests of the connection are open: each may keep a buffer of that size.
const MOST: usize = 64 * 1024;
const MOST_OF_MANY: usize = 32 * 1024;
const FEW: usize = 2;
const PART: usize = 4;

/// Least bytes that a stream reads before the others have their turn: one frame.
const LEAST_TURN: usize = 16 * 1024;

/// Streams whose window may be closed may together hold one tenth of the limit.
const HELD_PART: usize = 10;

/// Number of concurrent requests whose HTTP/2 backends get the full flow-control window; others get a narrow one.
const MOST_WIDE: usize = 2;

#[derive(Debug)]
pub(super) struct Backlog {
    limit: usize,
    /// Bytes read from backends and not yet handed to the frame layer (h2).
    held: Cell<usize>,
    /// Bytes in the frame layer that the client's socket has not taken. An upper bound, which becomes 0 when the frame
    /// layer has sent everything.
    queued: Cell<usize>,
    is_blocked: Cell<bool>,
    waiting: RefCell<Vec<Waits>>,
    /// Number of the next stream that waits for the first time.
    next: Cell<u64>,
    /// Counts how often the streams that wait were woken.
    round: Cell<u64>,
    /// Bytes that each of several streams may read before the others have their turn; `None` if one was woken alone.
    turn: Cell<Option<usize>>,
    /// Requests that have begun and not ended.
    open: Cell<usize>,
    heads: Cell<usize>,
    most_heads: usize,
    /// Size of the heads when there was no room for one more: until some of them end, none is tried.
    full_at: Cell<Option<usize>>,
    /// Open requests whose HTTP/2 backends have the full flow-control window.
    wide: Cell<usize>,
}

#[derive(Debug)]
struct Waits {
    /// See [`Turn::number`].
    number: u64,
    /// The round in which the stream has read last.
    read_in: u64,
    waker: Waker,
}

/// What one stream has read lately.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Number among the streams of the connection that have waited, once this one has.
    number: Option<u64>,
    read_in: u64,
    /// Bytes since the others had their turn.
    taken: usize,
}

impl Backlog {
    /// `limit` is the limit of response bytes, `most_heads` the limit of bytes of request heads.
    pub(super) fn new(limit: usize, most_heads: usize) -> Self {
        Self {
            limit,
            held: Cell::new(0),
            queued: Cell::new(0),
            is_blocked: Cell::new(false),
            waiting: RefCell::default(),
            next: Cell::new(0),
            round: Cell::new(1),
            turn: Cell::new(None),
            open: Cell::new(0),
            heads: Cell::new(0),
            most_heads,
            full_at: Cell::new(None),
            wide: Cell::new(0),
        }
    }

    fn all(&self) -> usize {
        self.held.get() + self.queued.get()
    }

    /// Returns how many bytes a stream whose window is open may read now: they go on to the client's socket.
    pub(super) fn room(&self) -> usize {
        (self.limit.saturating_sub(self.all()) / PART).clamp(LEAST, self.most())
    }

    /// Returns how many bytes a stream may read before its window is known: penstock may have to hold them.
    pub(super) fn room_of_head(&self) -> usize {
        let limit = self.limit / HELD_PART;
        (limit.saturating_sub(self.held.get()) / PART).clamp(LEAST_OF_HEAD, self.most())
    }

    fn most(&self) -> usize {
        if self.open.get() > FEW { MOST_OF_MANY } else { MOST }
    }

    /// Returns how many bytes a stream may still read in its turn.
    pub(super) fn left(&self, turn: &Turn) -> usize {
        self.turn.get().map_or(usize::MAX, |most| most.saturating_sub(turn.taken).max(LEAST))
    }

    /// Waits while the frame layer has half of the limit, or while the client's socket is full and the limit is
    /// reached; and after each turn until the other streams that can read have read.
    pub(super) fn poll_flows(&self, turn: &mut Turn, cx: &mut Context<'_>) -> Poll<()> {
        // The other half of the limit is for bytes that streams have read and not yet handed to the frame layer.
        let waits = self.queued.get() >= self.limit / 2 || self.is_blocked.get() && self.all() >= self.limit;
        if waits {
            return self.wait(turn, cx);
        }
        if self.turn.get().is_some_and(|most| turn.taken >= most) {
            turn.taken = 0;
            // The tasks that were woken before this one run first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Waits until the frame layer has sent everything. Until then, a stream with an open window may be unable to send,
    /// because its share of the frame layer's buffer is full.
    pub(super) fn poll_sent(&self, turn: &mut Turn, cx: &mut Context<'_>) -> Poll<()> {
        match self.queued.get() {
            0 => Poll::Ready(()),
            _ => self.wait(turn, cx),
        }
    }

    fn wait(&self, turn: &mut Turn, cx: &mut Context<'_>) -> Poll<()> {
        turn.taken = 0;
        let number = *turn.number.get_or_insert_with(|| self.next.replace(self.next.get() + 1));
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().find(|waits| waits.number == number) {
            Some(waits) if waits.waker.will_wake(cx.waker()) => {}
            Some(waits) => waits.waker = cx.waker().clone(),
            None => waiting.push(Waits { number, read_in: turn.read_in, waker: cx.waker().clone() }),
        }
        Poll::Pending
    }

    /// Forgets a stream that has ended: a waker keeps the memory of its task.
    pub(super) fn forget(&self, turn: &Turn) {
        if let Some(number) = turn.number {
            self.waiting.borrow_mut().retain(|waits| waits.number != number);
        }
    }

    /// Counts bytes that a stream has read from its backend.
    pub(super) fn hold(&self, turn: &mut Turn, more: usize) {
        turn.read_in = self.round.get();
        turn.taken = turn.taken.saturating_add(more);
        self.held.set(self.held.get() + more);
    }

    /// Counts bytes that a stream has handed to the frame layer.
    pub(super) fn let_go(&self, less: usize) {
        self.held.set(self.held.get() - less);
    }

    /// Counts bytes that the frame layer has taken.
    pub(super) fn queue(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// Counts bytes that the client's socket has taken.
    pub(super) fn written(&self, bytes: usize) {
        self.queued.set(self.queued.get().saturating_sub(bytes));
        if self.is_blocked.replace(false) {
            self.wake_all();
        }
    }

    /// Records that the client's socket is full.
    pub(super) fn block(&self) {
        self.is_blocked.set(true);
    }

    /// To be called when the frame layer has sent all it can: if the socket is not full, no bytes are left.
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
        let mut waiting = self.waiting.take();
        self.round.set(self.round.get() + 1);
        let free = (self.limit / 2).saturating_sub(self.queued.get());
        self.turn.set((waiting.len() > 1).then(|| (free / waiting.len()).clamp(LEAST_TURN, MOST)));
        waiting.sort_by_key(|waits| waits.read_in);
        for waits in waiting {
            waits.waker.wake();
        }
    }

    /// Returns the flow-control window of an HTTP/2 backend for one more request. Only this window limits the bytes
    /// that wait in the frame layer of the backend's connection.
    pub(super) fn take_width(&self) -> Width {
        if self.wide.get() >= MOST_WIDE {
            return Width::Narrow;
        }
        self.wide.set(self.wide.get() + 1);
        Width::Wide
    }

    pub(super) fn give_width(&self, width: Width) {
        if width == Width::Wide {
            self.wide.set(self.wide.get() - 1);
        }
    }

    /// Counts the head of a new request, if the heads of the others leave room for it.
    pub(super) fn begin(&self, head: usize) -> Admission {
        let heads = self.heads.get().saturating_add(head);
        // One may be as large as the limits of a request let it.
        if heads > self.most_heads && self.heads.get() > 0 {
            self.full_at.set(Some(self.heads.get()));
            return Admission::TooMuch;
        }
        self.full_at.set(None);
        self.open.set(self.open.get() + 1);
        self.heads.set(heads);
        Admission::Begun
    }

    /// Whether the request that [`Self::begin`] has refused last would be refused again.
    pub(super) fn is_full(&self) -> bool {
        self.full_at.get().is_some_and(|full| self.heads.get() >= full)
    }

    /// To be called when the request that [`Self::begin`] has refused last is gone: another one may fit.
    pub(super) fn forget_refusal(&self) {
        self.full_at.set(None);
    }

    /// Ends a request with a head of `head` bytes.
    pub(super) fn end(&self, head: usize) {
        self.open.set(self.open.get() - 1);
        self.heads.set(self.heads.get() - head);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The request may begin; [`Backlog::end`] must be called when it ends.
    Begun,
    /// The request may not begin: the heads of all open requests together would be too large.
    TooMuch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_streams_may_hold_together_is_bounded_and_never_nothing() {
        let backlog = Backlog::new(1024 * 1024, 0);
        for _ in 0..100 {
            backlog.hold(&mut Turn::default(), backlog.room_of_head());
        }
        assert!(backlog.all() <= 1024 * 1024 / HELD_PART + 100 * LEAST_OF_HEAD, "{}", backlog.all());
        for _ in 0..100 {
            backlog.queue(backlog.room());
        }
        assert!(backlog.all() <= 1024 * 1024 + 100 * LEAST, "{}", backlog.all());
        assert_eq!((backlog.room_of_head(), backlog.room()), (LEAST_OF_HEAD, LEAST));
    }

    #[test]
    fn a_stream_beside_two_others_reads_less_at_once() {
        let backlog = Backlog::new(1024 * 1024, usize::MAX);
        for _ in 0..FEW {
            assert_eq!(backlog.begin(1), Admission::Begun);
        }
        assert_eq!(backlog.room(), MOST);
        assert_eq!(backlog.begin(1), Admission::Begun);
        assert_eq!(backlog.room(), MOST_OF_MANY);
        backlog.end(1);
        assert_eq!(backlog.room(), MOST);
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
        let mut turn = Turn::default();
        let mut flows = |backlog: &Backlog| backlog.poll_flows(&mut turn, &mut cx);
        backlog.queue(499);
        assert!(flows(&backlog).is_ready());
        backlog.queue(501);
        backlog.block();
        assert!(flows(&backlog).is_pending() && flows(&backlog).is_pending());
        assert_eq!(backlog.waiting.borrow().len(), 1);
        backlog.turned();
        assert_eq!(backlog.all(), 1000);
        backlog.written(10);
        assert!(backlog.waiting.borrow().is_empty() && flows(&backlog).is_pending());
        backlog.turned();
        assert!(backlog.waiting.borrow().is_empty() && flows(&backlog).is_ready());
        assert_eq!(backlog.all(), 0);
    }

    #[test]
    fn streams_that_end_while_they_wait_leave_nothing_behind() {
        let backlog = Backlog::new(1000, 0);
        backlog.queue(1000);
        backlog.block();
        let mut cx = Context::from_waker(Waker::noop());
        let mut stays = Turn::default();
        assert!(backlog.poll_flows(&mut stays, &mut cx).is_pending());
        for _ in 0..10_000 {
            let mut turn = Turn::default();
            assert!(backlog.poll_flows(&mut turn, &mut cx).is_pending());
            backlog.forget(&turn);
        }
        backlog.forget(&Turn::default());
        assert_eq!(backlog.waiting.borrow().len(), 1);
    }

    /// Tasks that run in the order in which they were woken, and a socket that takes a little at a time.
    #[test]
    fn streams_that_wait_for_one_socket_read_equal_parts_however_much_one_could_read() {
        const STREAMS: usize = 21;
        struct Wakes(usize, std::sync::Arc<std::sync::Mutex<std::collections::VecDeque<usize>>>);
        impl std::task::Wake for Wakes {
            fn wake(self: std::sync::Arc<Self>) {
                let mut queue = self.1.lock().unwrap();
                if !queue.contains(&self.0) {
                    queue.push_back(self.0);
                }
            }
        }
        let backlog = Backlog::new(1024 * 1024, 0);
        let queue = std::sync::Arc::new(std::sync::Mutex::new(
            (0..STREAMS).collect::<std::collections::VecDeque<_>>(),
        ));
        let wakers: Vec<Waker> =
            (0..STREAMS).map(|at| std::sync::Arc::new(Wakes(at, queue.clone())).into()).collect();
        let mut turns: Vec<Turn> = (0..STREAMS).map(|_| Turn::default()).collect();
        let mut read = [0; STREAMS];
        for _ in 0..4_000 {
            // The lock is free again while a task runs, which may wake others.
            let next = || queue.lock().unwrap().pop_front();
            while let Some(at) = next() {
                let mut cx = Context::from_waker(&wakers[at]);
                while backlog.poll_flows(&mut turns[at], &mut cx).is_ready() {
                    // The first one could read much more than the others at once.
                    let most = if at == 0 { 64 * 1024 } else { 16 * 1024 };
                    let count = backlog.room().min(most).min(backlog.left(&turns[at]));
                    backlog.hold(&mut turns[at], count);
                    backlog.let_go(count);
                    backlog.queue(count);
                    read[at] += count;
                }
                backlog.block();
            }
            backlog.written(40_000);
        }
        let mean = read.iter().sum::<usize>() / STREAMS;
        assert!(mean > 1_000_000 && read.iter().all(|one| one.abs_diff(mean) < mean / 10), "{read:?}");
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
        assert!(!backlog.is_full());
        assert_eq!(backlog.begin(60), Admission::TooMuch);
        assert!(backlog.is_full());
        backlog.end(60);
        assert!(!backlog.is_full());
        assert_eq!(backlog.begin(100), Admission::Begun);
        backlog.end(100);
        assert_eq!(backlog.begin(101), Admission::Begun, "one alone");
        assert_eq!(backlog.begin(1), Admission::TooMuch);
    }
}
