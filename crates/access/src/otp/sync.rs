//! The messages by which validation servers tell each other what they accepted, and the count of the answers. Each server has
//! accepted an OTP for itself before it asks the others: of two that get the same OTP at the same moment, each learns from the
//! other that it is a replay.
//!
//! What a YubiKey did has the parameters of YK-VAL's `/wsapi/2.0/sync`. A code has `token` with the name of its token, and `hotp`
//! (the lowest counter that is good now) or `totp` (the step) with `drift`. Answers also have `changes`: the number of the last
//! change in the store that answers, by which it is known that one has lost some.

use super::query::{self, Query};
use super::token::{Last, Moved};
use super::yubico::is_name;

/// Path of requests.
pub const PATH: &str = "/wsapi/2.0/sync";

/// What a server tells the others, and what each answers: the state of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Name of the token.
    pub name: String,
    /// What was accepted last; `None` for a token that was never used there.
    pub last: Option<Moved>,
    /// Time of that, in seconds since 1970.
    pub modified: u64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The state that the server had before.
    pub state: State,
    /// Number of the last change there; `None` from servers that have no such number.
    pub changes: Option<u64>,
}

/// Why a message is refused: the parameter that is absent or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter {0} is absent or wrong")]
pub struct Wrong(pub &'static str);

/// Reads what another server tells.
pub fn read(text: &str) -> Result<State, Wrong> {
    let query = Query::read(text).ok_or(Wrong("query"))?;
    state(|name| query.get(name)).and_then(|state| match state.last {
        Some(_) => Ok(state),
        None => Err(Wrong("yk_counter")),
    })
}

/// Reads the answer of another server. `None` if it is none, or refuses.
#[must_use]
pub fn read_answer(text: &str) -> Option<Known> {
    let lines: Vec<(&str, &str)> =
        text.lines().take(32).filter_map(|line| line.trim().split_once('=')).collect();
    let get = |name: &str| lines.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    if get("status") != Some("OK") {
        return None;
    }
    let changes = get("changes").and_then(|text| text.parse().ok());
    state(get).ok().map(|state| Known { state, changes })
}

fn state<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<State, Wrong> {
    let nonce = get("nonce").unwrap_or_default();
    if nonce.len() > 40 || !nonce.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Wrong("nonce"));
    }
    let nonce = nonce.to_owned();
    let number = |name: &'static str, least: i64, most: i64| {
        let number = get(name).and_then(|text| text.parse::<i64>().ok());
        number.filter(|number| (least..=most).contains(number)).ok_or(Wrong(name))
    };
    let modified = number("modified", -1, i64::MAX)?.max(0).unsigned_abs();
    if let Some(name) = get("token") {
        let last = if get("hotp").is_some() {
            Some(Moved::Counted { next: number("hotp", 1, i64::MAX)?.unsigned_abs(), nonce })
        } else if get("totp").is_some() {
            let drift = number("drift", i64::from(i32::MIN), i64::from(i32::MAX))?;
            Some(Moved::Stepped { last: number("totp", 0, i64::MAX)?.unsigned_abs(), drift, nonce })
        } else {
            None
        };
        return Ok(State { name: name.to_owned(), last, modified });
    }
    let name = get("yk_publicname").filter(|name| is_name(name)).ok_or(Wrong("yk_publicname"))?;
    let (session, press) = (number("yk_counter", -1, 0x7fff)?, number("yk_use", -1, 0xff)?);
    let (high, low) = (number("yk_high", -1, 0xff)?.max(0), number("yk_low", -1, 0xffff)?.max(0));
    let last = match (u16::try_from(session), u8::try_from(press)) {
        (Ok(session), Ok(press)) => {
            let timestamp = u32::try_from(high << 16 | low).map_err(|_| Wrong("yk_high"))?;
            Some(Moved::Pressed(Last { session, press, timestamp, nonce }))
        }
        _ => None,
    };
    Ok(State { name: name.to_owned(), last, modified })
}

impl State {
    /// The parameters of a message, in pairs.
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let last = match &self.last {
            Some(Moved::Pressed(last)) => Some(last),
            None if is_name(&self.name) => None,
            code => return self.of_code(code.as_ref()),
        };
        let or_none =
            |number: Option<u32>| number.map_or_else(|| "-1".to_owned(), |number| number.to_string());
        vec![
            ("modified", self.modified.to_string()),
            ("nonce", last.map_or_else(String::new, |last| last.nonce.clone())),
            ("yk_publicname", self.name.clone()),
            ("yk_counter", or_none(last.map(|last| last.session.into()))),
            ("yk_use", or_none(last.map(|last| last.press.into()))),
            ("yk_high", or_none(last.map(|last| last.timestamp >> 16))),
            ("yk_low", or_none(last.map(|last| last.timestamp & 0xffff))),
        ]
    }

    fn of_code(&self, last: Option<&Moved>) -> Vec<(&'static str, String)> {
        let mut pairs = vec![
            ("modified", self.modified.to_string()),
            ("nonce", last.map_or_else(String::new, |last| last.nonce().to_owned())),
            ("token", self.name.clone()),
        ];
        match last {
            Some(Moved::Counted { next, .. }) => pairs.push(("hotp", next.to_string())),
            Some(Moved::Stepped { last, drift, .. }) => {
                pairs.extend([("totp", last.to_string()), ("drift", drift.to_string())]);
            }
            // The last one is told to no server.
            Some(Moved::Pressed(_)) | None | Some(Moved::Responded(_)) => {}
        }
        pairs
    }

    /// Path and query of the message that tells this. `otp` is what was accepted, for servers that want it.
    #[must_use]
    pub fn request(&self, otp: &str) -> String {
        let otp: String = otp.chars().filter(char::is_ascii_alphanumeric).collect();
        let pairs = self.parameters().into_iter();
        let pairs = pairs.map(|(name, value)| format!("&{name}={}", query::encode(&value)));
        format!("{PATH}?otp={otp}{}", pairs.collect::<String>())
    }

    /// The text of an answer with this state.
    #[must_use]
    pub fn answer(&self, changes: u64) -> String {
        let lines = self.parameters().into_iter().map(|(name, value)| format!("{name}={value}\r\n"));
        format!("{}changes={changes}\r\nstatus=OK\r\n\r\n", lines.collect::<String>())
    }
}

/// Counts the answers of the other servers.
#[derive(Clone, Debug)]
pub struct Poll {
    sent: Moved,
    servers: usize,
    needed: usize,
    agreed: usize,
    failed: usize,
    replayed: bool,
}

/// What the answers say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Servers must still answer.
    Wait,
    /// This percentage of the servers agrees, which is enough.
    Agreed(u8),
    /// A server had accepted this OTP, or a later one.
    Replayed,
    /// Every server has answered or failed; this percentage of them agrees, which is not enough.
    TooFew(u8),
}

impl Poll {
    /// Begins with the number of `servers` that are asked; `percent` of them must say that `sent` is newer than what they know.
    #[must_use]
    pub fn new(sent: Moved, servers: usize, percent: u8) -> Self {
        let needed = (servers * usize::from(percent.min(100))).div_ceil(100);
        Self { sent, servers, needed, agreed: 0, failed: 0, replayed: false }
    }

    /// A server answered with the state that it had; `None`: it did not, or refused.
    pub fn handle(&mut self, answer: Option<&State>) {
        match answer {
            None => self.failed += 1,
            Some(state) => {
                let is_replay = state.last.as_ref().is_some_and(|last| {
                    let (theirs, ours) = (last.order(), self.sent.order());
                    theirs > ours || theirs == ours && last.nonce() != self.sent.nonce()
                });
                self.replayed |= is_replay;
                self.agreed += usize::from(!is_replay);
            }
        }
    }

    /// What the answers say so far.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.replayed {
            return Verdict::Replayed;
        }
        let percent = (self.agreed * 100).checked_div(self.servers).unwrap_or(100);
        let percent = u8::try_from(percent).unwrap_or(100);
        if self.agreed >= self.needed {
            return Verdict::Agreed(percent);
        }
        match self.agreed + self.failed < self.servers {
            true => Verdict::Wait,
            false => Verdict::TooFew(percent),
        }
    }

    /// What is left to say when no more answers are awaited.
    #[must_use]
    pub fn end(&self) -> Verdict {
        match self.verdict() {
            Verdict::Wait => {
                Verdict::TooFew(u8::try_from(self.agreed * 100 / self.servers.max(1)).unwrap_or(100))
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn last(session: u16, press: u8, nonce: &str) -> Moved {
        Moved::Pressed(Last { session, press, timestamp: 0x04_02_03, nonce: nonce.to_owned() })
    }

    fn state(last: Option<Moved>) -> State {
        State { name: "cccccccccccb".to_owned(), last, modified: 7 }
    }

    #[test]
    fn messages_come_back() {
        let told = state(Some(last(3, 4, "abc")));
        let request = told.request("cccccccccccb/");
        assert_eq!(
            request,
            "/wsapi/2.0/sync?otp=cccccccccccb&modified=7&nonce=abc&yk_publicname=cccccccccccb&yk_counter=3&yk_use=4&yk_high=4&yk_low=515"
        );
        assert_eq!(read(request.split_once('?').unwrap().1), Ok(told.clone()));
        for told in [told, state(None)] {
            let known = Known { state: told.clone(), changes: Some(12) };
            assert_eq!(read_answer(&told.answer(12)), Some(known));
        }
        let of_yk_val = state(None).answer(0).replace("changes=0\r\n", "");
        assert_eq!(read_answer(&of_yk_val), Some(Known { state: state(None), changes: None }));
        assert_eq!(read_answer("status=BACKEND_ERROR\r\n"), None);
    }

    #[test]
    fn messages_about_codes_come_back() {
        let name = "zoë=a&b-hotp".to_owned();
        let nonce = "abc".to_owned();
        let steps = Moved::Stepped { last: 58_000_000, drift: -3, nonce: nonce.clone() };
        for last in [Some(Moved::Counted { next: 7, nonce }), Some(steps), None] {
            let told = State { name: name.clone(), last, modified: 9 };
            let known = Known { state: told.clone(), changes: Some(1) };
            assert_eq!(read_answer(&told.answer(1)), Some(known));
            let request = told.request("123456");
            let read = read(request.split_once('?').unwrap().1);
            assert_eq!(read, if told.last.is_some() { Ok(told) } else { Err(Wrong("yk_counter")) });
        }
        for (wrong, named) in [
            ("token=a&modified=1&hotp=0", "hotp"),
            ("token=a&modified=1&hotp=x", "hotp"),
            ("token=a&modified=1&totp=5", "drift"),
            ("token=a&modified=1&totp=5&drift=99999999999", "drift"),
        ] {
            assert_eq!(read(wrong), Err(Wrong(named)), "{wrong}");
        }
    }

    #[test]
    fn each_wrong_parameter_is_named() {
        let good = state(Some(last(3, 4, "abc"))).request("x");
        let good = good.split_once('?').unwrap().1;
        for (from, to, named) in [
            ("yk_counter=3", "yk_counter=32768", "yk_counter"),
            ("yk_use=4", "yk_use=256", "yk_use"),
            ("cccccccccccb", "xyz", "yk_publicname"),
            ("modified=7", "modified=x", "modified"),
            ("nonce=abc", "nonce=a%0d", "nonce"),
            ("yk_counter=3", "yk_counter=-1", "yk_counter"),
        ] {
            assert_eq!(read(&good.replace(from, to)), Err(Wrong(named)), "{to}");
        }
    }

    #[test]
    fn answers_are_counted_against_the_part_that_is_wanted() {
        let poll = |percent| Poll::new(last(3, 4, "mine"), 3, percent);
        let news = state(Some(last(3, 3, "before")));
        let mut all = poll(100);
        for expected in [Verdict::Wait, Verdict::Wait, Verdict::Agreed(100)] {
            all.handle(Some(&news));
            assert_eq!(all.verdict(), expected);
        }
        let mut half = poll(50);
        half.handle(None);
        half.handle(Some(&state(None)));
        assert_eq!(half.verdict(), Verdict::Wait);
        half.handle(None);
        assert_eq!(half.verdict(), Verdict::TooFew(33));
        assert_eq!(poll(0).verdict(), Verdict::Agreed(0));
        assert_eq!(poll(1).end(), Verdict::TooFew(0));
        assert_eq!(Poll::new(last(1, 1, "n"), 0, 100).verdict(), Verdict::Agreed(100));
    }

    #[test]
    fn a_server_that_knows_the_otp_or_a_later_one_makes_it_a_replay() {
        for (theirs, replayed) in [
            (last(3, 4, "other"), true),
            (last(3, 5, "mine"), true),
            (last(4, 0, "x"), true),
            (last(3, 4, "mine"), false),
        ] {
            let mut poll = Poll::new(last(3, 4, "mine"), 1, 100);
            poll.handle(Some(&state(Some(theirs.clone()))));
            assert_eq!(poll.verdict() == Verdict::Replayed, replayed, "{theirs:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[ -~\\r\\n]{0,200}") {
            let _ = (read(&text), read_answer(&text));
        }
    }
}
