//! Waits with a time limit.

use std::time::{Duration, Instant};

/// Factor for all limits of waits: an idle machine meets the limits, a machine that also builds is slower.
const BUSY: u32 = 3;

/// Polls `condition` until it returns a value. Panics with `what` after `BUSY` times `limit`.
#[track_caller]
pub fn eventually<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = limit * BUSY;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}
