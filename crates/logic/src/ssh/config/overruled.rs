//! What keeps the stanza of `penstock known-hosts` from holding: ssh takes the first value that it finds.

use super::keyword::Keyword;
use super::resolved::Resolved;
use super::setting::Value;
use super::words::words;
use crate::fleet::openssh::{LAUNCH, LAUNCHER};
use crate::ssh::config::Place;

/// A setting with which `ssh` believes a host key without asking `penstock known-hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overruling {
    /// Where it stands; `None`: on the command line.
    pub place: Option<Place>,
    /// As `ssh -G` writes it: `knownhostscommand none`.
    pub line: String,
    /// What `ssh` does then.
    pub meaning: &'static str,
}

/// Our `KnownHostsCommand`, as it stands in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// The program that is asked.
    pub program: String,
    /// Who starts it.
    pub started: Started,
    /// Where the setting stands; `None`: on the command line.
    pub place: Option<Place>,
}

/// Who starts the program of a `KnownHostsCommand`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// A program that is there where ours is missing, and fails then: `ssh` ends the connection.
    Launched,
    /// `ssh` itself, which skips a program that is missing.
    Directly,
}

/// The setting with which `ssh` asks `penstock known-hosts`, if that is what it asks.
#[must_use]
pub fn asking(resolved: &Resolved) -> Option<Asking> {
    let Some(Value::Text(command)) = resolved.setting(Keyword::KnownHostsCommand) else { return None };
    let (program, started) = ours(command)?;
    Some(Asking { program, started, place: resolved.place(Keyword::KnownHostsCommand).cloned() })
}

/// Whether this is our `KnownHostsCommand`.
pub(super) fn is_ours(command: &str) -> bool {
    ours(command).is_some()
}

fn ours(command: &str) -> Option<(String, Started)> {
    let words = words(command).ok()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, started, handed_over) = match words.as_slice() {
        [LAUNCHER, "-c", LAUNCH, program, rest @ ..] => (program, Started::Launched, rest),
        [program, "known-hosts", "--engine", rest @ ..] | [program, "known-hosts", rest @ ..] => {
            (program, Started::Directly, rest)
        }
        _ => return None,
    };
    // A block of an earlier version has no `--`.
    let is_whole = match handed_over {
        ["--port", "%p", "--", rest @ ..] | ["--port", "%p", rest @ ..] => {
            rest == ["%k", "%H", "%I", "%t", "%K"]
        }
        _ => false,
    };
    is_whole.then(|| (program.replace("%%", "%"), started))
}

/// Every such setting that holds for a host. `StrictHostKeyChecking` and files of known hosts are none: `known-hosts` ends
/// with a failure for a host that is refused, and `ssh` then ends the connection whatever those say.
#[must_use]
pub fn overruling(resolved: &Resolved) -> Vec<Overruling> {
    let one = |keyword: Keyword| {
        let value = resolved.setting(keyword)?;
        let meaning = match (keyword, value) {
            (Keyword::KnownHostsCommand, Value::Text(command)) => match ours(command) {
                Some((_, Started::Launched)) => return None,
                Some((_, Started::Directly)) => "goes on without asking where that program is missing",
                None => "asks that for host keys, not penstock",
            },
            (Keyword::KnownHostsCommand, _) => "asks that for host keys, not penstock",
            (Keyword::NoHostAuthenticationForLocalhost, Value::Word("yes" | "true")) => {
                "believes every key at addresses of this machine, forwarded ports too"
            }
            (Keyword::VerifyHostKeyDns, Value::Word("yes" | "true")) => {
                "believes keys that the DNS server vouches for"
            }
            _ => return None,
        };
        let line = format!("{} {value}", keyword.name());
        Some(Overruling { place: resolved.place(keyword).cloned(), line, meaning })
    };
    let keywords =
        [Keyword::KnownHostsCommand, Keyword::NoHostAuthenticationForLocalhost, Keyword::VerifyHostKeyDns];
    keywords.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::openssh::{Hearer, identity_options};

    #[test]
    fn command_is_ours_only_if_every_word_of_it_is() {
        let command = |program: &str, hearer| {
            let [command, ..] = identity_options(program, hearer);
            command.strip_prefix("KnownHostsCommand ").unwrap().to_owned()
        };
        let launched = command("'/opt/100% ours/penstock'", Hearer::Person);
        assert_eq!(ours(&launched), Some(("/opt/100% ours/penstock".to_owned(), Started::Launched)));
        for direct in [
            command("/usr/bin/penstock", Hearer::Engine),
            "/usr/bin/penstock known-hosts --port %p %k %H %I %t %K".to_owned(),
        ] {
            assert_eq!(ours(&direct), Some(("/usr/bin/penstock".to_owned(), Started::Directly)));
        }
        for other in [
            "/bin/cat /tmp/x known-hosts --port %p %k %H %I %t %K",
            "/usr/bin/penstock known-hosts --port %p -- %k %H %I",
            "/usr/bin/penstock known-hosts -- --port %p %k %H %I %t %K",
            "/usr/bin/penstock known-hosts --port %p %k %H %I %t %K more",
            "/usr/bin/penstock 'known-hosts --port %p %k ' x",
            "/bin/sh -c 'exec true' /usr/bin/penstock --port %p %k %H %I %t %K",
            "none",
            "'",
        ] {
            assert_eq!(ours(other), None, "{other}");
        }
    }
}
