//! What a later process needs to know of the live changes: their history, and what was served at the end.
//!
//! The file of the configuration decides what a process serves when it starts, and a change that was not saved is not
//! served: a faulty one could otherwise keep the server from starting. It stays in the history, so that `undo` brings it
//! back, as after a reload.

use std::sync::Arc;

use super::history::{Cause, History, Remembered};
use super::lineage::FileText;
use super::{Ledger, Now};

#[derive(Clone, Debug)]
pub struct Memory {
    pub history: Remembered,
    pub served: Arc<str>,
    /// The text of the file as it was read or written last.
    pub source: Arc<str>,
}

/// What a start means for the changes of the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The file has what was served.
    Same,
    /// The file has another text than the one that was served.
    FileChanged,
    /// Changes that were not saved are not served.
    Dropped { changes: usize, number: u64 },
    /// The memory contradicts itself: it is not used.
    Unusable,
}

impl Ledger {
    pub fn memory(&self) -> Memory {
        Memory {
            history: self.history.remembered(),
            served: self.served.clone(),
            source: self.source.clone(),
        }
    }

    /// Whether nothing has happened since `memory`.
    pub fn is_at(&self, memory: &Memory) -> bool {
        let Remembered { newest, head, saved, .. } = self.history.points();
        let then = &memory.history;
        (newest, head, saved) == (then.newest, then.head, then.saved)
            && Arc::ptr_eq(&self.served, &memory.served)
            && Arc::ptr_eq(&self.source, &memory.source)
    }

    /// Goes on with the history of an earlier process. Call it before the first change.
    pub fn resume(&mut self, memory: Memory, now: Now) -> Resumed {
        let unsaved = memory.served != memory.source;
        let Some(history) = History::of(memory.history) else { return Resumed::Unusable };
        let dropped = if unsaved { history.distance().max(1) } else { 0 };
        self.history = history;
        let resumed = if memory.served == self.served {
            Resumed::Same
        } else {
            let what = match dropped {
                0 => "start: the file has another text than before".to_owned(),
                dropped => format!("start: {dropped} unsaved not served"),
            };
            let of = if dropped > 0 { self.history.not_in_the_file() } else { Vec::new() };
            let number = self.history.push_dropping(of, Cause::Start, None, what, memory.served, now.wall);
            if dropped > 0 { Resumed::Dropped { changes: dropped, number } } else { Resumed::FileChanged }
        };
        let file = if memory.source == self.source { FileText::AsBefore } else { FileText::New };
        self.lineage.read(file);
        self.history.saved();
        resumed
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::super::{Extent, Operator, Refused};
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an Instant can only be made from the clock")]
    fn now() -> Now {
        Now { wall: SystemTime::UNIX_EPOCH, monotonic: Instant::now() }
    }

    fn ann() -> Operator {
        Operator { uid: 1000, name: Some("ann".into()), pid: Some(7), login: None }
    }

    /// Two changes, the first of which is saved.
    fn used() -> Ledger {
        let mut ledger = Ledger::new("zero");
        ledger.changed("one", ann(), "set one".into(), now());
        ledger.saved();
        ledger.changed("two", ann(), "set two".into(), now());
        ledger
    }

    #[test]
    fn what_was_not_saved_is_one_undo_away() {
        let mut ledger = Ledger::new("one");
        assert_eq!(ledger.resume(used().memory(), now()), Resumed::Dropped { changes: 1, number: 3 });
        assert_eq!((&**ledger.served(), ledger.unsaved()), ("one", 0));
        let target = ledger.to_undo(None, Extent::One, &ann()).unwrap();
        assert_eq!((target.number, &*target.text), (3, "two"));
        assert_eq!(ledger.undone(&target, Some(ann()), now()), 4);
        assert_eq!((&**ledger.served(), ledger.unsaved()), ("two", 1));
        let memory = ledger.memory();
        assert!(ledger.is_at(&memory));
        ledger.saved();
        assert!(!ledger.is_at(&memory), "it must be stored again");
        let first = ledger.to_undo(Some(1), Extent::AndLater, &ann()).unwrap();
        assert_eq!(&*first.text, "zero", "older changes can be undone too");
    }

    #[test]
    fn a_file_with_what_was_served_adds_nothing() {
        let mut ledger = Ledger::new("two");
        assert_eq!(ledger.resume(used().memory(), now()), Resumed::Same);
        assert_eq!((ledger.history().newest(), ledger.unsaved()), (Some(2), 0));
        let mut edited = used();
        edited.saved();
        let mut ledger = Ledger::new("by hand");
        assert_eq!(ledger.resume(edited.memory(), now()), Resumed::FileChanged);
        assert_eq!(ledger.history().newest(), Some(3));
    }

    #[test]
    fn a_memory_that_contradicts_itself_is_not_used() {
        let with = |change: fn(&mut Remembered)| {
            let mut memory = used().memory();
            change(&mut memory.history);
            let mut ledger = Ledger::new("one");
            let resumed = ledger.resume(memory, now());
            assert!(
                matches!(ledger.to_undo(None, Extent::One, &ann()), Err(Refused::NothingToUndo))
                    || resumed != Resumed::Unusable
            );
            resumed
        };
        assert_eq!(with(|history| history.entries.reverse()), Resumed::Unusable);
        assert_eq!(with(|history| history.entries[0].head_before = Some(9)), Resumed::Unusable);
        assert_eq!(with(|history| history.entries[1].head_before = Some(2)), Resumed::Unusable, "a circle");
        assert_eq!(with(|history| history.newest = None), Resumed::Unusable);
        assert_eq!(with(|history| history.newest = Some(u64::MAX)), Resumed::Unusable);
        assert_eq!(with(|history| history.head = Some(8)), Resumed::Unusable);
    }
}
