//! `KnownHostsCommand` settings that run Penstock.

use super::words::words;
use crate::fleet::openssh::{LAUNCH, LAUNCHER};

/// Program that `ssh` starts for the `KnownHostsCommand`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// A launcher that always exists, and fails if Penstock is missing, so that `ssh` ends the connection.
    Launched,
    /// Penstock itself; `ssh` ignores the command if the program is missing.
    Directly,
}

/// True if the `KnownHostsCommand` runs Penstock.
pub(super) fn is_ours(command: &str) -> bool {
    ours(command).is_some()
}

pub(super) fn ours(command: &str) -> Option<(String, Started)> {
    let words = words(command).ok()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, started, handed_over) = match words.as_slice() {
        [LAUNCHER, "-c", LAUNCH, program, rest @ ..] => (program, Started::Launched, rest),
        [program, "known-hosts", "--engine", rest @ ..] | [program, "known-hosts", rest @ ..] => {
            (program, Started::Directly, rest)
        }
        _ => return None,
    };
    // Settings from an earlier version of Penstock have no `--`.
    let is_whole = match handed_over {
        ["--port", "%p", "--", rest @ ..] | ["--port", "%p", rest @ ..] => {
            rest == ["%k", "%H", "%I", "%t", "%K"]
        }
        _ => false,
    };
    is_whole.then(|| (program.replace("%%", "%"), started))
}
