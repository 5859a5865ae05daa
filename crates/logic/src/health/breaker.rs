//! Circuit breaker: a backend that was ejected by [`super::outlier`] is tried with a few sessions before it gets its full
//! share. The states have the names of the field in parentheses: `up` (closed), `ejected` (open), `half-open`.

use std::time::Instant;

use super::{Event, Health, State, Verdict};
use crate::balance::Availability;

/// What an ejection was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectedFor {
    /// Failures in a row.
    Failures,
    /// Its error rate or its response time: only sessions show whether it is well again.
    Outlier,
}

impl Health {
    /// Ejects a backend whose error rate or response time is beyond the limit.
    pub fn handle_outlier(&mut self, verdict: Verdict, now: Instant) -> Option<Event> {
        let takes_sessions = self.state.availability() == Availability::Available;
        takes_sessions.then(|| self.eject(EjectedFor::Outlier, verdict, now))?
    }

    /// A session with a half-open backend failed: it is ejected again, for a longer time.
    pub fn handle_trial_failure(&mut self, verdict: Verdict, now: Instant) -> Option<Event> {
        (self.state == State::HalfOpen).then(|| self.eject(EjectedFor::Outlier, verdict, now))?
    }

    /// Enough sessions with a half-open backend went well.
    pub fn handle_trials_passed(&mut self, now: Instant) -> Option<Event> {
        if self.state != State::HalfOpen {
            return None;
        }
        let next = if self.active.is_some() { State::Up } else { State::Unchecked };
        self.enter(next, now, Event::Readmitted)
    }

    /// The rule by which the backend was ejected is gone: it needs no trials, now or at the end of its ejection.
    pub(super) fn forget_outlier(&mut self, now: Instant) -> Option<Event> {
        self.ejected_for = EjectedFor::Failures;
        self.handle_trials_passed(now)
    }
}
