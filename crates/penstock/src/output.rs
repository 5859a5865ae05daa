//! What a command prints, and how it ends when it fails.
//! Everything for standard output goes through [`print()`]: a reader that has seen enough (`| head`) is no failure.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

pub use logic::harmless::plain;

/// Why a command ends without having done all of its work.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage or a wrong configuration: exit code 2. The text is complete, as it is shown.
    Usage(String),
    /// It could not be done: exit code 1.
    Runtime(anyhow::Error),
    /// A wrong configuration, about which everything has been said: exit code 2.
    Refused,
    /// Everything has been said; this is the exit code.
    Status(u8),
    /// Nobody reads standard output any more: exit code 0.
    OutputClosed,
}

impl Failure {
    /// Wrong usage, said in the form that all errors have.
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure::Usage(format!("error: {message}\n"))
    }

    /// A failure at run time.
    pub fn runtime(message: impl fmt::Display) -> Self {
        Failure::Runtime(anyhow::anyhow!("{message}"))
    }

    /// Says it on standard error and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Usage(text) => {
                complain(&text);
                ExitCode::from(2)
            }
            Failure::Runtime(error) => {
                complain(&describe(&error));
                ExitCode::from(1)
            }
            Failure::Refused => ExitCode::from(2),
            Failure::Status(code) => ExitCode::from(code),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Runtime(error.into())
    }
}

/// Writes to standard output at once.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(error) => Err(Failure::runtime(format!("cannot write to standard output: {error}"))),
    }
}

/// Writes to standard error. If that is gone, there is nobody left to tell.
pub fn complain(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// [`plain`] for several lines.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Writes JSON to standard output, in which nothing is left that a terminal obeys.
pub fn print_json(json: &str) -> Result<(), Failure> {
    print(&logic::harmless::json(json))
}

/// An error and its causes on one line each time they add something.
fn describe(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_their_error_on_one_line_and_are_not_said_twice() {
        let cause = io::Error::other("no route to host");
        let error =
            anyhow::Error::new(cause).context("cannot reach it: no route to host").context("start failed");
        assert_eq!(describe(&error), "error: start failed: cannot reach it: no route to host\n");
    }

    #[test]
    fn plain_text_cannot_move_the_cursor() {
        assert_eq!(plain("a\u{1b}[2Jb\r\nc"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c");
        assert_eq!(plain_lines("a\u{9b}\n\u{202e}b\n"), "a\u{fffd}\n\u{fffd}b\n");
    }

    #[test]
    fn json_says_the_same_and_cannot_move_the_cursor() {
        let said = serde_json::json!({ "said": "\u{9b}31m \u{202e}\u{1b}[2J\u{7f}\u{e0041}" });
        let text = format!("{said:#}\n");
        let shown = logic::harmless::json(&text);
        assert!(!shown.chars().any(|c| !logic::harmless::is_harmless(c) && c != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), said);
    }
}
