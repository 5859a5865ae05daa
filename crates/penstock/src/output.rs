//! Output of commands, and their exit status after a failure. All text for standard output goes through [`print()`]: a
//! reader that closes early (`| head`) is not a failure.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

pub(crate) use text::terminal::plain;

#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage or a wrong configuration: exit code 2. The text is printed unchanged.
    Usage(String),
    /// A failure at run time: exit code 1.
    Runtime(anyhow::Error),
    /// A wrong configuration whose faults were already printed: exit code 2.
    Refused,
    /// The messages were already printed; contains the exit code.
    Status(u8),
    /// The reader closed standard output: exit code 0.
    OutputClosed,
}

impl Failure {
    /// Wrong usage, with the usual prefix of errors.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Failure::Usage(format!("error: {message}\n"))
    }

    /// A file that the command line names cannot be read, or is none of its kind.
    pub(crate) fn unreadable(path: &Path, why: impl fmt::Display) -> Self {
        Failure::usage(format_args!(
            "cannot read {}: {}",
            plain(&path.display().to_string()),
            plain(&why.to_string())
        ))
    }

    pub(crate) fn runtime(message: impl fmt::Display) -> Self {
        Failure::Runtime(anyhow::anyhow!("{message}"))
    }

    /// What is printed.
    pub(crate) fn text(&self) -> String {
        match self {
            Failure::Usage(text) => text.trim_end().to_owned(),
            Failure::Runtime(error) => describe(error).trim_end().to_owned(),
            Failure::Refused | Failure::Status(_) | Failure::OutputClosed => {
                "its lines on standard error say why".to_owned()
            }
        }
    }

    /// Prints the failure on standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
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

/// The text alone, for a place of its own.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => f.write_str(text.trim_end().trim_start_matches("error: ")),
            Failure::Runtime(error) => f.write_str(describe(error).trim_end().trim_start_matches("error: ")),
            Failure::Refused | Failure::Status(_) | Failure::OutputClosed => f.write_str("it has failed"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Runtime(error.into())
    }
}

/// Writes to standard output and flushes.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(error) => Err(Failure::runtime(format!("cannot write to standard output: {error}"))),
    }
}

/// Writes the text of a command that ends with the exit code `code`. Returns its failure, also if the reader of
/// standard output is gone.
pub(crate) fn print_failed(text: &str, code: u8) -> Failure {
    match print(text) {
        Ok(()) | Err(Failure::OutputClosed) => Failure::Status(code),
        Err(failure) => failure,
    }
}

/// Writes to standard error. An error is ignored: there is no other place to report it.
pub(crate) fn complain(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Like [`plain`] for several lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Writes JSON to standard output, with terminal control characters escaped.
pub(crate) fn print_json(json: &str) -> Result<(), Failure> {
    print(&text::terminal::json(json))
}

/// Formats an error with those causes that add information, on one line.
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
        let shown = text::terminal::json(&text);
        assert!(!shown.chars().any(|c| !text::terminal::is_printable(c) && c != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), said);
    }
}
