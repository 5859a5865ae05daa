//! The question to the daemon and its answer: one line of JSON each.

use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ffi;
use crate::secret::Secret;

/// Time for all of it.
const LIMIT: Duration = Duration::from_secs(2);

/// Longest answer.
const LONGEST: usize = 512;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) user: &'a str,
    pub(crate) service: &'a str,
    /// The host that the user comes from, as the service says.
    pub(crate) from: &'a str,
    /// What the log-in must prove.
    pub(crate) auth: &'static str,
    pub(crate) otp: Option<&'a str>,
    pub(crate) password: Option<&'a str>,
    /// Public names of which the OTP must have one; without them the daemon knows whose it is.
    pub(crate) keys: Option<&'a [String]>,
    /// Who says so: `operator` or `user`.
    pub(crate) keys_of: &'static str,
    /// What a key at this machine has responded, where the log-in has no OTP.
    pub(crate) responded: Option<Responded<'a>>,
}

/// What is asked of a key at this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) slot: Slot,
    /// The challenge, and the one of the next log-in.
    pub(crate) challenge: String,
    pub(crate) next: String,
}

/// A slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    One,
    Two,
}

impl Slot {
    /// The option of `ykchalresp`.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::One => "-1",
            Self::Two => "-2",
        }
    }
}

/// What a key has responded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Responded<'a> {
    pub(crate) challenge: &'a str,
    pub(crate) response: &'a str,
    /// To the challenge of the next log-in.
    pub(crate) next: &'a str,
}

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    Bad,
    /// The user has no token.
    NoToken,
    /// The user has several keys: their serial numbers tell them apart.
    WhichKey,
}

/// What the daemon says to the question for a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Ask(Asked),
    Nothing(Answer),
}

/// Asks the daemon, which must run as root or as the user `daemon`.
pub(crate) fn ask(socket: &Path, daemon: Option<&str>, question: &Question<'_>) -> io::Result<Answer> {
    match judge(&exchange(socket, daemon, &line(question))?)? {
        Answer::WhichKey => Err(io::Error::other("the daemon cannot tell")),
        answer => Ok(answer),
    }
}

/// Asks what to ask the key of a user: the key with this serial number, if it is known.
pub(crate) fn challenge(
    socket: &Path,
    daemon: Option<&str>,
    question: &Question<'_>,
    serial: Option<&str>,
) -> io::Result<Told> {
    let texts = [
        ("user", Some(question.user)),
        ("service", Some(question.service)),
        ("from", Some(question.from)),
        ("want", Some("challenge")),
        ("serial", serial),
    ];
    let mut line = object(&texts, &[]);
    line.push_str("}\n");
    let answer = exchange(socket, daemon, &Secret::new(line))?;
    match asked(&answer) {
        Some(asked) => Ok(Told::Ask(asked)),
        None => match judge(&answer)? {
            Answer::Good => Err(io::Error::other("the daemon cannot tell")),
            answer => Ok(Told::Nothing(answer)),
        },
    }
}

/// Reads what a key is to be asked. No other text than exactly this one counts.
pub(crate) fn asked(line: &[u8]) -> Option<Asked> {
    let text = str::from_utf8(line).ok()?.strip_prefix("{\"slot\":")?.strip_suffix("\"}\n")?;
    let (slot, rest) = text.split_once(",\"challenge\":\"")?;
    let (challenge, next) = rest.split_once("\",\"next\":\"")?;
    let slot = match slot {
        "1" => Slot::One,
        "2" => Slot::Two,
        _ => return None,
    };
    let is_challenge = |text: &str| {
        (2..=126).contains(&text.len())
            && text.len().is_multiple_of(2)
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_whole = is_challenge(challenge) && is_challenge(next);
    is_whole.then(|| Asked { slot, challenge: challenge.to_owned(), next: next.to_owned() })
}

/// Sends a line, and returns the line that comes back.
fn exchange(socket: &Path, daemon: Option<&str>, line: &Secret) -> io::Result<Vec<u8>> {
    let until = Instant::now() + LIMIT;
    let mut stream = ffi::connect_within(socket, LIMIT)?;
    let peer = ffi::peer_of(&stream)?;
    if peer != 0 && daemon.and_then(ffi::user_id) != Some(peer) {
        return Err(io::Error::other(format!(
            "user {peer} answers there, who is not the daemon (daemon_user=)"
        )));
    }
    let mut unsent = line.as_bytes();
    while !unsent.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        unsent = match ffi::send(&stream, unsent) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            sent => unsent.get(sent?..).unwrap_or_default(),
        };
    }
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") {
        let mut part = [0; LONGEST];
        stream.set_read_timeout(Some(left(until)?))?;
        let count = match stream.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            read => read?,
        };
        answer.extend_from_slice(&part[..count]);
        if count == 0 || answer.len() > LONGEST {
            return Err(io::Error::other("the daemon gives no answer"));
        }
    }
    Ok(answer)
}

/// Only these words count: an answer that is nearly right is none.
pub(crate) fn judge(line: &[u8]) -> io::Result<Answer> {
    match line {
        b"{\"result\":\"good\"}\n" => Ok(Answer::Good),
        b"{\"result\":\"bad\"}\n" => Ok(Answer::Bad),
        b"{\"result\":\"no-token\"}\n" => Ok(Answer::NoToken),
        b"{\"result\":\"which-key\"}\n" => Ok(Answer::WhichKey),
        _ => Err(io::Error::other("the daemon cannot tell")),
    }
}

/// The line of a question.
pub(crate) fn line(question: &Question<'_>) -> Secret {
    let responded = question.responded;
    let texts = [
        ("user", Some(question.user)),
        ("service", Some(question.service)),
        ("from", Some(question.from)),
        ("auth", Some(question.auth)),
        ("otp", question.otp),
        ("password", question.password),
        ("challenge", responded.map(|responded| responded.challenge)),
        ("response", responded.map(|responded| responded.response)),
        ("next", responded.map(|responded| responded.next)),
    ];
    let keys = question.keys.unwrap_or_default();
    let mut line = object(&texts, keys);
    if question.keys.is_some() {
        line.push_str(",\"keys_of\":");
        quote(question.keys_of, &mut line);
        line.push_str(",\"keys\":[");
        for (at, key) in keys.iter().enumerate() {
            line.push_str(if at == 0 { "" } else { "," });
            quote(key, &mut line);
        }
        line.push(']');
    }
    line.push_str("}\n");
    Secret::new(line)
}

/// An object of JSON without its end, with room for keys behind.
fn object(texts: &[(&str, Option<&str>)], keys: &[String]) -> String {
    let length: usize = texts.iter().filter_map(|(_, text)| *text).map(str::len).sum();
    let of_keys: usize = keys.iter().map(|key| key.len() + 3).sum();
    // Enough for all: text that grows leaves copies behind. A character has six letters at most.
    let mut line = String::with_capacity(6 * (length + of_keys) + 256);
    let mut before = '{';
    for (name, value) in texts {
        let Some(value) = value else { continue };
        line.extend([before, '"']);
        line.push_str(name);
        line.push_str("\":");
        quote(value, &mut line);
        before = ',';
    }
    line
}

/// Appends a string of JSON.
fn quote(text: &str, line: &mut String) {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                line.push_str("\\u00");
                let digit = |at: u32| char::from_digit(u32::from(c) >> at & 15, 16).unwrap_or('0');
                line.extend([digit(4), digit(0)]);
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::other(format!("the daemon does not answer within {} s", LIMIT.as_secs()))
}
