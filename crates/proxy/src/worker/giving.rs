//! Gives the sessions of a worker that are TCP, or have become so (WebSockets), to the next process of an upgrade: those in which
//! neither side sends at once, the others
//! at the first moment when no byte of them is in this process (`crates/proxy/src/relay/whole.rs`). A session that was offered is
//! not read until the next process has answered; `crates/proxy/src/given.rs` says why none is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::{BackendAddress, BackendHttp};
use state::BackendState;

use super::{ConnectionHandle, Worker};
use crate::given::{Answer, NextProcess, OfferId, Offered, Standing};
use crate::idle_sessions::IdleSession;
use crate::live::{Movable, Speaks};
use crate::snapshot::Snapshot;

/// Offers of all workers that wait for an answer. All are in the socket between both processes, with their descriptors.
const OFFERED_AT_ONCE: usize = 64;

/// Number of these offers that each worker may have, however many workers there are.
const LEAST_OFFERED: usize = 1;

/// For how long relays try to be empty, and for how long they go on as usual after that: twice as long each time.
const TRY: Duration = Duration::from_secs(5);
const FIRST_REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Time without an answer of the next process after which sessions that wait for it go on here.
const PATIENCE: Duration = Duration::from_secs(5);

impl Worker {
    pub(super) fn begin_giving(&self, next: Arc<dyn NextProcess>) {
        let now = Instant::now();
        let mut giving = self.giving.borrow_mut();
        (giving.next, giving.heard) = (Some(next), Some(now));
        (giving.turn, giving.rest) = (Some(now + TRY), FIRST_REST);
        drop(giving);
        self.want_relays(true);
        self.offer();
    }

    /// Takes a session from its relay, which holds nothing.
    pub(crate) fn give(&self, session: IdleSession) {
        self.giving.borrow_mut().waiting.push_back(session);
        self.offer();
    }

    /// Handles an answer of the next process: the session leaves this process, or goes on here.
    pub(super) fn settle(&self, number: u64, answer: Answer) {
        let mut giving = self.giving.borrow_mut();
        let Some(session) = giving.offered.remove(&number) else { return };
        giving.heard = Some(Instant::now());
        drop(giving);
        match answer {
            Answer::Taken => session.leave(),
            Answer::Declined => session.stay(),
        }
        self.offer();
    }

    /// Handles the end of the next process: the sessions that it has not taken go on here.
    pub(super) fn end_giving(&self) {
        self.stop_offering();
        let offered = std::mem::take(&mut self.giving.borrow_mut().offered);
        offered.into_values().for_each(IdleSession::wake);
    }

    /// Drops the sessions that wait for an offer or an answer. The worker calls it when it ends.
    pub(super) fn forget_offered(&self) {
        drop(self.giving.take());
    }

    /// Offers no more, and lets what waits go on here. What was offered waits for its answer.
    fn stop_offering(&self) {
        let mut giving = self.giving.borrow_mut();
        giving.next = None;
        let waiting = std::mem::take(&mut giving.waiting);
        drop(giving);
        self.want_relays(false);
        waiting.into_iter().for_each(IdleSession::wake);
    }

    fn want_relays(&self, wanted: bool) {
        self.pipes.want_relays(wanted);
        for handle in self.connections.borrow().iter() {
            handle.wake_again();
        }
    }

    /// Offers sessions again, lets relays try or rest in turns, and gives up if the next process has been silent for
    /// [`PATIENCE`]. The worker calls it at each tick.
    pub(super) fn go_on_giving(&self, now: Instant) {
        let mut giving = self.giving.borrow_mut();
        if giving.next.is_none() {
            return;
        }
        giving.from = 0;
        let is_turn = giving.turn.is_some_and(|turn| now >= turn);
        let tries = self.pipes.are_relays_wanted();
        if is_turn {
            let rest = giving.rest;
            giving.turn = Some(now + if tries { rest } else { TRY });
            giving.rest = if tries { (rest * 2).min(LONGEST_REST) } else { rest };
        }
        let is_heard = giving.heard.is_some_and(|heard| now < heard + PATIENCE);
        let is_stuck = !is_heard && (!giving.waiting.is_empty() || !giving.offered.is_empty());
        if !is_stuck && giving.offered.is_empty() && giving.waiting.is_empty() {
            giving.heard = Some(now);
        }
        drop(giving);
        if is_stuck {
            return self.stop_offering();
        }
        if is_turn {
            self.want_relays(!tries);
        }
        self.offer();
    }

    fn most_offered(&self) -> usize {
        (OFFERED_AT_ONCE / self.front.state.workers.max(1)).max(LEAST_OFFERED)
    }

    /// Offers sessions, as many as may wait for an answer.
    fn offer(&self) {
        loop {
            let mut giving = self.giving.borrow_mut();
            let Some(next) = giving.next.clone() else { return };
            if giving.offered.len() >= self.most_offered() {
                return;
            }
            let waiting = giving.waiting.pop_front();
            let Some(session) = waiting.or_else(|| self.idle_sessions.take_for_hand_over(&mut giving.from))
            else {
                return;
            };
            giving.last += 1;
            let number = giving.last;
            drop(giving);
            let carried =
                session.carried().filter(|(carried, _)| carried.request.is_none() || next.takes_requests());
            let offered = carried.map(|(carried, connections)| {
                next.offer(OfferId { worker: self.index, number }, &carried, connections)
            });
            match offered {
                None => session.stay(),
                Some(Offered::Sent) => {
                    self.giving.borrow_mut().offered.insert(number, session);
                }
                Some(Offered::Later) => {
                    self.giving.borrow_mut().waiting.push_front(session);
                    return;
                }
                Some(Offered::Gone) => {
                    session.wake();
                    return self.stop_offering();
                }
            }
        }
    }

    /// What is left of the sessions.
    pub(super) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        for handle in self.connections.borrow().iter() {
            match self.stays_because(handle) {
                Err(why) => *standing.staying.entry(why).or_default() += 1,
                Ok(words) => *standing.pending.entry(words.going).or_default() += 1,
            }
        }
        standing
    }

    /// Why the next process cannot go on with a connection. `Ok` if it can.
    fn stays_because(&self, handle: &ConnectionHandle) -> Result<&'static Words, &'static str> {
        let (words, began) = match handle.live.speaks.get() {
            Speaks::Nothing => return Err("handshake"),
            Speaks::Http1 => return Err("HTTP/1.1"),
            Speaks::Http2 => return Err("HTTP/2"),
            Speaks::Udp => return Err("UDP"),
            Speaks::Tcp | Speaks::TlsPassthrough => (&TCP, Began::AsTcp),
            Speaks::WebSocket => (&WEB_SOCKET, Began::AsRequest),
            Speaks::Upgraded => (&UPGRADED, Began::AsRequest),
        };
        let is_movable = handle.live.movable.get() == Movable::Yes;
        if !is_movable && let Some(why) = self.lacks(handle) {
            return Err(why);
        }
        let giving = self.giving.borrow();
        let is_known = match (began, &giving.next) {
            (Began::AsRequest, Some(next)) => next.takes_requests(),
            (Began::AsTcp, _) | (_, None) => giving.heard.is_some(),
        };
        match giving.next {
            _ if !is_known => Err(words.unknown),
            // Without a backend it has just begun.
            _ if !is_movable && self.has_backend(handle) => Err(words.other),
            Some(_) => Ok(words),
            None => Err(words.no_more),
        }
    }

    fn has_backend(&self, handle: &ConnectionHandle) -> bool {
        let mut has = false;
        self.running.of(&handle.live, |entry| has |= entry.backend.is_some());
        has
    }

    /// What keeps a connection from being nothing but bytes between two sockets.
    fn lacks(&self, handle: &ConnectionHandle) -> Option<&'static str> {
        let current = self.current();
        let plan = handle.live.listener.as_ref().and_then(|listener| current.listeners.get(&listener.name));
        if let Some(plan) = plan {
            if plan.tls.is_some() {
                return Some("TLS");
            }
            if plan.settings.bandwidth.is_some() {
                return Some("limit of bandwidth");
            }
        }
        let mut why = None;
        self.running.of(&handle.live, |entry| {
            why = why.or(entry.backend.as_ref().and_then(|backend| stays_at(&current, backend)));
        });
        why
    }
}

/// How a session began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Began {
    AsTcp,
    AsRequest,
}

/// What an operator is told of the sessions of one kind that are not given.
struct Words {
    /// The version of the next process does not know them.
    unknown: &'static str,
    no_more: &'static str,
    /// They will be given.
    going: &'static str,
    other: &'static str,
}

const TCP: Words = Words {
    unknown: "TCP, which the new version cannot take",
    no_more: "TCP, of which the new process takes no more",
    going: "TCP, which goes as soon as nothing is on the way",
    other: "TCP that still connects to a backend, is captured, or for which the new process has no room",
};

const WEB_SOCKET: Words = Words {
    unknown: "WebSocket, which the new version cannot take",
    no_more: "WebSocket, of which the new process takes no more",
    going: "WebSocket, which goes as soon as nothing is on the way",
    other: "WebSocket that is captured or limited, or for which the new process has no room",
};

const UPGRADED: Words = Words {
    unknown: "upgraded HTTP, which the new version cannot take",
    no_more: "upgraded HTTP, of which the new process takes no more",
    going: "upgraded HTTP, which goes as soon as nothing is on the way",
    other: "upgraded HTTP that is captured or limited, or for which the new process has no room",
};

/// Why the next process does not get a session with this backend.
fn stays_at(snapshot: &Snapshot, backend: &BackendState) -> Option<&'static str> {
    if matches!(backend.address, BackendAddress::Ssh { .. }) {
        return Some("SSH tunnel");
    }
    let pool = snapshot.pools.iter().find(|pool| pool.settings.name == backend.pool)?;
    match (&pool.settings.tls, pool.settings.http) {
        (Some(_), _) => Some("TLS to the backend"),
        (None, BackendHttp::Http2) => Some("HTTP/2 to the backend"),
        (None, BackendHttp::Http1) => None,
    }
}
