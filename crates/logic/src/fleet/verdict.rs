//! What a whole run comes to: the exit status (worst wins) and the groups of hosts at its end.
//! `fleet/run.rs` collects the endings; `fleet/run/summary.rs` tells them.

use super::ending::{Ending, Failure, Phase, Reason, Remote};
use std::collections::HashSet;

/// How a run ended, as its exit status. The larger is the worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The command ended with 0 on every host.
    Well,
    /// Somewhere it ended otherwise, by a signal, or at our time limit; and everywhere it did end.
    Failed,
    /// Some hosts never started it: safe to try again.
    NeverStarted,
    /// Some hosts could not prove who they are.
    Identity,
    /// On some hosts it may have run, and may still run.
    Unknown,
    /// Output of some hosts was not kept: a full disk, a file that cannot be written.
    OutputLost,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// Nobody reads our output any more.
    ReaderGone,
}

impl Status {
    /// The number for the shell.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Failed => 1,
            Self::NeverStarted => 3,
            Self::Identity => 4,
            Self::Unknown => 5,
            Self::OutputLost => 6,
            Self::Interrupted => 130,
            Self::ReaderGone => 141,
        }
    }

    /// What one host adds.
    #[must_use]
    pub fn of(ending: &Ending) -> Self {
        match (ending, ending.remote()) {
            (Ending::Exited(0), _) => Self::Well,
            (Ending::Failed(failure), Remote::NeverStarted) if is_identity(failure.reason) => Self::Identity,
            (_, Remote::NeverStarted) => Self::NeverStarted,
            (_, Remote::Unknown) => Self::Unknown,
            (_, Remote::Ended) => Self::Failed,
        }
    }

    /// The worst of all.
    #[must_use]
    pub fn worst<'a>(endings: impl IntoIterator<Item = &'a Ending>) -> Self {
        endings.into_iter().map(Self::of).max().unwrap_or(Self::Well)
    }
}

/// Whether a host failed for who it is, or is not.
#[must_use]
pub fn is_identity(reason: Reason) -> bool {
    matches!(reason, Reason::UnknownHost | Reason::KeyChanged | Reason::Impostor | Reason::KeyRefused)
}

/// Hosts that ended alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// How, in a word or two: `exit 1`, `signal KILL`, `refused`.
    pub title: String,
    /// How bad that is.
    pub status: Status,
    /// How far the first of them got, where there is no status.
    pub phase: Option<Phase>,
    /// What was said of the first of them.
    pub detail: Option<String>,
    /// What to do about it.
    pub advice: Option<String>,
    /// What was said of others, where that was something else than of the first: [`MOST_TOLD`] with the first.
    pub others: Vec<Cause>,
    /// So many further causes are not told.
    pub untold: usize,
    /// Their names, in the order of the host list.
    pub hosts: Vec<String>,
}

/// What was said of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Its name.
    pub host: String,
    /// What was said.
    pub detail: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// So many different causes of one group are told.
pub const MOST_TOLD: usize = 3;

/// What is left of a detail without what differs from host to host: its name, addresses, ports, times.
fn kernel(name: &str, detail: &str) -> String {
    let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
    // In whole words: the name `a` is also a letter.
    let words = detail.split(|sign: char| sign.is_whitespace() || "\"',;()".contains(sign));
    let mut kernel = String::new();
    for word in words.map(|word| word.trim_end_matches(':')) {
        let differs = word == name || word == host || word.bytes().any(|byte| byte.is_ascii_digit());
        kernel.push_str(if differs { "?" } else { word });
        kernel.push(' ');
    }
    kernel
}

/// What makes a cause the same for two hosts. Who answered in the place of whom is told of each.
fn sameness(name: &str, failure: &Failure) -> String {
    match failure.reason {
        Reason::Impostor => failure.detail.clone(),
        _ => kernel(name, &failure.detail),
    }
}

/// Everything that did not go well, in groups: the worst status first, the largest group first.
#[must_use]
pub fn groups<'a>(endings: impl IntoIterator<Item = (&'a str, &'a Ending)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut told: Vec<HashSet<String>> = Vec::new();
    for (name, ending) in endings {
        let status = Status::of(ending);
        if status == Status::Well {
            continue;
        }
        let title = title(ending);
        let failure = match ending {
            Ending::Failed(failure) => Some(failure),
            _ => None,
        };
        let cause = failure.filter(|failure| !failure.detail.is_empty());
        match groups.iter().position(|group| group.title == title && group.status == status) {
            Some(at) => {
                let group = &mut groups[at];
                group.hosts.push(name.to_owned());
                if let Some(failure @ Failure { detail, advice, .. }) = cause
                    && told[at].insert(sameness(name, failure))
                {
                    if group.others.len() + 1 < MOST_TOLD {
                        let (host, detail, advice) = (name.to_owned(), detail.clone(), advice.clone());
                        group.others.push(Cause { host, detail, advice });
                    } else {
                        group.untold += 1;
                    }
                }
            }
            None => {
                told.push(cause.map(|failure| sameness(name, failure)).into_iter().collect());
                groups.push(Group {
                    title,
                    status,
                    phase: failure.map(|failure| failure.phase),
                    detail: failure.map(|failure| failure.detail.clone()).filter(|detail| !detail.is_empty()),
                    advice: failure.and_then(|failure| failure.advice.clone()),
                    others: Vec::new(),
                    untold: 0,
                    hosts: vec![name.to_owned()],
                });
            }
        }
    }
    groups.sort_by(|a, b| b.status.cmp(&a.status).then(b.hosts.len().cmp(&a.hosts.len())));
    groups
}

/// How a host ended, in a word or two.
#[must_use]
pub fn title(ending: &Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("exit {code}"),
        Ending::Signalled { signal, .. } => format!("signal {signal}"),
        Ending::Failed(Failure { reason: Reason::TimedOut, phase: Phase::Run, .. }) => {
            "command timed out".to_owned()
        }
        Ending::Failed(Failure { reason: Reason::TimedOut, phase, .. }) => format!("timed out at {phase}"),
        Ending::Failed(failure) => failure.reason.word().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: Reason, phase: Phase, remote: Remote) -> Ending {
        Ending::Failed(Failure { phase, reason, detail: "said".into(), advice: None, remote })
    }

    #[test]
    fn worst_host_decides_the_exit_status() {
        let exit = Ending::Exited(7);
        let denied = failed(Reason::Denied, Phase::Authenticate, Remote::NeverStarted);
        let changed = failed(Reason::KeyChanged, Phase::Identity, Remote::NeverStarted);
        let lost = failed(Reason::Lost, Phase::Run, Remote::Unknown);
        let ended = failed(Reason::TimedOut, Phase::Run, Remote::Ended);
        let all = [Ending::Exited(0), exit, denied, changed, lost];
        let codes: Vec<_> = (1..=5).map(|count| Status::worst(&all[..count]).code()).collect();
        assert_eq!(codes, [0, 1, 3, 4, 5]);
        assert_eq!(Status::of(&ended), Status::Failed);
    }

    #[test]
    fn higher_code_hides_the_lower_ones_in_every_combination() {
        use Status::{Failed, Identity, Interrupted, NeverStarted, OutputLost, ReaderGone, Unknown, Well};
        let all = [Well, Failed, NeverStarted, Identity, Unknown, OutputLost, Interrupted, ReaderGone];
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            assert_eq!(a.max(b).code(), a.code().max(b.code()), "{a:?} and {b:?}");
        }
        let never = failed(Reason::Refused, Phase::Connect, Remote::NeverStarted);
        let of_hosts = [
            (Well, Ending::Exited(0)),
            (Failed, Ending::Signalled { signal: "KILL".to_owned(), core: crate::fleet::ending::Core::None }),
            (NeverStarted, never),
            (Identity, failed(Reason::UnknownHost, Phase::Identity, Remote::NeverStarted)),
            (Unknown, failed(Reason::KeyChanged, Phase::Run, Remote::Unknown)),
        ];
        for chosen in 0_usize..1 << of_hosts.len() {
            let hosts: Vec<_> =
                (0..of_hosts.len()).filter(|at| chosen & (1 << at) != 0).map(|at| &of_hosts[at]).collect();
            let expected = hosts.iter().map(|(status, _)| status.code()).max().unwrap_or(0);
            assert_eq!(Status::worst(hosts.iter().map(|(_, ending)| ending)).code(), expected);
        }
    }

    #[test]
    fn groups_come_worst_first_and_keep_the_order_of_hosts() {
        let lost = failed(Reason::Lost, Phase::Run, Remote::Unknown);
        let slow = failed(Reason::TimedOut, Phase::Connect, Remote::NeverStarted);
        let (bad, good) = (Ending::Exited(2), Ending::Exited(0));
        let all = [("a", &bad), ("b", &good), ("c", &lost), ("d", &bad), ("e", &slow)];
        let told: Vec<_> =
            groups(all).into_iter().map(|group| (group.title, group.hosts.join(","))).collect();
        let told: Vec<_> = told.iter().map(|(title, hosts)| (title.as_str(), hosts.as_str())).collect();
        assert_eq!(told, [("lost", "c"), ("timed out at connect", "e"), ("exit 2", "a,d")]);
    }
    #[test]
    fn group_tells_causes_and_not_the_names_in_them() {
        let said = |detail: &str| {
            let detail = detail.to_owned();
            let (phase, reason) = (Phase::Identity, Reason::Protocol);
            Ending::Failed(Failure { phase, reason, detail, advice: None, remote: Remote::NeverStarted })
        };
        let details = [
            ("web1", "web1 at 10.0.0.1:22 broke the rules"),
            ("root@web2", "web2 at 10.0.0.2:2222 broke the rules"),
            ("a", "a said \"a word\""),
            ("b", "b said nothing"),
            ("c", "c is forged"),
            ("d", "d is forged"),
            ("e", "e is strange"),
        ];
        let endings = details.map(|(name, detail)| (name, said(detail)));
        let groups = groups(endings.iter().map(|(name, ending)| (*name, ending)));
        assert_eq!((groups.len(), groups[0].hosts.len()), (1, 7));
        let told: Vec<_> = groups[0].others.iter().map(|cause| cause.detail.as_str()).collect();
        assert_eq!(told, ["a said \"a word\"", "b said nothing"]);
        assert_eq!(groups[0].untold, 2);
    }
}
