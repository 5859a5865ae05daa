//! How much of a core the control thread may take: a tenth. A client that floods waits, traffic does not.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::state::lock;

/// Work of so much time may be done at once after a pause.
const BURST: Duration = Duration::from_millis(500);

/// Time that must pass for each unit of work.
const STRETCH: u32 = 10;

/// The least that anything costs, whatever the clock says.
const LEAST: Duration = Duration::from_micros(100);

/// A bucket that fills with time and is emptied by work (the generic cell rate algorithm).
#[derive(Debug)]
pub(super) struct Pace {
    /// When everything done so far is paid for.
    paid_at: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { paid_at: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    /// Waits until more may be done.
    pub(super) async fn wait(&self) {
        let paid_at = *lock(&self.paid_at);
        if let Some(ahead) = paid_at.checked_duration_since(Instant::now()).filter(|ahead| *ahead > BURST) {
            sleep_until((Instant::now() + (ahead - BURST)).into()).await;
        }
    }

    /// Enters work that was done.
    pub(super) fn charge(&self, took: Duration) {
        let cost = took.max(LEAST).min(Duration::from_secs(1)) * STRETCH;
        let mut paid_at = lock(&self.paid_at);
        *paid_at = (*paid_at).max(Instant::now()) + cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_flood_gets_a_tenth_of_the_time() {
        let (pace, start) = (Pace::default(), Instant::now());
        let mut worked = Duration::ZERO;
        while start.elapsed() < Duration::from_millis(1500) {
            pace.wait().await;
            pace.charge(Duration::from_millis(10));
            worked += Duration::from_millis(10);
        }
        assert!(worked >= Duration::from_millis(50), "{worked:?}");
        // A tenth of 1.5 s, a tenth of the burst, and the step that was begun.
        assert!(worked <= Duration::from_millis(230), "{worked:?}");
    }

    #[tokio::test]
    async fn a_person_never_waits() {
        let (pace, start) = (Pace::default(), Instant::now());
        for _ in 0..20 {
            pace.wait().await;
            pace.charge(Duration::from_millis(1));
        }
        assert!(start.elapsed() < Duration::from_millis(200));
    }
}
