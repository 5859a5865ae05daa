//! One token with its state, and whether an OTP is good for it. What was accepted once is never accepted again.

use serde::{Deserialize, Serialize};

use super::challenge::{Exchange, Turn};
use super::oath::{
    Algorithm, Code, Digits, Form, LOOK_AHEAD, LOOK_BACK, RESYNC_AHEAD, RESYNC_STEPS, STEPS_AROUND, Shared,
};
use super::seal::{Key, Unsealable};
use super::yubico::{self, Counter, Otp, Press, Unreadable};

/// Wrong codes in a row after which the next ones must wait (RFC 4226, section 7.3).
const FREE_FAILURES: u32 = 5;

/// Longest time that a code must wait after wrong ones, in seconds.
const LONGEST_WAIT: u64 = 900;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name: for a YubiKey the public name.
    pub id: String,
    /// The user it belongs to; `None` for one that only API clients know.
    pub owner: Option<String>,
    /// How it makes OTPs, and the state of that.
    pub kind: Kind,
    /// Whether it may be used.
    pub standing: Standing,
    /// What it shares with us, sealed.
    pub sealed: String,
    /// Time of its enrolment, in seconds since 1970.
    pub enrolled: u64,
    /// Time of its last use, in seconds since 1970.
    pub used: Option<u64>,
    /// Nonce of the request with the code that was accepted last; a YubiKey has its own in [`Last`].
    pub(super) nonce: String,
    /// Number of the last change of its counters, in its store.
    pub(super) changed: Option<u64>,
    failures: Failures,
}

/// Whether a token may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It may.
    Active,
    /// It was lost, or its owner left.
    Revoked,
}

/// How a token makes OTPs, with the state that keeps one from being used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A YubiKey.
    Yubico {
        /// What was accepted last; `None` before the first one.
        last: Option<Last>,
    },
    /// Codes by a counter.
    Hotp {
        /// How it makes codes.
        form: Form,
        /// The lowest counter that is good.
        next: u64,
    },
    /// Codes by the time.
    Totp {
        /// How it makes codes.
        form: Form,
        /// Seconds of a step.
        period: u64,
        /// The highest step that was accepted.
        last: Option<u64>,
        /// Steps by which the clock of the token is ahead.
        drift: i64,
    },
    /// A key at this machine that responds to challenges. It makes no OTPs.
    Challenge(Exchange),
}

impl Kind {
    /// Its word in lists and records.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Yubico { .. } => "yubico",
            Self::Hotp { .. } => "hotp",
            Self::Totp { .. } => "totp",
            Self::Challenge(_) => "challenge-response",
        }
    }
}

/// The OTP of a YubiKey that was accepted last, here or by another validation server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Counter of sessions.
    pub session: u16,
    /// Counter of presses in the session.
    pub press: u8,
    /// Clock of the key.
    pub timestamp: u32,
    /// Nonce of the request in which it came: the same request is told from a replay.
    pub nonce: String,
}

impl Last {
    /// Its counters, which later ones must exceed.
    #[must_use]
    pub fn counter(&self) -> Counter {
        Counter { session: self.session, press: self.press }
    }
}

/// What an accepted OTP changes in its token, and so where the token stands after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moved {
    /// A YubiKey was pressed.
    Pressed(Last),
    /// Counters below this one are used up.
    Counted {
        /// The lowest counter that is good now.
        next: u64,
        /// Nonce of the request.
        #[serde(default)]
        nonce: String,
    },
    /// A key has responded.
    Responded(Turn),
    /// Steps up to this one are used up.
    Stepped {
        /// The highest step that was accepted.
        last: u64,
        /// Steps by which the clock of the token is ahead.
        drift: i64,
        /// Nonce of the request.
        #[serde(default)]
        nonce: String,
    },
}

impl Moved {
    /// Its place among the OTPs of its token: later ones have a higher one.
    #[must_use]
    pub fn order(&self) -> u64 {
        match self {
            Self::Pressed(last) => u64::from(last.session) << 8 | u64::from(last.press),
            Self::Counted { next, .. } => *next,
            Self::Stepped { last, .. } => *last,
            // Of one store only: it is compared with none of another.
            Self::Responded(_) => 0,
        }
    }

    /// Nonce of the request in which the OTP came.
    #[must_use]
    pub fn nonce(&self) -> &str {
        match self {
            Self::Pressed(last) => &last.nonce,
            Self::Counted { nonce, .. } | Self::Stepped { nonce, .. } => nonce,
            Self::Responded(_) => "",
        }
    }
}

/// What a change did to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Its counters are higher.
    Moved,
    /// A challenge is used up, which other validation servers do not have.
    Here,
    /// Nothing: they were as high before.
    Nothing,
}

/// Why an OTP is not good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No token has this name, or the user has none.
    #[error("no token that is known made this")]
    UnknownToken,
    #[error("the user has no token")]
    NoToken,
    #[error("token {id} is revoked")]
    Revoked {
        /// The token.
        id: String,
    },
    /// The token belongs to another user.
    #[error("token {id} does not belong to this user")]
    NotTheirs {
        /// The token.
        id: String,
    },
    #[error("it has neither the form of a YubiKey's OTP nor that of a code")]
    NotAnOtp,
    #[error("token {id}: {why}")]
    Unreadable {
        /// The token.
        id: String,
        /// What is wrong with it.
        why: Unreadable,
    },
    /// No counter or step around the expected one has this code.
    #[error("token {id}: the code is wrong")]
    WrongCode {
        /// The token.
        id: String,
    },
    #[error("token {id}: this OTP was used before")]
    Replayed {
        /// The token.
        id: String,
        /// The counters of the OTP.
        counter: Option<Counter>,
    },
    /// The key has responded to the challenge in another log-in, or it was never asked this one.
    #[error("token {id}: a log-in before this one has used the challenge up")]
    OldChallenge {
        /// The token.
        id: String,
    },
    #[error("token {id}: the response is not that of the key")]
    WrongResponse {
        /// The token.
        id: String,
    },
    #[error("the user has several keys, and the serial number of this one cannot be read")]
    WhichKey,
    #[error("the user has no key with the serial number {serial}")]
    OtherKey {
        /// Serial number that the key at the machine tells.
        serial: u32,
    },
    /// The same OTP with the same nonce: the request itself came twice.
    #[error("token {id}: a request with this OTP and nonce was answered before")]
    ReplayedRequest {
        /// The token.
        id: String,
    },
    #[error("after {failures} wrong codes the next one must wait {seconds} s")]
    TooManyFailures {
        /// Number of wrong codes in a row.
        failures: u32,
        /// Time to wait.
        seconds: u64,
    },
    #[error("token {id}: {why}")]
    Sealed {
        /// The token.
        id: String,
        /// Why its secret does not open.
        why: Unsealable,
    },
}

impl Token {
    /// A token that was never used.
    #[must_use]
    pub fn new(id: String, owner: Option<String>, kind: Kind, sealed: String, enrolled: u64) -> Self {
        let (standing, failures) = (Standing::Active, Failures::default());
        let (used, nonce, changed) = (None, String::new(), None);
        Self { id, owner, kind, standing, sealed, enrolled, used, nonce, changed, failures }
    }

    /// What was accepted last; `None` before the first OTP.
    #[must_use]
    pub fn position(&self) -> Option<Moved> {
        let nonce = || self.nonce.clone();
        match &self.kind {
            Kind::Yubico { last } => last.clone().map(Moved::Pressed),
            Kind::Hotp { next: 0, .. } => None,
            Kind::Hotp { next, .. } => Some(Moved::Counted { next: *next, nonce: nonce() }),
            Kind::Totp { last, drift, .. } => {
                last.map(|last| Moved::Stepped { last, drift: *drift, nonce: nonce() })
            }
            Kind::Challenge(_) => None,
        }
    }

    /// Whether a change, which may be one of another server, is one of a token of this kind.
    pub(super) fn is_moved_by(&self, moved: &Moved) -> bool {
        matches!(
            (&self.kind, moved),
            (Kind::Yubico { .. }, Moved::Pressed(_))
                | (Kind::Hotp { .. }, Moved::Counted { .. })
                | (Kind::Totp { .. }, Moved::Stepped { .. })
        )
    }

    fn open<T>(&self, key: &Key, read: impl FnOnce(&[u8]) -> Option<T>) -> Result<T, Refusal> {
        let opened = key.open(&self.id, &self.sealed);
        let secret = opened.and_then(|bytes| read(&bytes).ok_or(Unsealable));
        secret.map_err(|why| Refusal::Sealed { id: self.id.clone(), why })
    }

    /// Whether the sealed secret opens and fits the kind.
    pub fn prove_sealed(&self, key: &Key) -> Result<(), Refusal> {
        match self.kind {
            Kind::Yubico { .. } => self.open(key, yubico::Secret::from_bytes).map(drop),
            Kind::Hotp { .. } | Kind::Totp { .. } => self.shared(key).map(drop),
            // Its key alone has the secret.
            Kind::Challenge(_) => Ok(()),
        }
    }

    /// Whether the token makes OTPs; a key that responds to challenges does not.
    #[must_use]
    pub fn makes_otps(&self) -> bool {
        !matches!(self.kind, Kind::Challenge(_))
    }

    fn shared(&self, key: &Key) -> Result<Shared, Refusal> {
        self.open(key, |bytes| Shared::new(bytes.to_vec()))
    }

    pub(super) fn usable(&self) -> Result<(), Refusal> {
        match self.standing {
            Standing::Active => Ok(()),
            Standing::Revoked => Err(Refusal::Revoked { id: self.id.clone() }),
        }
    }

    /// Judges the OTP of a YubiKey.
    pub fn judge_press(&self, key: &Key, otp: &Otp, nonce: &str) -> Result<Last, Refusal> {
        self.usable()?;
        let Kind::Yubico { last } = &self.kind else { return Err(Refusal::UnknownToken) };
        let id = || self.id.clone();
        let secret = self.open(key, yubico::Secret::from_bytes)?;
        let press = secret.open(otp).map_err(|why| Refusal::Unreadable { id: id(), why })?;
        let Press { counter, timestamp, .. } = press;
        match last {
            Some(last) if last.counter() == counter && last.nonce == nonce => {
                Err(Refusal::ReplayedRequest { id: id() })
            }
            Some(last) if last.counter() >= counter => {
                Err(Refusal::Replayed { id: id(), counter: Some(counter) })
            }
            _ => Ok(Last {
                session: counter.session,
                press: counter.press,
                timestamp,
                nonce: nonce.to_owned(),
            }),
        }
    }

    /// Judges a code at a time, in seconds since 1970.
    pub fn judge_code(&mut self, key: &Key, code: &Code, nonce: &str, now: u64) -> Result<Moved, Refusal> {
        self.usable()?;
        self.failures.may_try(now)?;
        let secret = self.shared(key)?;
        // Not counted as wrong: the person has only to take the next code.
        let replayed = || Err(Refusal::Replayed { id: self.id.clone(), counter: None });
        let moved = match self.kind {
            Kind::Yubico { .. } | Kind::Challenge(_) => None,
            Kind::Hotp { form, next } => {
                let at = form.find(&secret, code, next, LOOK_AHEAD + 1);
                let oldest = next.saturating_sub(LOOK_BACK);
                let before = form.find(&secret, code, oldest, next - oldest);
                if at.is_none() && before.is_some() {
                    return replayed();
                }
                let next = at.and_then(|at| at.checked_add(1));
                next.map(|next| Moved::Counted { next, nonce: nonce.to_owned() })
            }
            Kind::Totp { form, period, last, drift } => {
                let centre = (now / period.max(1)).saturating_add_signed(drift);
                let first = centre.saturating_sub(STEPS_AROUND);
                let at = form.find(&secret, code, first, 2 * STEPS_AROUND + 1);
                if at.is_some_and(|at| last.is_some_and(|last| at <= last)) {
                    return replayed();
                }
                at.map(|last| Moved::Stepped { last, drift, nonce: nonce.to_owned() })
            }
        };
        match moved {
            Some(moved) => {
                self.failures = Failures::default();
                Ok(moved)
            }
            None => Err(Refusal::WrongCode { id: self.id.clone() }),
        }
    }

    /// Counts a wrong code. Of a user with several tokens a code is wrong only when none of them made it.
    pub fn count_failure(&mut self, now: u64) {
        self.failures.count(now);
    }

    /// Judges two codes in a row, of a token that is out of step.
    pub fn judge_resync(&mut self, key: &Key, codes: &[Code; 2], now: u64) -> Result<Moved, Refusal> {
        self.usable()?;
        let secret = self.shared(key)?;
        let moved = match self.kind {
            Kind::Yubico { .. } | Kind::Challenge(_) => None,
            Kind::Hotp { form, next } => {
                let at = form.find_pair(&secret, codes, next, RESYNC_AHEAD);
                let next = at.and_then(|at| at.checked_add(2));
                next.map(|next| Moved::Counted { next, nonce: String::new() })
            }
            Kind::Totp { form, period, last, .. } => {
                let step = now / period.max(1);
                let first = last.map_or(0, |last| last + 1).max(step.saturating_sub(RESYNC_STEPS));
                let count = (step + RESYNC_STEPS).saturating_sub(first);
                // The second code is the present one.
                let at = form.find_pair(&secret, codes, first, count).map(|at| at + 1);
                at.map(|last| {
                    let drift = last.cast_signed() - step.cast_signed();
                    Moved::Stepped { last, drift, nonce: String::new() }
                })
            }
        };
        if moved.is_some() {
            self.failures = Failures::default();
        }
        moved.ok_or_else(|| Refusal::WrongCode { id: self.id.clone() })
    }

    /// Takes over a change. Counters only grow: an older change does nothing.
    pub(super) fn take(&mut self, moved: &Moved, now: u64) -> Effect {
        if let (Kind::Challenge(exchange), Moved::Responded(turn)) = (&mut self.kind, moved) {
            exchange.take(turn);
            self.used = Some(now);
            return Effect::Here;
        }
        let is_higher = self.position().is_none_or(|before| moved.order() > before.order());
        if !self.is_moved_by(moved) || !is_higher {
            return Effect::Nothing;
        }
        match (&mut self.kind, moved) {
            (Kind::Yubico { last }, Moved::Pressed(new)) => *last = Some(new.clone()),
            (Kind::Hotp { next, .. }, Moved::Counted { next: new, nonce }) => {
                (*next, self.nonce) = (*new, nonce.clone());
            }
            (Kind::Totp { last, drift, .. }, Moved::Stepped { last: new, drift: by, nonce }) => {
                (*last, *drift, self.nonce) = (Some(*new), *by, nonce.clone());
            }
            _ => return Effect::Nothing,
        }
        self.used = Some(now);
        Effect::Moved
    }
}

/// Wrong codes in a row. Not stored: a restart forgets them, and costs more than the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Failures {
    count: u32,
    wait_until: u64,
}

impl Failures {
    fn may_try(self, now: u64) -> Result<(), Refusal> {
        match self.wait_until.saturating_sub(now) {
            0 => Ok(()),
            seconds => {
                Err(Refusal::TooManyFailures { failures: self.count, seconds: seconds.min(LONGEST_WAIT) })
            }
        }
    }

    fn count(&mut self, now: u64) {
        self.count = self.count.saturating_add(1);
        if let Some(beyond) = self.count.checked_sub(FREE_FAILURES) {
            self.wait_until = now + (1_u64 << beyond.min(10)).min(LONGEST_WAIT);
        }
    }
}

/// How codes are made, in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredForm {
    algorithm: StoredAlgorithm,
    digits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum StoredAlgorithm {
    Sha1,
    Sha256,
    Sha512,
}

impl From<Form> for StoredForm {
    fn from(form: Form) -> Self {
        let algorithm = match form.algorithm {
            Algorithm::Sha1 => StoredAlgorithm::Sha1,
            Algorithm::Sha256 => StoredAlgorithm::Sha256,
            Algorithm::Sha512 => StoredAlgorithm::Sha512,
        };
        Self { algorithm, digits: form.digits.count() }
    }
}

impl StoredForm {
    pub(super) fn form(self) -> Result<Form, String> {
        let algorithm = match self.algorithm {
            StoredAlgorithm::Sha1 => Algorithm::Sha1,
            StoredAlgorithm::Sha256 => Algorithm::Sha256,
            StoredAlgorithm::Sha512 => Algorithm::Sha512,
        };
        let digits = Digits::new(self.digits).ok_or_else(|| format!("codes of {} digits", self.digits))?;
        Ok(Form { algorithm, digits })
    }
}
