//! Shares a bounded part of a core fairly: limits the total work, and chooses the next client.
//!
//! The total is limited by the generic cell rate algorithm: each unit of work needs a multiple of its time. The client
//! that has used least goes next (weighted fair queueing): each client's work is charged to its own account, so that a
//! client with few requests waits for one step of other clients at most, however many they are. A new client starts
//! with the average of the others, so that a client gains nothing by reconnecting.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Limit of the total work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Time that must pass per unit of work.
    pub stretch: u32,
    /// Maximum debt, as time: work is done without delay after a pause.
    pub burst: Duration,
    /// Minimum cost of a step, even if the clock shows less.
    pub least: Duration,
}

/// Work that a client has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Used work, on the scale of [`Pace::round`].
    spent: Duration,
}

/// Place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    start: Duration,
    number: u64,
}

/// Result for a client in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Now,
    /// First in the queue, but the limit is reached: ask again at this time.
    At(Instant),
    /// Another client is first: wait until woken.
    Behind,
}

/// Queue and current debt.
#[derive(Debug)]
pub struct Pace {
    share: Share,
    /// Time at which the debt of all work so far is paid.
    paid_at: Option<Instant>,
    /// Work that a client waiting all the time would have used; start value of a new client.
    round: Duration,
    line: BTreeSet<Ticket>,
    tickets: u64,
}

impl Pace {
    pub fn new(share: Share) -> Self {
        Self { share, paid_at: None, round: Duration::ZERO, line: BTreeSet::new(), tickets: 0 }
    }

    /// Adds a client to the queue.
    pub fn join(&mut self, account: &Account) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket { start: account.spent.max(self.round), number: self.tickets };
        self.line.insert(ticket);
        ticket
    }

    /// Decides for the client with this ticket. [`Turn::Now`] removes it from the queue.
    pub fn poll_turn(&mut self, ticket: Ticket, now: Instant) -> Turn {
        if self.line.first().is_some_and(|first| *first != ticket) {
            return Turn::Behind;
        }
        let owed = self.paid_at.map_or(Duration::ZERO, |paid| paid.saturating_duration_since(now));
        if owed > self.share.burst {
            return Turn::At(now + (owed - self.share.burst));
        }
        self.line.remove(&ticket);
        self.round = self.round.max(ticket.start);
        Turn::Now
    }

    /// Removes a client that no longer wants its turn.
    pub fn leave(&mut self, ticket: Ticket) {
        self.line.remove(&ticket);
    }

    /// Records work that was done.
    pub fn charge(&mut self, account: &mut Account, took: Duration, now: Instant) {
        let cost = took.clamp(self.share.least, MOST.max(self.share.least));
        account.spent = account.spent.max(self.round) + cost;
        let clients = u32::try_from(self.line.len()).unwrap_or(u32::MAX).saturating_add(1);
        self.round += cost / clients;
        self.paid_at = Some(self.paid_at.unwrap_or(now).max(now) + cost * self.share.stretch);
    }

    /// Ticket of the client to wake after a change.
    pub fn first(&self) -> Option<Ticket> {
        self.line.first().copied()
    }
}

/// Maximum cost of a step: the clock may jump when the machine was suspended.
const MOST: Duration = Duration::from_secs(1);

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test needs a moment to count from")]
mod tests {
    use super::*;

    const SHARE: Share =
        Share { stretch: 10, burst: Duration::from_millis(500), least: Duration::from_micros(50) };
    const STEP: Duration = Duration::from_millis(1);

    /// Lets all clients in the queue work until `until`; returns the work of each.
    fn run(
        pace: &mut Pace,
        clients: &mut [Account],
        start: Instant,
        time: Duration,
        step: Duration,
    ) -> Vec<Duration> {
        let mut now = start;
        let mut done = vec![Duration::ZERO; clients.len()];
        let mut tickets: Vec<_> = clients.iter().map(|account| pace.join(account)).collect();
        while now < start + time {
            let first = pace.first().unwrap();
            let at = tickets.iter().position(|ticket| *ticket == first).unwrap();
            match pace.poll_turn(first, now) {
                Turn::Now => {
                    now += step;
                    done[at] += step;
                    pace.charge(&mut clients[at], step, now);
                    tickets[at] = pace.join(&clients[at]);
                }
                Turn::At(when) => now = when,
                Turn::Behind => panic!("the first is behind"),
            }
        }
        done
    }

    #[test]
    fn all_clients_together_get_a_tenth_of_the_time_and_each_the_same() {
        let (mut pace, start) = (Pace::new(SHARE), Instant::now());
        let mut clients = vec![Account::default(); 50];
        let done = run(&mut pace, &mut clients, start, Duration::from_secs(10), STEP);
        let all: Duration = done.iter().sum();
        // A tenth of 10 s, a tenth of the burst, and one started step.
        assert!(all >= Duration::from_millis(950) && all <= Duration::from_millis(1060), "{all:?}");
        let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        assert!(*most - *least <= STEP, "{least:?} to {most:?}");
    }

    #[test]
    fn one_who_asks_little_waits_for_one_step_however_many_ask_much() {
        let (mut pace, start) = (Pace::new(SHARE), Instant::now());
        let mut flood = vec![Account::default(); 1000];
        run(&mut pace, &mut flood, start, Duration::from_secs(5), STEP);
        let now = start + Duration::from_secs(5);
        // All clients of the flood are in the queue again, with a new client and one that was idle for long.
        let newcomer = pace.join(&Account::default());
        let before: Vec<_> = flood.iter().map(|account| pace.join(account)).collect();
        assert!(before.iter().filter(|ticket| **ticket < newcomer).count() <= 1);
        for ticket in before {
            pace.leave(ticket);
        }
        let Turn::At(when) = pace.poll_turn(newcomer, now) else {
            return; // nothing is owed beyond the burst
        };
        assert!(when - now <= STEP * 11, "{:?}", when - now);
    }

    #[test]
    fn clients_that_come_anew_without_end_do_not_go_before_one_that_has_come() {
        let (mut pace, mut now) = (Pace::new(SHARE), Instant::now());
        let mut client = Account::default();
        pace.charge(&mut client, STEP, now);
        for _ in 0..64 {
            pace.join(&Account::default());
        }
        let ticket = pace.join(&client);
        for served in 0..1000 {
            let first = pace.first().unwrap();
            match pace.poll_turn(first, now) {
                Turn::Now if first == ticket => {
                    assert!(served <= 2 * 65, "{served}");
                    return;
                }
                Turn::Now => {
                    pace.join(&Account::default());
                    now += STEP;
                    pace.charge(&mut Account::default(), STEP, now);
                }
                Turn::At(when) => now = when,
                Turn::Behind => panic!("the first is behind"),
            }
        }
        panic!("it never had its turn");
    }

    #[test]
    fn a_rest_is_not_saved_up() {
        let (mut pace, start) = (Pace::new(SHARE), Instant::now());
        let mut both = [Account::default(), Account::default()];
        run(&mut pace, &mut both[..1], start, Duration::from_secs(5), STEP);
        let later = start + Duration::from_secs(5);
        for ticket in pace.line.clone() {
            pace.leave(ticket);
        }
        let done = run(&mut pace, &mut both, later, Duration::from_secs(2), STEP);
        assert!(done[1].abs_diff(done[0]) <= STEP * 2, "{done:?}");
    }

    #[test]
    fn a_person_never_waits() {
        let (mut pace, now) = (Pace::new(SHARE), Instant::now());
        let mut person = Account::default();
        for _ in 0..50 {
            let ticket = pace.join(&person);
            assert_eq!(pace.poll_turn(ticket, now), Turn::Now);
            pace.charge(&mut person, STEP, now);
        }
    }

    #[test]
    fn a_clock_that_jumped_costs_a_second_at_most() {
        let (mut pace, now) = (Pace::new(SHARE), Instant::now());
        let mut account = Account::default();
        pace.charge(&mut account, Duration::from_secs(86_400), now);
        let ticket = pace.join(&account);
        assert_eq!(pace.poll_turn(ticket, now), Turn::At(now + MOST * 10 - SHARE.burst));
    }
}
