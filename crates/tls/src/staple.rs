//! The OCSP response that is sent with a certificate. It is verified in full before it gets here (`logic/src/ocsp`),
//! belongs to one certificate, and is never sent after it expires: every handshake checks the time. No function here
//! blocks.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use logic::ocsp::{self, Algorithms, Fault, Good, Hint, Query, schedule};
use rustls::crypto::aws_lc_rs;
use state::lock::lock;

use super::facts::MustStaple;

/// A verified OCSP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staple {
    pub response: Vec<u8>,
    /// Validity times of the response.
    pub good: Good,
    pub origin: Origin,
}

/// Origin of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file beside the certificate.
    File,
    Responder,
    /// The responder, before the last restart.
    Stored,
}

impl Origin {
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Responder => "responder",
            Self::Stored => "stored",
        }
    }
}

/// Margin before expiry: the client checks the response a moment after it was sent.
const MARGIN: Duration = Duration::from_secs(5);

impl Staple {
    /// Returns true if the response is too old to be sent.
    fn is_over(&self, now: SystemTime) -> bool {
        self.good.until <= now + MARGIN
    }
}

/// Current and future OCSP responses of one certificate. All pairs with the same certificate share one `Stapling`.
#[derive(Debug)]
pub(crate) struct Stapling {
    pub(super) query: Query,
    /// URLs of the responders. Empty if there are none.
    pub(super) responders: Vec<String>,
    must_staple: MustStaple,
    /// Expiry of the certificate; no responder is asked after it.
    not_after: SystemTime,
    current: ArcSwapOption<Staple>,
    progress: Mutex<Progress>,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    /// True while a request to a responder is running.
    asking: bool,
    /// Time of the next request after a success, by the system clock, because the times in responses refer to it.
    refresh: Option<SystemTime>,
    /// Time of the next request after a failure, by the monotonic clock.
    retry: Option<Instant>,
    failures: u32,
    /// Error of the last attempt.
    fault: Option<String>,
    standing: RevocationState,
    /// Warning at the last check.
    complaint: Option<String>,
}

/// Last status reported by the issuer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RevocationState {
    #[default]
    NotRevoked,
    Revoked,
}

impl Stapling {
    pub(super) fn new(
        query: Query,
        responders: Vec<String>,
        must_staple: MustStaple,
        not_after: SystemTime,
    ) -> Self {
        Self {
            query,
            responders,
            must_staple,
            not_after,
            current: ArcSwapOption::empty(),
            progress: Mutex::default(),
        }
    }

    /// Returns the response that may be sent at `now`.
    pub(super) fn current(&self, now: SystemTime) -> Option<Arc<Staple>> {
        self.current.load_full().filter(|staple| !staple.is_over(now))
    }

    /// Stores a response if it is valid and newer than the current one.
    pub(super) fn offer(&self, response: Vec<u8>, origin: Origin, now: SystemTime) -> Result<Good, Fault> {
        let good = match ocsp::verify(&response, &self.query, now, algorithms()) {
            Ok(good) => good,
            Err(fault) => {
                if fault.hint() == Hint::DropFormer {
                    lock(&self.progress).standing = RevocationState::Revoked;
                    self.current.store(None);
                }
                return Err(fault);
            }
        };
        if good.until <= now + MARGIN {
            return Err(Fault::Expired(good.until));
        }
        let mut progress = lock(&self.progress);
        progress.standing = RevocationState::NotRevoked;
        let is_newer = |old: &Arc<Staple>| old.is_over(now) || old.good.this_update < good.this_update;
        if self.current.load().as_ref().is_none_or(is_newer) {
            self.current.store(Some(Arc::new(Staple { response, good, origin })));
        }
        progress.refresh = Some(now + schedule::after_success(&good, now, fastrand::f64()));
        Ok(good)
    }

    /// Returns the time from now until the next request: zero for at once, `None` for never.
    pub(super) fn due(&self, now: SystemTime) -> Option<Duration> {
        if self.responders.is_empty() || now > self.not_after {
            return None;
        }
        let progress = lock(&self.progress);
        if progress.asking {
            return None;
        }
        if let Some(retry) = progress.retry {
            return Some(retry.saturating_duration_since(Instant::now()));
        }
        let left = progress.refresh.map(|refresh| refresh.duration_since(now).unwrap_or_default());
        // Longer waits are never scheduled, so the system clock was set back.
        Some(left.filter(|left| *left <= schedule::LONGEST).unwrap_or_default())
    }

    /// Marks a request to a responder as running, until [`Self::end`].
    pub(super) fn begin(&self) {
        lock(&self.progress).asking = true;
    }

    pub(super) fn end(&self, result: Result<(), String>) {
        let mut progress = lock(&self.progress);
        progress.asking = false;
        match result {
            Ok(()) => (progress.failures, progress.retry, progress.fault) = (0, None, None),
            Err(why) => {
                progress.failures = progress.failures.saturating_add(1);
                let wait = schedule::after_failure(progress.failures, fastrand::f64());
                progress.retry = Some(Instant::now() + wait);
                progress.fault = Some(why);
            }
        }
    }

    /// Returns the error of the last attempt, or the reason why there is no response yet.
    pub(super) fn reason(&self, now: SystemTime) -> Option<String> {
        let fault = lock(&self.progress).fault.clone();
        match fault {
            None if self.responders.is_empty() || self.current(now).is_some() => None,
            None => Some("its responder has not answered yet".to_owned()),
            fault => fault,
        }
    }

    /// Returns true if the last response says that the certificate is revoked.
    pub(super) fn is_revoked(&self) -> bool {
        lock(&self.progress).standing == RevocationState::Revoked
    }

    /// Returns the warning for the operator.
    pub(super) fn complaint(&self, now: SystemTime) -> Option<String> {
        let progress = lock(&self.progress);
        if progress.standing == RevocationState::Revoked {
            let why = progress.fault.as_deref().unwrap_or("its issuer has revoked it");
            return Some(format!(
                "revoked: replace it; no staple is sent with it, and clients may refuse it: {why}"
            ));
        }
        let is_lacking = self.must_staple == MustStaple::Yes && self.current(now).is_none();
        let why = match &progress.fault {
            Some(fault) => fault,
            None if self.responders.is_empty() => "the certificate names no responder",
            None => return None,
        };
        is_lacking.then(|| missing_staple(why))
    }

    /// Returns true if the result of [`Self::complaint`] has changed since the last call.
    pub(super) fn complaint_has_changed(&self, now: SystemTime) -> bool {
        let complaint = self.complaint(now);
        let mut progress = lock(&self.progress);
        let has_changed = progress.complaint != complaint;
        progress.complaint = complaint;
        has_changed
    }
}

/// Returns the warning for a certificate that requires a staple (RFC 7633) and has none.
pub(super) fn missing_staple(why: &str) -> String {
    format!("asks for a staple (must-staple) and has none, so some clients refuse it: {why}")
}

/// Returns all signature algorithms that TLS accepts; SHA-1 is not among them.
fn algorithms() -> Algorithms<'static> {
    static KNOWN: LazyLock<Algorithms<'static>> =
        LazyLock::new(|| aws_lc_rs::default_provider().signature_verification_algorithms.all);
    *KNOWN
}
