//! `penstock serve --commit-confirm`: the services of `dsr` listeners are given up unless an operator confirms the start
//! in time. A mistake in them may cut the operator off from this machine.

use std::time::{Duration, Instant};

use text::units;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The process was started without a time limit, or an operator has confirmed the start.
    #[default]
    Settled,
    Waiting {
        until: Instant,
        limit: Duration,
    },
    /// No operator has confirmed in time: no service forwards packets until the next start.
    GivenUp,
}

#[derive(Default)]
pub struct StartConfirmation(watch::Sender<Phase>);

impl StartConfirmation {
    pub fn begin(&self, limit: Duration, now: Instant) {
        self.0.send_replace(Phase::Waiting { until: now + limit, limit });
    }

    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Time of [`Self::expire`].
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase() {
            Phase::Waiting { until, .. } => Some(until),
            Phase::Settled | Phase::GivenUp => None,
        }
    }

    /// An operator has confirmed. Returns the phase before.
    pub fn confirm(&self) -> Phase {
        let before = self.phase();
        if matches!(before, Phase::Waiting { .. }) {
            self.0.send_replace(Phase::Settled);
        }
        before
    }

    /// Gives the services up if the time to confirm is over. Returns that time limit.
    pub fn expire(&self, now: Instant) -> Option<Duration> {
        match self.phase() {
            Phase::Waiting { until, limit } if until <= now => {
                self.0.send_replace(Phase::GivenUp);
                Some(limit)
            }
            _ => None,
        }
    }

    /// Waits until the services are given up.
    pub async fn given_up(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|phase| *phase == Phase::GivenUp).await;
    }

    /// Whole seconds that are left; `None` if nothing waits.
    pub fn seconds_left(&self, now: Instant) -> Option<u64> {
        let left = self.deadline()?.saturating_duration_since(now);
        Some(left.as_millis().div_ceil(1000) as u64)
    }

    /// The same as a sentence.
    pub fn line(&self, now: Instant) -> Option<String> {
        let left = units::duration(Duration::from_secs(self.seconds_left(now)?));
        Some(format!(
            "the services of dsr listeners are given up in {left} unless `penstock ctl confirm` comes"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_by_a_confirmation_or_by_time_and_not_by_both() {
        let (start, now, limit) = (StartConfirmation::default(), Instant::now(), Duration::from_secs(60));
        assert_eq!((start.confirm(), start.line(now)), (Phase::Settled, None));
        start.begin(limit, now);
        assert_eq!(start.seconds_left(now + limit / 2), Some(30));
        assert_eq!(start.expire(now + limit / 2), None);
        assert_eq!(start.confirm(), Phase::Waiting { until: now + limit, limit });
        assert_eq!((start.expire(now + 2 * limit), start.deadline()), (None, None));
        start.begin(limit, now);
        assert_eq!(start.expire(now + limit), Some(limit));
        assert_eq!((start.confirm(), start.phase()), (Phase::GivenUp, Phase::GivenUp));
    }
}
