//! Failure of a proxy command that ended before the server sent anything.

use super::ending::{Failure, Phase, Reason};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Exit status of the command; 126 and 127 are of the shell, which could not start the command.
    Exited(i32),
    /// Number of the signal; Penstock did not send the signal.
    Signalled(i32),
}

/// Failure of host `name` whose proxy command ended without a byte from the server. `said` is the standard error of the
/// command; the caller adds `said` to the failure. `None` for exit status 0: in that case the server closed the
/// connection.
#[must_use]
pub fn ended(name: &str, end: End, said: &str) -> Option<Failure> {
    let (how, reason) = match end {
        End::Exited(0) => return None,
        End::Exited(127) => {
            ("with status 127, which is for a program that is not there".to_owned(), Reason::LocalError)
        }
        End::Exited(126) => {
            ("with status 126, which is for a program that cannot be run".to_owned(), Reason::LocalError)
        }
        End::Exited(status) if is_turned_away(said) => {
            (format!("with status {status}"), Reason::ClosedByServer)
        }
        End::Exited(status) => (format!("with status {status}"), Reason::Unreachable),
        End::Signalled(signal) => (format!("by signal {signal}"), Reason::Unreachable),
    };
    let detail = format!("the proxy command of {name} ended {how}, before the server said anything");
    Some(Failure::not_started(Phase::Connect, reason, detail))
}

/// True if the proxy command is an ssh that a server refused, as at its limit of connections. A retry can succeed.
fn is_turned_away(said: &str) -> bool {
    ["kex_exchange_identification: ", "Connection closed by ", "Connection reset by "]
        .iter()
        .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_proxy_command_is_no_server_that_turns_us_away_unless_it_says_so() {
        let reason = |end, said| ended("web1", end, said).map(|failure| failure.reason);
        assert_eq!(reason(End::Exited(127), "sh: 1: exec: nosuch: not found"), Some(Reason::LocalError));
        assert_eq!(reason(End::Exited(126), ""), Some(Reason::LocalError));
        assert_eq!(reason(End::Exited(1), ""), Some(Reason::Unreachable));
        assert_eq!(reason(End::Signalled(11), ""), Some(Reason::Unreachable));
        let busy = "kex_exchange_identification: Connection closed by remote host";
        assert_eq!(reason(End::Exited(255), busy), Some(Reason::ClosedByServer));
        assert_eq!(reason(End::Exited(0), busy), None);
        let detail = ended("web1", End::Exited(3), "").unwrap().detail;
        assert_eq!(detail, "the proxy command of web1 ended with status 3, before the server said anything");
    }
}
