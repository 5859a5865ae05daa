//! Permits that a client needs: one of the process's connections, one of its listener's, and a part of its address's
//! share. `logic/account.rs` decides; all are given back when the client's connection ends.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use config::types::{Http2, Protocol};
use logic::access_log::Kind;
use logic::account::Refusal;
use logic::flood_delay::FloodDelay;
use logic::peers::Peer;
use state::ListenerState;
use state::account::{AtSource, Share, Taken};
use state::ending::Ending;
use tls::plain::Plain;

use crate::outcome::Outcome;
use crate::snapshot::{ListenerPlan, http_settings};
use crate::stream::Stream;
use crate::worker::{ConnectionHandle, Registration, Worker};

/// Client connection that counts against the limits until this value is dropped; its worker waits for its end.
pub struct Admitted {
    registration: Registration,
    _permit: ListenerPermit,
}

impl Admitted {
    pub(crate) fn new(permit: ConnectionPermit, source: Option<AtSource>, listener: ListenerPermit) -> Self {
        let worker = permit.worker.clone();
        Self { registration: worker.register(Share::new(source, permit.hand_over())), _permit: listener }
    }

    /// Returns the worker's handle of the connection.
    pub fn handle(&self) -> &Rc<ConnectionHandle> {
        self.registration.handle()
    }

    /// Counts the client at the address in its PROXY header, by the rules of the address that it connects from.
    pub fn comes_from(&self, worker: &Worker, plan: &ListenerPlan, peer: Peer) -> Result<(), Refusal> {
        let counted = peer.ip().filter(|_| !is_trusted(plan, peer));
        let Some(address) = counted else { return Ok(()) };
        let (counted, _) = count_at(worker, address, self.handle().share.slots())?;
        self.handle().share.set_source(Some(counted));
        Ok(())
    }
}

/// Permit of one connection of the process, with its slots in the account: its own and those of one backend. Given back
/// when dropped, unless handed over to a registration.
pub(crate) struct ConnectionPermit {
    worker: Rc<Worker>,
    count: Cell<usize>,
}

impl ConnectionPermit {
    /// Takes a permit if one is free, in one atomic step, so that the limit holds across all workers.
    pub(crate) fn take(worker: &Rc<Worker>, limit: Limit) -> Option<Self> {
        let state = &worker.front.state;
        let most = match limit {
            Limit::Holds => state.max_connections.load(Relaxed),
            Limit::Passed => usize::MAX,
        };
        let count = state.account.client_slots();
        state.connections.fetch_update(Relaxed, Relaxed, |open| (open < most).then_some(open + 1)).ok()?;
        if worker.slot_cache.take(count) == Taken::No {
            state.connections.fetch_sub(1, Relaxed);
            return None;
        }
        Some(Self { worker: worker.clone(), count: Cell::new(count) })
    }
}

/// Whether the configured limit of connections applies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Holds,
    /// The limit does not apply: the socket is being closed, so no other worker can accept the client later.
    /// Descriptors count all the same.
    Passed,
}

impl ConnectionPermit {
    /// Hands the slots over to the registration, which gives them back.
    fn hand_over(self) -> usize {
        self.count.take()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        match self.count.take() {
            0 => {}
            count => self.worker.give_place_back(count),
        }
    }
}

/// Permit of one connection of a listener.
pub(crate) struct ListenerPermit(Arc<ListenerState>);

impl ListenerPermit {
    pub(crate) fn take(listener: &Arc<ListenerState>, most: Option<usize>) -> Option<Self> {
        listener
            .connections
            .fetch_update(Relaxed, Relaxed, |open| most.is_none_or(|most| open < most).then_some(open + 1))
            .ok()
            .map(|_| Self(listener.clone()))
    }
}

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// Counts a client at its address, unless the address is a trusted proxy's. Also returns the client that is closed for
/// it.
pub(crate) fn count_at_source(
    worker: &Worker,
    plan: &ListenerPlan,
    peer: Peer,
) -> Result<(Option<AtSource>, Option<Rc<ConnectionHandle>>), Refusal> {
    let is_proxy = is_trusted(plan, peer) || plan.settings.proxy_protocol_from.contains(&peer);
    let Some(address) = peer.ip().filter(|_| !is_proxy) else { return Ok((None, None)) };
    let (counted, leaving) = count_at(worker, address, worker.front.state.account.client_slots())?;
    Ok((Some(counted), leaving))
}

/// How long a new connection waits before it is read, because connections of its address were ended for floods.
pub(crate) fn flood_wait(worker: &Worker, plan: &ListenerPlan, floods: FloodDelay) -> Duration {
    // Nearly all addresses have never flooded, and need no look at the clock.
    if floods == FloodDelay::default() {
        return Duration::ZERO;
    }
    let longest = match http_settings(plan).map(|settings| &settings.http2) {
        Some(Http2::On { flood_delay, .. }) => *flood_delay,
        Some(Http2::Off) | None => return Duration::ZERO,
    };
    let wait = floods.wait(worker.front.state.started.elapsed(), longest);
    if !wait.is_zero() {
        plan.state.counters.of(worker.index).delayed.add(1);
    }
    wait
}

/// Counts a client that takes `slots`. If no slot is free and its address has used its share, an idle client of the
/// same address is closed for it: clients of other addresses are never closed for it.
fn count_at(
    worker: &Worker,
    address: IpAddr,
    slots: usize,
) -> Result<(AtSource, Option<Rc<ConnectionHandle>>), Refusal> {
    let account = &worker.front.state.account;
    let refusal = match account.count_client(address, slots) {
        Ok(counted) => return Ok((counted, None)),
        Err(why) => why,
    };
    if account.usage().client(account.shares(), None, slots).is_ok() {
        return Err(refusal);
    }
    let (evicted, counted) = worker.evict_idle_of(&account.sources.of(address)).ok_or(refusal)?;
    Ok((counted, Some(evicted)))
}

/// Returns true if the listener trusts a proxy at this address: the clients behind it do not share one client's limit.
fn is_trusted(plan: &ListenerPlan, peer: Peer) -> bool {
    match &plan.settings.protocol {
        Protocol::Http(settings) => settings.trusted_proxies.contains(&peer),
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) => false,
    }
}
/// Closes a client that is refused, with an answer if the answer costs no handshake.
pub(crate) fn turn_away(worker: &Rc<Worker>, plan: &ListenerPlan, plain: Plain, peer: Peer, why: Refusal) {
    worker.front.state.account.count(why);
    let mut outcome = Outcome::new(worker, &plan.state, Kind::Tcp, peer, None);
    if plan.settings.protocol.is_http() && plan.tls.is_none() {
        let stream = Stream::plain(plain);
        // Closing with unread bytes would send a TCP reset, and the answer would be lost.
        stream.discard_arrived();
        if stream.write_now(BUSY) == BUSY.len() {
            outcome.status = 503;
        }
    }
    outcome.end(Ending::NoDescriptors(why));
}

/// Response to a client that is refused.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
