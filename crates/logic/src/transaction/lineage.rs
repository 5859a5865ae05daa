//! Which edition of the file the served text comes from.
//!
//! A file that another hand has changed and that is read again is a new edition. An undo over that reload returns to a text
//! of an earlier edition: written to the file, it would take away what the other hand brought.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// Edition of the file.
    newest: u64,
    /// Edition that the served text comes from.
    served: u64,
    /// The same before each change of the history, where it is not the first edition.
    before: BTreeMap<u64, u64>,
}

/// Whether the served text has all that the file brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    Newest,
    /// An undo went back over a reload.
    Earlier,
}

impl Lineage {
    pub(super) fn edition(&self) -> Edition {
        if self.served == self.newest { Edition::Newest } else { Edition::Earlier }
    }

    /// The change with this number is in the history, whose oldest one has the number `oldest`.
    pub(super) fn note(&mut self, number: u64, oldest: Option<u64>) {
        if self.served > 0 {
            self.before.insert(number, self.served);
        }
        if let Some(oldest) = oldest {
            self.before = self.before.split_off(&oldest);
        }
    }

    /// The text before this change is to be served again.
    pub(super) fn return_to(&mut self, number: u64) {
        self.served = self.before.get(&number).copied().unwrap_or(0);
    }

    /// The file was read, and is served.
    pub(super) fn read(&mut self, file: FileText) {
        self.newest += u64::from(file == FileText::New);
        self.served = self.newest;
    }

    /// The file has the served text.
    pub(super) fn written(&mut self) {
        if self.edition() == Edition::Earlier {
            // The operator wants that text: there is nothing of another hand any more.
            *self = Self::default();
        }
    }
}

/// Whether the file was changed since it was read or written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileText {
    New,
    AsBefore,
}
