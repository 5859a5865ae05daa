//! Commands of SMTP after a log-in: a mail program still sends some, such as QUIT.

use access::sasl::smtp::{self, Command};

/// The answer to one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mail {
    pub(super) answer: &'static str,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoesOn,
    Ends,
}

pub(super) const BYE: &str = "221 2.0.0 bye\r\n";
pub(super) const FINE: &str = "250 2.0.0 fine\r\n";

/// Answers a line that is such a command. None of the control socket has one of these names.
pub(super) fn answer(line: &[u8]) -> Option<Mail> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let goes_on = |answer| Mail { answer, then: Then::GoesOn };
    match smtp::command(line) {
        Ok(Command::Quit) => Some(Mail { answer: BYE, then: Then::Ends }),
        Ok(Command::Noop | Command::Reset) => Some(goes_on(FINE)),
        Ok(Command::Hello(_)) => Some(goes_on("250 penstock\r\n")),
        Ok(Command::StartTls) => Some(goes_on("503 5.5.1 TLS has begun\r\n")),
        Ok(Command::Auth { .. }) => Some(goes_on("503 5.5.1 you are logged in\r\n")),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_smtp_are_answered() {
        assert_eq!(answer(b"QUIT\r").unwrap().then, Then::Ends);
        assert_eq!(answer(b"quit").unwrap().then, Then::Ends);
        assert_eq!(answer(b"NOOP").unwrap().answer, FINE);
        assert_eq!(answer(b"EHLO x").unwrap().then, Then::GoesOn);
        for line in [&b"status"[..], b"", b"MAIL FROM:<a@b>", b"QUIT now"] {
            assert_eq!(answer(line), None, "{line:?}");
        }
    }
}
