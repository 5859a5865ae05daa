//! Record of the end of the last run of a tunnel, for `status` when no run is active: one line, `SECONDS ended WORDS`
//! or `SECONDS undone`.

use super::sequence::{JobEnd, Verdict};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Time in seconds since 1970.
    pub at: u64,
    pub how: How,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// The run ended with its teardown. The text is the reason; hosts can choose parts of the text.
    Ended(String),
    /// The run was killed, or the machine lost power. The time of the end is unknown: [`Ending::at`] is the time when
    /// the leftovers were undone.
    Undone,
}

/// Limit of the line in bytes; a longer line is cut.
pub const LONGEST: usize = 2048;

impl Ending {
    /// Builds the record of a run with this verdict.
    #[must_use]
    pub fn of(verdict: &Verdict, at: u64) -> Self {
        let mut why: Vec<_> = verdict.problems.iter().map(|it| format!("{}: {}", it.at, it.text)).collect();
        match &verdict.job {
            Some(JobEnd::Exited(status)) => why.push(format!("its command ended with status {status}")),
            Some(JobEnd::Signalled(signal)) => why.push(format!("its command was ended by signal {signal}")),
            Some(JobEnd::NotStarted(..) | JobEnd::Stopped) | None => {}
        }
        if why.is_empty() {
            why.push("stopped on request".to_owned());
        }
        Self { at, how: How::Ended(why.join("; ")) }
    }

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

    /// Parses the record; `None` if its format is unknown.
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

    /// Text for people; `ago` is the time since then, such as `2 s ago`.
    #[must_use]
    pub fn text(&self, ago: &str) -> String {
        match &self.how {
            How::Ended(why) => format!("its last run ended {ago}: {why}"),
            How::Undone => format!("its last run was killed; its leftovers were undone {ago}"),
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
        kept.text("2 s ago")
    }

    #[test]
    fn what_went_wrong_is_kept_with_what_became_of_the_command() {
        assert_eq!(ended(Some(JobEnd::Stopped), &[]), "its last run ended 2 s ago: stopped on request");
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
        assert!(Ending::parse(much.as_bytes()).unwrap().text("").len() < LONGEST + 64);
        for other in ["", "1", "x ended y", "1 gone", "1 gone away", "-1 ended y", "\n"] {
            assert_eq!(Ending::parse(other.as_bytes()), None, "{other:?}");
        }
    }
}
