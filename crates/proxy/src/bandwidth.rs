//! Holds a session back to its limits of bytes a second. `crates/logic/src/bandwidth.rs` decides,
//! `crates/state/src/bandwidth.rs` has the buckets.
//!
//! A session with a limit reads one piece, waits until the piece may go, writes it, and only then reads again: what it
//! holds is no more than a session with a slow peer does, and the side that sends is stopped by its own window. Its
//! stream has the limits (`crates/proxy/src/stream/limited.rs`), so a session without any pays for nothing.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use logic::balance::StickyKey;
use logic::bandwidth::{Bandwidth, Limit, Ticket};
use state::ListenerState;
use state::bandwidth::{Buckets, Taken, Way};
use tokio::time::Sleep;

/// Longest time for which a session that waits does not look whether both sides are still there, and whether sessions
/// before it have gone.
const LOOK: Duration = Duration::from_millis(250);

/// Limits of one session.
pub(crate) struct Limits {
    pub(crate) down: Option<Pace>,
    pub(crate) up: Option<Pace>,
}

/// What a session's limits are made of.
pub(crate) struct Begins<'a> {
    pub(crate) bandwidth: Bandwidth,
    pub(crate) listener: &'a Arc<ListenerState>,
    /// Index of the worker.
    pub(crate) worker: usize,
    /// Start of the process.
    pub(crate) started: Instant,
    /// `None` for a client without an address.
    pub(crate) source: Option<StickyKey>,
}

impl Limits {
    pub(crate) fn new(begins: &Begins<'_>) -> Self {
        let Begins { bandwidth, listener, worker, started, source } = *begins;
        let buckets = listener.bandwidth.of(bandwidth, source, started.elapsed());
        let pace = |way, limit: Option<Limit>| {
            let piece = limit?.piece();
            let (buckets, listener) = (buckets.clone(), listener.clone());
            Some(Pace {
                way,
                buckets,
                listener,
                worker,
                started,
                piece,
                turn: RefCell::default(),
                asked: Cell::new(Asked::No),
            })
        };
        Self { down: pace(Way::Down, bandwidth.down), up: pace(Way::Up, bandwidth.up) }
    }
}

/// The limit of one session in one direction.
pub(crate) struct Pace {
    way: Way,
    buckets: Arc<Buckets>,
    listener: Arc<ListenerState>,
    worker: usize,
    started: Instant,
    piece: usize,
    turn: RefCell<Turn>,
    asked: Cell<Asked>,
}

/// Whether the receiver was sent a byte before its turn, to learn whether it is still there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    Yes,
}

/// What a session with a piece that waits has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    GoesOn,
    /// The receiver sends no more: send one byte of the piece, which it answers with a reset if it has closed.
    Ask,
    /// The receiver is gone.
    Over,
}

#[derive(Default)]
struct Turn {
    state: TurnState,
    sleep: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum TurnState {
    /// No piece is there.
    #[default]
    None,
    /// The piece may go at this time.
    Waits { bytes: usize, due: Instant, ticket: Ticket },
    /// The piece may go.
    Goes,
}

impl Pace {
    /// Most bytes to read at once.
    pub(crate) fn piece(&self) -> usize {
        self.piece
    }

    /// Waits until a piece of `bytes` may go. To be called again with the same piece until [`Self::gone`].
    pub(crate) fn poll_turn(&self, cx: &mut Context<'_>, bytes: usize) -> Poll<()> {
        let mut turn = self.turn.borrow_mut();
        let (mut due, ticket) = match turn.state {
            TurnState::Goes => return Poll::Ready(()),
            TurnState::Waits { due, ticket, .. } => (due, ticket),
            TurnState::None => {
                let now = Instant::now();
                match self.buckets.take(self.way, bytes, now.saturating_duration_since(self.started)) {
                    Taken::Goes => {
                        turn.state = TurnState::Goes;
                        return Poll::Ready(());
                    }
                    Taken::Waits(ticket, wait) => {
                        self.count(bytes);
                        let due = now + wait.min(MOST_WAIT);
                        turn.state = TurnState::Waits { bytes, due, ticket };
                        (due, ticket)
                    }
                }
            }
        };
        loop {
            let now = Instant::now();
            // It is time to look whether those before it are still there.
            if turn.sleep.as_ref().is_some_and(|sleep| sleep.is_elapsed()) {
                let since_start = now.saturating_duration_since(self.started);
                let earlier = self.buckets.earlier(self.way, ticket, since_start);
                due = due.checked_sub(earlier).unwrap_or(now);
                turn.state = TurnState::Waits { bytes, due, ticket };
            }
            if now >= due {
                self.buckets.goes(self.way, ticket);
                turn.state = TurnState::Goes;
                return Poll::Ready(());
            }
            let next: tokio::time::Instant = due.min(now + LOOK).into();
            match &mut turn.sleep {
                Some(sleep) if sleep.is_elapsed() || sleep.deadline() > next => sleep.as_mut().reset(next),
                Some(_) => {}
                none => *none = Some(Box::pin(tokio::time::sleep_until(next))),
            }
            let sleep = turn.sleep.as_mut().map(|sleep| sleep.as_mut().poll(cx));
            if sleep.is_none_or(|sleep| sleep.is_pending()) {
                return Poll::Pending;
            }
        }
    }

    /// What to do about a receiver that has sent a FIN while a piece waits. A byte is asked of a session only once: what a
    /// receiver gets by ending its sending direction is next to nothing.
    pub(crate) fn ask_once(&self) -> Wait {
        match self.asked.replace(Asked::Yes) {
            Asked::No => Wait::Ask,
            Asked::Yes => Wait::GoesOn,
        }
    }

    /// Notes that the piece was written.
    pub(crate) fn gone(&self) {
        self.turn.borrow_mut().state = TurnState::None;
    }

    /// Whether a piece is held.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.turn.borrow().state, TurnState::Waits { .. })
    }

    fn count(&self, bytes: usize) {
        let counters = self.listener.counters.of(self.worker);
        counters.slowed.add(1);
        counters.slowed_bytes.add(bytes as u64);
    }
}

/// No real limit makes a piece wait longer; an instant that far away can be computed.
const MOST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Drop for Pace {
    fn drop(&mut self) {
        if let TurnState::Waits { bytes, ticket, .. } = self.turn.get_mut().state {
            let now = Instant::now().saturating_duration_since(self.started);
            self.buckets.give_back(self.way, ticket, bytes, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::num::NonZeroU64;

    use logic::bandwidth::Per;
    use state::State;

    use super::*;

    fn limits(down: u64, burst: u64, per: Per) -> impl Fn() -> Limits {
        let (rate, burst) = (NonZeroU64::new(down).unwrap(), NonZeroU64::new(burst).unwrap());
        let bandwidth = Bandwidth { down: Some(Limit { rate, burst }), up: None, per };
        let listener = State::new(1).known().listener(&"web".into());
        let started = Instant::now();
        move || Limits::new(&Begins { bandwidth, listener: &listener, worker: 0, started, source: None })
    }

    async fn turn(pace: &Pace, bytes: usize) {
        poll_fn(|cx| pace.poll_turn(cx, bytes)).await;
        pace.gone();
    }

    #[tokio::test]
    async fn pieces_take_at_least_the_time_that_the_limit_implies() {
        let limits = limits(100_000, 1000, Per::Session)();
        let pace = limits.down.as_ref().unwrap();
        assert!(limits.up.is_none());
        let began = Instant::now();
        for _ in 0..6 {
            turn(pace, 1000).await;
        }
        assert!(began.elapsed() >= Duration::from_millis(50));
        let counters = pace.listener.counters.of(0);
        assert!((1..=5).contains(&counters.slowed.get()));
        assert_eq!(counters.slowed_bytes.get(), 1000 * counters.slowed.get());
    }

    #[tokio::test]
    async fn a_piece_of_a_session_that_ended_makes_no_other_wait() {
        let limits = limits(1024, 1024, Per::Listener);
        let (one, other) = (limits(), limits());
        let (one_down, down) = (one.down.as_ref().unwrap(), other.down.as_ref().unwrap());
        turn(down, 1024).await;
        let waiting = poll_fn(|cx| Poll::Ready(one_down.poll_turn(cx, 1_000_000))).await;
        assert!(waiting.is_pending() && one_down.waits() && !down.waits());
        drop(one);
        turn(down, 1).await;
    }

    #[tokio::test]
    async fn a_session_behind_many_that_have_ended_no_longer_waits_for_them() {
        let limits = limits(1000, 1000, Per::Listener);
        let before: Vec<_> = (0..100).map(|_| limits()).collect();
        for one in &before {
            let _ = poll_fn(|cx| Poll::Ready(one.down.as_ref().unwrap().poll_turn(cx, 1000))).await;
        }
        let last = limits();
        let last = last.down.as_ref().unwrap();
        assert!(poll_fn(|cx| Poll::Ready(last.poll_turn(cx, 1000))).await.is_pending());
        drop(before);
        // The first of them has gone, 98 have ended: one second is left of a hundred.
        tokio::time::timeout(Duration::from_secs(10), turn(last, 1000)).await.unwrap();
    }
}
