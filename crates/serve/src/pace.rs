//! Limits the control socket and the admin listener to a part of a core: polls the task of a client only in its turn.
//! `logic/pace.rs` decides the order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use logic::pace::{self, Account, Share, Ticket, Turn};
use state::lock::lock;
use sys::cpu::thread_time;
use tokio::time::Sleep;

use crate::client_slots::ClientSlot;

/// Smallest charge of one step in microseconds: one or two system calls, and the runtime's overhead.
const LEAST: u64 = 20;

/// CPU time that all clients of a listener share.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<Line>);

#[derive(Debug)]
struct Line {
    pace: pace::Pace,
    wakers: HashMap<Ticket, Waker>,
}

impl Pace {
    /// Makes a pace of 1/`stretch` of a core.
    pub(crate) fn one_part_in(stretch: u32) -> Arc<Self> {
        let share = Share { stretch, burst: Duration::from_millis(500), least: Duration::from_micros(LEAST) };
        Arc::new(Self(Mutex::new(Line { pace: pace::Pace::new(share), wakers: HashMap::new() })))
    }

    pub(crate) fn client(self: &Arc<Self>) -> Client {
        Client { pace: self.clone(), account: Account::default(), ticket: None, sleep: None }
    }
}

impl Line {
    /// Wakes the first client of the queue: its turn has come, or it must set its timer.
    fn wake_first(&self) {
        if let Some(waker) = self.pace.first().and_then(|first| self.wakers.get(&first)) {
            waker.wake_by_ref();
        }
    }
}

/// One client of a pace.
#[derive(Debug)]
pub(crate) struct Client {
    pace: Arc<Pace>,
    account: Account,
    /// Place in the queue while the client waits for its turn.
    ticket: Option<Ticket>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Client {
    /// Returns `Ready` when the client may work.
    pub(crate) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let turn = {
                let line = &mut *lock(&self.pace.0);
                let ticket = *self.ticket.get_or_insert_with(|| line.pace.join(&self.account));
                let turn = line.pace.poll_turn(ticket, Instant::now());
                match turn {
                    Turn::Now => {
                        line.wakers.remove(&ticket);
                        self.ticket = None;
                        // The current client may be dropped without a `charge`.
                        line.wake_first();
                    }
                    Turn::At(_) | Turn::Behind => drop(line.wakers.insert(ticket, cx.waker().clone())),
                }
                turn
            };
            let when = match turn {
                Turn::Now => return Poll::Ready(()),
                Turn::Behind => return Poll::Pending,
                Turn::At(when) => when.into(),
            };
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(when)));
            if sleep.deadline() != when {
                sleep.as_mut().reset(when);
            }
            ready!(sleep.as_mut().poll(cx));
        }
    }

    /// Waits until the client may work.
    pub(crate) async fn turn(&mut self) {
        poll_fn(|cx| self.poll_turn(cx)).await;
    }

    /// Charges `took` of CPU time to the client.
    pub(crate) fn charge(&mut self, took: Duration) {
        let mut line = lock(&self.pace.0);
        line.pace.charge(&mut self.account, took, Instant::now());
        line.wake_first();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let mut line = lock(&self.pace.0);
            line.pace.leave(ticket);
            line.wakers.remove(&ticket);
            line.wake_first();
        }
    }
}

/// A future that is polled only in its client's turn.
pub(crate) struct Paced<F> {
    client: Client,
    slot: Option<Arc<ClientSlot>>,
    work: Pin<Box<F>>,
}

impl<F: Future> Paced<F> {
    /// Charges all CPU time of `work` to `client`.
    pub(crate) fn new(client: Client, work: F) -> Self {
        Self { client, slot: None, work: Box::pin(work) }
    }

    /// Makes the future report to `slot` when its client begins to wait and when it has been served.
    pub(crate) fn tells(mut self, slot: Arc<ClientSlot>) -> Self {
        self.slot = Some(slot);
        self
    }
}

impl<F: Future> Future for Paced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { client, slot, work } = self.get_mut();
        if client.poll_turn(cx).is_pending() {
            if let Some(slot) = slot {
                slot.stands_in_line();
            }
            return Poll::Pending;
        }
        let start = thread_time();
        let result = work.as_mut().poll(cx);
        client.charge(thread_time().saturating_sub(start));
        if let Some(slot) = slot {
            slot.was_served();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works in steps of `step`, without end.
    async fn flood(step: Duration, worked: Arc<Mutex<Duration>>) {
        loop {
            let start = thread_time();
            while thread_time().saturating_sub(start) < step {}
            *lock(&worked) += step;
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_flood_of_many_gets_a_tenth_of_the_time_and_one_step_of_another_waits_for_one_of_theirs() {
        let (pace, worked) = (Pace::one_part_in(10), Arc::new(Mutex::default()));
        let (start, step) = (Instant::now(), Duration::from_millis(2));
        let tasks: Vec<_> =
            (0..50).map(|_| tokio::spawn(Paced::new(pace.client(), flood(step, worked.clone())))).collect();
        // Each has had two turns: before its first one, all began at the same place in the line.
        while *lock(&worked) < step * 125 {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", *lock(&worked));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut meanwhile = Vec::new();
        for _ in 0..9 {
            let before = *lock(&worked);
            Paced::new(pace.client(), async {}).await;
            meanwhile.push(*lock(&worked) - before);
        }
        // One or two on an idle machine, some more where steps last differently long: on a busy one 25 of one client were
        // seen. Behind all 50 clients it would be 50.
        meanwhile.sort();
        assert!(meanwhile[4] <= step * 20, "{meanwhile:?}");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let (worked, time) = (*lock(&worked), start.elapsed());
        assert!(worked <= (time + Duration::from_millis(500)) / 10 + step * 2, "{worked:?} of {time:?}");
    }

    #[tokio::test]
    async fn a_client_that_gives_up_in_the_line_holds_up_no_other() {
        let pace = Pace::one_part_in(10);
        let mut first = pace.client();
        first.charge(Duration::from_millis(60));
        let given_up = tokio::time::timeout(Duration::from_millis(1), first.turn()).await;
        let mut second = pace.client();
        let second = tokio::spawn(async move { second.turn().await });
        tokio::task::yield_now().await;
        assert!(given_up.is_err());
        drop(first);
        tokio::time::timeout(Duration::from_secs(5), second).await.expect("it has its turn").unwrap();
    }
}
