//! What an earlier process knew of a backend's health.
//!
//! A backend that was down or ejected begins so, and not with traffic: its first check comes at once and one pass
//! brings it back, as the first check of a new backend decides at once. Without checks an ejection lasts as long as it
//! would have lasted.

use std::time::{Duration, Instant};

use super::{Address, EjectedFor, Health, Judged, SeenBy, State, Verdict};

/// Newest verdicts that are remembered of a backend that is down or ejected.
const VERDICTS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Down or ejected; another state is no memory of its own.
    pub state: State,
    /// Time since the last change of state.
    pub since: Duration,
    /// Time since the ejection that has not ended.
    pub ejected: Option<Duration>,
    pub ejected_for: EjectedFor,
    /// Recent ejections: each one doubles the next.
    pub ejections: u32,
    /// Whether checks saw the fault of the last ejection too.
    pub seen_by_checks: SeenByChecks,
    /// The newest verdicts, newest first.
    pub verdicts: Vec<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenByChecks {
    Yes,
    No,
}

impl Health {
    /// What a later process needs to know; `None` if that is nothing. The address of a name is looked up anew.
    pub fn memory(&self, now: Instant) -> Option<Memory> {
        // A half-open backend begins its trials anew: it is ejected, and its time is over.
        let state = if self.state == State::HalfOpen { State::Ejected } else { self.state };
        let is_out = matches!(state, State::Down | State::Ejected) && self.address == Address::Known;
        if !is_out && self.ejections == 0 {
            return None;
        }
        let ago = |at: Instant| now.saturating_duration_since(at);
        Some(Memory {
            state: if is_out { state } else { State::Unchecked },
            since: ago(self.since),
            ejected: match self.state {
                State::HalfOpen => Some(self.ejection_time()),
                _ => self.ejected_at.filter(|_| is_out).map(ago),
            },
            ejected_for: self.ejected_for,
            ejections: self.ejections,
            seen_by_checks: match self.last_ejection {
                SeenBy::Checks => SeenByChecks::Yes,
                SeenBy::TrafficOnly => SeenByChecks::No,
            },
            verdicts: self.verdicts.iter().take(if is_out { VERDICTS } else { 0 }).cloned().collect(),
        })
    }

    /// Takes over the health that an earlier process stored, as far as the rules of this process allow. Must be called
    /// before the first verdict.
    pub fn resume(&mut self, memory: Memory, now: Instant) {
        let before = |ago: Duration| now.checked_sub(ago).unwrap_or(now);
        self.ejections = memory.ejections;
        self.last_ejection = match memory.seen_by_checks {
            SeenByChecks::Yes => SeenBy::Checks,
            SeenByChecks::No => SeenBy::TrafficOnly,
        };
        let still_ejects = match memory.ejected_for {
            EjectedFor::Failures => self.passive.failures > 0,
            EjectedFor::Outlier => self.passive.outlier.is_on(),
        };
        let state = match (memory.state, self.active) {
            (State::Down, Some(_)) => memory.state,
            // Checks have the last word on failures in a row.
            (State::Ejected, Some(_)) if memory.ejected_for == EjectedFor::Failures => memory.state,
            (State::Ejected, _) if still_ejects => memory.state,
            _ => return,
        };
        self.ejected_for = memory.ejected_for;
        self.state = state;
        self.since = before(memory.since);
        self.ejected_at = memory.ejected.map(before);
        if let Some(rule) = self.active {
            self.judged = Judged::NotYet;
            (self.passes, self.failures) = (rule.rise.max(1) - 1, 0);
            self.next_probe = Some(now);
        } else if memory.ejected_for == EjectedFor::Failures
            && self.poll_return().is_some_and(|due| due <= now)
        {
            self.state = State::Unchecked;
            self.ejected_at = None;
            return;
        }
        for verdict in memory.verdicts.into_iter().rev() {
            self.note(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::outlier::OutlierRule;
    use super::super::{Cause, Event, PassiveRule, Rule, Source, VerdictOutcome};
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an Instant can only be made from the clock")]
    fn start() -> Instant {
        Instant::now()
    }

    fn verdict(outcome: VerdictOutcome) -> Verdict {
        let cause = if outcome == VerdictOutcome::Pass { Cause::Passed } else { Cause::ConnectRefused };
        let (at, took) = (SystemTime::UNIX_EPOCH, Duration::ZERO);
        Verdict { at, source: Source::Probe, outcome, cause, took }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn new(active: Option<Rule>, now: Instant) -> Health {
        Health::new(active, PassiveRule::DEFAULT, now, 0.5)
    }

    fn ejected(active: Option<Rule>, now: Instant) -> Health {
        let mut health = new(active, now);
        assert_eq!(
            health.handle_traffic_failure(5, verdict(VerdictOutcome::Fail), now),
            Some(Event::Ejected)
        );
        health
    }

    #[test]
    fn a_backend_that_was_down_is_checked_at_once_and_back_with_one_pass() {
        let now = start();
        let mut before = new(Some(Rule::DEFAULT), now);
        assert_eq!(before.handle_probe(verdict(VerdictOutcome::Fail), now, 0.5), Some(Event::WentDown));
        let memory = before.memory(now + SECOND).unwrap();
        assert_eq!((memory.state, memory.since, memory.verdicts.len()), (State::Down, SECOND, 1));

        let later = now + 10 * SECOND;
        let mut after = new(Some(Rule::DEFAULT), later);
        after.resume(memory, later);
        assert_eq!(
            (after.state(), after.since(), after.poll_probe()),
            (State::Down, later - SECOND, Some(later))
        );
        assert_eq!(after.verdicts().count(), 1);
        after.handle_probe_start(later);
        assert_eq!(after.handle_probe(verdict(VerdictOutcome::Fail), later, 0.5), None);
        let mut again = after.clone();
        assert_eq!(again.handle_probe(verdict(VerdictOutcome::Pass), later, 0.5), None, "now `rise` counts");
        after.resume(before.memory(now).unwrap(), later);
        assert_eq!(after.handle_probe(verdict(VerdictOutcome::Pass), later, 0.5), Some(Event::WentUp));
    }

    #[test]
    fn an_ejection_without_checks_lasts_as_long_as_it_would_have() {
        let now = start();
        let memory = ejected(None, now).memory(now + 4 * SECOND).unwrap();
        let later = now + 60 * SECOND;
        let mut after = new(None, later);
        after.resume(memory.clone(), later);
        assert_eq!(after.state(), State::Ejected);
        assert_eq!(after.poll_return(), Some(later + 6 * SECOND));
        assert_eq!(after.handle_timeout(later + 5 * SECOND), None);
        assert_eq!(after.handle_timeout(later + 6 * SECOND), Some(Event::Readmitted));

        let mut over = new(None, later);
        over.resume(Memory { ejected: Some(11 * SECOND), ..memory.clone() }, later);
        assert_eq!(over.state(), State::Unchecked, "the ejection would have ended");
        let mut off = Health::new(None, PassiveRule { failures: 0, ..PassiveRule::DEFAULT }, later, 0.5);
        off.resume(memory, later);
        assert_eq!(off.state(), State::Unchecked, "the rules of this process eject nothing");
    }

    #[test]
    fn an_ejection_by_rate_ends_half_open_and_trials_begin_anew() {
        let now = start();
        let rule = OutlierRule { errors: Some(50), ..OutlierRule::OFF };
        let passive = PassiveRule { failures: 0, outlier: rule, ..PassiveRule::DEFAULT };
        for active in [None, Some(Rule::DEFAULT)] {
            let mut before = Health::new(active, passive, now, 0.5);
            assert_eq!(before.handle_outlier(verdict(VerdictOutcome::Fail), now), Some(Event::Ejected));
            let end = now + PassiveRule::DEFAULT.ejection;
            let resumed = |before: &Health, at: Instant| {
                let mut after = Health::new(active, passive, at, 0.5);
                after.resume(before.memory(at).unwrap(), at);
                after
            };
            let mut after = resumed(&before, now + SECOND);
            assert_eq!(after.state(), State::Ejected);
            if active.is_some() {
                after.handle_probe(verdict(VerdictOutcome::Pass), now + SECOND, 0.5);
                before.handle_probe(verdict(VerdictOutcome::Pass), now + SECOND, 0.5);
                before.handle_probe(verdict(VerdictOutcome::Pass), now + SECOND, 0.5);
            }
            assert_eq!(after.handle_timeout(end - SECOND), None, "a pass says nothing about its answers");
            assert_eq!(after.handle_timeout(end), Some(Event::HalfOpen));
            assert_eq!(before.handle_timeout(end), Some(Event::HalfOpen));
            let mut again = resumed(&before, end + SECOND);
            assert_eq!(again.state(), State::Ejected);
            let event = match active {
                Some(_) => again.handle_probe(verdict(VerdictOutcome::Pass), end + SECOND, 0.5),
                None => again.handle_timeout(end + SECOND),
            };
            assert_eq!(event, Some(Event::HalfOpen));
            let mut off = Health::new(active, PassiveRule { outlier: OutlierRule::OFF, ..passive }, end, 0.5);
            off.resume(before.memory(end).unwrap(), end);
            assert_eq!(off.state(), State::Unchecked, "the rules of this process eject nothing");
        }
    }

    #[test]
    fn a_reload_without_the_rule_ends_trials() {
        let now = start();
        let rule = OutlierRule { errors: Some(50), ..OutlierRule::OFF };
        let passive = PassiveRule { outlier: rule, ..PassiveRule::DEFAULT };
        let ejected = || {
            let mut health = Health::new(None, passive, now, 0.5);
            health.handle_outlier(verdict(VerdictOutcome::Fail), now);
            health
        };
        let end = now + PassiveRule::DEFAULT.ejection;
        let mut trying = ejected();
        assert_eq!(trying.handle_timeout(end), Some(Event::HalfOpen));
        assert_eq!(trying.adopt(None, passive, end, 0.5), None, "the rule is the same");
        assert_eq!(trying.adopt(None, PassiveRule::DEFAULT, end, 0.5), Some(Event::Readmitted));
        assert_eq!(trying.state(), State::Unchecked);
        let mut out = ejected();
        assert_eq!(out.adopt(None, PassiveRule::DEFAULT, now + SECOND, 0.5), None, "its time goes on");
        assert_eq!((out.poll_return(), out.handle_timeout(end)), (Some(end), Some(Event::Readmitted)));
    }

    #[test]
    fn a_backend_that_flaps_stays_out_longer_over_a_restart_too() {
        let now = start();
        let mut before = ejected(None, now);
        let end = before.poll_return().unwrap();
        before.handle_timeout(end);
        let memory = before.memory(end).unwrap();
        assert_eq!((memory.state, memory.ejections), (State::Unchecked, 1));
        let mut after = new(None, end);
        after.resume(memory, end);
        assert_eq!(after.state(), State::Unchecked);
        after.handle_traffic_failure(5, verdict(VerdictOutcome::Fail), end + SECOND);
        assert_eq!(after.poll_return(), Some(end + SECOND + 2 * PassiveRule::DEFAULT.ejection));
    }

    #[test]
    fn a_backend_that_works_or_has_no_address_leaves_no_memory() {
        let now = start();
        let mut health = new(Some(Rule::DEFAULT), now);
        assert_eq!(health.memory(now), None);
        health.handle_resolution(verdict(VerdictOutcome::Fail), now);
        assert_eq!((health.state(), health.memory(now)), (State::Down, None));
    }

    #[test]
    fn no_memory_makes_a_time_overflow() {
        let now = start();
        for ago in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
            for state in [State::Down, State::Ejected] {
                for active in [None, Some(Rule::DEFAULT)] {
                    let memory = Memory {
                        state,
                        since: ago,
                        ejected: Some(ago),
                        ejected_for: EjectedFor::Failures,
                        ejections: u32::MAX,
                        seen_by_checks: SeenByChecks::No,
                        verdicts: Vec::new(),
                    };
                    let mut health = new(active, now);
                    health.resume(memory, now);
                    health.poll_timeout();
                    health.awaits(now);
                    health.memory(now + SECOND);
                }
            }
        }
    }
}
