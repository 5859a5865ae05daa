//! Where the state of the process is stored for the next one, and when it was.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use state::State;
use state::events::timestamp;
use text::units;

#[derive(Clone, Debug, Serialize)]
pub struct StoredReport {
    pub directory: String,
    /// When all of it was written last, RFC 3339 in UTC; `None` if this process has not written it yet.
    pub at: Option<String>,
    pub seconds_ago: Option<u64>,
    /// Size of the files together.
    pub bytes: u64,
    /// When the state that this process began with was written; `None` if it began without one.
    pub restored_from: Option<String>,
    /// Attempts that failed, since the first start with this directory.
    pub failures: u64,
}

impl StoredReport {
    /// `None` if nothing is kept over a restart.
    pub(super) fn read(state: &State) -> Option<Self> {
        let stored = state.kept.stored()?;
        let ago = |at: SystemTime| SystemTime::now().duration_since(at).unwrap_or_default().as_secs();
        Some(Self {
            directory: stored.directory.display().to_string(),
            at: stored.at.map(timestamp),
            seconds_ago: stored.at.map(ago),
            bytes: stored.bytes,
            restored_from: stored.restored.map(timestamp),
            failures: state.kept.failures.load(Relaxed),
        })
    }

    pub(super) fn line(&self) -> String {
        let when = match (self.seconds_ago, &self.at) {
            (Some(seconds), Some(at)) => {
                let ago = units::ago(Duration::from_secs(seconds));
                format!("stored {ago} ({at}), {}", units::bytes(self.bytes))
            }
            _ => "not stored yet".to_owned(),
        };
        let failures = match self.failures {
            0 => String::new(),
            failures => format!(", {failures} attempts failed"),
        };
        let from =
            self.restored_from.as_ref().map_or_else(String::new, |at| format!("; began with that of {at}"));
        format!("state in {}: {when}{failures}{from}", self.directory)
    }
}
