//! Result of a whole run: the exit status of Penstock, and groups of failed hosts. `fleet/run.rs` collects the results
//! of hosts; `fleet/run/summary.rs` prints them.

use super::ending::{Ending, Failure, Phase, Reason, Remote};
use std::collections::HashSet;

/// Exit status of a run. A later variant is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The command exited with 0 on every host.
    Ok,
    /// The command ended on every host; on some with another status, by a signal, or at the timeout of Penstock.
    Failed,
    /// Some hosts did not start the command. Another try is safe.
    NotStarted,
    /// The identity of some hosts is not verified.
    Identity,
    /// On some hosts the command may have run, and may still run.
    MayHaveRun,
    /// Output of some hosts was lost: a full disk, or a file that cannot be written.
    OutputLost,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// The reader of the standard output has closed the pipe.
    ReaderGone,
}

impl Status {
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::NotStarted => 3,
            Self::Identity => 4,
            Self::MayHaveRun => 5,
            Self::OutputLost => 6,
            Self::Interrupted => 130,
            Self::ReaderGone => 141,
        }
    }

    /// Status of a run that has only this host.
    #[must_use]
    pub fn of(ending: &Ending) -> Self {
        match (ending, ending.remote()) {
            (Ending::Exited(0), _) => Self::Ok,
            (Ending::Failed(failure), Remote::NotStarted) if is_identity(failure.reason) => Self::Identity,
            (_, Remote::NotStarted) => Self::NotStarted,
            (_, Remote::MayHaveRun) => Self::MayHaveRun,
            (_, Remote::Ended) => Self::Failed,
        }
    }

    #[must_use]
    pub fn worst<'a>(endings: impl IntoIterator<Item = &'a Ending>) -> Self {
        endings.into_iter().map(Self::of).max().unwrap_or(Self::Ok)
    }
}

/// True if the identity of the host is the reason of the failure.
#[must_use]
pub fn is_identity(reason: Reason) -> bool {
    matches!(reason, Reason::UnknownHost | Reason::KeyChanged | Reason::WrongHost | Reason::KeyRefused)
}

/// Hosts with the same kind of result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Kind of result in one or two words: `exit 1`, `signal KILL`, `refused`.
    pub title: String,
    pub status: Status,
    /// Phase of the first host; `None` if there is an exit status.
    pub phase: Option<Phase>,
    /// Details of the first host.
    pub detail: Option<String>,
    /// Advice for the first host of the group.
    pub advice: Option<String>,
    /// Different causes of other hosts; together with the first host at most [`MOST_TOLD`].
    pub others: Vec<Cause>,
    /// Number of further causes that are not shown.
    pub untold: usize,
    /// Host names in the order of the host list.
    pub hosts: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub host: String,
    pub detail: String,
    pub advice: Option<String>,
}

/// Limit of different causes that are shown for one group.
pub const MOST_TOLD: usize = 3;

/// Removes parts of `detail` that differ from host to host: host name, addresses, ports, times.
fn kernel(name: &str, detail: &str) -> String {
    let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
    // Whole words only: a host named `a` must not remove each letter `a`.
    let words = detail.split(|sign: char| sign.is_whitespace() || "\"',;()".contains(sign));
    let mut kernel = String::new();
    for word in words.map(|word| word.trim_end_matches(':')) {
        let differs = word == name || word == host || word.bytes().any(|byte| byte.is_ascii_digit());
        kernel.push_str(if differs { "?" } else { word });
        kernel.push(' ');
    }
    kernel
}

/// Key by which causes of two hosts are equal. A wrong host is reported for each host, with the details.
fn sameness(name: &str, failure: &Failure) -> String {
    match failure.reason {
        Reason::WrongHost => failure.detail.clone(),
        _ => kernel(name, &failure.detail),
    }
}

/// Groups of hosts that did not end ok: the worst status first, then the largest group first.
#[must_use]
pub fn groups<'a>(endings: impl IntoIterator<Item = (&'a str, &'a Ending)>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut told: Vec<HashSet<String>> = Vec::new();
    for (name, ending) in endings {
        let status = Status::of(ending);
        if status == Status::Ok {
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
        let denied = failed(Reason::PermissionDenied, Phase::Authenticate, Remote::NotStarted);
        let changed = failed(Reason::KeyChanged, Phase::Identity, Remote::NotStarted);
        let lost = failed(Reason::ConnectionLost, Phase::Run, Remote::MayHaveRun);
        let ended = failed(Reason::TimedOut, Phase::Run, Remote::Ended);
        let all = [Ending::Exited(0), exit, denied, changed, lost];
        let codes: Vec<_> = (1..=5).map(|count| Status::worst(&all[..count]).code()).collect();
        assert_eq!(codes, [0, 1, 3, 4, 5]);
        assert_eq!(Status::of(&ended), Status::Failed);
    }

    #[test]
    fn higher_code_hides_the_lower_ones_in_every_combination() {
        use Status::{Failed, Identity, Interrupted, MayHaveRun, NotStarted, Ok, OutputLost, ReaderGone};
        let all = [Ok, Failed, NotStarted, Identity, MayHaveRun, OutputLost, Interrupted, ReaderGone];
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            assert_eq!(a.max(b).code(), a.code().max(b.code()), "{a:?} and {b:?}");
        }
        let never = failed(Reason::ConnectionRefused, Phase::Connect, Remote::NotStarted);
        let of_hosts = [
            (Ok, Ending::Exited(0)),
            (Failed, Ending::Signalled { signal: "KILL".to_owned(), core: crate::fleet::ending::Core::None }),
            (NotStarted, never),
            (Identity, failed(Reason::UnknownHost, Phase::Identity, Remote::NotStarted)),
            (MayHaveRun, failed(Reason::KeyChanged, Phase::Run, Remote::MayHaveRun)),
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
        let lost = failed(Reason::ConnectionLost, Phase::Run, Remote::MayHaveRun);
        let slow = failed(Reason::TimedOut, Phase::Connect, Remote::NotStarted);
        let (bad, good) = (Ending::Exited(2), Ending::Exited(0));
        let all = [("a", &bad), ("b", &good), ("c", &lost), ("d", &bad), ("e", &slow)];
        let told: Vec<_> =
            groups(all).into_iter().map(|group| (group.title, group.hosts.join(","))).collect();
        let told: Vec<_> = told.iter().map(|(title, hosts)| (title.as_str(), hosts.as_str())).collect();
        assert_eq!(told, [("connection-lost", "c"), ("timed out at connect", "e"), ("exit 2", "a,d")]);
    }
    #[test]
    fn group_tells_causes_and_not_the_names_in_them() {
        let said = |detail: &str| {
            let detail = detail.to_owned();
            let (phase, reason) = (Phase::Identity, Reason::ProtocolError);
            Ending::Failed(Failure { phase, reason, detail, advice: None, remote: Remote::NotStarted })
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
