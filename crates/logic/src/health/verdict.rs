//! Verdicts about a backend: result, source and cause, with text for operators.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use super::check::DurationText;
use crate::dsr::tunnel::Mode;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub at: SystemTime,
    pub source: Source,
    pub outcome: VerdictOutcome,
    pub cause: Cause,
    /// Duration of the check.
    pub took: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    Probe,
    Traffic,
    /// Resolution of the backend's name.
    Resolver,
    /// SSH tunnel to the backend.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerdictOutcome {
    Pass,
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

/// Why a verdict is what it is; `Display` is text for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No process listens on the port.
    ConnectRefused,
    /// No answer to the connection attempt.
    ConnectTimeout {
        /// Time limit of the connection attempt.
        after: Duration,
    },
    /// Other connection error, with the text of the operating system.
    ConnectFailed(String),
    /// TLS handshake failed, with its error text.
    Tls(String),
    /// HTTP/2 failed, with its error text.
    Http2(String),
    SocketMissing,
    /// The user of Penstock has no permission to connect to the backend's Unix socket.
    PermissionDenied,
    /// Connected, but no response arrived.
    NoAnswer {
        /// Time limit of the response.
        after: Duration,
    },
    /// No answer to a datagram.
    NoReply {
        /// Time limit of the answer.
        after: Duration,
    },
    /// Datagrams came that do not answer the check.
    WrongReply,
    /// The connection was closed before a response.
    ClosedEarly,
    /// The response is not valid HTTP.
    BadResponse(String),
    /// The response has a status outside the expected range.
    HttpStatus(u16),
    /// Nothing answers for the virtual address of a `dsr` listener.
    NoVip {
        vip: SocketAddr,
        /// Time limit of the answer.
        after: Duration,
        /// How packets go to the backend.
        mode: Mode,
    },
    /// Nothing answers for the virtual address of a `dsr` listener, nor for the backend's own one.
    Silent {
        vip: SocketAddr,
        /// Time limit of the answer.
        after: Duration,
    },
    /// The backend has the virtual address of a `dsr` listener, and nothing listens there.
    VipRefused(SocketAddr),
    /// The backend sends packets to the virtual address of a `dsr` listener on.
    VipSentOn(SocketAddr),
    /// The backend answers packets to the virtual address of a `dsr` listener with an ICMP error.
    VipRejected(SocketAddr),
    /// Too many sessions failed or were answered with a status of class 5xx.
    ErrorRate {
        errors: u64,
        sessions: u64,
        window: Duration,
    },
    /// It responds much later than the other backends of the pool.
    Slow {
        response: Duration,
        /// Median of the others.
        median: Duration,
    },
    /// The name has no address.
    Unresolvable(String),
    /// No SSH connection to the host in front of the backend, with the error text.
    Tunnel(String),
    /// The SSH connection to the host in front of the backend is up again.
    TunnelUp,
    Passed,
    /// The name has an address again.
    Resolved,
    /// The text of a cause that an earlier process has seen.
    Remembered(String),
}

impl Cause {
    /// Whether it compares a backend with a limit or with others, and is no failure of one session.
    pub fn is_outlier(&self) -> bool {
        matches!(self, Cause::ErrorRate { .. } | Cause::Slow { .. })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::ConnectRefused => f.write_str("connect refused"),
            Cause::ConnectTimeout { after } => write!(f, "no connection within {}", DurationText(*after)),
            Cause::ConnectFailed(why) => write!(f, "connect failed: {}", OneLine(why, SHORT)),
            Cause::Tls(why) => write!(f, "TLS: {}", OneLine(why, SHORT)),
            Cause::Http2(why) => write!(f, "HTTP/2: {}", OneLine(why, SHORT)),
            Cause::SocketMissing => f.write_str("the socket does not exist: is the application running?"),
            Cause::PermissionDenied => {
                f.write_str("permission denied: the user that penstock runs as, also root, needs write permission on the socket")
            }
            Cause::NoAnswer { after } => {
                write!(f, "connected, but no answer within {}", DurationText(*after))
            }
            Cause::NoReply { after } => write!(f, "no answer within {}", DurationText(*after)),
            Cause::WrongReply => f.write_str("it answers, but not as the check expects"),
            Cause::ClosedEarly => f.write_str("connection closed before an answer came"),
            Cause::BadResponse(why) => write!(f, "not a valid HTTP response: {}", OneLine(why, SHORT)),
            Cause::NoVip { vip, after, mode: Mode::Ipip } => write!(
                f,
                "no answer from {vip} within {}: it has no tunnel device that is up, its loopback lacks the address, or a filter drops the packets (`penstock backend verify --vip {} --mode ipip` there tells which)",
                DurationText(*after),
                vip.ip()
            ),
            Cause::NoVip { vip, after, mode: Mode::L2 } => write!(
                f,
                "no answer from {vip} within {}: its loopback lacks the address, or a filter drops the packets",
                DurationText(*after)
            ),
            Cause::Silent { vip, after } => write!(
                f,
                "no answer from {vip} within {}, and its own address fails the check, too: it is off, its link is down, or a filter drops the packets",
                DurationText(*after)
            ),
            Cause::VipRefused(vip) => write!(f, "no process listens on {vip}"),
            Cause::VipSentOn(vip) => {
                write!(f, "it sends packets to {vip} on like a router: its loopback lacks the address")
            }
            Cause::VipRejected(vip) => write!(f, "a filter rejects packets to {vip}"),
            Cause::HttpStatus(status) => http_status(f, *status),
            Cause::ErrorRate { errors, sessions, window } => {
                write!(f, "{errors} of {sessions} sessions within {} were errors", DurationText(*window))
            }
            Cause::Slow { response, median } => write!(
                f,
                "half of its responses take {} or longer, at the other backends {}",
                DurationText(*response),
                DurationText(*median)
            ),
            Cause::Unresolvable(why) => write!(f, "name does not resolve: {}", OneLine(why, SHORT)),
            Cause::Tunnel(why) => write!(f, "no SSH tunnel: {}", OneLine(why, LONG)),
            Cause::TunnelUp => f.write_str("the SSH tunnel stands"),
            Cause::Passed => f.write_str("passed"),
            Cause::Resolved => f.write_str("name resolves"),
            Cause::Remembered(text) => write!(f, "{}", OneLine(text, LONG)),
        }
    }
}

fn http_status(f: &mut fmt::Formatter<'_>, status: u16) -> fmt::Result {
    write!(f, "HTTP {status}")?;
    let meaning = match status {
        300..=399 => "a redirect is outside the expected range: check the URL it leads to",
        401 | 403 => "the check needs a URL that answers without a log-in",
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

/// Text from a backend or the operating system for one line: control characters are escaped, and long text is cut.
struct OneLine<'a>(&'a str, usize);

/// Maximum characters of text from others.
const SHORT: usize = 200;
/// Maximum characters of Penstock's own text, which ends with advice.
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
            (Cause::HttpStatus(403), "HTTP 403: the check needs a URL that answers without a log-in"),
            (Cause::HttpStatus(401), "HTTP 401: the check needs a URL that answers without a log-in"),
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
