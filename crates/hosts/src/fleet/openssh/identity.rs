//! Options that make the OpenSSH client use the identities of `penstock host`, and the report why a host is refused.

use super::super::ending::Reason;
use super::shown;

/// Shell by which the `ssh` of a person starts Penstock. `ssh` ignores a `KnownHostsCommand` whose program does not
/// exist, and uses its other settings, which may accept every key. A shell always exists: without our program the shell
/// fails, and `ssh` ends the connection.
pub const LAUNCHER: &str = "/bin/sh";
/// Script for [`LAUNCHER`]. The script also refuses an empty file, which an update leaves on a full disk: a shell would
/// run an empty file as a successful script.
pub const LAUNCH: &str = "test -s \"$0\" || { echo \"penstock: $0 is missing, so no host is accepted; nothing was sent\" >&2; exit 1; }; \
                          exec \"$0\" known-hosts \"$@\"";

/// Settings for `ssh_config` so that OpenSSH uses only the identities of `penstock host`. `program` is the absolute
/// path of our program, quoted for `ssh_config`; `hearer` reads the refusal on standard error.
#[must_use]
pub fn identity_options(program: &str, hearer: StderrReader) -> [String; 7] {
    let program = program.replace('%', "%%");
    let start = match hearer {
        // Less strict settings of the person can precede these.
        StderrReader::Person => format!("{LAUNCHER} -c '{LAUNCH}' {program}"),
        // An engine passes the settings on the command line, before any other settings.
        StderrReader::Engine => format!("{program} known-hosts --engine"),
    };
    [
        // %k is the name that was typed or HostKeyAlias: the identity. %H contains the address, which proves nothing.
        // `--` prevents an alias from being an option: with `-h` our program would print its help and succeed, and a
        // lax `ssh` would accept every key.
        format!("KnownHostsCommand {start} --port %p -- %k %H %I %t %K"),
        "UserKnownHostsFile none".to_owned(),
        "GlobalKnownHostsFile none".to_owned(),
        "StrictHostKeyChecking yes".to_owned(),
        "UpdateHostKeys no".to_owned(),
        // Otherwise `ssh` skips the command for some hosts.
        "NoHostAuthenticationForLocalhost no".to_owned(),
        "VerifyHostKeyDNS no".to_owned(),
    ]
}

/// Reader of the refusal on the standard error of `ssh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StderrReader {
    /// The program that started `ssh`.
    Person,
    /// An engine of Penstock, which also needs the reason.
    Engine,
}

/// Refusal of a host by `penstock known-hosts`. `ssh` itself reports the refusal only in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
    pub advice: String,
}

impl Refusal {
    /// Environment variable by which an engine passes a secret mark. Banners of hosts also come on the standard error
    /// of `ssh`, and cannot contain the mark.
    pub const MARK: &str = "PENSTOCK_REFUSAL_MARK";

    /// Text that `known-hosts` writes to standard error.
    #[must_use]
    pub fn said(&self, hearer: StderrReader) -> String {
        let Self { reason, message, advice } = self;
        match hearer {
            StderrReader::Person => format!("{OURS}{message}\n  {advice}\n"),
            StderrReader::Engine => format!("{OURS}{reason}: {message}\n  {advice}\n"),
        }
    }

    /// Text of the refusal for the engine, which knows it by `mark`, the value that it passed in [`Refusal::MARK`].
    #[must_use]
    pub fn said_with(&self, mark: &str) -> String {
        let Self { reason, message, advice } = self;
        format!("{}{reason}: {message}\n  {advice}\n", ours(mark))
    }

    /// Removes the refusal from the standard error of `ssh`. Only for text from before the host could send any: a host
    /// can imitate the line.
    #[must_use]
    pub fn take(said: &mut Vec<u8>) -> Option<Self> {
        Self::take_behind(OURS, said)
    }

    /// Removes the refusal that has this mark, which no host knows.
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
        Reason::WrongHost,
        Reason::KeyRefused,
        // Retired host, damaged file, or name of two hosts.
        Reason::BadConfiguration,
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
        for forged in [refusal.said(StderrReader::Engine), refusal.said_with("b2"), refusal.said_with("")] {
            let mut said = forged.clone().into_bytes();
            assert_eq!(Refusal::take_with("a1", &mut said), None, "{forged}");
            said.extend_from_slice(refusal.said_with("a1").as_bytes());
            assert_eq!(Refusal::take_with("a1", &mut said), Some(refusal.clone()));
            assert_eq!(said, forged.as_bytes());
        }
    }
}
