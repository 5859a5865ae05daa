//! The process that this one has taken over from at an upgrade, while it has sessions.

use std::time::SystemTime;

use serde::Serialize;
use state::State;
use state::events::timestamp;
use text::units;

#[derive(Clone, Debug, Serialize)]
pub struct OlderReport {
    pub pid: u32,
    pub version: String,
    /// RFC 3339 in UTC.
    pub taken_over_at: String,
    pub seconds_ago: u64,
    /// Open sessions; `None` if it has not said so yet.
    pub sessions: Option<usize>,
}

impl OlderReport {
    /// `None` without such a process.
    pub(crate) fn read(state: &State) -> Option<Self> {
        let older = state.upgrade.older()?;
        let ago = SystemTime::now().duration_since(older.since).unwrap_or_default();
        Some(Self {
            pid: older.pid,
            version: older.version,
            taken_over_at: timestamp(older.since),
            seconds_ago: ago.as_secs(),
            sessions: older.sessions,
        })
    }

    pub(super) fn line(&self) -> String {
        let state = match self.sessions {
            None => "still has its sessions, and ends with the last one".to_owned(),
            Some(0) => "has no session any more, and ends".to_owned(),
            Some(left) => {
                format!("still has {}, and ends with the last one", units::count(left, "session"))
            }
        };
        let ago = units::ago(std::time::Duration::from_secs(self.seconds_ago));
        format!("upgraded {ago}: version {} (pid {}) {state}", self.version, self.pid)
    }

    /// Says which sessions a list of those of this process lacks.
    pub(crate) fn not_shown(&self) -> Option<String> {
        let (sessions, verb) = match self.sessions? {
            0 => return None,
            1 => ("1 session".to_owned(), "is"),
            left => (units::count(left, "session"), "are"),
        };
        Some(format!("{sessions} of before the upgrade {verb} in process {}, and not shown here", self.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(sessions: Option<usize>) -> OlderReport {
        OlderReport {
            pid: 33,
            version: "1.2.0".into(),
            taken_over_at: String::new(),
            seconds_ago: 60,
            sessions,
        }
    }

    #[test]
    fn a_process_without_sessions_is_not_said_to_have_some() {
        let line = with(Some(0)).line();
        assert!(line.ends_with("version 1.2.0 (pid 33) has no session any more, and ends"), "{line}");
        assert_eq!(with(Some(0)).not_shown(), None);
        let line = with(Some(1)).line();
        assert!(line.ends_with("(pid 33) still has 1 session, and ends with the last one"), "{line}");
        let beside = with(Some(2)).not_shown().unwrap();
        assert_eq!(beside, "2 sessions of before the upgrade are in process 33, and not shown here");
    }
}
