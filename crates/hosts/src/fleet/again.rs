//! Hosts of an earlier run for `--again`. `crates/fleet/src/run/again.rs` reads the record of the earlier run.

use std::collections::HashSet;

/// Result of one host in the record of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedResult {
    /// The command was never sent to the host.
    NotStarted(String),
    /// The command ended with exit status 0.
    Ok,
    Failed(String),
    /// The command may have run: the connection broke, or Penstock was killed.
    MayHaveRun(String),
}

/// Penstock command that wrote the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// `penstock run`. Running a command twice can have another effect than running it once.
    Run,
    /// `penstock put`. Copying a file twice has the same effect as copying it once.
    Put,
    Get,
}

/// Hosts that the operator asks for with `--again`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Hosts to which nothing was sent.
    NotStarted,
    /// Hosts that were not started and hosts that failed; of `put` and `get`, all hosts that did not end ok.
    Failed,
    /// All hosts that did not end ok, including hosts where the command may have run.
    NotOk,
    Named(Vec<String>),
}

/// Result of [`choose`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Each host once, in the order of the record or of the names that the operator gave.
    pub hosts: Vec<String>,
    /// Hosts where the command may have run, which `--again failed` leaves out.
    pub left_out: Vec<String>,
}

/// Reason why a host that the operator named cannot be run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The record does not contain the host.
    Absent(String),
    /// The command may have run on the host.
    MayHaveRun { host: String, how: String },
}

impl RecordedResult {
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed(_) => "failed",
            Self::NotStarted(_) => "not-started",
            Self::MayHaveRun(_) => "may-have-run",
        }
    }

    /// Text for people about the result of a host. `maker` is the command that wrote the record.
    #[must_use]
    pub fn told(&self, maker: Maker) -> String {
        match (self, maker) {
            (Self::Ok, _) => "ok".to_owned(),
            (Self::Failed(how), _) => how.clone(),
            (Self::NotStarted(how), _) => format!("not started: {how}"),
            (Self::MayHaveRun(how), Maker::Run) => format!("may have run: {how}"),
            (Self::MayHaveRun(how), Maker::Put) => format!("may have changed: {how}"),
            (Self::MayHaveRun(how), Maker::Get) => format!("may not be here: {how}"),
        }
    }
}

impl Maker {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}

impl Wanted {
    /// Parses the value of `--again`. `None` if the value is not one of its words.
    #[must_use]
    pub fn word(text: &str) -> Option<Self> {
        match text {
            "not-started" => Some(Self::NotStarted),
            "failed" => Some(Self::Failed),
            "not-ok" => Some(Self::NotOk),
            _ => None,
        }
    }
}

/// Chooses the hosts to run again from a record that `maker` wrote.
///
/// # Errors
/// The record does not contain a host that the operator named, or the command may have run on the host.
pub fn choose(hosts: &[(String, RecordedResult)], maker: Maker, wanted: &Wanted) -> Result<Choice, Refusal> {
    let pick = |is_meant: &dyn Fn(&RecordedResult) -> bool| -> Vec<String> {
        let chosen = hosts.iter().filter(|(_, standing)| is_meant(standing));
        // `penstock run --mpssh` accepts the same host twice.
        let mut known = HashSet::new();
        chosen.filter(|(name, _)| known.insert(name.as_str())).map(|(name, _)| name.clone()).collect()
    };
    let may_have_run = |standing: &RecordedResult| matches!(standing, RecordedResult::MayHaveRun(_));
    let (hosts, left_out) = match (wanted, maker) {
        (Wanted::NotStarted, _) => {
            (pick(&|standing| matches!(standing, RecordedResult::NotStarted(_))), Vec::new())
        }
        (Wanted::Failed, Maker::Run) => {
            let chosen = pick(&|standing| !may_have_run(standing) && *standing != RecordedResult::Ok);
            (chosen, pick(&may_have_run))
        }
        (Wanted::Failed | Wanted::NotOk, _) => {
            (pick(&|standing| *standing != RecordedResult::Ok), Vec::new())
        }
        (Wanted::Named(names), _) => {
            for name in names {
                match hosts.iter().find(|(known, _)| known == name) {
                    None => return Err(Refusal::Absent(name.clone())),
                    Some((_, RecordedResult::MayHaveRun(how))) if maker == Maker::Run => {
                        return Err(Refusal::MayHaveRun { host: name.clone(), how: how.clone() });
                    }
                    Some(_) => {}
                }
            }
            (names.clone(), Vec::new())
        }
    };
    Ok(Choice { hosts, left_out })
}

/// Counts the earlier results of the chosen hosts: `2 failed, 1 not started`.
#[must_use]
pub fn counted(hosts: &[(String, RecordedResult)], maker: Maker, chosen: &[String]) -> String {
    let unclear = if maker == Maker::Run { "may have run" } else { "may have changed" };
    let count = |wanted: &str| {
        let meant = hosts.iter().filter(|(name, how)| how.word() == wanted && chosen.contains(name));
        // `penstock run --mpssh` accepts the same host twice.
        meant.map(|(name, _)| name).collect::<HashSet<_>>().len()
    };
    let words =
        [("ok", "ok"), ("failed", "failed"), ("may-have-run", unclear), ("not-started", "not started")];
    let counts = words.map(|(standing, words)| (count(standing), words));
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Vec<(String, RecordedResult)> {
        let how = || "why".to_owned();
        let standings = [
            ("a", RecordedResult::Ok),
            ("b", RecordedResult::Failed(how())),
            ("c", RecordedResult::NotStarted(how())),
            ("d", RecordedResult::MayHaveRun(how())),
            ("b", RecordedResult::Failed(how())),
        ];
        standings.map(|(name, standing)| (name.to_owned(), standing)).to_vec()
    }

    #[test]
    fn what_may_have_run_is_taken_only_where_that_is_said_or_twice_is_as_good_as_once() {
        let all = record();
        let chosen = |maker, wanted| {
            let Choice { hosts, left_out } = choose(&all, maker, &wanted).unwrap();
            (hosts.concat(), left_out.concat())
        };
        let is = |hosts: &str, left_out: &str| (hosts.to_owned(), left_out.to_owned());
        assert_eq!(chosen(Maker::Run, Wanted::NotStarted), is("c", ""));
        assert_eq!(chosen(Maker::Run, Wanted::Failed), is("bc", "d"));
        assert_eq!(chosen(Maker::Run, Wanted::NotOk), is("bcd", ""));
        assert_eq!(chosen(Maker::Put, Wanted::Failed), is("bcd", ""));
        let named = |name: &str| Wanted::Named(vec!["a".to_owned(), name.to_owned()]);
        assert_eq!(chosen(Maker::Get, named("d")), is("ad", ""));
        let refused = Refusal::MayHaveRun { host: "d".to_owned(), how: "why".to_owned() };
        assert_eq!(choose(&all, Maker::Run, &named("d")), Err(refused));
        assert_eq!(choose(&all, Maker::Put, &named("x")), Err(Refusal::Absent("x".to_owned())));
    }

    #[test]
    fn host_that_stands_twice_in_a_record_counts_once() {
        let all = record();
        let chosen = choose(&all, Maker::Run, &Wanted::NotOk).unwrap().hosts;
        assert_eq!(counted(&all, Maker::Run, &chosen), "1 failed, 1 may have run, 1 not started");
        assert_eq!(counted(&all, Maker::Get, &chosen), "1 failed, 1 may have changed, 1 not started");
    }
}
