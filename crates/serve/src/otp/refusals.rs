//! Why a question was refused, in the log: the client gets one answer, the operator the reason, the token's name and what to do.
//! Never the OTP. Anyone may send wrong ones, so the lines are limited in number, and those that were left out are counted.

use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use access::otp::sync::Verdict;
use access::otp::token::Refusal;
use state::lock::lock;
use text::terminal::plain;

use super::tokens::SUBJECT;

/// Lines in a row, and the time after which there may be one more.
const BURST: u32 = 100;
const EVERY: Duration = Duration::from_millis(100);

/// Who asked.
#[derive(Clone, Debug)]
pub(super) enum Asker {
    /// A client of the validation server.
    Client { id: u32, from: Option<IpAddr> },
    /// A client of the validation server whose `id` is missing or no number.
    Unnamed { from: Option<IpAddr> },
    /// Another validation server.
    Server { from: Option<IpAddr> },
    /// A PAM module, about a user.
    Module { who: String, user: String },
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = |from: &Option<IpAddr>| from.map_or("a Unix socket".to_owned(), |ip| ip.to_string());
        match self {
            Self::Client { id, from: ip } => write!(f, "API client {id} at {}", from(ip)),
            Self::Unnamed { from: ip } => write!(f, "a client at {}", from(ip)),
            Self::Server { from: ip } => write!(f, "the server at {}", from(ip)),
            Self::Module { who, .. } => f.write_str(who),
        }
    }
}

/// Why it was refused.
#[derive(Clone, Debug)]
pub(super) enum Why {
    /// The request has not the form of the protocol.
    NoQuestion,
    NoClient,
    /// The key of the API client does not open.
    SealedClient,
    WrongSignature,
    /// By the store. `token` is the name in the OTP.
    Refused {
        token: Option<String>,
        why: Refusal,
    },
    /// It tells what it accepted, and is no other server of the configuration.
    OtherServer,
    /// Another server tells of a token that is not enrolled here.
    NotHere {
        token: String,
    },
    /// By other servers, of an OTP that was good here.
    Others {
        token: String,
        verdict: Verdict,
    },
    /// By the check of a password, or by a rule.
    Other(String),
}

/// Writes the lines.
#[derive(Debug)]
pub(super) struct Refusals(Mutex<Quota>);

#[derive(Debug)]
struct Quota {
    left: u32,
    since: Instant,
    left_out: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::new(Quota { left: BURST, since: Instant::now(), left_out: 0 }))
    }
}

impl Quota {
    /// Whether a line may be written, and how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let gained = now.duration_since(self.since).as_millis() / EVERY.as_millis();
        if gained > 0 {
            self.left = self.left.saturating_add(u32::try_from(gained).unwrap_or(BURST)).min(BURST);
            self.since = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

impl Refusals {
    pub(super) fn tell(&self, asker: &Asker, why: &Why) {
        let Some(left_out) = lock(&self.0).take(Instant::now()) else { return };
        if left_out > 0 {
            tracing::warn!(
                subject = SUBJECT,
                "{left_out} refusals before this one have no line of their own"
            );
        }
        tracing::warn!(subject = SUBJECT, "{asker}: refused: {}", plain(&reason(asker, why)));
    }
}

fn reason(asker: &Asker, why: &Why) -> String {
    match why {
        Why::NoQuestion => {
            "MISSING_PARAMETER: a parameter is absent, stands twice, or has no value that it may have"
                .to_owned()
        }
        Why::NoClient => "NO_SUCH_CLIENT: no API client has this number (penstock otp client add)".to_owned(),
        Why::SealedClient => {
            "BACKEND_ERROR: the key of this API client does not open (penstock otp client add)".to_owned()
        }
        Why::WrongSignature => {
            "BAD_SIGNATURE: it is not signed with the key of this API client (penstock otp client list)"
                .to_owned()
        }
        Why::OtherServer => {
            "OPERATION_NOT_ALLOWED: it tells what it accepted, and is none of peers and sync-from in [otp]"
                .to_owned()
        }
        Why::NotHere { token } => {
            format!(
                "BAD_OTP: it tells of token {token}, which is not enrolled here (penstock otp enrol, import)"
            )
        }
        Why::Refused { token, why } => of_store(asker, token.as_deref(), why),
        Why::Others { token, verdict: Verdict::Replayed } => {
            format!("REPLAYED_OTP: token {token}: another server has accepted this OTP, or a later one")
        }
        Why::Others { token, verdict } => {
            let percent = match verdict {
                Verdict::Agreed(percent) | Verdict::TooFew(percent) => *percent,
                Verdict::Replayed | Verdict::Wait => 0,
            };
            format!(
                "NOT_ENOUGH_ANSWERS: token {token}: {percent} % of the other servers agreed in time (penstock ctl status names those that do not answer)"
            )
        }
        Why::Other(reason) => reason.clone(),
    }
}

/// The reason of the store, with what to do. Statuses are those of the protocol, for all who ask.
fn of_store(asker: &Asker, token: Option<&str>, why: &Refusal) -> String {
    let (bad, user) = match asker {
        Asker::Module { user, .. } => ("", user.as_str()),
        Asker::Client { .. } | Asker::Unnamed { .. } | Asker::Server { .. } => ("BAD_OTP: ", "USER"),
    };
    match why {
        Refusal::UnknownToken => match token {
            Some(token) => format!("{bad}there is no token {token} here (penstock otp enrol, import)"),
            None => format!("{bad}{why}: the user has YubiKeys only (penstock otp list)"),
        },
        Refusal::NoToken => {
            format!("{bad}{why} (penstock otp enrol totp --user {user}, or give NAME {user})")
        }
        Refusal::Revoked { id } => {
            format!("{bad}{why} (if it was found again: penstock otp restore {id})")
        }
        Refusal::NotTheirs { id } => format!("{bad}{why} (if it does: penstock otp give {id} {user})"),
        Refusal::NotAnOtp | Refusal::TooManyFailures { .. } => format!("{bad}{why}"),
        Refusal::Unreadable { .. } => {
            format!("{bad}{why} (a key that was written anew must be enrolled anew)")
        }
        Refusal::WrongCode { id } => {
            format!("{bad}{why} (if right ones are refused: penstock otp resync {id})")
        }
        Refusal::Replayed { id, .. } => format!(
            "REPLAYED_OTP: {why}: take the next one (if the owner did not use it, another person has seen it: penstock otp revoke {id})"
        ),
        Refusal::OldChallenge { id } => format!(
            "REPLAYED_OTP: {why} (if the key is refused again: penstock otp remove {id}, and enrol it anew)"
        ),
        Refusal::WrongResponse { id } => format!(
            "{bad}{why} (another key was there, or its slot was written anew: penstock otp remove {id}, and enrol it anew)"
        ),
        Refusal::WhichKey => {
            format!("{bad}{why} (serial_program= of the module, and ykman otp settings --serial-usb-visible)")
        }
        Refusal::OtherKey { .. } => {
            format!("{bad}{why} (penstock otp enrol challenge-response --user {user} --serial N)")
        }
        Refusal::ReplayedRequest { .. } => format!("REPLAYED_REQUEST: {why}"),
        Refusal::Sealed { id, .. } => {
            format!("BACKEND_ERROR: {why} (penstock otp remove {id}, and enrol it anew)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_those_left_out_are_counted() {
        let begin = Instant::now();
        let mut quota = Quota { left: BURST, since: begin, left_out: 0 };
        assert!((0..BURST).all(|_| quota.take(begin) == Some(0)));
        assert!((0..7).all(|_| quota.take(begin).is_none()));
        assert_eq!(quota.take(begin + EVERY), Some(7));
        assert_eq!(quota.take(begin + EVERY), None);
        assert_eq!(quota.take(begin + 1000 * EVERY), Some(1));
        assert_eq!(quota.left, BURST - 1);
    }

    #[test]
    fn a_used_code_is_told_from_a_wrong_one_and_from_no_token() {
        let asker = Asker::Module { who: "alice (sshd)".to_owned(), user: "alice".to_owned() };
        let said = |why| reason(&asker, &Why::Refused { token: None, why });
        let id = || "alice-totp".to_owned();
        assert!(
            said(Refusal::Replayed { id: id(), counter: None }).contains("REPLAYED_OTP: token alice-totp: ")
        );
        assert!(said(Refusal::WrongCode { id: id() }).contains("penstock otp resync alice-totp"));
        assert!(said(Refusal::NoToken).contains("penstock otp enrol totp --user alice"));
        assert!(said(Refusal::Revoked { id: id() }).contains("penstock otp restore alice-totp"));
        let unknown = Why::Refused { token: Some("vvvv".to_owned()), why: Refusal::UnknownToken };
        assert!(reason(&asker, &unknown).contains("no token vvvv here"));
    }
}
