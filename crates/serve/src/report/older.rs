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
    pub(super) fn read(state: &State) -> Option<Self> {
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
        let sessions =
            self.sessions.map_or_else(|| "its sessions".to_owned(), |left| units::count(left, "session"));
        let ago = units::ago(std::time::Duration::from_secs(self.seconds_ago));
        format!(
            "upgraded {ago}: version {} (pid {}) still has {sessions}, and ends with the last one",
            self.version, self.pid
        )
    }
}
