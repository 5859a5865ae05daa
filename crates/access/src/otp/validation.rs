//! The validation protocol 2.0 of Yubico, seen by a server: what a client asks, and the answer with its signature.
//!
//! The order of the checks is the one that clients know: form, client, signature, OTP. Every answer is HTTP 200.

use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base64ct::{Base64, Encoding};

use super::query::{self, Query};
use super::token::{Last, Refusal};

/// Path of requests.
pub const PATH: &str = "/wsapi/2.0/verify";

/// Lengths of a nonce.
const NONCE: std::ops::RangeInclusive<usize> = 16..=40;

/// Longest time that a client may make the server wait for other servers.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

text::words! {
    /// What became of an OTP.
    pub enum Status: "status" {
        /// It is good.
        Ok = "OK",
        /// It is no OTP, or of no key that is known.
        BadOtp = "BAD_OTP",
        /// It was used before.
        ReplayedOtp = "REPLAYED_OTP",
        /// The signature of the request is wrong.
        BadSignature = "BAD_SIGNATURE",
        /// A parameter is absent, or has no value that it may have.
        MissingParameter = "MISSING_PARAMETER",
        /// No client has this number.
        NoSuchClient = "NO_SUCH_CLIENT",
        /// The client may not ask this.
        OperationNotAllowed = "OPERATION_NOT_ALLOWED",
        /// The server cannot tell: its store does not take the change.
        BackendError = "BACKEND_ERROR",
        /// Too few other servers agreed in time.
        NotEnoughAnswers = "NOT_ENOUGH_ANSWERS",
        /// The same request came before.
        ReplayedRequest = "REPLAYED_REQUEST",
    }
}

impl From<&Refusal> for Status {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Replayed { .. } => Self::ReplayedOtp,
            Refusal::ReplayedRequest { .. } => Self::ReplayedRequest,
            Refusal::Sealed { .. } => Self::BackendError,
            _ => Self::BadOtp,
        }
    }
}

/// Part of the other servers that must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As the server is configured.
    Usual,
    /// One of them.
    Fast,
    /// All of them.
    Secure,
    /// This part of them, in percent.
    Percent(u8),
}

/// Whether the client wants to know the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// It does.
    Wanted,
    /// It does not.
    Unwanted,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Number of the client.
    pub client: u32,
    /// The OTP, as it came.
    pub otp: String,
    /// Nonce of the request.
    pub nonce: String,
    /// `timestamp=1`
    pub counters: Counters,
    /// `sl`
    pub level: Level,
    /// `timeout`
    pub wait: Option<Duration>,
    signature: Option<String>,
    signed: String,
}

/// The parts of a request that an answer repeats.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Echo {
    /// The OTP as it came, if it has only letters, digits, `.` and `>`.
    pub otp: Option<String>,
    /// The nonce, if it is one.
    pub nonce: Option<String>,
}

/// Reads the query of a request. The error is the status of the answer.
pub fn read(text: &str) -> (Echo, Result<Asked, Status>) {
    let Some(query) = Query::read(text) else { return (Echo::default(), Err(Status::MissingParameter)) };
    let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_plain = |text: &&str| {
        text.len() <= 100
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'>'))
    };
    let nonce = query.get("nonce").filter(|nonce| NONCE.contains(&nonce.len()) && is_word(nonce));
    let echo =
        Echo { otp: query.get("otp").filter(is_plain).map(str::to_owned), nonce: nonce.map(str::to_owned) };
    (echo, ask(&query, nonce))
}

fn ask(query: &Query, nonce: Option<&str>) -> Result<Asked, Status> {
    let otp = query.get("otp").ok_or(Status::MissingParameter)?;
    let nonce = nonce.ok_or(Status::MissingParameter)?;
    let client = query.get("id").and_then(number).ok_or(Status::MissingParameter)?;
    let level = match query.get("sl") {
        None => Level::Usual,
        Some("fast") => Level::Fast,
        Some("secure") => Level::Secure,
        Some(percent) => {
            let percent = number(percent).and_then(|percent| u8::try_from(percent).ok());
            Level::Percent(percent.filter(|percent| *percent <= 100).ok_or(Status::MissingParameter)?)
        }
    };
    let wait = match query.get("timeout") {
        None => None,
        Some(seconds) => {
            let seconds = number(seconds).ok_or(Status::MissingParameter)?;
            Some(Duration::from_secs(seconds.into()).min(LONGEST_WAIT))
        }
    };
    let counters = match query.get("timestamp") {
        Some("1") => Counters::Wanted,
        _ => Counters::Unwanted,
    };
    Ok(Asked {
        client,
        otp: otp.to_owned(),
        nonce: nonce.to_owned(),
        counters,
        level,
        wait,
        // A client that does not escape the plus sign means it all the same.
        signature: query.get("h").map(|signature| signature.replace(' ', "+")),
        signed: query.signed(),
    })
}

fn number(text: &str) -> Option<u32> {
    (text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() < 10).then(|| text.parse().ok()).flatten()
}

/// Whether a request must be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsigned {
    /// A request without a signature is answered: the protocol leaves it to the client.
    Answered,
    /// It is refused.
    Refused,
}

impl Asked {
    /// Checks the signature with the key of the client; `None` for a client without one, whose requests are not signed.
    pub fn prove(&self, key: Option<&[u8]>, unsigned: Unsigned) -> Result<(), Status> {
        match (&self.signature, key) {
            (None, None) => Ok(()),
            (None, Some(_)) if unsigned == Unsigned::Answered => Ok(()),
            (None, Some(_)) => Err(Status::BadSignature),
            (Some(_), None) => Err(Status::BadSignature),
            (Some(signature), Some(key)) => {
                let right = sign(key, &self.signed);
                let is_right = verify_slices_are_equal(right.as_bytes(), signature.as_bytes()).is_ok();
                is_right.then_some(()).ok_or(Status::BadSignature)
            }
        }
    }
}

/// The signature of a message: base64 of HMAC-SHA1.
#[must_use]
pub fn sign(key: &[u8], message: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    Base64::encode_string(hmac::sign(&key, message.as_bytes()).as_ref())
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What became of the OTP.
    pub status: Status,
    /// Part of the other servers that agreed, in percent, if any was asked.
    pub level: Option<u8>,
    /// The counters, if the client wants them and the OTP is good.
    pub counters: Option<Last>,
}

impl Answer {
    /// One that says no more than this.
    #[must_use]
    pub fn only(status: Status) -> Self {
        Self { status, level: None, counters: None }
    }

    /// The text of the answer. `milliseconds` is the time since 1970, `key` that of the client.
    #[must_use]
    pub fn text(&self, echo: &Echo, milliseconds: u64, key: Option<&[u8]>) -> String {
        let mut lines = vec![("t", time(milliseconds))];
        lines.extend(echo.otp.clone().map(|otp| ("otp", otp)));
        lines.extend(echo.nonce.clone().map(|nonce| ("nonce", nonce)));
        lines.extend(self.level.map(|level| ("sl", level.to_string())));
        if let Some(last) = &self.counters {
            lines.push(("timestamp", last.timestamp.to_string()));
            lines.push(("sessioncounter", last.session.to_string()));
            lines.push(("sessionuse", last.press.to_string()));
        }
        lines.push(("status", self.status.to_string()));
        let signed = query::signed(lines.iter().map(|(name, value)| (*name, value.as_str())).collect());
        let signature = sign(key.unwrap_or_default(), &signed);
        let mut text = format!("h={signature}\r\n");
        for (name, value) in lines {
            text.push_str(&format!("{name}={value}\r\n"));
        }
        text.push_str("\r\n");
        text
    }
}

/// A time as answers have it: `2010-04-23T20:34:50Z0678`.
fn time(milliseconds: u64) -> String {
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, in eras of 400 years (proleptic Gregorian calendar).
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let part = (5 * of_year + 2) / 153;
    let day = of_year - (153 * part + 2) / 5 + 1;
    let month = if part < 10 { part + 3 } else { part - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z{rest:04}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OTP: &str = "ccccccccccccittrchbburhufhnddvbgrvjglcijfriu";
    const NONCE: &str = "0123456789abcdef0123456789abcdef";

    fn asked(more: &str) -> Result<Asked, Status> {
        read(&format!("id=7&otp={OTP}&nonce={NONCE}{more}")).1
    }

    #[test]
    fn a_request_is_read_whole() {
        let asked = asked("&timestamp=1&sl=50&timeout=8&h=abc").unwrap();
        assert_eq!((asked.client, asked.otp.as_str(), asked.nonce.as_str()), (7, OTP, NONCE));
        assert_eq!(
            (asked.counters, asked.level, asked.wait),
            (Counters::Wanted, Level::Percent(50), Some(Duration::from_secs(8)))
        );
    }

    #[test]
    fn each_part_that_is_absent_or_wrong_is_a_missing_parameter() {
        for query in [
            "",
            "id=7",
            &format!("otp={OTP}&nonce={NONCE}"),
            &format!("id=7&nonce={NONCE}"),
            &format!("id=7&otp={OTP}"),
            &format!("id=x&otp={OTP}&nonce={NONCE}"),
            &format!("id=7&otp={OTP}&nonce=short"),
            &format!("id=7&otp={OTP}&nonce={}", "a".repeat(41)),
            &format!("id=7&otp={OTP}&nonce={}%0d%0a", "a".repeat(20)),
            &format!("id=7&id=8&otp={OTP}&nonce={NONCE}"),
        ] {
            assert_eq!(read(query).1, Err(Status::MissingParameter), "{query}");
        }
        for more in ["&sl=101", "&sl=x", "&sl=-1", "&timeout=x", "&timeout=-1"] {
            assert_eq!(asked(more), Err(Status::MissingParameter), "{more}");
        }
        assert_eq!(asked("&timeout=999999999").unwrap().wait, Some(LONGEST_WAIT));
    }

    #[test]
    fn a_signature_is_checked_over_all_parameters() {
        let key = b"0123456789abcdef";
        let good = sign(key, &format!("id=7&nonce={NONCE}&otp={OTP}&timestamp=1"));
        let with = |more: &str| asked(more).unwrap();
        let escaped = good.replace('+', "%2B").replace('=', "%3D");
        assert_eq!(with(&format!("&timestamp=1&h={escaped}")).prove(Some(key), Unsigned::Answered), Ok(()));
        assert_eq!(with(&format!("&timestamp=1&h={good}")).prove(Some(key), Unsigned::Answered), Ok(()));
        for (more, key, unsigned) in [
            (format!("&h={escaped}"), Some(&key[..]), Unsigned::Answered),
            (format!("&timestamp=1&sl=1&h={escaped}"), Some(&key[..]), Unsigned::Answered),
            (format!("&timestamp=1&h={escaped}"), Some(&b"other"[..]), Unsigned::Answered),
            (format!("&timestamp=1&h={escaped}"), None, Unsigned::Answered),
            (String::new(), Some(&key[..]), Unsigned::Refused),
        ] {
            assert_eq!(with(&more).prove(key, unsigned), Err(Status::BadSignature), "{more}");
        }
        assert_eq!(with("").prove(Some(key), Unsigned::Answered), Ok(()));
        assert_eq!(with("").prove(None, Unsigned::Refused), Ok(()));
    }

    #[test]
    fn an_answer_is_signed_over_its_lines_in_order() {
        let echo = Echo { otp: Some(OTP.to_owned()), nonce: Some(NONCE.to_owned()) };
        let last = Last { session: 19, press: 17, timestamp: 1234, nonce: NONCE.to_owned() };
        let answer = Answer { status: Status::Ok, level: Some(100), counters: Some(last) };
        let text = answer.text(&echo, 1_272_054_890_678, Some(b"key"));
        let signed = format!(
            "nonce={NONCE}&otp={OTP}&sessioncounter=19&sessionuse=17&sl=100&status=OK&t=2010-04-23T20:34:50Z0678&timestamp=1234"
        );
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0], format!("h={}", sign(b"key", &signed)));
        assert_eq!(
            &lines[1..],
            [
                "t=2010-04-23T20:34:50Z0678",
                &format!("otp={OTP}"),
                &format!("nonce={NONCE}"),
                "sl=100",
                "timestamp=1234",
                "sessioncounter=19",
                "sessionuse=17",
                "status=OK",
                "",
                ""
            ]
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (1_795_690_701, "2026-11-26T10:58:21"),
        ] {
            assert_eq!(time(seconds * 1000), format!("{text}Z0000"));
        }
    }

    #[test]
    fn nothing_hostile_is_repeated() {
        let (echo, _) = read(&format!("id=7&otp=x%0d%0astatus=OK&nonce={NONCE}"));
        assert_eq!(echo, Echo { otp: None, nonce: Some(NONCE.to_owned()) });
    }

    proptest! {
        #[test]
        fn any_query_is_answered(text in "[ -~]{0,200}") {
            let (echo, asked) = read(&text);
            let answer = Answer::only(asked.err().unwrap_or(Status::Ok)).text(&echo, 0, None);
            prop_assert_eq!(answer.matches("status=").count(), 1);
        }
    }
}
