//! Live changes that operators have begun and not ended: a commit that is undone unless it is confirmed, a transaction.

use std::time::Instant;

use logic::transaction::Pending;
use serde::Serialize;
use state::State;
use state::events::timestamp;
use state::lock::lock;

#[derive(Clone, Debug, Serialize)]
pub struct PendingReport {
    pub unconfirmed: Option<UnconfirmedReport>,
    pub transaction: Option<TransactionReport>,
    /// With `--commit-confirm`: seconds until the services of `dsr` listeners are given up.
    pub start_seconds_left: Option<u64>,
    /// The same as sentences.
    pub lines: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct UnconfirmedReport {
    /// Number of the change.
    pub change: u64,
    pub by: String,
    /// RFC 3339 in UTC.
    pub since: String,
    /// Time until it is undone, rounded up.
    pub seconds_left: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TransactionReport {
    pub by: String,
    /// RFC 3339 in UTC.
    pub since: String,
    pub changes: usize,
}

impl PendingReport {
    pub(super) fn read(state: &State) -> Self {
        let now = Instant::now();
        let pending: Pending = lock(&state.pending).clone();
        Self {
            lines: state
                .services
                .start_confirmation
                .line(now)
                .into_iter()
                .chain(pending.lines(now, timestamp))
                .collect(),
            start_seconds_left: state.services.start_confirmation.seconds_left(now),
            unconfirmed: pending.unconfirmed.map(|trial| UnconfirmedReport {
                change: trial.number,
                by: trial.by.to_string(),
                since: timestamp(trial.since),
                seconds_left: trial.left(now),
            }),
            transaction: pending.transaction.map(|open| TransactionReport {
                by: open.by.to_string(),
                since: timestamp(open.since),
                changes: open.changes,
            }),
        }
    }
}
