//! How OpenSSH's client is made to obey the identities of `penstock host`, and how it learns why a host is refused.

use super::super::ending::Reason;
use super::shown;

/// The shell by which the `ssh` of a person starts ours. `ssh` skips a `KnownHostsCommand` whose program is
/// missing, and goes by its other settings, which may accept every key. The shell is there: it does not find
/// our program and fails, and `ssh` ends the connection.
pub const LAUNCHER: &str = "/bin/sh";
/// What [`LAUNCHER`] runs. It refuses an empty file too, which an update leaves on a full disk: a shell would
/// take that for a script that prints nothing and succeeds.
pub const LAUNCH: &str = "test -s \"$0\" || { echo \"penstock: $0 is missing, so no host is believed; nothing was sent\" >&2; exit 1; }; \
                          exec \"$0\" known-hosts \"$@\"";

/// What `ssh_config` says so that OpenSSH obeys the identities of `penstock host` and nothing else. `program` is our own, an
/// absolute path, quoted as `ssh_config` wants it; `hearer` is told there why a host is refused.
#[must_use]
pub fn identity_options(program: &str, hearer: Hearer) -> [String; 7] {
    let program = program.replace('%', "%%");
    let start = match hearer {
        // Lax settings of this person may stand before these.
        Hearer::Person => format!("{LAUNCHER} -c '{LAUNCH}' {program}"),
        // An engine gives these on the command line, where nothing stands before them.
        Hearer::Engine => format!("{program} known-hosts --engine"),
    };
    [
        // %k is the name that was typed or HostKeyAlias: the identity. %H is made of the address, which proves nothing. Behind --
        // no alias is an option: one of -h would have the help printed, which ends well, and a lax ssh believes every key then.
        format!("KnownHostsCommand {start} --port %p -- %k %H %I %t %K"),
        "UserKnownHostsFile none".to_owned(),
        "GlobalKnownHostsFile none".to_owned(),
        "StrictHostKeyChecking yes".to_owned(),
        "UpdateHostKeys no".to_owned(),
        // With these ssh does not ask the command.
        "NoHostAuthenticationForLocalhost no".to_owned(),
        "VerifyHostKeyDNS no".to_owned(),
    ]
}

/// Who reads on the standard error of `ssh` why `known-hosts` refuses a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearer {
    /// Whoever called `ssh`.
    Person,
    /// An engine of ours, which wants the reason, too.
    Engine,
}

/// Why our `known-hosts` refuses a host, which `ssh` only says in words of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The group it belongs to.
    pub reason: Reason,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

impl Refusal {
    /// The variable in which an engine hands over a mark: banners of hosts come on standard error of `ssh`, too, and a banner
    /// cannot have it.
    pub const MARK: &str = "PENSTOCK_REFUSAL_MARK";

    /// What `known-hosts` says on standard error.
    #[must_use]
    pub fn said(&self, hearer: Hearer) -> String {
        let Self { reason, message, advice } = self;
        match hearer {
            Hearer::Person => format!("{OURS}{message}\n  {advice}\n"),
            Hearer::Engine => format!("{OURS}{reason}: {message}\n  {advice}\n"),
        }
    }

    /// The same to an engine that handed over `mark` (in [`Refusal::MARK`]).
    #[must_use]
    pub fn said_with(&self, mark: &str) -> String {
        let Self { reason, message, advice } = self;
        format!("{}{reason}: {message}\n  {advice}\n", ours(mark))
    }

    /// Takes what was said to an engine out of all that came on standard error. Only for what came before a host could say
    /// anything there: any line can look like this.
    #[must_use]
    pub fn take(said: &mut Vec<u8>) -> Option<Self> {
        Self::take_behind(OURS, said)
    }

    /// Takes what was said with this mark, which no host knows.
    #[must_use]
    pub fn take_with(mark: &str, said: &mut Vec<u8>) -> Option<Self> {
        Self::take_behind(&ours(mark), said)
    }

    fn take_behind(start: &str, said: &mut Vec<u8>) -> Option<Self> {
        let mut at = 0;
        while let Some(end) = memchr::memchr(b'\n', &said[at..]) {
            let (line, rest) = (&said[at..at + end], &said[at + end + 1..]);
            if let Some((reason, message)) = of_engine(start, line) {
                let advice = rest.strip_prefix(b"  ").map(|rest| rest.split(|byte| *byte == b'\n').next());
                let advice = advice.flatten().unwrap_or_default();
                let taken = Self { reason, message, advice: shown(&String::from_utf8_lossy(advice)) };
                let last = match advice.len() {
                    0 => at + end + 1,
                    length => (at + end + 1 + 2 + length + 1).min(said.len()),
                };
                said.drain(at..last);
                return Some(taken);
            }
            at += end + 1;
        }
        None
    }
}

fn of_engine(start: &str, line: &[u8]) -> Option<(Reason, String)> {
    let (word, message) = std::str::from_utf8(line).ok()?.strip_prefix(start)?.split_once(": ")?;
    let reasons = [
        Reason::UnknownHost,
        Reason::KeyChanged,
        Reason::Impostor,
        Reason::KeyRefused,
        // A retired host, a damaged file, a name of two hosts.
        Reason::Configuration,
    ];
    let reason = reasons.into_iter().find(|reason| reason.word() == word)?;
    Some((reason, shown(message)))
}

fn ours(mark: &str) -> String {
    format!("penstock {mark}: ")
}

const OURS: &str = "penstock: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_the_mark_of_the_engine_is_not_taken() {
        let refusal = Refusal {
            reason: Reason::KeyChanged,
            message: "h1 showed another key; nothing was sent".to_owned(),
            advice: "look".to_owned(),
        };
        for forged in [refusal.said(Hearer::Engine), refusal.said_with("b2"), refusal.said_with("")] {
            let mut said = forged.clone().into_bytes();
            assert_eq!(Refusal::take_with("a1", &mut said), None, "{forged}");
            said.extend_from_slice(refusal.said_with("a1").as_bytes());
            assert_eq!(Refusal::take_with("a1", &mut said), Some(refusal.clone()));
            assert_eq!(said, forged.as_bytes());
        }
    }
}
