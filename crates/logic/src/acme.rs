//! Decides when a certificate is ordered from an ACME authority, and how long to wait after a failed order.
//!
//! An authority limits the rate of orders and locks out accounts that exceed the limit: every rule here prefers to
//! wait, but never so long that a certificate expires.

use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

impl Validity {
    pub fn lifetime(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// Time in which the authority suggests to renew the certificate (RFC 9773 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start: SystemTime,
    pub end: SystemTime,
}

/// An existing certificate that covers all configured names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldCertificate {
    pub validity: Validity,
    /// Renewal window from the authority; `None` if the authority suggests none.
    pub suggested: Option<Window>,
    /// Point inside the window at which this certificate is renewed, from 0 to 1. It is constant for one certificate
    /// and pseudo-random between certificates.
    pub place: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Earliest time of the next order.
    pub at: SystemTime,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No certificate exists for these names.
    Missing,
    /// The authority suggested a renewal window.
    Suggested,
    /// Two thirds of the lifetime are over.
    Age,
}

impl Reason {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Missing => "none-yet",
            Self::Suggested => "suggested",
            Self::Age => "age",
        }
    }

    /// Reason for operators, printed after the time of the order.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Missing => "as there is no certificate yet",
            Self::Suggested => "suggested by the authority",
            Self::Age => "after two thirds of its lifetime",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderFailure {
    /// The authority did not answer, reported an error of its own, or had nothing to judge: the attempt does not count
    /// against a rate limit that an operator notices.
    Unavailable,
    /// The authority refused the order: something must change before an order can succeed.
    Refused,
}

/// Record of the orders for one certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Failures since the last success.
    pub failures: u32,
    pub failed_at: Option<SystemTime>,
    /// Earliest time of the next order after a failure.
    pub not_before: Option<SystemTime>,
    /// Time until which the authority asked for no requests (Retry-After).
    pub asked_until: Option<SystemTime>,
    /// Times at which the last two certificates were issued, newest first.
    pub issued: [Option<SystemTime>; 2],
}

/// Longest wait that a failure or an authority can cause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3 * 86_400);

/// First wait after a failure that the authority may count.
const REFUSED_FIRST: Duration = Duration::from_secs(60);
/// Each further wait is longer by this factor, up to 12 hours: at most four orders in the first hour, where Let's
/// Encrypt allows five.
const REFUSED_GROWTH: u32 = 4;
const REFUSED_MOST: Duration = Duration::from_secs(12 * 3600);

/// Waits while the authority cannot be reached, by the same rule.
const UNAVAILABLE_FIRST: Duration = Duration::from_secs(5);
const UNAVAILABLE_GROWTH: u32 = 2;
const UNAVAILABLE_MOST: Duration = Duration::from_secs(900);

/// Minimum time between the first and the third of three successive renewals: an authority whose suggested window is
/// always in the past must not cause endless orders.
const RENEWALS_APART: Duration = Duration::from_secs(6 * 3600);

/// Longest wait after a restart, unless the authority asked for a longer one: the operator may have repaired the cause.
/// A process that restarts all the time then sends five orders an hour.
const AFTER_RESTART: Duration = Duration::from_secs(12 * 60);

impl Progress {
    /// Time of the next order. `held` is the existing certificate.
    pub fn next(&self, now: SystemTime, held: Option<HeldCertificate>) -> Next {
        let (mut at, reason) = match held {
            None => (now, Reason::Missing),
            Some(held) => due(&held),
        };
        if let Some(held) = held
            && let Some(before) = self.issued[1].filter(|before| *before <= now)
        {
            at = at.max(before + RENEWALS_APART.min(held.validity.lifetime() / 3));
        }
        // A longer wait than any rule here sets means that the clock was set back.
        let not_before = self.not_before.filter(|until| *until <= now + LONGEST_PAUSE);
        Next { at: not_before.map_or(at, |until| at.max(until)), reason }
    }

    /// Records a failure. `retry_after` is the wait that the authority asked for; `chance`, from 0 to 1, randomizes the
    /// wait.
    pub fn failed(
        &mut self,
        now: SystemTime,
        setback: OrderFailure,
        retry_after: Option<Duration>,
        chance: f64,
    ) {
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now);
        let (first, growth, most) = match setback {
            OrderFailure::Unavailable => (UNAVAILABLE_FIRST, UNAVAILABLE_GROWTH, UNAVAILABLE_MOST),
            OrderFailure::Refused => (REFUSED_FIRST, REFUSED_GROWTH, REFUSED_MOST),
        };
        let grown = growth.saturating_pow(self.failures - 1);
        let wait = first.saturating_mul(grown).min(most).mul_f64(1.0 + chance.clamp(0.0, 1.0) / 4.0);
        self.asked_until = retry_after.map(|asked| now + asked.min(LONGEST_PAUSE));
        self.not_before = Some(self.asked_until.unwrap_or(now).max(now + wait));
    }

    pub fn issued(&mut self, now: SystemTime) {
        *self = Self { issued: [Some(now), self.issued[0]], ..Self::default() };
    }

    /// Returns the record as it applies after a restart of the process.
    pub fn resumed(mut self) -> Self {
        let most = self.failed_at.map(|failed| failed + AFTER_RESTART);
        self.not_before =
            self.not_before.zip(most).map(|(until, most)| until.min(most)).max(self.asked_until);
        self
    }
}

fn due(held: &HeldCertificate) -> (SystemTime, Reason) {
    let Validity { from, until } = held.validity;
    let lifetime = held.validity.lifetime();
    let place = held.place.clamp(0.0, 1.0);
    if let Some(Window { start, end }) = held.suggested {
        let length = end.duration_since(start).unwrap_or_default();
        // A later renewal would leave clients with an expired certificate.
        let latest = until.checked_sub(lifetime / 10).unwrap_or(until);
        return (start.checked_add(length.mul_f64(place)).unwrap_or(latest).min(latest), Reason::Suggested);
    }
    // Spread over a twentieth of the lifetime: certificates ordered together are not renewed together.
    let spread = (lifetime / 20).mul_f64(place);
    (from + lifetime * 2 / 3 - spread, Reason::Age)
}

/// Time until the authority is asked for its renewal window again (RFC 9773 section 4.3.2). `asked` is the Retry-After
/// of the authority.
pub fn poll_again(asked: Option<Duration>, lifetime: Duration) -> Duration {
    const LEAST: Duration = Duration::from_secs(60);
    const USUAL: Duration = Duration::from_secs(6 * 3600);
    const MOST: Duration = Duration::from_secs(86_400);
    asked.unwrap_or(USUAL).min(lifetime / 10).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests;
