//! What keeps the stanza of `penstock known-hosts` from holding: ssh takes the first value that it finds.

use super::keyword::Keyword;
use super::resolved::Resolved;
use super::setting::Value;
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

/// Whether this is our `KnownHostsCommand`.
pub(super) fn is_ours(command: &str) -> bool {
    command.contains(" known-hosts --port %p %k ") || command.contains(" known-hosts --engine --port %p %k ")
}

/// Every such setting that holds for a host. `StrictHostKeyChecking` and files of known hosts are none: `known-hosts` ends
/// with a failure for a host that is refused, and `ssh` then ends the connection whatever those say.
#[must_use]
pub fn overruling(resolved: &Resolved) -> Vec<Overruling> {
    let one = |keyword: Keyword| {
        let value = resolved.setting(keyword)?;
        let meaning = match (keyword, value) {
            (Keyword::KnownHostsCommand, Value::Text(command)) if is_ours(command) => return None,
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
