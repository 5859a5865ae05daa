//! What the end of a proxy command says of its host: it came before the server had said anything.

use super::ending::{Failure, Phase, Reason};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this status; 126 and 127 are a shell's own.
    Exited(i32),
    /// By this signal, which was not ours.
    Signalled(i32),
}

/// Why `name` was not reached, for a command that ended so without a byte from the server; `said` is its standard error, which
/// whoever shows the failure adds. `None` where the command did well: then it was the server that hung up.
#[must_use]
pub fn ended(name: &str, end: End, said: &str) -> Option<Failure> {
    let (how, reason) = match end {
        End::Exited(0) => return None,
        End::Exited(127) => {
            ("with status 127, which is for a program that is not there".to_owned(), Reason::Local)
        }
        End::Exited(126) => {
            ("with status 126, which is for a program that cannot be run".to_owned(), Reason::Local)
        }
        End::Exited(status) if is_turned_away(said) => (format!("with status {status}"), Reason::TurnedAway),
        End::Exited(status) => (format!("with status {status}"), Reason::Unreachable),
        End::Signalled(signal) => (format!("by signal {signal}"), Reason::Unreachable),
    };
    let detail = format!("the proxy command of {name} ended {how}, before the server said anything");
    Some(Failure::never_started(Phase::Connect, reason, detail))
}

/// Whether ssh as the command was itself turned away on its way, as by a server with too many at once: later it may do.
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
        assert_eq!(reason(End::Exited(127), "sh: 1: exec: nosuch: not found"), Some(Reason::Local));
        assert_eq!(reason(End::Exited(126), ""), Some(Reason::Local));
        assert_eq!(reason(End::Exited(1), ""), Some(Reason::Unreachable));
        assert_eq!(reason(End::Signalled(11), ""), Some(Reason::Unreachable));
        let busy = "kex_exchange_identification: Connection closed by remote host";
        assert_eq!(reason(End::Exited(255), busy), Some(Reason::TurnedAway));
        assert_eq!(reason(End::Exited(0), busy), None);
        let detail = ended("web1", End::Exited(3), "").unwrap().detail;
        assert_eq!(detail, "the proxy command of web1 ended with status 3, before the server said anything");
    }
}
