//! What was found out about a backend, by whom, and why, in words for people.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::check::Spoken;

/// One finding about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When it was found.
    pub at: SystemTime,
    /// Who found it.
    pub source: Source,
    /// Good or bad.
    pub outcome: VerdictOutcome,
    /// Why.
    pub cause: Cause,
    /// How long finding it took.
    pub took: Duration,
}

/// Who found something out about a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An active check.
    Probe,
    /// Sessions of clients.
    Traffic,
    /// The resolution of the backend's name.
    Resolver,
    /// The SSH tunnel that it is behind.
    Tunnel,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Probe => "probe",
            Source::Traffic => "traffic",
            Source::Resolver => "resolver",
            Source::Tunnel => "tunnel",
        })
    }
}

/// Good or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerdictOutcome {
    /// The backend did what it should.
    Pass,
    /// It did not.
    Fail,
}

impl fmt::Display for VerdictOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerdictOutcome::Pass => "pass",
            VerdictOutcome::Fail => "fail",
        })
    }
}

/// Why a verdict is what it is. Displayed for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nobody listens on that port.
    ConnectRefused,
    /// No answer to the connection attempt.
    ConnectTimeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection failed otherwise, in the words of the system.
    ConnectFailed(String),
    /// There is no TLS with it, in words.
    Tls(String),
    /// It does not speak HTTP/2, in words.
    Http2(String),
    /// The backend's Unix socket does not exist.
    SocketMissing,
    /// The backend's Unix socket may not be opened.
    PermissionDenied,
    /// Connected, and then nothing came.
    NoAnswer {
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection ended before an answer came.
    ClosedEarly,
    /// What came is not an HTTP response.
    BadResponse(String),
    /// A status outside the expected range.
    HttpStatus(u16),
    /// The name has no address.
    Unresolvable(String),
    /// There is no SSH connection to the host that it is behind, in words.
    Tunnel(String),
    /// The SSH connection to the host that it is behind stands again.
    TunnelUp,
    /// The check passed.
    Passed,
    /// The name has an address again.
    Resolved,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::ConnectRefused => f.write_str("connect refused"),
            Cause::ConnectTimeout { after } => write!(f, "no connection within {}", Spoken(*after)),
            Cause::ConnectFailed(why) => write!(f, "connect failed: {}", OneLine(why, SHORT)),
            Cause::Tls(why) => write!(f, "TLS: {}", OneLine(why, SHORT)),
            Cause::Http2(why) => write!(f, "HTTP/2: {}", OneLine(why, SHORT)),
            Cause::SocketMissing => f.write_str("the socket does not exist: is the application running?"),
            Cause::PermissionDenied => {
                f.write_str("permission denied: may the user of penstock write to the socket?")
            }
            Cause::NoAnswer { after } => write!(f, "connected, but no answer within {}", Spoken(*after)),
            Cause::ClosedEarly => f.write_str("connection closed before an answer came"),
            Cause::BadResponse(why) => write!(f, "not a valid HTTP response: {}", OneLine(why, SHORT)),
            Cause::HttpStatus(status) => http_status(f, *status),
            Cause::Unresolvable(why) => write!(f, "name does not resolve: {}", OneLine(why, SHORT)),
            Cause::Tunnel(why) => write!(f, "no SSH tunnel: {}", OneLine(why, LONG)),
            Cause::TunnelUp => f.write_str("the SSH tunnel stands"),
            Cause::Passed => f.write_str("passed"),
            Cause::Resolved => f.write_str("name resolves"),
        }
    }
}

fn http_status(f: &mut fmt::Formatter<'_>, status: u16) -> fmt::Result {
    write!(f, "HTTP {status}")?;
    let meaning = match status {
        300..=399 => "a redirect is outside the expected range: check the URL it leads to",
        401 | 403 => "the check needs an open URL",
        404 | 410 => "no such page: is the check's path right?",
        405 => "the page does not take the check's method",
        421 => "the application does not know the check's host",
        429 => "the application limits its requests: the check is among them",
        503 => "the application says that it is not available",
        500..=599 => "the application answers with an error",
        _ => "outside the expected range",
    };
    write!(f, ": {meaning}")
}

/// Text from a backend or the system as part of one line: it can neither end the line nor steer a terminal,
/// and is cut where it gets long.
struct OneLine<'a>(&'a str, usize);

/// Characters of what others say.
const SHORT: usize = 200;
/// Of what we say ourselves, with the advice at its end.
const LONG: usize = 1000;

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (count, c) in self.0.chars().enumerate() {
            if count == self.1 {
                return f.write_str("...");
            }
            if matches!(c, '"' | '\'' | '\\') {
                write!(f, "{c}")?;
            } else {
                write!(f, "{}", c.escape_debug())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_explain_themselves() {
        let after = Duration::from_millis(1500);
        let said = [
            (Cause::ConnectRefused, "connect refused"),
            (Cause::ConnectTimeout { after }, "no connection within 1.5 s"),
            (Cause::NoAnswer { after }, "connected, but no answer within 1.5 s"),
            (Cause::HttpStatus(403), "HTTP 403: the check needs an open URL"),
            (Cause::HttpStatus(401), "HTTP 401: the check needs an open URL"),
            (Cause::HttpStatus(404), "HTTP 404: no such page: is the check's path right?"),
            (
                Cause::HttpStatus(302),
                "HTTP 302: a redirect is outside the expected range: check the URL it leads to",
            ),
            (Cause::HttpStatus(500), "HTTP 500: the application answers with an error"),
            (Cause::HttpStatus(200), "HTTP 200: outside the expected range"),
            (Cause::Unresolvable("no such host".into()), "name does not resolve: no such host"),
        ];
        for (cause, text) in said {
            assert_eq!(cause.to_string(), text);
        }
    }

    #[test]
    fn text_from_outside_stays_on_its_line_and_short() {
        let hostile = Cause::BadResponse("a\r\nb\u{1b}[31m\"é\u{202e}".into()).to_string();
        assert_eq!(hostile, "not a valid HTTP response: a\\r\\nb\\u{1b}[31m\"é\\u{202e}");
        let long = Cause::ConnectFailed("x".repeat(10_000)).to_string();
        assert!(long.len() < 300 && long.ends_with("..."));
    }
}
