//! The health of one backend: from verdicts of checks, traffic and name resolution to a state.
//!
//! A backend nobody has judged takes sessions; the first probe decides at once, later ones by `rise` and
//! `fall`. Failing traffic ejects for a time that doubles when it happens again soon. Time comes in as
//! `now`; whoever drives this asks [`Health::poll_timeout`] when to come back.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::balance::Availability;

mod check;
mod verdict;

pub use check::{Check, CheckMethod, Spoken, StatusRange, StatusRangeError};
pub use verdict::{Cause, Source, Verdict, VerdictOutcome};

/// When to check, and how many verdicts change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// From the end of one check to the next, give or take a tenth.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// Passes in a row that bring a backend up.
    pub rise: u32,
    /// Failures in a row that take it down.
    pub fall: u32,
}

impl Rule {
    /// Every 2 s, with 1 s to answer; up after 2 passes, down after 3 failures.
    pub const DEFAULT: Rule =
        Rule { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), rise: 2, fall: 3 };
}

impl Default for Rule {
    fn default() -> Self {
        Rule::DEFAULT
    }
}

/// When failing traffic ejects a backend, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveRule {
    /// Sessions that must fail in a row; 0 turns this off.
    pub failures: u32,
    /// How long the first ejection lasts. Each further one lasts twice as long as the one before, up to
    /// [`PassiveRule::LONGEST`] times the first.
    pub ejection: Duration,
}

impl PassiveRule {
    /// Five failures, ten seconds.
    pub const DEFAULT: PassiveRule = PassiveRule { failures: 5, ejection: Duration::from_secs(10) };

    /// The longest ejection, as a multiple of the first.
    pub const LONGEST: u32 = 30;

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

/// Whether a backend takes sessions, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nobody has judged it: it does.
    Unchecked,
    /// It does.
    Up,
    /// Checks failed, or its name has no address.
    Down,
    /// Traffic failed; it returns after a time.
    Ejected,
}

impl State {
    /// What the balancer needs to know.
    pub fn availability(self) -> Availability {
        match self {
            State::Unchecked | State::Up => Availability::Available,
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
        })
    }
}

/// A change of state that others want to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Checks say that it works.
    WentUp,
    /// Checks say that it does not, or its name has no address.
    WentDown,
    /// Traffic says that it does not.
    Ejected,
    /// An ejection is over, or its name has an address again.
    Readmitted,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::WentUp => "up",
            Event::WentDown => "down",
            Event::Ejected => "ejected",
            Event::Readmitted => "readmitted",
        })
    }
}

/// How many verdicts are kept.
pub const VERDICTS_KEPT: usize = 16;

/// The health of one backend.
#[derive(Clone, Debug)]
pub struct Health {
    active: Option<Rule>,
    passive: PassiveRule,
    state: State,
    since: Instant,
    /// Whether a probe has decided since this began to be checked.
    judged: Judged,
    address: Address,
    passes: u32,
    failures: u32,
    next_probe: Option<Instant>,
    /// Not before this may it come back; kept when checks take an ejected backend down.
    ejected_until: Option<Instant>,
    /// Ejections that were not forgotten yet.
    ejections: u32,
    last_ejection: Duration,
    verdicts: VecDeque<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    NotYet,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Known,
    /// Down because there is nothing to connect to; probes have no say.
    Missing,
}

impl Health {
    /// The health of a backend nobody has judged. `jitter`, from 0 to 1, spreads the first probes over one
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
            ejected_until: None,
            ejections: 0,
            last_ejection: Duration::ZERO,
            verdicts: VecDeque::with_capacity(VERDICTS_KEPT),
        }
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.state
    }

    /// Since when it has been so.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Remembers a failure of real traffic that changes nothing yet, so that its cause can be shown.
    pub fn note_traffic_failure(&mut self, verdict: Verdict) {
        self.note(verdict);
    }

    /// The last verdicts, newest first.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter()
    }

    /// The rule of active checks, if there are any.
    pub fn rule(&self) -> Option<Rule> {
        self.active
    }

    /// A check came to an end. `jitter`, from 0 to 1, moves the next one by up to a tenth of the interval.
    pub fn handle_probe(&mut self, verdict: Verdict, now: Instant, jitter: f64) -> Option<Event> {
        let outcome = verdict.outcome;
        self.note(verdict);
        // A check may end after a reload took checks away: it is kept for people to see, and changes nothing.
        let rule = self.active?;
        self.next_probe = Some(now + rule.interval.mul_f64(0.9 + 0.2 * unit(jitter)));
        if self.address == Address::Missing {
            return None;
        }
        match outcome {
            VerdictOutcome::Pass => {
                (self.passes, self.failures) = (self.passes.saturating_add(1), 0);
            }
            VerdictOutcome::Fail => {
                (self.passes, self.failures) = (0, self.failures.saturating_add(1));
            }
        }
        let first = self.judged == Judged::NotYet;
        self.judged = Judged::Yes;
        match (self.state, outcome) {
            (State::Unchecked, VerdictOutcome::Pass) => self.enter(State::Up, now, Event::WentUp),
            (State::Unchecked | State::Up, VerdictOutcome::Fail) if first || self.failures >= rule.fall => {
                self.enter(State::Down, now, Event::WentDown)
            }
            (State::Ejected, VerdictOutcome::Fail) if self.failures >= rule.fall => {
                self.enter(State::Down, now, Event::WentDown)
            }
            (State::Down | State::Ejected, VerdictOutcome::Pass) => self.return_if_due(now),
            _ => None,
        }
    }

    /// Sessions of clients failed, `consecutive` of them in a row. The verdict is kept if it ejects the
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
        self.note(verdict);
        // Sessions that began before the last ejection may still fail for a while after it, but not for
        // this long.
        let calm = self.last_ejection.saturating_mul(3);
        if now.saturating_duration_since(self.since) >= calm {
            self.ejections = 0;
        }
        self.last_ejection = self.passive.ejection_time(self.ejections);
        self.ejections = self.ejections.saturating_add(1);
        self.ejected_until = Some(now + self.last_ejection);
        (self.passes, self.failures) = (0, 0);
        self.enter(State::Ejected, now, Event::Ejected)
    }

    /// The backend's name was resolved, or not at all. Without an address it is down at once; with one
    /// again, it is as a backend nobody has judged, and probed right away.
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
                self.ejected_until = None;
                self.next_probe = self.active.map(|_| now);
                self.enter(State::Unchecked, now, Event::Readmitted)
            }
            _ => None,
        }
    }

    /// To be called when the time of [`Health::poll_timeout`] has come: ends an ejection.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Event> {
        self.return_if_due(now)
    }

    /// A probe begins: the next is due only after this one had its time, even if its verdict gets lost.
    pub fn handle_probe_start(&mut self, now: Instant) {
        self.next_probe = self.active.map(|rule| now + rule.timeout + rule.interval);
    }

    /// When the next probe is due.
    pub fn poll_probe(&self) -> Option<Instant> {
        self.next_probe
    }

    /// When there is something to do next: a probe, or the end of an ejection.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.next_probe, self.poll_return()].into_iter().flatten().min()
    }

    /// The rules changed on a reload. State, counts and verdicts stay; without checks, what only checks had
    /// said is forgotten.
    pub fn adopt(
        &mut self,
        active: Option<Rule>,
        passive: PassiveRule,
        now: Instant,
        jitter: f64,
    ) -> Option<Event> {
        self.passive = passive;
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
            return match (self.state, self.ejected_until) {
                (State::Down, Some(until)) if now < until => self.enter(State::Ejected, now, Event::Ejected),
                (State::Down, _) => {
                    self.ejected_until = None;
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

    /// When an ejection ends, or a backend that passed its checks comes back. `None` where that takes another verdict.
    pub fn poll_return(&self) -> Option<Instant> {
        if self.address == Address::Missing {
            return None;
        }
        match (self.state, self.active) {
            (State::Ejected, None) => Some(self.ejected_until.unwrap_or(self.since)),
            (State::Ejected | State::Down, Some(rule)) if self.passes >= rule.rise.max(1) => {
                Some(self.ejected_until.unwrap_or(self.since))
            }
            _ => None,
        }
    }

    fn return_if_due(&mut self, now: Instant) -> Option<Event> {
        if self.poll_return().is_none_or(|due| now < due) {
            return None;
        }
        self.ejected_until = None;
        let event = if self.state == State::Ejected { Event::Readmitted } else { Event::WentUp };
        // Without checks nobody has judged it: only its time is over.
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

/// A jitter as it is promised, whatever came in.
fn unit(jitter: f64) -> f64 {
    if jitter.is_nan() { 0.5 } else { jitter.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests;
