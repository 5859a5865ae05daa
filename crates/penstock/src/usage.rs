//! Answers to a command line that asks for help or is wrong.

use std::io::IsTerminal as _;

use clap::error::ErrorKind;

use crate::output::{Failure, complain, print};

/// Prints help, the version, or what is wrong. Returns how the program ends.
pub(crate) fn answer(error: &clap::Error) -> Failure {
    let styled = error.render();
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let text = match is_wanted && std::io::stdout().is_terminal() {
            true => styled.ansi().to_string(),
            false => styled.to_string(),
        };
        return print(&text).err().unwrap_or(Failure::Status(0));
    }
    let text = match is_wanted && std::io::stderr().is_terminal() {
        true => styled.ansi().to_string(),
        false => styled.to_string(),
    };
    complain(&FAULTS.iter().fold(text, |text, (theirs, ours)| text.replace(theirs, ours)));
    Failure::Status(2)
}

/// Faults of numbers as the standard library words them, and as we do.
const FAULTS: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is not a whole number"),
    ("cannot parse integer from empty string", "it is empty, not a whole number"),
    ("number too large to fit in target type", "it is too large"),
    ("number too small to fit in target type", "it is too small"),
    ("invalid float literal", "it is not a number"),
];
