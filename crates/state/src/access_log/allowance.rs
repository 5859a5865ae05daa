//! Limits the lines about clients that are closed as soon as they come: such a client costs its sender one packet, and
//! must not fill a disk.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Lines in each second. What is beyond is only counted.
pub const LINES_PER_SECOND: u64 = 100;

/// The second, counted from the start of the process, and the lines of it.
#[derive(Debug, Default)]
pub struct Allowance(AtomicU64);

impl Allowance {
    /// Returns true if a line may be written at this time since the start of the process.
    pub fn take(&self, since_start: Duration) -> bool {
        let second = (since_start.as_secs() + 1) << 32;
        let next = |kept: u64| match kept.checked_sub(second) {
            Some(lines) if lines >= LINES_PER_SECOND => None,
            Some(_) => Some(kept + 1),
            None => Some(second + 1),
        };
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_lines_are_written_in_each_second() {
        let allowance = Allowance::default();
        for second in [0, 1, 1, 7] {
            let at = Duration::from_millis(second * 1000 + 500);
            let written = (0..1000).filter(|_| allowance.take(at)).count();
            assert!(written == 100 || second == 1 && written == 0, "{written} in second {second}");
        }
    }
}
