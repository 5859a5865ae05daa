//! The right of a request to use one connection to a backend: the place of the first was taken with the client's own, each further
//! one takes a place and counts in the shares of the connection and of its source.

use std::time::Duration;

use logic::account::Refusal;

use crate::account::{Kind, PAUSE, Taken};
use crate::worker::{Control, Worker};

/// The right to use one connection to a backend, given back when dropped.
pub struct Hold<'a> {
    worker: &'a Worker,
    control: &'a Control,
    which: Which,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Further(usize),
}

impl<'a> Hold<'a> {
    /// Takes it if it can be had now, and no stream of the connection waits that came earlier.
    #[inline]
    pub fn take(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        let share = &control.share;
        if let Some(refusal) = share.refusal_of_waiting() {
            return Err(refusal);
        }
        Self::take_now(worker, control)
    }

    #[inline]
    fn take_now(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        if control.share.take_first() == Taken::Yes {
            return Ok(Self { worker, control, which: Which::First });
        }
        Self::take_further(worker, control)
    }

    #[cold]
    fn take_further(worker: &'a Worker, control: &'a Control) -> Result<Self, Refusal> {
        let share = &control.share;
        let places = worker.place_cache.account().backend_places();
        share.may_have_further(&worker.place_cache, places)?;
        if worker.place_cache.take(places) == Taken::No {
            // Idle connections are closed: those of this worker at once, those of others for the next request.
            worker.close_idle(places);
            if worker.place_cache.take(places) == Taken::No {
                return Err(Refusal::Full);
            }
        }
        worker.place_cache.note(Kind::Further, places.cast_signed());
        share.add_further(places);
        Ok(Self { worker, control, which: Which::Further(places) })
    }

    /// Takes it as soon as another request of the client gives one back, within `limit`, and after the requests of the client that
    /// wait already. `refusal` is why it could not be taken at once.
    pub async fn wait(
        worker: &'a Worker,
        control: &'a Control,
        refusal: Refusal,
        limit: Duration,
        most: usize,
    ) -> Result<Self, Refusal> {
        let share = &control.share;
        let (_waits, waited_for) = share.wait_for_hold(&worker.place_cache, most).ok_or(refusal)?;
        if waited_for == 0 {
            share.note_refusal(refusal);
        }
        let waiting = async {
            // The next stream gets it when this one has its hold, or is dropped.
            let _turn = share.turn().await;
            let mut taken = match waited_for {
                0 => Err(refusal),
                _ => Self::take_now(worker, control),
            };
            loop {
                let why = match taken {
                    Ok(hold) => break hold,
                    Err(why) => why,
                };
                share.note_refusal(why);
                match why {
                    // At least one is in use while a request waits: its drop notifies.
                    Refusal::Connection => share.freed().await,
                    // Others hold the places, and do not notify. This does not wait at the account: while a task does, all
                    // workers close their idle backend connections, and those count as free already.
                    Refusal::Full | Refusal::Source => {
                        let _ = tokio::time::timeout(PAUSE, share.freed()).await;
                    }
                }
                taken = Self::take_now(worker, control);
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
        let share = &self.control.share;
        match self.which {
            Which::First => share.give_first(),
            Which::Further(places) => {
                share.subtract_further(places);
                self.worker.place_cache.give_of(Kind::Further, places);
            }
        }
        share.wake();
    }
}
