//! Decides which backends of a pool differ too much from what is normal: too large a share of their answers are errors,
//! or they respond much later than the others. Also says whether one more backend may be out.
//!
//! `crates/serve/src/health/outliers.rs` counts and asks. `breaker.rs` beside this file decides when a backend that was
//! ejected for this comes back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Cause;

/// Limits of what a backend does within a window of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierRule {
    /// Share of failed sessions and answers of class 5xx from which on a backend is ejected, in percent.
    pub errors: Option<u8>,
    /// Response time from which on a backend is ejected, in percent of the median of the other backends.
    pub slowness: Option<u32>,
    pub window: Duration,
    /// Sessions that a backend must have had within the window to be judged.
    pub least: u32,
}

impl OutlierRule {
    /// No limits.
    pub const OFF: OutlierRule =
        OutlierRule { errors: None, slowness: None, window: Duration::from_secs(10), least: 20 };

    /// Response times below this one are never too long: differences of microseconds say nothing about a backend.
    pub const FAST: Duration = Duration::from_millis(5);

    pub fn is_on(&self) -> bool {
        self.errors.is_some() || self.slowness.is_some()
    }

    /// Time between two judgements.
    pub fn pause(&self) -> Duration {
        (self.window / SLICES).clamp(Duration::from_millis(100), Duration::from_secs(2))
    }
}

/// What a backend did within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Sessions that ended one way or the other.
    pub sessions: u64,
    /// Failed sessions and answers of class 5xx among them.
    pub errors: u64,
    /// Answers whose time is known.
    pub timed: u64,
    /// Median time of these.
    pub response: Option<Duration>,
}

/// Says for each backend why it is to be ejected, or `None`. The caller has `None` for backends that take no sessions:
/// they are neither judged nor compared with.
pub fn judge(rule: &OutlierRule, backends: &[Option<Seen>]) -> Vec<Option<Cause>> {
    let judged = |at: usize| {
        let seen = backends[at].as_ref()?;
        errors(rule, seen).or_else(|| slowness(rule, seen, || median_of_others(rule, backends, at)))
    };
    (0..backends.len()).map(judged).collect()
}

fn errors(rule: &OutlierRule, seen: &Seen) -> Option<Cause> {
    let limit = u128::from(rule.errors?);
    let is_enough = seen.sessions >= u64::from(rule.least);
    let is_reached = u128::from(seen.errors) * 100 >= limit * u128::from(seen.sessions);
    (is_enough && is_reached && seen.errors > 0).then_some(Cause::ErrorRate {
        errors: seen.errors,
        sessions: seen.sessions,
        window: rule.window,
    })
}

fn slowness(rule: &OutlierRule, seen: &Seen, median: impl FnOnce() -> Option<Duration>) -> Option<Cause> {
    let limit = u128::from(rule.slowness?);
    let response = usable(rule, seen).filter(|response| *response >= OutlierRule::FAST)?;
    let median = median()?;
    (response.as_micros() * 100 >= median.as_micros() * limit).then_some(Cause::Slow { response, median })
}

/// Response time of a backend, if enough of its answers are known.
fn usable(rule: &OutlierRule, seen: &Seen) -> Option<Duration> {
    seen.response.filter(|_| seen.timed >= u64::from(rule.least))
}

/// The backend itself does not count: of two backends the slow one would else set half of its own limit.
fn median_of_others(rule: &OutlierRule, backends: &[Option<Seen>], at: usize) -> Option<Duration> {
    let others = backends.iter().enumerate().filter(|(other, _)| *other != at);
    let mut all: Vec<Duration> = others.filter_map(|(_, seen)| usable(rule, seen.as_ref()?)).collect();
    all.sort_unstable();
    let upper = *all.get(all.len() / 2)?;
    let lower = all[(all.len() - 1) / 2];
    Some((lower + upper) / 2)
}

/// Whether one more backend of a pool may be ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    /// No other backend takes sessions, and the pool has no fallback: a bad response is better than none.
    LastOne,
    /// The largest share of the pool's backends is ejected already.
    MostAreOut,
}

/// What else there is if a backend is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Backends of the pool, with this one.
    pub all: usize,
    /// Other backends that take sessions.
    pub serving: usize,
    /// Other backends that are ejected.
    pub ejected: usize,
    pub fallback: Fallback,
}

/// Whether another pool takes the sessions while no backend is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    Configured,
    None,
}

impl Gate {
    /// `most` is the largest share of ejected backends in percent; one backend may be out in any case.
    pub fn of(rest: Rest, most: u8) -> Self {
        let allowed = (rest.all * usize::from(most) / 100).max(1);
        match rest.fallback {
            Fallback::None if rest.serving == 0 => Gate::LastOne,
            _ if rest.ejected >= allowed => Gate::MostAreOut,
            _ => Gate::Open,
        }
    }
}

/// Parts of a window. It moves on by one part at a time.
const SLICES: u32 = 10;

/// Totals that only grow, at several moments of the last window. Its memory does not depend on the traffic.
#[derive(Clone, Debug)]
pub struct Window<T> {
    length: Duration,
    kept: VecDeque<(Instant, T)>,
}

impl<T> Window<T> {
    pub fn new(length: Duration) -> Self {
        Self { length, kept: VecDeque::with_capacity(SLICES as usize + 2) }
    }

    pub fn length(&self) -> Duration {
        self.length
    }

    /// Adds the totals at `now`. Returns those from the start of the window: what was counted since lies within it. The
    /// first call returns the same totals.
    pub fn slide(&mut self, now: Instant, totals: T) -> &T {
        let slice = self.length / SLICES;
        if self.kept.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= slice) {
            self.kept.push_back((now, totals));
        }
        let is_over = |at: &Instant| now.saturating_duration_since(*at) >= self.length;
        while self.kept.get(1).is_some_and(|(at, _)| is_over(at)) {
            self.kept.pop_front();
        }
        &self.kept[0].1
    }

    /// Forgets all totals.
    pub fn clear(&mut self) {
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests;
