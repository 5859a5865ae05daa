//! What a client takes when it comes in: a place among the connections of the process, a seat among those of its listener, and
//! its part of the share of its address. `logic/account.rs` decides; all of it is given back when the client's connection ends.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use config::types::Protocol;
use logic::access_log::Kind;
use logic::account::Refusal;
use logic::peers::Peer;

use crate::account::{AtSource, Share, Taken};
use crate::ending::Ending;
use crate::outcome::Outcome;
use crate::plain::Plain;
use crate::snapshot::ListenerPlan;
use crate::state::ListenerState;
use crate::stream::Stream;
use crate::worker::{Control, Registration, Worker};

/// A client that counts against the limits, and that its worker waits for when it ends, until this is dropped.
pub struct Admitted {
    registration: Registration,
    _seat: Seat,
}

impl Admitted {
    /// From a client that has its place.
    pub(crate) fn new(place: Place, source: Option<AtSource>, seat: Seat) -> Self {
        let worker = place.worker.clone();
        Self { registration: worker.register(Share::new(source, place.hand_over())), _seat: seat }
    }

    /// What the worker can ask of the connection.
    pub fn control(&self) -> &Rc<Control> {
        self.registration.control()
    }

    /// Makes the client count at the address that its PROXY header names, by the rules of the one that it connects from.
    pub fn comes_from(&self, worker: &Worker, plan: &ListenerPlan, peer: Peer) -> Result<(), Refusal> {
        let counted = peer.ip().filter(|_| !is_trusted(plan, peer));
        let Some(address) = counted else { return Ok(()) };
        let (seat, _) = seat_at(worker, address, self.control().share.places())?;
        self.control().share.sit(Some(seat));
        Ok(())
    }
}

/// One of the connections that the process may have, with its places in the account: its own and those of one backend.
/// Given back when dropped, unless it was handed over to a registration.
pub(crate) struct Place {
    worker: Rc<Worker>,
    count: Cell<usize>,
}

impl Place {
    /// Takes one if there is one: in one step, so that the limit holds over all workers.
    pub(crate) fn take(worker: &Rc<Worker>, limit: Limit) -> Option<Self> {
        let state = &worker.front.state;
        let most = match limit {
            Limit::Holds => state.max_connections.load(Relaxed),
            Limit::Passed => usize::MAX,
        };
        let count = state.account.client_places();
        state.connections.fetch_update(Relaxed, Relaxed, |open| (open < most).then_some(open + 1)).ok()?;
        if worker.place_cache.take(count) == Taken::No {
            state.connections.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Self { worker: worker.clone(), count: Cell::new(count) })
    }
}

/// Whether the configured number of connections counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Holds,
    /// It does not, for a client whose socket is given up: no other worker can accept it later. Descriptors count all the same.
    Passed,
}

impl Place {
    /// The count, for the registration that gives it back from now on.
    fn hand_over(self) -> usize {
        self.count.take()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.count.take() {
            0 => {}
            count => self.worker.give_place_back(count),
        }
    }
}

/// One of the connections that a listener may have.
pub(crate) struct Seat(Arc<ListenerState>);

impl Seat {
    pub(crate) fn take(listener: &Arc<ListenerState>, most: Option<usize>) -> Option<Self> {
        listener
            .connections
            .fetch_update(Relaxed, Relaxed, |open| most.is_none_or(|most| open < most).then_some(open + 1))
            .ok()
            .map(|_| Self(listener.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Counts a client at its address, unless that is one of a proxy. With the client that is closed for it.
pub(crate) fn seat_at_source(
    worker: &Worker,
    plan: &ListenerPlan,
    peer: Peer,
) -> Result<(Option<AtSource>, Option<Rc<Control>>), Refusal> {
    let is_proxy = is_trusted(plan, peer) || plan.settings.proxy_protocol_from.contains(&peer);
    let Some(address) = peer.ip().filter(|_| !is_proxy) else { return Ok((None, None)) };
    let (seat, leaving) = seat_at(worker, address, worker.front.state.account.client_places())?;
    Ok((Some(seat), leaving))
}

/// Counts a client that takes `places`. Where none is free, and its address has its share, an idle client of that address is
/// closed for it: so addresses of many clients get new ones in, and none of another address is closed for them.
fn seat_at(
    worker: &Worker,
    address: IpAddr,
    places: usize,
) -> Result<(AtSource, Option<Rc<Control>>), Refusal> {
    let account = &worker.front.state.account;
    let refusal = match account.seat(address, places) {
        Ok(seat) => return Ok((seat, None)),
        Err(why) => why,
    };
    if account.usage().client(account.shares(), None, places).is_ok() {
        return Err(refusal);
    }
    let (evicted, seat) = worker.evict_idle_of(&account.sources.of(address)).ok_or(refusal)?;
    Ok((seat, Some(evicted)))
}

/// Whether the listener trusts a proxy at this address: the clients behind it are not to share what one client may have.
fn is_trusted(plan: &ListenerPlan, peer: Peer) -> bool {
    match &plan.settings.protocol {
        Protocol::Http(settings) => settings.trusted_proxies.contains(&peer),
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) => false,
    }
}
/// Closes a client that may not come in, with an answer where that costs nothing.
pub(crate) fn turn_away(worker: &Rc<Worker>, plan: &ListenerPlan, plain: Plain, peer: Peer, why: Refusal) {
    worker.front.state.account.count(why);
    let mut outcome = Outcome::new(worker, &plan.state, Kind::Tcp, peer, None);
    if matches!(plan.settings.protocol, Protocol::Http(_)) && plan.tls.is_none() {
        let stream = Stream::plain(plain);
        // Closed with unread bytes, the connection would be reset, and the answer lost.
        stream.discard_arrived();
        if stream.write_now(BUSY) == BUSY.len() {
            outcome.status = 503;
        }
    }
    outcome.end(Ending::NoDescriptors(why));
}

/// The answer to a client that is turned away.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
