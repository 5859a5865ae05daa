//! The pieces that wait for one bucket, in their order.
//!
//! A piece is told once how long to wait. If one before it leaves without going, those behind may go earlier by its
//! bytes: they ask for that from time to time.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

/// Place of a piece that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// Of the last piece that has joined.
    last: Ticket,
    pieces: BTreeMap<Ticket, Piece>,
    /// Pieces that have left, until [`Self::sweep`], in the order in which they did.
    left: Vec<Left>,
    /// Time of the last sweep since the start of the process.
    swept: Duration,
}

/// A piece that waits.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Limit in bytes a second when the session was told how long the piece waits: the wait was calculated with it.
    rate: NonZeroU64,
    /// Bytes before it that have left since it last asked.
    left: u64,
}

/// A piece that has left.
#[derive(Clone, Copy, Debug)]
struct Left {
    ticket: Ticket,
    bytes: u64,
    /// The last piece that waited at that time. Those that came later did not wait for it.
    last: Ticket,
}

/// Time between two looks at all pieces, so that many that leave one after another cost little.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Number of pieces that have left which is not exceeded between two sweeps.
const MOST_LEFT: usize = 4096;

impl Waiting {
    /// Pieces get tickets after this one.
    #[must_use]
    pub fn after(last: Ticket) -> Self {
        Self { last, ..Self::default() }
    }

    /// The ticket of the last piece that has joined.
    #[must_use]
    pub fn last(&self) -> Ticket {
        self.last
    }

    /// Adds a piece whose wait was calculated with a limit of `rate` bytes a second.
    pub fn join(&mut self, rate: NonZeroU64) -> Ticket {
        self.last.0 += 1;
        self.pieces.insert(self.last, Piece { rate, left: 0 });
        self.last
    }

    /// Whether the piece waits here.
    #[must_use]
    pub fn has(&self, ticket: Ticket) -> bool {
        self.pieces.contains_key(&ticket)
    }

    /// The piece goes.
    pub fn goes(&mut self, ticket: Ticket) {
        self.pieces.remove(&ticket);
        if self.pieces.is_empty() {
            self.left = Vec::new();
        }
    }

    /// The piece of `bytes` leaves without going.
    pub fn leaves(&mut self, ticket: Ticket, bytes: usize, now: Duration) {
        if self.pieces.remove(&ticket).is_none() {
            return;
        }
        if self.pieces.is_empty() {
            self.left = Vec::new();
            return;
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.left.push(Left { ticket, bytes, last: self.last });
        if self.left.len() >= MOST_LEFT {
            self.sweep(now);
        }
    }

    /// How much earlier a piece may go since it last asked.
    pub fn earlier(&mut self, ticket: Ticket, now: Duration) -> Duration {
        if !self.left.is_empty() && now.saturating_sub(self.swept) >= SWEEP_EVERY {
            self.sweep(now);
        }
        let Some(piece) = self.pieces.get_mut(&ticket) else { return Duration::ZERO };
        let bytes = std::mem::take(&mut piece.left);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(piece.rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn sweep(&mut self, now: Duration) {
        self.swept = now;
        let by_last = std::mem::take(&mut self.left);
        let mut by_ticket = by_last.clone();
        by_ticket.sort_unstable_by_key(|left| left.ticket);
        let (mut by_ticket, mut by_last) = (by_ticket.into_iter().peekable(), by_last.into_iter().peekable());
        let mut before = 0_u128;
        for (ticket, piece) in &mut self.pieces {
            while let Some(left) = by_ticket.next_if(|left| left.ticket < *ticket) {
                before += u128::from(left.bytes);
            }
            while let Some(left) = by_last.next_if(|left| left.last < *ticket) {
                before -= u128::from(left.bytes);
            }
            piece.left = piece.left.saturating_add(u64::try_from(before).unwrap_or(u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: NonZeroU64 = NonZeroU64::new(1000).unwrap();

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn those_behind_one_that_leaves_go_earlier_and_those_before_it_do_not() {
        let mut waiting = Waiting::default();
        let [first, second, third, fourth] = [(); 4].map(|()| waiting.join(RATE));
        waiting.leaves(second, 500, millis(1000));
        waiting.leaves(third, 200, millis(1000));
        assert_eq!(waiting.earlier(first, millis(1000)), millis(0));
        assert_eq!(waiting.earlier(fourth, millis(1000)), millis(700));
        assert_eq!(waiting.earlier(fourth, millis(2000)), millis(0), "it is told once");
        waiting.goes(first);
        assert_eq!(waiting.earlier(fourth, millis(3000)), millis(0));
    }

    #[test]
    fn one_that_came_after_another_had_left_gains_nothing() {
        let mut waiting = Waiting::default();
        let [_, second] = [(); 2].map(|()| waiting.join(RATE));
        waiting.leaves(second, 500, millis(1000));
        let third = waiting.join(RATE);
        assert_eq!(waiting.earlier(third, millis(2000)), millis(0));
    }

    #[test]
    fn what_is_remembered_of_those_that_left_is_bounded() {
        let mut waiting = Waiting::default();
        let first = waiting.join(RATE);
        for _ in 0..100_000 {
            let ticket = waiting.join(RATE);
            waiting.leaves(ticket, usize::MAX, millis(0));
            assert!(waiting.left.len() < MOST_LEFT && waiting.pieces.len() == 1);
        }
        let last = waiting.join(RATE);
        waiting.goes(first);
        waiting.leaves(last, 1, millis(0));
        assert!(waiting.left.is_empty() && waiting.pieces.is_empty());
    }

    #[test]
    fn nothing_is_remembered_after_the_last_piece_has_gone() {
        let mut waiting = Waiting::default();
        let [first, second] = [(); 2].map(|()| waiting.join(RATE));
        waiting.leaves(second, 1, millis(0));
        waiting.goes(first);
        assert_eq!(waiting.left.capacity(), 0);
    }

    #[test]
    fn a_piece_goes_earlier_by_the_time_that_it_was_told_whatever_the_rate_is_now() {
        let mut waiting = Waiting::default();
        let [first, second] = [RATE, NonZeroU64::new(100).unwrap()].map(|rate| {
            let gone = waiting.join(rate);
            let stays = waiting.join(rate);
            waiting.leaves(gone, 500, millis(0));
            stays
        });
        assert_eq!(waiting.earlier(first, millis(1000)), millis(500));
        assert_eq!(waiting.earlier(second, millis(1000)), millis(5000));
    }

    #[test]
    fn tickets_of_a_limit_that_was_removed_are_none_of_the_next_one() {
        let mut old = Waiting::default();
        let ticket = old.join(RATE);
        let mut waiting = Waiting::after(old.last());
        let [first, second] = [(); 2].map(|()| waiting.join(RATE));
        waiting.leaves(ticket, 500, millis(0));
        waiting.goes(ticket);
        assert!(waiting.has(first) && !waiting.has(ticket));
        assert_eq!(waiting.earlier(second, millis(1000)), millis(0));
    }
}
