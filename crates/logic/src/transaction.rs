//! Live changes of the configuration: who may make one now, what `undo` returns to, and until when a commit waits for
//! its confirmation.
//!
//! It holds texts and never reads them: `crates/config/src/edit.rs` makes a change in a text, and
//! `crates/serve/src/transaction.rs` serves it and tells the result here. Time is passed in.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lineage::{FileText, Lineage};

mod history;
mod lineage;
mod memory;
mod operator;
mod pending;
mod refused;
mod target;

pub use history::{Cause, Entry, History, Remembered, Standing};
pub use lineage::Edition;
pub use memory::{Memory, Resumed};
pub use operator::Operator;
pub use pending::{Open, Pending};
pub use refused::Refused;
pub use target::{Extent, Target};

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Show {
        path: Option<String>,
    },
    Set {
        path: String,
        value: String,
    },
    Add {
        path: String,
        value: String,
    },
    Remove {
        path: String,
        value: Option<String>,
    },
    Begin,
    Diff,
    /// With the time within which `confirm` must follow.
    Commit {
        confirm: Option<Duration>,
    },
    Confirm,
    Abort {
        whose: Whose,
    },
    /// Returns to the text before this change; before the last one without a number.
    Undo {
        number: Option<u64>,
        extent: Extent,
    },
    History {
        number: Option<u64>,
    },
    /// The texts, for a client that writes the file.
    Save,
    /// The file was written.
    Saved,
}

/// Whether what is kept for the next process may be another one after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    Yes,
    No,
}

/// Whose transaction may be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Own,
    Any,
}

/// The time of an event on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    pub wall: SystemTime,
    pub monotonic: Instant,
}

/// A transaction between `begin` and `commit`.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub by: Operator,
    pub since: SystemTime,
    /// The text with the changes so far.
    pub text: Arc<str>,
    /// The text at `begin`.
    pub base: Arc<str>,
    changes: Names,
}

/// A commit that is undone unless it is confirmed.
#[derive(Clone, Debug)]
pub struct Trial {
    pub by: Operator,
    /// Number of the change.
    pub number: u64,
    pub until: Instant,
    pub limit: Duration,
    pub since: SystemTime,
    /// Time of the next undo after one that failed; `None` before the first one.
    pub again: Option<Instant>,
}

/// All live changes of a process.
#[derive(Debug)]
pub struct Ledger {
    served: Arc<str>,
    /// The text of the file as it was read or written last.
    source: Arc<str>,
    lineage: Lineage,
    history: History,
    transaction: Option<Transaction>,
    /// The last transaction that another user has aborted, until its owner is told.
    aborted: Option<Aborted>,
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Aborted {
    owner: Operator,
    by: Operator,
}

/// Time between two undos of a commit that was not confirmed in time, while they fail.
const UNDO_EVERY: Duration = Duration::from_secs(5);

/// Where a change goes.
#[derive(Debug)]
pub enum Goes {
    /// It is served at once.
    Served(Arc<str>),
    /// It is collected in the transaction.
    Collected(Arc<str>),
}

impl Ledger {
    pub fn new(text: &str) -> Self {
        let served: Arc<str> = text.into();
        Self {
            source: served.clone(),
            served,
            lineage: Lineage::default(),
            history: History::default(),
            transaction: None,
            aborted: None,
            trial: None,
        }
    }

    pub fn served(&self) -> &Arc<str> {
        &self.served
    }

    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn transaction(&self) -> Option<&Transaction> {
        self.transaction.as_ref()
    }

    pub fn trial(&self) -> Option<&Trial> {
        self.trial.as_ref()
    }

    /// Returns the number of changes between the file and what is served.
    pub fn unsaved(&self) -> usize {
        if self.served == self.source { 0 } else { self.history.distance().max(1) }
    }

    /// Returns the text that a change by this user starts from.
    pub fn goes(&self, by: &Operator) -> Result<Goes, Refused> {
        match &self.transaction {
            Some(transaction) if transaction.by.is(by) => {
                self.transaction_is_current()?;
                Ok(Goes::Collected(transaction.text.clone()))
            }
            Some(transaction) => Err(transaction.others()),
            None => {
                self.nothing_waits()?;
                Ok(Goes::Served(self.served.clone()))
            }
        }
    }

    pub fn begin(&mut self, by: Operator, now: Now) -> Result<(), Refused> {
        self.nothing_waits()?;
        if let Some(transaction) = &self.transaction {
            return Err(if transaction.by.is(&by) { transaction.own() } else { transaction.others() });
        }
        self.aborted.take_if(|aborted| aborted.owner.is(&by));
        let text = self.served.clone();
        let changes = Names::default();
        self.transaction = Some(Transaction { by, since: now.wall, base: text.clone(), text, changes });
        Ok(())
    }

    /// Keeps a change in the transaction.
    pub fn collect(&mut self, text: &str, what: &str) {
        if let Some(transaction) = &mut self.transaction {
            transaction.text = text.into();
            transaction.changes.add(what);
        }
    }

    /// Returns the transaction that this user may commit.
    pub fn to_commit(&self, by: &Operator) -> Result<&Transaction, Refused> {
        self.nothing_waits()?;
        let transaction = self.own(by)?;
        self.transaction_is_current()?;
        Ok(transaction)
    }

    /// The transaction is served. Returns the number of the change.
    pub fn committed(&mut self, text: &str, confirm: Option<Duration>, now: Now) -> u64 {
        let Some(transaction) = self.transaction.take() else { return self.history.newest().unwrap_or(0) };
        let Transaction { by, changes, .. } = transaction;
        let number = self.changed(text, by.clone(), changes.words(), now);
        self.trial = confirm.map(|limit| {
            let (until, since) = (now.monotonic + limit, now.wall);
            Trial { by, number, until, limit, since, again: None }
        });
        number
    }

    /// A single change is served. Returns its number.
    pub fn changed(&mut self, text: &str, by: Operator, what: String, now: Now) -> u64 {
        let before = std::mem::replace(&mut self.served, text.into());
        let number = self.history.push(Cause::Change, Some(by), what, before, now.wall);
        self.note(number);
        number
    }

    /// Whether the served text has all that the file brought.
    pub fn edition(&self) -> Edition {
        self.lineage.edition()
    }

    fn note(&mut self, number: u64) {
        self.lineage.note(number, self.history.iter().next().map(|oldest| oldest.number));
    }

    pub fn confirm(&mut self) -> Result<Trial, Refused> {
        self.trial.take().ok_or(Refused::NothingToConfirm)
    }

    pub fn abort(&mut self, by: &Operator, whose: Whose) -> Result<Transaction, Refused> {
        if whose == Whose::Own {
            self.own(by)?;
        }
        let transaction = self.transaction.take().ok_or(Refused::None)?;
        if !transaction.by.is(by) {
            self.aborted = Some(Aborted { owner: transaction.by.clone(), by: by.clone() });
        }
        Ok(transaction)
    }

    /// Refuses the first change of an operator whose transaction another operator has aborted. The operator means it for the
    /// transaction; without the refusal the server would serve it at once.
    pub fn still_has_what_it_began(&mut self, by: &Operator) -> Result<(), Refused> {
        match self.aborted.take_if(|aborted| aborted.owner.is(by)) {
            Some(Aborted { by, .. }) => Err(Refused::Aborted { by }),
            None => Ok(()),
        }
    }

    /// An undo is served. `by` is `None` if no confirmation came. Returns its number.
    pub fn undone(&mut self, target: &Target, by: Option<Operator>, now: Now) -> u64 {
        let before = std::mem::replace(&mut self.served, target.text.clone());
        self.trial = None;
        let (cause, what) = match by {
            Some(_) => (Cause::Undo, target.words()),
            None => (Cause::Expiry, format!("{}: it was not confirmed in time", target.words())),
        };
        let number = self.history.push_undo(target.number, cause, by, what, before, now.wall);
        self.note(number);
        self.lineage.return_to(target.number);
        number
    }

    /// The file was read again and is served. Returns the number of changes that it dropped.
    pub fn reloaded(&mut self, text: &str, by: Option<Operator>, now: Now) -> usize {
        let dropped = if *self.served == *text { 0 } else { self.unsaved() };
        self.trial = None;
        let file = if *self.source == *text { FileText::AsBefore } else { FileText::New };
        self.source = text.into();
        if *self.served != *text {
            let what = match dropped {
                0 => "reload".to_owned(),
                dropped => format!("reload: {dropped} unsaved dropped"),
            };
            let before = std::mem::replace(&mut self.served, self.source.clone());
            let of = if dropped > 0 { self.history.not_in_the_file() } else { Vec::new() };
            let number = self.history.push_dropping(of, Cause::Reload, by, what, before, now.wall);
            self.note(number);
        }
        self.lineage.read(file);
        self.history.saved();
        dropped
    }

    /// The file has the text that is served.
    pub fn saved(&mut self) {
        self.source = self.served.clone();
        self.lineage.written();
        self.history.saved();
    }

    /// Time at which [`Self::poll_expired`] has something to do.
    pub fn poll_deadline(&self) -> Option<Instant> {
        self.trial.as_ref().map(Trial::due)
    }

    /// Returns what to return to, because no confirmation came. Until [`Self::undone`] says that it is served, it is returned
    /// again from time to time: what kept it from being served may pass.
    pub fn poll_expired(&mut self, now: Instant) -> Option<Target> {
        let trial = self.trial.as_mut().filter(|trial| trial.due() <= now)?;
        trial.again = Some(now + UNDO_EVERY);
        let Some(entry) = self.history.get(trial.number) else {
            self.trial = None;
            return None;
        };
        Some(Target { number: entry.number, text: entry.before.clone(), also: Vec::new() })
    }

    /// Refuses while a commit waits for its confirmation.
    pub fn nothing_waits(&self) -> Result<(), Refused> {
        match &self.trial {
            None => Ok(()),
            Some(trial) if trial.again.is_some() => {
                Err(Refused::NotUndone { by: trial.by.clone(), number: trial.number, since: trial.since })
            }
            Some(trial) => Err(Refused::Unconfirmed {
                by: trial.by.clone(),
                number: trial.number,
                since: trial.since,
                limit: trial.limit,
            }),
        }
    }

    fn own(&self, by: &Operator) -> Result<&Transaction, Refused> {
        match &self.transaction {
            None => Err(Refused::None),
            Some(transaction) if transaction.by.is(by) => Ok(transaction),
            Some(transaction) => Err(transaction.others()),
        }
    }

    /// Refuses if what is served is not what the transaction began with.
    pub fn transaction_is_current(&self) -> Result<(), Refused> {
        match &self.transaction {
            Some(transaction) if transaction.base != self.served => {
                Err(Refused::Overtaken { since: transaction.since })
            }
            _ => Ok(()),
        }
    }
}

impl Transaction {
    /// Number of changes so far.
    pub fn changes(&self) -> usize {
        self.changes.count
    }

    /// Names the changes without their values.
    pub fn words(&self) -> String {
        self.changes.words()
    }

    fn others(&self) -> Refused {
        Refused::Others { by: self.by.clone(), since: self.since, changes: self.changes.count }
    }

    fn own(&self) -> Refused {
        Refused::Own { by: self.by.clone(), since: self.since, changes: self.changes.count }
    }
}

/// Names of the changes of a transaction, up to a limit.
#[derive(Clone, Debug, Default)]
struct Names {
    named: Vec<String>,
    bytes: usize,
    count: usize,
}

impl Names {
    /// Longest list of names in bytes.
    const MOST: usize = 1000;

    fn add(&mut self, what: &str) {
        self.count += 1;
        self.bytes += what.len();
        if self.bytes <= Self::MOST {
            self.named.push(what.to_owned());
        }
    }

    fn words(&self) -> String {
        let more = match self.count - self.named.len() {
            0 => String::new(),
            more => format!("; {more} more"),
        };
        format!("{}{more}", self.named.join("; "))
    }
}

#[cfg(test)]
mod tests;
