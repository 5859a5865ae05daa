//! Secrets and codes from standard input and files.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::Path;

use crate::output::{Failure, complain};

/// Longest line, and longest file.
const LONGEST_LINE: u64 = 4096;
const LONGEST_FILE: u64 = 64 << 20;

/// Reads a line of standard input; a person at a terminal is asked for it.
pub(super) fn line(ask: &str) -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        complain(ask);
    }
    let mut text = String::new();
    let read = io::stdin().lock().take(LONGEST_LINE).read_line(&mut text);
    match read.map_err(|error| Failure::runtime(format!("cannot read standard input: {error}")))? {
        0 => Err(Failure::runtime(format!("standard input ended before \"{}\"", ask.trim_end_matches(": ")))),
        _ => Ok(text.trim().to_owned()),
    }
}

/// Reads a file, or standard input for `-`.
pub(super) fn file(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = match path == Path::new("-") {
        true => io::stdin().lock().take(LONGEST_FILE).read_to_end(&mut bytes).map(drop),
        false => sys::file::read(path, LONGEST_FILE).map(|read| bytes = read),
    };
    read.map_err(|error| Failure::unreadable(path, error))?;
    String::from_utf8(bytes).map_err(|_| Failure::unreadable(path, "it is no text"))
}
