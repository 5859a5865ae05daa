//! Why a live change may not be made now, and what to do.

use std::time::{Duration, SystemTime};

use super::operator::Operator;

/// Reason why an operator may not do this now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another user has a transaction.
    Others {
        by: Operator,
        since: SystemTime,
        changes: usize,
    },
    /// This user has one already.
    Own {
        by: Operator,
        since: SystemTime,
        changes: usize,
    },
    /// There is no transaction.
    None,
    /// There is none any more: another user has aborted it.
    Aborted {
        by: Operator,
    },
    /// The configuration served is not that at `begin` any more.
    Overtaken {
        since: SystemTime,
    },
    /// A commit waits for its confirmation.
    Unconfirmed {
        by: Operator,
        number: u64,
        since: SystemTime,
        limit: Duration,
    },
    /// A commit was not confirmed in time, and its undo has failed so far.
    NotUndone {
        by: Operator,
        number: u64,
        since: SystemTime,
    },
    /// No commit waits for a confirmation.
    NothingToConfirm,
    NothingToUndo,
    /// The same, but the last change was undone, by this one.
    LastUndone {
        number: u64,
        by: u64,
    },
    UndoneAlready {
        number: u64,
        /// The undo that did it, if the history has it still.
        by: Option<u64>,
    },
    /// The history has no change with this number, or has it no more.
    NoSuchChange {
        number: u64,
        oldest: Option<u64>,
        newest: Option<u64>,
    },
    /// The transaction must be ended before an undo.
    UndoInTransaction,
    /// The undo of this change would undo later ones too.
    TakesOthers {
        number: u64,
        also: Vec<u64>,
    },
}

impl Refused {
    /// Says why, and what to do. `time` formats a time.
    pub fn words(&self, time: impl Fn(SystemTime) -> String) -> (String, &'static str) {
        let counted = |changes: &usize| text::units::count(*changes, "change");
        match self {
            Self::Others { by, since, changes } => (
                format!("{by} has a transaction since {} with {}", time(*since), counted(changes)),
                "wait until it is committed or aborted; `abort --force` ends it and drops its changes",
            ),
            Self::Own { by, since, changes } => (
                format!(
                    "there is a transaction already, by {by} since {} with {}",
                    time(*since),
                    counted(changes)
                ),
                "`diff` shows it; `commit` or `abort` ends it",
            ),
            Self::None => ("there is no transaction".to_owned(), "`begin` starts one"),
            Self::Aborted { by } => (
                format!("there is no transaction: {by} has aborted yours, so nothing was changed"),
                "`begin` starts another one; without it the next change is served at once",
            ),
            Self::Overtaken { since } => (
                format!("the configuration was changed after this transaction began at {}", time(*since)),
                "`diff` shows the changes of the transaction, `history` the others; `abort`, then make them again",
            ),
            Self::Unconfirmed { by, number, since, limit } => (
                format!(
                    "change {number} by {by} of {} waits {} s for its confirmation",
                    time(*since),
                    limit.as_secs_f32()
                ),
                "`confirm` keeps it, `undo` undoes it now",
            ),
            Self::NotUndone { by, number, since } => (
                format!(
                    "change {number} by {by} of {} was not confirmed in time, and cannot be undone yet",
                    time(*since)
                ),
                "`status` says what keeps it from that; `undo` tries it now, `confirm` keeps the change",
            ),
            Self::NothingToConfirm => (
                "there is nothing to confirm: no commit waits for a confirmation".to_owned(),
                "`commit --confirm TIME` begins one; one that was not confirmed in time is undone: see `history`",
            ),
            Self::NothingToUndo => (
                "there is no change to undo".to_owned(),
                "`history` has the changes that the server remembers",
            ),
            Self::LastUndone { number, by } => (
                format!(
                    "there is no change to undo: change {number} was undone by {by}, and `undo {by}` serves it again"
                ),
                "`history` has the changes that the server remembers",
            ),
            Self::UndoneAlready { number, by: Some(by) } => (
                format!("change {number} is undone already, by {by}: `undo {by}` serves it again"),
                "`history` says which changes are served",
            ),
            Self::UndoneAlready { number, by: None } => {
                (format!("change {number} is undone already"), "`history` says which changes are served")
            }
            Self::NoSuchChange { number, oldest, newest } => (
                match oldest.zip(*newest) {
                    Some((oldest, newest)) => {
                        format!("there is no change {number}: the history has {oldest} to {newest}")
                    }
                    None => format!("there is no change {number}: the history is empty"),
                },
                "`history` lists them",
            ),
            Self::UndoInTransaction => {
                ("there is a transaction: its changes are not served yet".to_owned(), "`abort` drops them")
            }
            Self::TakesOthers { number, also } => (
                format!("undo {number} would undo {} too, made after it: nothing was undone", named(also)),
                "`undo N --and-later` undoes all of them; to take back only N, `history N` shows its lines",
            ),
        }
    }
}

/// `change 15`, `changes 15 and 16`.
fn named(changes: &[u64]) -> String {
    let noun = if changes.len() == 1 { "change" } else { "changes" };
    format!("{noun} {}", numbers(changes))
}

/// `15 and 16`.
pub(super) fn numbers(changes: &[u64]) -> String {
    let all: Vec<_> = changes.iter().map(u64::to_string).collect();
    match &all[..] {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => all.concat(),
    }
}
