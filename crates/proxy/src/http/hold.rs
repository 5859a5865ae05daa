//! Permit of a request to use one backend connection: the slots of the first were taken with the client's own, each
//! additional one takes slots and counts in the shares of the connection and of its source.

use std::time::Duration;

use logic::account::Refusal;
use state::account::{Kind, PAUSE, Taken};

use crate::worker::{ConnectionHandle, Worker};

/// Permit to use one backend connection, given back when dropped.
pub(super) struct Hold<'a> {
    worker: &'a Worker,
    handle: &'a ConnectionHandle,
    which: Which,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Additional(usize),
}

impl<'a> Hold<'a> {
    /// Takes a permit if one is free and no earlier stream of the client's connection waits.
    #[inline]
    pub(super) fn take(worker: &'a Worker, handle: &'a ConnectionHandle) -> Result<Self, Refusal> {
        let share = &handle.share;
        if let Some(refusal) = share.refusal_of_waiting() {
            return Err(refusal);
        }
        Self::take_now(worker, handle)
    }

    #[inline]
    fn take_now(worker: &'a Worker, handle: &'a ConnectionHandle) -> Result<Self, Refusal> {
        if handle.share.take_first() == Taken::Yes {
            return Ok(Self { worker, handle, which: Which::First });
        }
        Self::take_additional(worker, handle)
    }

    #[cold]
    fn take_additional(worker: &'a Worker, handle: &'a ConnectionHandle) -> Result<Self, Refusal> {
        let share = &handle.share;
        let slots = worker.slot_cache.account().backend_slots();
        share.may_have_additional(&worker.slot_cache, slots)?;
        if worker.slot_cache.take(slots) == Taken::No {
            // Closes idle connections: those of this worker now, those of others for the next request.
            worker.close_idle(slots);
            if worker.slot_cache.take(slots) == Taken::No {
                return Err(Refusal::NoDescriptors);
            }
        }
        worker.slot_cache.note(Kind::Additional, slots.cast_signed());
        share.add_additional(slots);
        Ok(Self { worker, handle, which: Which::Additional(slots) })
    }

    /// Takes a permit when another request of the client gives one back, within `limit`, after earlier requests of the
    /// client. `refusal` is the reason why none was free at once.
    pub(super) async fn wait(
        worker: &'a Worker,
        handle: &'a ConnectionHandle,
        refusal: Refusal,
        limit: Duration,
        most: usize,
    ) -> Result<Self, Refusal> {
        let share = &handle.share;
        let (_waits, waited_for) = share.wait_for_hold(&worker.slot_cache, most).ok_or(refusal)?;
        if waited_for == 0 {
            share.note_refusal(refusal);
        }
        let waiting = async {
            // The next stream gets its turn when this one has its permit or is dropped.
            let _turn = share.turn().await;
            let mut taken = match waited_for {
                0 => Err(refusal),
                _ => Self::take_now(worker, handle),
            };
            loop {
                let why = match taken {
                    Ok(hold) => break hold,
                    Err(why) => why,
                };
                share.note_refusal(why);
                match why {
                    // At least one permit is in use while a request waits, and its drop notifies.
                    Refusal::Connection => share.freed().await,
                    // Other clients hold the slots and do not notify. Waiting at the account would make all workers
                    // close their idle backend connections, which already count as free.
                    Refusal::NoDescriptors | Refusal::Source => {
                        let _ = tokio::time::timeout(PAUSE, share.freed()).await;
                    }
                }
                taken = Self::take_now(worker, handle);
            }
        };
        match tokio::time::timeout(limit, waiting).await {
            Ok(hold) => Ok(hold),
            Err(_) => Err(share.last_refusal()),
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let share = &self.handle.share;
        match self.which {
            Which::First => share.give_first(),
            Which::Additional(slots) => {
                share.subtract_additional(slots);
                self.worker.slot_cache.give_of(Kind::Additional, slots);
            }
        }
        share.wake();
    }
}
