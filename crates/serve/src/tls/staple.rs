//! The OCSP response that is sent with one certificate. It is verified in full before it gets here
//! (`logic/src/ocsp`), is held by the certificate it is for, and is not sent a moment beyond its time: the clock is
//! looked at in every handshake. Nothing here waits.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use logic::ocsp::{self, Algorithms, Fault, Good, Hint, Query, schedule};
use rustls::crypto::aws_lc_rs;

use super::facts::MustStaple;
use crate::lock::lock;

/// A response that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staple {
    /// As DER.
    pub response: Vec<u8>,
    /// What it says of its times.
    pub good: Good,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a response came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file beside the certificate.
    File,
    /// The responder.
    Responder,
    /// The responder, before a restart.
    Kept,
}

impl Origin {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Responder => "responder",
            Self::Kept => "kept",
        }
    }
}

/// It takes a moment until the client looks at what it was sent.
const MARGIN: Duration = Duration::from_secs(5);

impl Staple {
    /// Whether it may not be sent any more.
    fn is_over(&self, now: SystemTime) -> bool {
        self.good.until <= now + MARGIN
    }
}

/// One certificate's staple, now and in future. All that are made of the same certificate share it.
#[derive(Debug)]
pub struct Stapling {
    pub(super) query: Query,
    /// Where to ask; empty: nowhere.
    pub(super) responders: Vec<String>,
    must_staple: MustStaple,
    /// The certificate's own end: then nobody is asked any more.
    not_after: SystemTime,
    current: ArcSwapOption<Staple>,
    progress: Mutex<Progress>,
}

/// How asking goes.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Somebody is asking.
    asking: bool,
    /// When to ask again: after a success by the clock on the wall, as that is what responses go by.
    refresh: Option<SystemTime>,
    /// After a failure by the clock that never jumps.
    retry: Option<Instant>,
    /// In a row.
    failures: u32,
    /// Why the last attempt failed.
    fault: Option<String>,
    standing: Standing,
    /// What was complained of when somebody last looked.
    complaint: Option<String>,
}

/// What the issuer last said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
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

    /// What may be sent at this moment.
    pub(super) fn current(&self, now: SystemTime) -> Option<Arc<Staple>> {
        self.current.load_full().filter(|staple| !staple.is_over(now))
    }

    /// Takes a response, if it is good and newer than the one there is.
    pub(super) fn offer(&self, response: Vec<u8>, origin: Origin, now: SystemTime) -> Result<Good, Fault> {
        let good = match ocsp::verify(&response, &self.query, now, algorithms()) {
            Ok(good) => good,
            Err(fault) => {
                if fault.hint() == Hint::DropFormer {
                    lock(&self.progress).standing = Standing::Revoked;
                    self.current.store(None);
                }
                return Err(fault);
            }
        };
        if good.until <= now + MARGIN {
            return Err(Fault::Expired(good.until));
        }
        let mut progress = lock(&self.progress);
        progress.standing = Standing::NotRevoked;
        let is_newer = |old: &Arc<Staple>| old.is_over(now) || old.good.this_update < good.this_update;
        if self.current.load().as_ref().is_none_or(is_newer) {
            self.current.store(Some(Arc::new(Staple { response, good, origin })));
        }
        progress.refresh = Some(now + schedule::after_success(&good, now, fastrand::f64()));
        Ok(good)
    }

    /// When to ask, from now; `None`: never. Zero: at once.
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
        // Longer waits are never set: the clock was put back.
        Some(left.filter(|left| *left <= schedule::LONGEST).unwrap_or_default())
    }

    /// Says that somebody is asking, until [`Self::end`].
    pub(super) fn begin(&self) {
        lock(&self.progress).asking = true;
    }

    /// How asking ended.
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

    /// Why the last attempt failed, or why there is nothing yet.
    pub(super) fn reason(&self, now: SystemTime) -> Option<String> {
        let fault = lock(&self.progress).fault.clone();
        match fault {
            None if self.responders.is_empty() || self.current(now).is_some() => None,
            None => Some("its responder has not answered yet".to_owned()),
            fault => fault,
        }
    }

    /// Whether its issuer last said that it is revoked.
    pub(super) fn is_revoked(&self) -> bool {
        lock(&self.progress).standing == Standing::Revoked
    }

    /// What people must be told of.
    pub(super) fn complaint(&self, now: SystemTime) -> Option<String> {
        let progress = lock(&self.progress);
        if progress.standing == Standing::Revoked {
            let why = progress.fault.as_deref().unwrap_or("its issuer has revoked it");
            return Some(format!(
                "revoked: replace it; no staple is sent with it, and clients may refuse it: {why}"
            ));
        }
        let is_lacking = self.must_staple == MustStaple::Yes && self.current(now).is_none();
        let why = match &progress.fault {
            Some(fault) => fault,
            None if self.responders.is_empty() => "nobody is asked for one",
            None => return None,
        };
        is_lacking.then(|| lacks(why))
    }

    /// Whether [`Self::complaint`] is another than at the last call.
    pub(super) fn complaint_has_changed(&self, now: SystemTime) -> bool {
        let complaint = self.complaint(now);
        let mut progress = lock(&self.progress);
        let has_changed = progress.complaint != complaint;
        progress.complaint = complaint;
        has_changed
    }
}

/// The complaint about a certificate that must have a staple.
pub(super) fn lacks(why: &str) -> String {
    format!("asks for a staple (must-staple) and has none, so some clients refuse it: {why}")
}

/// Every way of signing that TLS takes; SHA-1 is not among them.
fn algorithms() -> Algorithms<'static> {
    static KNOWN: LazyLock<Algorithms<'static>> =
        LazyLock::new(|| aws_lc_rs::default_provider().signature_verification_algorithms.all);
    *KNOWN
}
