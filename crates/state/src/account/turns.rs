//! Turns for descriptors outside traffic: checks, name look-ups, requests to ACME authorities and OCSP responders. A
//! task takes a turn before it opens a descriptor. If all descriptors of its purpose are in use, the task waits, first
//! come first served: a peer that does not answer delays other tasks for its own time limit at most.

use std::future::pending;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use logic::account::{Allowance, Division};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Account;
use crate::lock::lock;

/// Purpose of descriptors outside traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Check,
    /// Look-up of a backend's name.
    LookUp,
    /// Request to an OCSP responder.
    Staple,
    /// Lock files of a certificate order.
    Order,
    /// Request to an ACME authority, a name server, or a service whose certificate is looked at.
    Authority,
    /// Lock file of a certificate that waits for its record in the DNS.
    Gate,
}

const PURPOSES: usize = 6;

/// Descriptors of a name look-up: a socket to a name server, and one to the next server if the first does not answer.
pub const OF_LOOK_UP: usize = 2;

/// Descriptors of a request to an ACME authority or an OCSP responder: its connection, or the look-up before it.
pub const OF_REQUEST: usize = OF_LOOK_UP;

/// Descriptors of a certificate order: its lock file, and the lock file of the ACME account.
pub const OF_ORDER: usize = 2;

/// Descriptors of a certificate that waits for its record in the DNS: its lock file.
pub const OF_GATE: usize = 1;

/// Descriptors that a configuration wants for each purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted([TurnCount; PURPOSES]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TurnCount {
    count: usize,
    /// Descriptors of the largest turn.
    turn: usize,
}

impl Wanted {
    /// Sets `turns` turns for a purpose, with `descriptors` descriptors each.
    pub fn with(mut self, purpose: Purpose, turns: usize, descriptors: usize) -> Self {
        self.0[purpose as usize] = TurnCount { count: turns.saturating_mul(descriptors), turn: descriptors };
        self
    }

    pub fn sum(&self) -> usize {
        self.0.iter().map(|each| each.count).sum()
    }
}

/// Number of descriptors per purpose while the limit is unknown.
const UNLIMITED: usize = 1 << 20;

pub(super) struct Turns {
    numbers: Mutex<Numbers>,
    free: [Arc<Semaphore>; PURPOSES],
}

struct Numbers {
    allowances: [Allowance; PURPOSES],
    least: [usize; PURPOSES],
    /// Slots for traffic when no allowance is above its wanted number.
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
    /// Divides the descriptors between traffic and the purposes. While traffic or a purpose holds more than its new
    /// part, the other side gets less.
    pub(super) fn set_turns(&self, wanted: Wanted, division: Division) {
        let mut numbers = lock(&self.turns.numbers);
        numbers.traffic = division.traffic;
        for (at, each) in wanted.0.iter().enumerate() {
            // A purpose that is no longer wanted keeps enough to finish its last task.
            let least = each.turn.max(1);
            numbers.least[at] = least;
            numbers.allowances[at].set(division.watch.of(each.count).max(least).min(UNLIMITED));
        }
        self.settle(&mut numbers);
    }

    /// Waits until a purpose may open `descriptors` descriptors. They count as used until the turn is dropped.
    pub async fn turn(self: &Arc<Self>, purpose: Purpose, descriptors: usize) -> Turn {
        let at = purpose as usize;
        loop {
            let most = {
                let mut numbers = lock(&self.turns.numbers);
                self.settle(&mut numbers);
                numbers.allowances[at].target()
            };
            let count = u32::try_from(descriptors.min(most)).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            let Ok(permit) = self.turns.free[at].clone().acquire_many_owned(count).await else {
                return pending().await;
            };
            let turn = Turn { account: self.clone(), purpose, permit: Some(permit) };
            // The allowance was lowered while free permits were assigned to a waiting task. Dropping this turn removes
            // its permits.
            if lock(&self.turns.numbers).allowances[at].surplus() == 0 {
                return turn;
            }
        }
    }

    /// Removes unused descriptors above the wanted numbers, and adds missing ones for which there is room.
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

/// Right to open some descriptors, returned when dropped. The holder must close the descriptors before.
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
