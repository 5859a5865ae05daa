//! What an undo returns to, and which changes it takes with it.
//!
//! The history has texts, and a later change is made in the text of the one before: an undo of an older change cannot
//! leave the later ones. It is refused unless the operator has said that they may go too.

use std::sync::Arc;

use super::refused::numbers;
use super::{Ledger, Operator, Refused, Standing};

/// Whether an undo may take later changes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    One,
    AndLater,
}

/// A text to return to.
#[derive(Clone, Debug)]
pub struct Target {
    pub number: u64,
    pub text: Arc<str>,
    /// Other changes that are undone with it, oldest first.
    pub also: Vec<u64>,
}

impl Target {
    /// Names what is undone.
    pub fn words(&self) -> String {
        match self.also[..] {
            [] => format!("undo {}", self.number),
            _ => format!("undo {}, and with it {}", self.number, numbers(&self.also)),
        }
    }
}

impl Ledger {
    /// Finds the text that an undo returns to.
    pub fn to_undo(&self, number: Option<u64>, extent: Extent, by: &Operator) -> Result<Target, Refused> {
        match &self.transaction {
            Some(transaction) if transaction.by.is(by) => return Err(Refused::UndoInTransaction),
            Some(transaction) => return Err(transaction.others()),
            None => {}
        }
        let entry = match number {
            Some(number) => self.history.get(number).ok_or(Refused::NoSuchChange {
                number,
                oldest: self.history.iter().next().map(|entry| entry.number),
                newest: self.history.newest(),
            })?,
            None => self.history.last_in_effect().ok_or_else(|| match self.history.last_undo() {
                Some((number, by)) => Refused::LastUndone { number, by },
                None => Refused::NothingToUndo,
            })?,
        };
        let is_undone = match entry.cause.is_undo() {
            // An undo is not in effect itself: it is undone where its text is served again.
            true => entry.before == self.served,
            false => matches!(self.history.standing(entry), Standing::Undone),
        };
        if number.is_some() && is_undone {
            return Err(Refused::UndoneAlready {
                number: entry.number,
                by: self.history.undone_by(entry.number),
            });
        }
        let also = self.history.with_it(entry);
        if extent == Extent::One && !also.is_empty() {
            return Err(Refused::TakesOthers { number: entry.number, also });
        }
        Ok(Target { number: entry.number, text: entry.before.clone(), also })
    }
}
