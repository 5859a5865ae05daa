//! Pipes of one worker for splicing bulk data. Each takes two slots of the account; if none are free, the data is
//! copied.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::rc::Rc;

use state::account::{Kind, SlotCache, Taken};
use sys::splice::Pipe;

/// Largest number of empty pipes that a worker keeps.
const SPARE: usize = 8;

/// Number of descriptors of a pipe.
const PLACES: usize = 2;

pub struct Pipes {
    slot_cache: Rc<SlotCache>,
    spare: RefCell<Vec<Pipe>>,
    /// Whether relays are to empty their pipes and to pause: another process goes on with them.
    relays_wanted: Cell<bool>,
}

/// A pipe in use. When dropped, an empty pipe is kept for reuse, any other is closed.
pub struct Borrowed {
    pipe: Option<Pipe>,
    from: Rc<Pipes>,
}

impl Pipes {
    pub fn new(slot_cache: Rc<SlotCache>) -> Rc<Self> {
        Rc::new(Self { slot_cache, spare: RefCell::default(), relays_wanted: Cell::new(false) })
    }

    /// Asks relays to pause as soon as they hold nothing, or not any more.
    pub(crate) fn want_relays(&self, wanted: bool) {
        self.relays_wanted.set(wanted);
    }

    #[inline]
    pub(crate) fn are_relays_wanted(&self) -> bool {
        self.relays_wanted.get()
    }

    /// Returns a pipe of this size. Fails if the account or the kernel has none.
    pub fn take(self: &Rc<Self>, size: usize) -> io::Result<Borrowed> {
        let spare = self.spare.borrow_mut().pop();
        let pipe = match spare {
            Some(pipe) => pipe,
            None => self.open(size)?,
        };
        Ok(Borrowed { pipe: Some(pipe), from: self.clone() })
    }

    fn open(&self, size: usize) -> io::Result<Pipe> {
        let account = self.slot_cache.account();
        let held = account.standing().pipes;
        if account.usage().pipe(held, PLACES).is_err()
            || self.slot_cache.take_of(Kind::Pipes, PLACES) == Taken::No
        {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Pipe::new(size).inspect_err(|_| self.closed())
    }

    fn closed(&self) {
        self.slot_cache.give_of(Kind::Pipes, PLACES);
    }

    /// Closes the unused pipes.
    pub fn give_up(&self) {
        let spare = std::mem::take(&mut *self.spare.borrow_mut());
        let count = spare.len();
        drop(spare);
        (0..count).for_each(|_| self.closed());
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Deref for Borrowed {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        self.pipe.as_ref().expect("it is taken out only when this is dropped")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(pipe) = self.pipe.take() else { return };
        let mut spare = self.from.spare.borrow_mut();
        if pipe.is_empty() && spare.len() < SPARE {
            spare.push(pipe);
            return;
        }
        drop(spare);
        drop(pipe);
        self.from.closed();
    }
}

#[cfg(test)]
mod tests {
    use logic::account::Division;

    use super::*;
    use state::account::{Account, Wanted};

    #[test]
    fn pipes_take_places_and_none_is_opened_without() {
        let account = Account::new(1);
        let division = Division { traffic: 100, ..Division::default() };
        account.set(100, division, account.shares(), Wanted::default(), 1);
        let pipes = Pipes::new(Rc::new(SlotCache::new(account.clone(), 0)));
        let held: Vec<_> = std::iter::from_fn(|| pipes.take(4096).ok()).collect();
        assert!((8..=16).contains(&held.len()), "{}", held.len());
        assert_eq!(account.standing().pipes, 2 * held.len());
        drop(held);
        assert_eq!(account.standing().pipes, 2 * SPARE);
        pipes.give_up();
        assert_eq!(account.standing().pipes, 0);
    }
}
