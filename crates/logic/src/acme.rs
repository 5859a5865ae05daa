//! When a certificate is ordered from an ACME authority, and how long to wait after a failure.
//!
//! An authority counts what it is asked, and locks out who asks too much: every rule here errs on the side of waiting,
//! but never so long that a certificate that could be renewed expires.

use std::time::{Duration, SystemTime};

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First moment.
    pub from: SystemTime,
    /// Last moment.
    pub until: SystemTime,
}

impl Validity {
    /// How long it is valid in all.
    pub fn lifetime(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// When the authority suggests to renew (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First moment.
    pub start: SystemTime,
    /// Last moment, after the first.
    pub end: SystemTime,
}

/// A certificate that is there, for all names that it should be for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// When it is valid.
    pub validity: Validity,
    /// What the authority suggests; `None` if it does not.
    pub suggested: Option<Window>,
    /// Where in a window this certificate is renewed: from 0 to 1, the same for one certificate at every call, and as
    /// if by chance from one to the next.
    pub place: f64,
}

/// When to order next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Not before this.
    pub at: SystemTime,
    /// What for.
    pub reason: Reason,
}

/// Why a certificate is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is none for these names.
    Missing,
    /// The authority suggests the time.
    Suggested,
    /// Most of its time is over.
    Age,
}

impl Reason {
    /// For people, behind "renewal": why it is at that time.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Missing => "there is none like this yet",
            Self::Suggested => "as the authority suggests",
            Self::Age => "when two thirds of its time are over",
        }
    }
}

/// Why an order did not lead to a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The authority did not answer, or said that the fault is its own: it has counted nothing.
    Unavailable,
    /// Something must change before it can succeed.
    Refused,
}

/// What was tried for one certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Failures since the last success.
    pub failures: u32,
    /// When the last failure was.
    pub failed_at: Option<SystemTime>,
    /// Not before this, after a failure.
    pub not_before: Option<SystemTime>,
    /// Until when the authority asked to be left alone.
    pub asked_until: Option<SystemTime>,
    /// When the last two certificates were issued, the newest first.
    pub issued: [Option<SystemTime>; 2],
}

/// Longest wait that a failure or an authority can cause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3 * 86_400);

/// Waits after failures that the authority may count grow from this
const REFUSED_FIRST: Duration = Duration::from_secs(60);
/// by this factor up to half a day: no more than four in the first hour, where Let's Encrypt allows five.
const REFUSED_GROWTH: u32 = 4;
const REFUSED_MOST: Duration = Duration::from_secs(12 * 3600);

/// The same while the authority cannot be reached.
const UNAVAILABLE_FIRST: Duration = Duration::from_secs(5);
const UNAVAILABLE_GROWTH: u32 = 2;
const UNAVAILABLE_MOST: Duration = Duration::from_secs(900);

/// Of three renewals, the first and the last are so far apart at least: an authority whose suggestions are always due
/// must not make us order for ever.
const RENEWALS_APART: Duration = Duration::from_secs(6 * 3600);

/// After a restart the wait for a failure is no longer than this, unless the authority asked for it: whoever restarts may
/// have repaired something. It keeps a process that restarts for ever at five orders an hour.
const AFTER_RESTART: Duration = Duration::from_secs(12 * 60);

impl Progress {
    /// When to order next. `held` is what there is.
    pub fn next(&self, now: SystemTime, held: Option<Held>) -> Next {
        let (mut at, reason) = match held {
            None => (now, Reason::Missing),
            Some(held) => due(&held),
        };
        if let Some(held) = held
            && let Some(before) = self.issued[1].filter(|before| *before <= now)
        {
            at = at.max(before + RENEWALS_APART.min(held.validity.lifetime() / 3));
        }
        // A wait that is longer than any we would choose: the clock was set back.
        let not_before = self.not_before.filter(|until| *until <= now + LONGEST_PAUSE);
        Next { at: not_before.map_or(at, |until| at.max(until)), reason }
    }

    /// Notes a failure. `retry_after` is what the authority asked for, `chance` from 0 to 1.
    pub fn failed(&mut self, now: SystemTime, setback: Setback, retry_after: Option<Duration>, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now);
        let (first, growth, most) = match setback {
            Setback::Unavailable => (UNAVAILABLE_FIRST, UNAVAILABLE_GROWTH, UNAVAILABLE_MOST),
            Setback::Refused => (REFUSED_FIRST, REFUSED_GROWTH, REFUSED_MOST),
        };
        let grown = growth.saturating_pow(self.failures - 1);
        let wait = first.saturating_mul(grown).min(most).mul_f64(1.0 + chance.clamp(0.0, 1.0) / 4.0);
        self.asked_until = retry_after.map(|asked| now + asked.min(LONGEST_PAUSE));
        self.not_before = Some(self.asked_until.unwrap_or(now).max(now + wait));
    }

    /// Notes a certificate.
    pub fn issued(&mut self, now: SystemTime) {
        *self = Self { issued: [Some(now), self.issued[0]], ..Self::default() };
    }

    /// What holds of it after a restart.
    pub fn resumed(mut self) -> Self {
        let most = self.failed_at.map(|failed| failed + AFTER_RESTART);
        self.not_before =
            self.not_before.zip(most).map(|(until, most)| until.min(most)).max(self.asked_until);
        self
    }
}

fn due(held: &Held) -> (SystemTime, Reason) {
    let Validity { from, until } = held.validity;
    let lifetime = held.validity.lifetime();
    let place = held.place.clamp(0.0, 1.0);
    if let Some(Window { start, end }) = held.suggested {
        let length = end.duration_since(start).unwrap_or_default();
        // A window that is too late would have clients see an expired certificate.
        let latest = until.checked_sub(lifetime / 10).unwrap_or(until);
        return (start.checked_add(length.mul_f64(place)).unwrap_or(latest).min(latest), Reason::Suggested);
    }
    // Spread over a twentieth of the time: certificates that were ordered together are not renewed together.
    let spread = (lifetime / 20).mul_f64(place);
    (from + lifetime * 2 / 3 - spread, Reason::Age)
}

/// When to ask the authority for its suggestion again (RFC 9773 section 4.3.2); `asked` is what it says itself.
pub fn poll_again(asked: Option<Duration>, lifetime: Duration) -> Duration {
    const LEAST: Duration = Duration::from_secs(60);
    const USUAL: Duration = Duration::from_secs(6 * 3600);
    const MOST: Duration = Duration::from_secs(86_400);
    asked.unwrap_or(USUAL).min(lifetime / 10).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests;
