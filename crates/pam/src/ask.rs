//! The question to the daemon and its answer: one line of JSON each.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ffi;

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
    pub(crate) otp: &'a str,
    /// Public names of which the OTP must have one; without them the daemon knows whose it is.
    pub(crate) keys: Option<&'a [String]>,
}

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Good,
    Bad,
    /// The user has no token.
    NoToken,
}

/// Asks the daemon, which must run as root or as the user `daemon`.
pub(crate) fn ask(socket: &Path, daemon: Option<&str>, question: &Question<'_>) -> io::Result<Answer> {
    let until = Instant::now() + LIMIT;
    let mut stream = ffi::connect_within(socket, LIMIT)?;
    let peer = ffi::peer_of(&stream)?;
    if peer != 0 && daemon.and_then(ffi::user_id) != Some(peer) {
        return Err(io::Error::other(format!(
            "user {peer} answers there, who is not the daemon (daemon_user=)"
        )));
    }
    let line = line(question);
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(line.as_bytes())?;
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
    judge(&answer)
}

/// Only these words count: an answer that is nearly right is none.
pub(crate) fn judge(line: &[u8]) -> io::Result<Answer> {
    match line {
        b"{\"result\":\"good\"}\n" => Ok(Answer::Good),
        b"{\"result\":\"bad\"}\n" => Ok(Answer::Bad),
        b"{\"result\":\"no-token\"}\n" => Ok(Answer::NoToken),
        _ => Err(io::Error::other("the daemon cannot tell")),
    }
}

/// The line of a question.
pub(crate) fn line(question: &Question<'_>) -> String {
    let mut line = String::from("{");
    for (name, value) in [
        ("user", question.user),
        ("service", question.service),
        ("from", question.from),
        ("otp", question.otp),
    ] {
        line.push_str(&format!("\"{name}\":{},", quoted(value)));
    }
    if let Some(keys) = question.keys {
        let keys: Vec<String> = keys.iter().map(|key| quoted(key)).collect();
        line.push_str(&format!("\"keys\":[{}],", keys.join(",")));
    }
    line.pop();
    line.push_str("}\n");
    line
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::other(format!("the daemon does not answer within {} s", LIMIT.as_secs()))
}
