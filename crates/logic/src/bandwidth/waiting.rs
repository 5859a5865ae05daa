//! The pieces that wait for one bucket, in their order.
//!
//! A piece is told once how long to wait. If one before it leaves without going, those behind may go earlier by its
//! bytes: they ask for that from time to time.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

/// Place of a piece that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Debug, Default)]
pub struct Waiting {
    next: u64,
    /// For each piece, the bytes before it that have left since it last asked.
    pieces: BTreeMap<Ticket, u64>,
    /// Pieces that have left, until [`Self::sweep`], in the order in which they did.
    left: Vec<Left>,
    /// Time of the last sweep since the start of the process.
    swept: Duration,
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
    pub fn join(&mut self) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.pieces.insert(ticket, 0);
        ticket
    }

    /// The piece goes.
    pub fn goes(&mut self, ticket: Ticket) {
        self.pieces.remove(&ticket);
    }

    /// The piece of `bytes` leaves without going.
    pub fn leaves(&mut self, ticket: Ticket, bytes: usize, now: Duration) {
        self.pieces.remove(&ticket);
        if self.pieces.is_empty() {
            self.left = Vec::new();
            return;
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.left.push(Left { ticket, bytes, last: Ticket(self.next) });
        if self.left.len() >= MOST_LEFT {
            self.sweep(now);
        }
    }

    /// How much earlier a piece may go since it last asked, at `rate` bytes a second.
    pub fn earlier(&mut self, ticket: Ticket, rate: NonZeroU64, now: Duration) -> Duration {
        if !self.left.is_empty() && now.saturating_sub(self.swept) >= SWEEP_EVERY {
            self.sweep(now);
        }
        let bytes = self.pieces.get_mut(&ticket).map(std::mem::take).unwrap_or_default();
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn sweep(&mut self, now: Duration) {
        self.swept = now;
        let by_last = std::mem::take(&mut self.left);
        let mut by_ticket = by_last.clone();
        by_ticket.sort_unstable_by_key(|left| left.ticket);
        let (mut by_ticket, mut by_last) = (by_ticket.into_iter().peekable(), by_last.into_iter().peekable());
        let mut before = 0_u128;
        for (ticket, bytes) in &mut self.pieces {
            while let Some(left) = by_ticket.next_if(|left| left.ticket < *ticket) {
                before += u128::from(left.bytes);
            }
            while let Some(left) = by_last.next_if(|left| left.last < *ticket) {
                before -= u128::from(left.bytes);
            }
            *bytes = bytes.saturating_add(u64::try_from(before).unwrap_or(u64::MAX));
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
        let [first, second, third, fourth] = [(); 4].map(|()| waiting.join());
        waiting.leaves(second, 500, millis(1000));
        waiting.leaves(third, 200, millis(1000));
        assert_eq!(waiting.earlier(first, RATE, millis(1000)), millis(0));
        assert_eq!(waiting.earlier(fourth, RATE, millis(1000)), millis(700));
        assert_eq!(waiting.earlier(fourth, RATE, millis(2000)), millis(0), "it is told once");
        waiting.goes(first);
        assert_eq!(waiting.earlier(fourth, RATE, millis(3000)), millis(0));
    }

    #[test]
    fn one_that_came_after_another_had_left_gains_nothing() {
        let mut waiting = Waiting::default();
        let [_, second] = [(); 2].map(|()| waiting.join());
        waiting.leaves(second, 500, millis(1000));
        let third = waiting.join();
        assert_eq!(waiting.earlier(third, RATE, millis(2000)), millis(0));
    }

    #[test]
    fn what_is_remembered_of_those_that_left_is_bounded() {
        let mut waiting = Waiting::default();
        let first = waiting.join();
        for _ in 0..100_000 {
            let ticket = waiting.join();
            waiting.leaves(ticket, usize::MAX, millis(0));
            assert!(waiting.left.len() < MOST_LEFT && waiting.pieces.len() == 1);
        }
        let last = waiting.join();
        waiting.goes(first);
        waiting.leaves(last, 1, millis(0));
        assert!(waiting.left.is_empty() && waiting.pieces.is_empty());
    }
}
