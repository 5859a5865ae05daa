//! Sessions with which a half-open backend is tried. All workers share them; only half-open backends use them.
//! `crates/logic/src/health/breaker.rs` decides, `crates/proxy/src/ejection.rs` counts.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct Breaker {
    /// Trial sessions that have not ended.
    under_way: AtomicU32,
    /// Sessions that went well since the backend became half-open.
    passed: AtomicU32,
    /// Whether an event has said that the backend is not ejected although it should be.
    stop_told: AtomicBool,
}

impl Breaker {
    /// Sessions that the backend may still get, of `most` at a time.
    pub fn free(&self, most: u32) -> u32 {
        most.saturating_sub(self.under_way.load(Relaxed))
    }

    /// Takes one of `most` trial sessions; [`Self::end`] gives it back. `false` if none is free.
    pub fn begin(&self, most: u32) -> bool {
        let next = |under_way| (under_way < most).then_some(under_way + 1);
        self.under_way.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    pub fn end(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }

    /// Counts a session that went well, and returns how many did.
    pub fn pass(&self) -> u32 {
        self.passed.fetch_add(1, Relaxed).saturating_add(1)
    }

    pub fn passed(&self) -> u32 {
        self.passed.load(Relaxed)
    }

    /// Begins a new time of trials.
    pub(crate) fn restart(&self) {
        self.passed.store(0, Relaxed);
        self.stop_told.store(false, Relaxed);
    }

    /// Returns `true` once until [`Self::forget_stop`]: it is to be said that an ejection was stopped.
    pub fn tell_stop(&self) -> bool {
        !self.stop_told.swap(true, Relaxed)
    }

    pub fn forget_stop(&self) {
        self.stop_told.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_few_at_a_time_and_counted_anew_each_time() {
        let breaker = Breaker::default();
        assert!(breaker.begin(2) && breaker.begin(2) && !breaker.begin(2));
        assert_eq!(breaker.free(2), 0);
        breaker.end();
        assert_eq!((breaker.free(2), breaker.pass(), breaker.pass()), (1, 1, 2));
        breaker.restart();
        assert_eq!((breaker.passed(), breaker.free(2)), (0, 1), "a session that still runs counts");
        assert!(breaker.tell_stop() && !breaker.tell_stop());
    }
}
