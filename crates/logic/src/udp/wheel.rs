//! Hashed timer wheel: the idle timeouts of all flows, without an allocation for each.
//!
//! The time is divided into ticks, and each slot of the wheel holds the numbers whose time falls into its tick. A number
//! may be due later than its slot says: the caller arms it again then. So activity needs no change of the wheel.

use std::time::{Duration, Instant};

use super::chain::{Chain, Links};

const SLOTS: usize = 256;

/// Ticks of one idle timeout: fewer than half of the slots, so that no number is a turn of the wheel ahead.
const TICKS: u32 = 120;

/// Shortest tick, and so the largest delay of a short timeout.
const SHORTEST: Duration = Duration::from_millis(5);

const NOWHERE: u16 = u16::MAX;

pub(super) struct Wheel {
    slots: Vec<Chain>,
    links: Links,
    /// Slot of each number, or [`NOWHERE`].
    places: Vec<u16>,
    start: Instant,
    tick: Duration,
    /// First tick whose slot was not emptied yet.
    next: u64,
    armed: usize,
}

impl Wheel {
    /// A wheel for times that are at most about `longest` ahead.
    pub(super) fn new(longest: Duration, now: Instant) -> Self {
        Self {
            slots: vec![Chain::default(); SLOTS],
            links: Links::default(),
            places: Vec::new(),
            start: now,
            tick: (longest / TICKS).max(SHORTEST),
            next: 0,
            armed: 0,
        }
    }

    /// Makes a number due at `due`, or up to one tick later.
    pub(super) fn arm(&mut self, number: u32, due: Instant) {
        self.disarm(number);
        let tick = self.ticks(due) + 1;
        if self.armed == 0 {
            // The wheel stood still while it was empty.
            self.next = self.next.max(tick.saturating_sub(u64::from(TICKS) + 2));
        }
        // Never in the slot that is being emptied, unless its tick is meant.
        let slot = (tick.clamp(self.next, self.next + SLOTS as u64 - 1) % SLOTS as u64) as usize;
        let at = number as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, NOWHERE);
        }
        self.places[at] = slot as u16;
        self.links.append(&mut self.slots[slot], number);
        self.armed += 1;
    }

    pub(super) fn disarm(&mut self, number: u32) {
        let Some(place) = self.places.get_mut(number as usize).filter(|place| **place != NOWHERE) else {
            return;
        };
        self.links.remove(&mut self.slots[usize::from(*place)], number);
        *place = NOWHERE;
        self.armed -= 1;
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let nanos = self.tick.as_nanos().saturating_mul(u128::from(self.next));
        let after = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        (self.armed > 0).then(|| self.start + after)
    }

    /// Removes a number whose tick is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u32> {
        let until = self.ticks(now);
        if self.armed == 0 {
            return None;
        }
        // After a long pause every slot is emptied once.
        self.next = self.next.max(until.saturating_sub(SLOTS as u64 - 1));
        while self.next <= until {
            let slot = (self.next % SLOTS as u64) as usize;
            if let Some(number) = self.slots[slot].first() {
                self.disarm(number);
                return Some(number);
            }
            self.next += 1;
        }
        None
    }

    /// Frees the memory of a wheel that is empty.
    pub(super) fn give_memory_back(&mut self) {
        self.links = Links::default();
        self.places = Vec::new();
    }

    fn ticks(&self, time: Instant) -> u64 {
        let passed = time.saturating_duration_since(self.start).as_nanos() / self.tick.as_nanos();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}
