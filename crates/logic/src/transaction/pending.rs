//! What operators have begun and not ended: a commit that waits for its confirmation, an open transaction. Status, `top`,
//! history and diff show it to every operator: no other operator can change anything meanwhile, and it ends by itself.

use std::time::{Duration, Instant, SystemTime};

use text::units::{self, count};

use super::{Ledger, Operator, Trial};

#[derive(Clone, Debug, Default)]
pub struct Pending {
    pub unconfirmed: Option<Trial>,
    pub transaction: Option<Open>,
}

/// An open transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub by: Operator,
    pub since: SystemTime,
    pub changes: usize,
}

impl Ledger {
    pub fn pending(&self) -> Pending {
        let open = |transaction: &super::Transaction| Open {
            by: transaction.by.clone(),
            since: transaction.since,
            changes: transaction.changes(),
        };
        Pending { unconfirmed: self.trial.clone(), transaction: self.transaction.as_ref().map(open) }
    }
}

impl Pending {
    /// A sentence for each. `time` formats a time.
    pub fn lines(&self, now: Instant, time: impl Fn(SystemTime) -> String) -> Vec<String> {
        let unconfirmed = self.unconfirmed.as_ref().map(|trial| trial.line(now));
        let transaction = self.transaction.as_ref().map(|open| {
            format!(
                "transaction of {} open since {}: {} not served before `penstock ctl commit`",
                open.by,
                time(open.since),
                count(open.changes, "change")
            )
        });
        unconfirmed.into_iter().chain(transaction).collect()
    }
}

impl Trial {
    /// Time that is left, as whole seconds: it is over only when it is 0.
    pub fn left(&self, now: Instant) -> u64 {
        self.until.saturating_duration_since(now).as_millis().div_ceil(1000) as u64
    }

    /// Time of the next undo.
    pub(super) fn due(&self) -> Instant {
        self.again.unwrap_or(self.until)
    }

    /// A sentence about it, with what an operator can do.
    pub fn line(&self, now: Instant) -> String {
        let (number, by, words) = (self.number, &self.by, self.words(now));
        format!(
            "change {number} of {by} {words}: `penstock ctl confirm` keeps it, `penstock ctl undo` undoes it now"
        )
    }

    /// `is undone in 24 s unless confirmed`.
    pub fn words(&self, now: Instant) -> String {
        if self.again.is_some() {
            return "was not confirmed in time and cannot be undone yet, which is tried again every 5 s"
                .to_owned();
        }
        format!("is undone in {} unless confirmed", units::duration(Duration::from_secs(self.left(now))))
    }
}
