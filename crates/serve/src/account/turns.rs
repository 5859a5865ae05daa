//! Turns of what opens descriptors beside traffic: checks, look-ups of names, requests to authorities and OCSP responders. Each
//! takes its turn before it opens anything. Where the descriptors of its purpose are all in use it waits, first come first served:
//! a peer that does not answer holds the others up for no longer than its own time limit.

use std::future::pending;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use logic::account::{Allowance, Division};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Account;
use crate::lock::lock;

/// What descriptors are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A health check.
    Check,
    /// A look-up of a backend's name.
    LookUp,
    /// A question to an OCSP responder.
    Staple,
    /// The lock files of an order of a certificate.
    Order,
    /// A request to the authority that issues certificates.
    Authority,
}

const PURPOSES: usize = 5;

/// Of a look-up of a name: a socket to a name server, and one to the next where the first does not answer.
pub(crate) const OF_LOOK_UP: usize = 2;

/// Of a request to an authority or an OCSP responder: its connection, or the look-up before it.
pub(crate) const OF_REQUEST: usize = OF_LOOK_UP;

/// Of an order of a certificate: its lock file, and that of the account with the authority.
pub(crate) const OF_ORDER: usize = 2;

/// How many descriptors a configuration wants for each purpose, if there are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted([Each; PURPOSES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Each {
    count: usize,
    /// Descriptors of the largest turn.
    turn: usize,
}

impl Wanted {
    /// With so many turns of a purpose, each of so many descriptors.
    pub fn with(mut self, purpose: Purpose, turns: usize, descriptors: usize) -> Self {
        self.0[purpose as usize] = Each { count: turns.saturating_mul(descriptors), turn: descriptors };
        self
    }

    /// For all purposes.
    pub fn sum(&self) -> usize {
        self.0.iter().map(|each| each.count).sum()
    }
}

/// As many as there are while nothing is known of the limit.
const UNLIMITED: usize = 1 << 20;

/// The turns of all purposes.
pub(super) struct Turns {
    numbers: Mutex<Numbers>,
    free: [Arc<Semaphore>; PURPOSES],
}

struct Numbers {
    allowances: [Allowance; PURPOSES],
    /// The fewest of each.
    least: [usize; PURPOSES],
    /// For traffic, once the allowances have come down to what they are to be.
    traffic: usize,
}

impl Default for Turns {
    fn default() -> Self {
        let numbers = Numbers {
            allowances: [Allowance::new(UNLIMITED); PURPOSES],
            least: [0; PURPOSES],
            traffic: usize::MAX / 4,
        };
        let free = std::array::from_fn(|_| Arc::new(Semaphore::new(UNLIMITED)));
        Self { numbers: Mutex::new(numbers), free }
    }
}

impl Account {
    /// Divides what is for traffic and for each purpose. While traffic or a purpose holds more than it may from now on, the other
    /// gets so much less.
    pub(super) fn set_turns(&self, wanted: Wanted, division: Division) {
        let mut numbers = lock(&self.turns.numbers);
        numbers.traffic = division.traffic;
        for (at, each) in wanted.0.iter().enumerate() {
            // Where nothing is wanted, what was begun before may still come to its end.
            let least = each.turn.max(1);
            numbers.least[at] = least;
            numbers.allowances[at].set(division.watch.of(each.count).max(least).min(UNLIMITED));
        }
        self.settle(&mut numbers);
    }

    /// Waits until `descriptors` of a purpose may be opened. They count until the turn is dropped.
    pub async fn turn(self: &Arc<Self>, purpose: Purpose, descriptors: usize) -> Turn {
        let at = purpose as usize;
        loop {
            let most = {
                let mut numbers = lock(&self.turns.numbers);
                self.settle(&mut numbers);
                numbers.allowances[at].target()
            };
            let count = u32::try_from(descriptors.min(most)).unwrap_or(u32::MAX);
            // It is never closed.
            let Ok(permit) = self.turns.free[at].clone().acquire_many_owned(count).await else {
                return pending().await;
            };
            let turn = Turn { account: self.clone(), purpose, permit: Some(permit) };
            // Of those that are to go some lay ready for a task that waited, and was given up. This turn is one of them then.
            if lock(&self.turns.numbers).allowances[at].surplus() == 0 {
                return turn;
            }
        }
    }

    /// Takes away what lies unused and is to go, and adds what there is room for.
    fn settle(&self, numbers: &mut Numbers) {
        for (allowance, free) in numbers.allowances.iter_mut().zip(&self.turns.free) {
            let unused = free.forget_permits(allowance.surplus());
            let _ = allowance.take_away(unused);
        }
        let surplus: usize = numbers.allowances.iter().map(Allowance::surplus).sum();
        let limit = numbers.traffic.saturating_sub(surplus);
        self.limit.store(limit, Relaxed);
        let missing: usize = numbers.allowances.iter().map(Allowance::missing).sum();
        if missing == 0 {
            return;
        }
        let mut room = missing.saturating_sub(self.taken.load(Relaxed).saturating_sub(limit));
        for ((allowance, free), least) in
            numbers.allowances.iter_mut().zip(&self.turns.free).zip(numbers.least)
        {
            let more = allowance.add(room, least);
            room = room.saturating_sub(more);
            free.add_permits(more);
        }
    }
}

/// The right to open some descriptors, given back when it is dropped. What is opened must be closed before.
pub struct Turn {
    account: Arc<Account>,
    purpose: Purpose,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(mut permit) = self.permit.take() else { return };
        let mut numbers = lock(&self.account.turns.numbers);
        let gone = numbers.allowances[self.purpose as usize].take_away(permit.num_permits());
        if let Some(gone) = permit.split(gone) {
            gone.forget();
        }
        drop(permit);
        self.account.settle(&mut numbers);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn set(account: &Account, checks: usize, traffic: usize) {
        let wanted = Wanted::default().with(Purpose::Check, checks, 1);
        let division = Division { traffic, ..Division::default() };
        account.set(100, division, account.shares(), wanted, 1);
    }

    fn try_turn(account: &Arc<Account>, descriptors: usize) -> Option<Turn> {
        let turn = std::pin::pin!(account.turn(Purpose::Check, descriptors));
        match turn.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    fn limit(account: &Account) -> usize {
        account.standing().limit
    }

    #[test]
    fn no_more_turns_are_taken_than_there_are() {
        let account = Account::new(1);
        set(&account, 3, 50);
        let first = try_turn(&account, 2).unwrap();
        let second = try_turn(&account, 1).unwrap();
        assert!(try_turn(&account, 1).is_none());
        drop(second);
        assert!(try_turn(&account, 2).is_none());
        assert!(try_turn(&account, 1).is_some());
        drop(first);
        assert!(try_turn(&account, 3).is_some());
    }

    #[test]
    fn traffic_gets_what_turns_lose_as_they_end_and_no_turn_begins_before() {
        let account = Account::new(1);
        set(&account, 10, 50);
        let mut turns: Vec<_> = (0..8).map(|_| try_turn(&account, 1).unwrap()).collect();
        set(&account, 4, 56);
        assert_eq!(limit(&account), 52, "two were free, and eight are in use");
        turns.truncate(5);
        assert_eq!(limit(&account), 55);
        assert!(try_turn(&account, 1).is_none());
        turns.truncate(3);
        assert_eq!(limit(&account), 56);
        let _fourth = try_turn(&account, 1).unwrap();
        assert!(try_turn(&account, 1).is_none());
    }

    #[test]
    fn turns_get_what_traffic_loses_as_it_comes_back() {
        let account = Account::new(1);
        set(&account, 2, 58);
        assert!(account.take(58));
        set(&account, 10, 50);
        let mut turns = vec![try_turn(&account, 1).unwrap(), try_turn(&account, 1).unwrap()];
        assert!(try_turn(&account, 1).is_none());
        account.give(3);
        turns.push(try_turn(&account, 1).unwrap());
        turns.push(try_turn(&account, 1).unwrap());
        turns.push(try_turn(&account, 1).unwrap());
        assert!(try_turn(&account, 1).is_none());
        account.give(5);
        turns.extend((0..5).map(|_| try_turn(&account, 1).unwrap()));
        assert!(try_turn(&account, 1).is_none());
    }

    #[test]
    fn a_turn_that_was_waited_for_and_given_up_is_not_one_too_many() {
        let account = Account::new(1);
        set(&account, 3, 57);
        let first = try_turn(&account, 2).unwrap();
        {
            let mut waiting = std::pin::pin!(account.turn(Purpose::Check, 3));
            let mut context = Context::from_waker(Waker::noop());
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            set(&account, 2, 58);
        }
        let _rest = try_turn(&account, 1);
        assert!(try_turn(&account, 1).is_none(), "two are in use, or more");
        drop(first);
        assert_eq!(limit(&account), 58);
    }
}
