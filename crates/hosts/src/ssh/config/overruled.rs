//! Settings that override the block of `penstock known-hosts`: ssh uses the first value of a keyword.

use super::keyword::Keyword;
use super::launcher::{Started, ours};
use super::resolved::Resolved;
use super::setting::Value;
use crate::ssh::config::Place;

/// Setting with which `ssh` accepts a host key without asking `penstock known-hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overruling {
    /// Place of the setting; `None` for the command line.
    pub place: Option<Place>,
    /// Setting as `ssh -G` writes it: `knownhostscommand none`.
    pub line: String,
    /// Effect of the setting in `ssh`.
    pub meaning: &'static str,
}

/// `KnownHostsCommand` of a configuration that runs Penstock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    pub program: String,
    pub started: Started,
    /// Place of the setting; `None` for the command line.
    pub place: Option<Place>,
}

/// The `KnownHostsCommand` of a host, if the command runs `penstock known-hosts`.
#[must_use]
pub fn asking(resolved: &Resolved) -> Option<Asking> {
    let Some(Value::Text(command)) = resolved.setting(Keyword::KnownHostsCommand) else { return None };
    let (program, started) = ours(command)?;
    Some(Asking { program, started, place: resolved.place(Keyword::KnownHostsCommand).cloned() })
}

/// Settings with which `ssh` bypasses `penstock known-hosts`. `StrictHostKeyChecking` and known-hosts files do not
/// count: `known-hosts` fails for a refused host, and `ssh` ends the connection even if these settings accept the key.
#[must_use]
pub fn overruling(resolved: &Resolved) -> Vec<Overruling> {
    let one = |keyword: Keyword| {
        let value = resolved.setting(keyword)?;
        let meaning = match (keyword, value) {
            (Keyword::KnownHostsCommand, Value::Text(command)) => match ours(command) {
                Some((_, Started::Launched)) => return None,
                Some((_, Started::Directly)) => "continues without it if that program is missing",
                None => "uses that for host keys, not penstock",
            },
            (Keyword::KnownHostsCommand, _) => "uses that for host keys, not penstock",
            (Keyword::NoHostAuthenticationForLocalhost, Value::Word("yes" | "true")) => {
                "accepts every key at addresses of this machine, forwarded ports too"
            }
            (Keyword::VerifyHostKeyDns, Value::Word("yes" | "true")) => {
                "accepts keys that the DNS server reports as secure"
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
    use crate::fleet::openssh::{StderrReader, identity_options};

    #[test]
    fn command_is_ours_only_if_every_word_of_it_is() {
        let command = |program: &str, hearer| {
            let [command, ..] = identity_options(program, hearer);
            command.strip_prefix("KnownHostsCommand ").unwrap().to_owned()
        };
        let launched = command("'/opt/100% ours/penstock'", StderrReader::Person);
        assert_eq!(ours(&launched), Some(("/opt/100% ours/penstock".to_owned(), Started::Launched)));
        for direct in [
            command("/usr/bin/penstock", StderrReader::Engine),
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
