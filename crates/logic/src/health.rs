//! Decides the health of one backend from the verdicts of checks, client traffic and name resolution.
//!
//! A backend without a verdict takes sessions. The first check changes its state at once, later checks by `rise` and
//! `fall`. Failed traffic ejects the backend. An ejected backend with checks returns after `rise` passes, one without
//! checks after a time. A backend that is ejected again soon after its return stays out for a time in any case, each
//! time twice as long. The caller passes the time as `now`, and asks [`Health::poll_timeout`] when to call again.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::balance::Availability;

mod breaker;
mod check;
pub mod dns;
mod memory;
pub mod outlier;
mod verdict;

pub use breaker::EjectedFor;
pub use check::{Check, CheckMethod, DurationText, StatusRange, StatusRangeError};
pub use memory::{Memory, SeenByChecks};
pub use verdict::{Cause, Source, Verdict, VerdictOutcome};

use outlier::OutlierRule;

/// When to check, and how many verdicts change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Time from the end of one check to the start of the next, plus or minus a tenth.
    pub interval: Duration,
    /// Time limit of one check.
    pub timeout: Duration,
    /// Successful checks in a row that change the state to up.
    pub rise: u32,
    /// Failed checks in a row that change the state to down.
    pub fall: u32,
}

impl Rule {
    /// A check every 2 s with a time limit of 1 s; up after 2 passes, down after 3 failures.
    pub const DEFAULT: Rule =
        Rule { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), rise: 2, fall: 3 };
}

impl Default for Rule {
    fn default() -> Self {
        Rule::DEFAULT
    }
}

/// When failed traffic ejects a backend, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveRule {
    /// Failed sessions in a row that eject the backend; 0 disables ejection.
    pub failures: u32,
    /// Duration of the first ejection without checks, and shortest duration of the second one with checks. Each further
    /// one lasts twice as long as the one before, up to [`PassiveRule::LONGEST`] times this duration.
    pub ejection: Duration,
    pub outlier: OutlierRule,
    /// Sessions that a half-open backend may have at a time, and that must go well before it gets its full share.
    pub trials: u32,
    /// Largest share of a pool's backends that failed traffic may eject, in percent.
    pub most_ejected: u8,
}

impl PassiveRule {
    pub const DEFAULT: PassiveRule = PassiveRule {
        failures: 5,
        ejection: Duration::from_secs(10),
        outlier: OutlierRule::OFF,
        trials: 5,
        most_ejected: 100,
    };

    /// Longest ejection, as a multiple of the first.
    pub const LONGEST: u32 = 30;

    /// A backend that is ejected within this time after its return flaps, if no check failed in between: it stays out
    /// longer.
    pub const CALM: Duration = Duration::from_secs(60);

    /// A backend that is ejected within this time after its return flaps, also if its checks have failed as well: a backend that fails and
    /// works in quick turns passes enough of them.
    pub const BRIEF: Duration = Duration::from_secs(5);

    fn ejection_time(&self, ejections_before: u32) -> Duration {
        let factor = 1_u32.checked_shl(ejections_before).unwrap_or(u32::MAX).min(PassiveRule::LONGEST);
        self.ejection.saturating_mul(factor)
    }
}

impl Default for PassiveRule {
    fn default() -> Self {
        PassiveRule::DEFAULT
    }
}

text::meanings! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum State {
        /// No verdict yet, or the pool has no checks: the backend takes sessions.
        Unchecked = "unchecked",
        /// Its checks pass.
        Up = "up",
        /// Checks failed, or the backend's name has no address.
        Down = "down",
        /// Sessions failed; the backend returns after a time (circuit breaker: open).
        Ejected = "ejected",
        /// The backend was ejected for its error rate or response time, and gets a few sessions as a trial.
        HalfOpen = "half-open",
    }
}

impl State {
    pub fn availability(self) -> Availability {
        match self {
            State::Unchecked | State::Up | State::HalfOpen => Availability::Available,
            State::Down | State::Ejected => Availability::Unavailable,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Unchecked => "unchecked",
            State::Up => "up",
            State::Down => "down",
            State::Ejected => "ejected",
            State::HalfOpen => "half-open",
        })
    }
}

/// Change of state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Checks succeeded.
    WentUp,
    /// Checks failed, or the backend's name has no address.
    WentDown,
    /// Sessions failed.
    Ejected,
    /// An ejection ended, or the backend's name has an address again.
    Readmitted,
    /// An ejection for the error rate or the response time ended: a few sessions try the backend.
    HalfOpen,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::WentUp => "up",
            Event::WentDown => "down",
            Event::Ejected => "ejected",
            Event::Readmitted => "readmitted",
            Event::HalfOpen => "half-open",
        })
    }
}

pub const VERDICTS_KEPT: usize = 16;

#[derive(Clone, Debug)]
pub struct Health {
    active: Option<Rule>,
    passive: PassiveRule,
    state: State,
    since: Instant,
    /// Whether a check has returned a verdict since checks of this backend began.
    judged: Judged,
    address: Address,
    passes: u32,
    failures: u32,
    next_probe: Option<Instant>,
    /// Start of the running or last check.
    probe_began: Option<Instant>,
    /// Start of the ejection; kept when checks change an ejected backend to down.
    ejected_at: Option<Instant>,
    /// Number of recent ejections; each one doubles the next. Reset if the state did not change for
    /// [`PassiveRule::CALM`] and three times the last ejection.
    ejections: u32,
    last_ejection: SeenBy,
    ejected_for: EjectedFor,
    verdicts: VecDeque<Verdict>,
}

/// What must happen before an ejected backend returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaits {
    /// Time that must pass. Zero with checks unless the backend flaps.
    pub time: Duration,
    /// Number of checks in a row that must pass.
    pub passes: u32,
}

/// Which verdicts showed the fault of an ejected backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenBy {
    TrafficOnly,
    Checks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    NotYet,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Known,
    /// The backend is down because its name has no address; checks cannot change the state.
    Missing,
}

impl Health {
    /// Creates the health of a backend without a verdict. `jitter`, from 0 to 1, spreads the first checks over one
    /// interval.
    pub fn new(active: Option<Rule>, passive: PassiveRule, now: Instant, jitter: f64) -> Self {
        Health {
            active,
            passive,
            state: State::Unchecked,
            since: now,
            judged: Judged::NotYet,
            address: Address::Known,
            passes: 0,
            failures: 0,
            next_probe: active.map(|rule| now + rule.interval.mul_f64(unit(jitter))),
            probe_began: None,
            ejected_at: None,
            ejections: 0,
            last_ejection: SeenBy::TrafficOnly,
            ejected_for: EjectedFor::Failures,
            verdicts: VecDeque::with_capacity(VERDICTS_KEPT),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Time of the last change of state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Keeps a failure of client traffic for display; the state does not change.
    pub fn note_traffic_failure(&mut self, verdict: Verdict) {
        self.note(verdict);
    }

    /// Last verdicts, newest first.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter()
    }

    /// What an ejected backend needs to return; `None` if it is not ejected. One whose checks fail meanwhile is down and
    /// stays out for the rest of its time as well.
    pub fn awaits(&self, now: Instant) -> Option<Awaits> {
        let end = self.ejection_end();
        let time = end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
        let needed = self.active.map_or(0, |rule| rule.rise.max(1));
        let passes = needed.saturating_sub(self.passes);
        let serves_time = self.state == State::Down && self.address == Address::Known && !time.is_zero();
        (self.state == State::Ejected || serves_time).then_some(Awaits { time, passes })
    }

    /// Rule of active checks; `None` without checks.
    pub fn rule(&self) -> Option<Rule> {
        self.active
    }

    /// Records the result of a check. `jitter`, from 0 to 1, moves the next check by up to a tenth of the interval.
    pub fn handle_probe(&mut self, verdict: Verdict, now: Instant, jitter: f64) -> Option<Event> {
        let outcome = verdict.outcome;
        self.note(verdict);
        // A check may end after a reload removed checks: its verdict is kept for display and changes nothing.
        let rule = self.active?;
        self.next_probe = Some(now + rule.interval.mul_f64(0.9 + 0.2 * unit(jitter)));
        if self.address == Address::Missing {
            return None;
        }
        let is_old = self.state == State::Ejected && self.probe_began.is_some_and(|began| began < self.since);
        match outcome {
            // The check began before the failures that ejected the backend.
            VerdictOutcome::Pass if is_old => {}
            VerdictOutcome::Pass => {
                (self.passes, self.failures) = (self.passes.saturating_add(1), 0);
            }
            VerdictOutcome::Fail => {
                (self.passes, self.failures) = (0, self.failures.saturating_add(1));
                if self.ejected_at.is_some() {
                    self.last_ejection = SeenBy::Checks;
                }
            }
        }
        let first = self.judged == Judged::NotYet;
        self.judged = Judged::Yes;
        match (self.state, outcome) {
            (State::Unchecked, VerdictOutcome::Pass) => self.enter(State::Up, now, Event::WentUp),
            (State::Unchecked | State::Up | State::HalfOpen, VerdictOutcome::Fail)
                if first || self.failures >= rule.fall =>
            {
                self.enter(State::Down, now, Event::WentDown)
            }
            (State::Ejected, VerdictOutcome::Fail) if self.failures >= rule.fall => {
                self.enter(State::Down, now, Event::WentDown)
            }
            (State::Down | State::Ejected, VerdictOutcome::Pass) => self.return_if_due(now),
            _ => None,
        }
    }

    /// Counts a failed client session, `consecutive` of them in a row. The verdict is kept only if it ejects the
    /// backend.
    pub fn handle_traffic_failure(
        &mut self,
        consecutive: u32,
        verdict: Verdict,
        now: Instant,
    ) -> Option<Event> {
        let takes_sessions = self.state.availability() == Availability::Available;
        if self.passive.failures == 0 || consecutive < self.passive.failures || !takes_sessions {
            return None;
        }
        let why = if self.state == State::HalfOpen { EjectedFor::Outlier } else { EjectedFor::Failures };
        self.eject(why, verdict, now)
    }

    fn eject(&mut self, why: EjectedFor, verdict: Verdict, now: Instant) -> Option<Event> {
        self.note(verdict);
        // Sessions that began before the last ejection may still fail for a while after it, but not for this long.
        let calm = self.ejection_time().saturating_mul(3).max(PassiveRule::CALM);
        if now.saturating_duration_since(self.since) >= calm {
            self.ejections = 0;
        }
        // An outage that the checks saw as well has ended when they pass: such a backend does not flap, unless it has
        // served for a moment only.
        let served_briefly = now.saturating_duration_since(self.since) < PassiveRule::BRIEF;
        if self.ejections == 0 || self.last_ejection == SeenBy::TrafficOnly || served_briefly {
            self.ejections = self.ejections.saturating_add(1);
        }
        self.last_ejection = SeenBy::TrafficOnly;
        self.ejected_for = why;
        self.ejected_at = Some(now);
        (self.passes, self.failures) = (0, 0);
        self.enter(State::Ejected, now, Event::Ejected)
    }

    /// Records the result of a name resolution. Without an address the backend is down at once. With an address again,
    /// it has no verdict and is checked at once.
    pub fn handle_resolution(&mut self, verdict: Verdict, now: Instant) -> Option<Event> {
        let outcome = verdict.outcome;
        match (outcome, self.address) {
            (VerdictOutcome::Fail, Address::Known) => {
                self.note(verdict);
                self.address = Address::Missing;
                let was_down = self.state == State::Down;
                let event = self.enter(State::Down, now, Event::WentDown);
                if was_down { None } else { event }
            }
            (VerdictOutcome::Pass, Address::Missing) => {
                self.note(verdict);
                self.address = Address::Known;
                self.judged = Judged::NotYet;
                (self.passes, self.failures) = (0, 0);
                self.ejected_at = None;
                self.next_probe = self.active.map(|_| now);
                self.enter(State::Unchecked, now, Event::Readmitted)
            }
            _ => None,
        }
    }

    /// Ends an ejection that is over. The caller calls this at the time of [`Health::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Event> {
        self.return_if_due(now)
    }

    /// Records the start of a check: the next one is due only after this check's time limit, even if its verdict is
    /// lost.
    pub fn handle_probe_start(&mut self, now: Instant) {
        self.probe_began = Some(now);
        self.next_probe = self.active.map(|rule| now + rule.timeout + rule.interval);
    }

    pub fn poll_probe(&self) -> Option<Instant> {
        self.next_probe
    }

    /// Time of the next action: a check, or the end of an ejection.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.next_probe, self.poll_return()].into_iter().flatten().min()
    }

    /// Takes the rules of a reload. State, counts and verdicts stay; if checks are removed, the state that only checks
    /// had set is reset. Without limits of the error rate and response time no trials are left.
    pub fn adopt(
        &mut self,
        active: Option<Rule>,
        passive: PassiveRule,
        now: Instant,
        jitter: f64,
    ) -> Option<Event> {
        self.passive = passive;
        let readmitted = if passive.outlier.is_on() { None } else { self.forget_outlier(now) };
        self.adopt_checks(active, now, jitter).or(readmitted)
    }

    fn adopt_checks(&mut self, active: Option<Rule>, now: Instant, jitter: f64) -> Option<Event> {
        if self.active == active {
            return None;
        }
        self.active = active;
        let Some(rule) = active else {
            self.next_probe = None;
            self.judged = Judged::NotYet;
            (self.passes, self.failures) = (0, 0);
            if self.address == Address::Missing {
                return None;
            }
            return match (self.state, self.ejection_end()) {
                (State::Down, Some(until)) if now < until => self.enter(State::Ejected, now, Event::Ejected),
                (State::Down, _) => {
                    self.ejected_at = None;
                    self.enter(State::Unchecked, now, Event::Readmitted)
                }
                (State::Up, _) => {
                    self.state = State::Unchecked;
                    None
                }
                _ => None,
            };
        };
        let soon = now + rule.interval.mul_f64(unit(jitter));
        self.next_probe = Some(self.next_probe.map_or(soon, |due| due.min(soon)));
        None
    }

    /// Time at which an ejection ends, or at which a backend that passed its checks returns. `None` if that needs
    /// another verdict.
    pub fn poll_return(&self) -> Option<Instant> {
        if self.address == Address::Missing {
            return None;
        }
        match (self.state, self.active) {
            (State::Ejected, None) => Some(self.ejection_end().unwrap_or(self.since)),
            (State::Ejected | State::Down, Some(rule)) if self.passes >= rule.rise.max(1) => {
                Some(self.ejection_end().unwrap_or(self.since))
            }
            _ => None,
        }
    }

    fn ejection_end(&self) -> Option<Instant> {
        Some(self.ejected_at? + self.ejection_time())
    }

    /// Shortest duration of the last ejection.
    fn ejection_time(&self) -> Duration {
        match (self.active, self.ejections) {
            (_, 0) => Duration::ZERO,
            // Checks do not say whether the error rate or the response time is good again.
            (_, ejections) if self.ejected_for == EjectedFor::Outlier => {
                self.passive.ejection_time(ejections - 1)
            }
            // Checks say when the backend works again; only one that flaps has to wait.
            (Some(_), 1) => Duration::ZERO,
            (None, ejections) => self.passive.ejection_time(ejections - 1),
            (Some(_), ejections) => self.passive.ejection_time(ejections - 2),
        }
    }

    fn return_if_due(&mut self, now: Instant) -> Option<Event> {
        if self.poll_return().is_none_or(|due| now < due) {
            return None;
        }
        let was_ejected = self.ejected_at.take().is_some();
        if was_ejected && self.ejected_for == EjectedFor::Outlier {
            return self.enter(State::HalfOpen, now, Event::HalfOpen);
        }
        let event = if self.state == State::Ejected { Event::Readmitted } else { Event::WentUp };
        // Without checks the end of the ejection is no verdict.
        let next = if self.active.is_some() { State::Up } else { State::Unchecked };
        self.enter(next, now, event)
    }

    fn enter(&mut self, state: State, now: Instant, event: Event) -> Option<Event> {
        if self.state != state {
            self.state = state;
            self.since = now;
        }
        Some(event)
    }

    fn note(&mut self, verdict: Verdict) {
        self.verdicts.truncate(VERDICTS_KEPT - 1);
        self.verdicts.push_front(verdict);
    }
}

/// Clamps a jitter to 0 to 1; NaN becomes 0.5.
fn unit(jitter: f64) -> f64 {
    if jitter.is_nan() { 0.5 } else { jitter.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests;
