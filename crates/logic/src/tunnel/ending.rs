//! How the last run of a tunnel ended, as it is kept for whoever asks when nothing runs any more: one line, `SECONDS ended WORDS`
//! or `SECONDS undone`.

use super::sequence::{JobEnd, Verdict};

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// When, in seconds since 1970.
    pub at: u64,
    /// How.
    pub how: How,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// With its teardown; why, for people. Hosts have a say in it, so it may hold anything.
    Ended(String),
    /// It was killed, or lost its power. When is not known: the time is that at which somebody undid what it left.
    Undone,
}

/// Bytes of the longest line: what is longer is cut.
pub const LONGEST: usize = 2048;

impl Ending {
    /// The end of a run that had this verdict.
    #[must_use]
    pub fn of(verdict: &Verdict, at: u64) -> Self {
        let mut why: Vec<_> = verdict.problems.iter().map(|it| format!("{}: {}", it.at, it.text)).collect();
        match &verdict.job {
            Some(JobEnd::Exited(status)) => why.push(format!("its command ended with status {status}")),
            Some(JobEnd::Signalled(signal)) => why.push(format!("its command was ended by signal {signal}")),
            Some(JobEnd::NotStarted(..) | JobEnd::Stopped) | None => {}
        }
        if why.is_empty() {
            why.push("it was told to".to_owned());
        }
        Self { at, how: How::Ended(why.join("; ")) }
    }

    /// The line that is kept.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = match &self.how {
            How::Ended(why) => format!("{} ended {}", self.at, why.replace(['\n', '\r'], " ")),
            How::Undone => format!("{} undone", self.at),
        };
        line.truncate(line.floor_char_boundary(LONGEST - 1));
        line.push('\n');
        line
    }

    /// What a line says that was kept; `None` if it is none of ours.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]);
        let (at, rest) = text.lines().next()?.split_once(' ')?;
        let at = at.parse().ok()?;
        let how = match rest.split_once(' ') {
            Some(("ended", why)) => How::Ended(why.to_owned()),
            None if rest == "undone" => How::Undone,
            Some(_) | None => return None,
        };
        Some(Self { at, how })
    }

    /// For people; `ago` says when: `2 s ago`.
    #[must_use]
    pub fn told(&self, ago: &str) -> String {
        match &self.how {
            How::Ended(why) => format!("its last run ended {ago}: {why}"),
            How::Undone => format!("its last run was killed; what it left was undone {ago}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sequence::{Act, Problem};
    use super::*;

    fn ended(job: Option<JobEnd>, problems: &[(Act, &str)]) -> String {
        let problem = |(at, text): &(Act, &str)| Problem { at: *at, text: (*text).to_owned() };
        let verdict = Verdict { job, problems: problems.iter().map(problem).collect() };
        let ending = Ending::of(&verdict, 7);
        let kept = Ending::parse(ending.line().as_bytes()).unwrap();
        assert_eq!(kept.at, 7);
        kept.told("2 s ago")
    }

    #[test]
    fn what_went_wrong_is_kept_with_what_became_of_the_command() {
        assert_eq!(ended(Some(JobEnd::Stopped), &[]), "its last run ended 2 s ago: it was told to");
        let refused = [(Act::Connect, "answered as\nanother")];
        assert_eq!(
            ended(Some(JobEnd::Signalled(15)), &refused),
            "its last run ended 2 s ago: connecting: answered as another; its command was ended by signal 15"
        );
        assert!(ended(Some(JobEnd::Exited(3)), &[]).ends_with("its command ended with status 3"));
        let undone = Ending { at: 9, how: How::Undone };
        assert_eq!(Ending::parse(undone.line().as_bytes()), Some(undone));
    }

    #[test]
    fn a_line_is_bounded_and_one_that_is_not_ours_says_nothing() {
        let long = Ending { at: 1, how: How::Ended("\u{e4}".repeat(LONGEST)) }.line();
        assert!(long.len() <= LONGEST && long.ends_with("\u{e4}\n"), "{}", long.len());
        let much = format!("1 ended {}", "x".repeat(9 * LONGEST));
        assert!(Ending::parse(much.as_bytes()).unwrap().told("").len() < LONGEST + 64);
        for other in ["", "1", "x ended y", "1 gone", "1 gone away", "-1 ended y", "\n"] {
            assert_eq!(Ending::parse(other.as_bytes()), None, "{other:?}");
        }
    }
}
