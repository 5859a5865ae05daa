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
use logic::acl::Verdict;
use logic::balance::StickyKey;
use logic::flood_delay::FloodDelay;
use logic::peers::Peer;
use state::ListenerState;
use state::account::{AtSource, Share, Taken};
use state::ending::Ending;
use tls::plain::Plain;

use crate::live::{Accepted, Live};
use crate::outcome::Outcome;
use crate::snapshot::{ListenerPlan, http_settings};
use crate::stream::Stream;
use crate::worker::{ConnectionHandle, Registration, Worker};

mod tarpit;

pub(crate) use tarpit::hold_or_deny;

/// Client connection that counts against the limits until this value is dropped; its worker waits for its end.
pub struct Admitted {
    registration: Registration,
    _permit: ListenerPermit,
    /// In a box: only listeners that limit sources have one.
    place: Cell<Option<Box<SourcePlace>>>,
}

impl Admitted {
    pub(crate) fn new(
        permit: ConnectionPermit,
        source: Option<AtSource>,
        listener: ListenerPermit,
        place: Option<Box<SourcePlace>>,
        accepted: &Accepted,
    ) -> Self {
        let worker = permit.worker.clone();
        let live = Live::new(listener.0.clone(), accepted);
        let registration = worker.register(Share::new(source, permit.hand_over()), live);
        Self { registration, _permit: listener, place: Cell::new(place) }
    }

    /// Counts a client that the process before gives to this one. It had its place there, so only descriptors can lack.
    pub(crate) fn adopt(
        worker: &Rc<Worker>,
        listener: &Arc<ListenerState>,
        plan: Option<&ListenerPlan>,
        accepted: &Accepted,
    ) -> Option<Self> {
        let permit = ConnectionPermit::take(worker, Limit::Passed)?;
        let is_proxy = plan.is_some_and(|plan| {
            is_trusted(plan, accepted.peer) || plan.settings.proxy_protocol_from.contains(&accepted.peer)
        });
        let address = accepted.peer.ip().filter(|_| !is_proxy);
        let account = &worker.front.state.account;
        let source = match address {
            Some(address) => Some(account.count_client(address, account.client_slots()).ok()?),
            None => None,
        };
        let place = plan.zip(address).and_then(|(plan, address)| SourcePlace::adopt(worker, plan, address));
        let listener = ListenerPermit::take(listener, None)?;
        Some(Self::new(permit, source, listener, place, accepted))
    }

    /// Returns the worker's handle of the connection.
    pub fn handle(&self) -> &Rc<ConnectionHandle> {
        self.registration.handle()
    }

    /// Counts the client at the address in its PROXY header, by the rules of the address that it connects from.
    pub fn comes_from(&self, worker: &Worker, plan: &ListenerPlan, peer: Peer) -> Result<(), TurnedAway> {
        let counted = peer.ip().filter(|_| !is_trusted(plan, peer));
        let Some(address) = counted else { return Ok(()) };
        self.place.set(SourcePlace::take(worker, plan, address)?);
        let (counted, _) = count_at(worker, address, self.handle().share.slots())?;
        self.handle().share.set_source(Some(counted));
        Ok(())
    }
}

/// Why a client is closed when it comes, although its listener has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    /// No descriptors.
    Refused(Refusal),
    /// Its source exceeds `connection-rate`: the time after which its next connection is admitted.
    ConnectionRate(Duration),
    /// Its source has too many connections.
    SourceFull,
}

impl From<Refusal> for TurnedAway {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

/// A connection that counts at its source in its listener, until this value is dropped.
pub(crate) struct SourcePlace {
    listener: Arc<ListenerState>,
    source: StickyKey,
}

impl SourcePlace {
    /// Counts a connection from `address`, if the listener limits those of a source.
    fn take(worker: &Worker, plan: &ListenerPlan, address: IpAddr) -> Result<Option<Box<Self>>, TurnedAway> {
        let settings = &plan.settings;
        if settings.connection_rate.is_none() && settings.connections_per_source.is_none() {
            return Ok(None);
        }
        let state = &worker.front.state;
        let source = state.account.sources.key(address);
        // A source that has all of its connections does not spend its rate as well.
        let place = match settings.connections_per_source {
            Some(most) if plan.state.open_by_source.take(source, most) == Taken::No => {
                return Err(TurnedAway::SourceFull);
            }
            Some(_) => Some(Box::new(Self { listener: plan.state.clone(), source })),
            None => None,
        };
        if let Some(rate) = settings.connection_rate {
            let taken = plan.state.connection_rates.take(source, rate, state.started.elapsed());
            taken.map_err(TurnedAway::ConnectionRate)?;
        }
        Ok(place)
    }

    /// Counts a connection that was there before, also above the limit.
    fn adopt(worker: &Worker, plan: &ListenerPlan, address: IpAddr) -> Option<Box<Self>> {
        plan.settings.connections_per_source?;
        let source = worker.front.state.account.sources.key(address);
        let taken = plan.state.open_by_source.take(source, u32::MAX);
        (taken == Taken::Yes).then(|| Box::new(Self { listener: plan.state.clone(), source }))
    }
}

impl Drop for SourcePlace {
    fn drop(&mut self) {
        self.listener.open_by_source.give_back(self.source);
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

/// A client, counted at its source.
#[derive(Default)]
pub(crate) struct Counted {
    /// In the account of descriptors.
    pub(crate) source: Option<AtSource>,
    /// In the listener.
    pub(crate) place: Option<Box<SourcePlace>>,
    /// The client that is closed for it.
    pub(crate) leaving: Option<Rc<ConnectionHandle>>,
}

/// Counts a client at its address, unless the address is a trusted proxy's.
pub(crate) fn count_at_source(
    worker: &Worker,
    plan: &ListenerPlan,
    peer: Peer,
) -> Result<Counted, TurnedAway> {
    let is_proxy = is_trusted(plan, peer) || plan.settings.proxy_protocol_from.contains(&peer);
    let Some(address) = peer.ip().filter(|_| !is_proxy) else { return Ok(Counted::default()) };
    let place = SourcePlace::take(worker, plan, address)?;
    let (source, leaving) = count_at(worker, address, worker.front.state.account.client_slots())?;
    Ok(Counted { source: Some(source), place, leaving })
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

/// Returns what the access list of the listener says of a client. One that must send a PROXY header is judged by that.
pub(crate) fn standing(plan: &ListenerPlan, peer: Peer) -> Verdict {
    match &plan.settings.acl {
        Some(acl) if !plan.settings.proxy_protocol_from.contains(&peer) => acl.verdict(&peer),
        _ => Verdict::Permit,
    }
}

/// Returns true if a client is closed because of its standing: no pool is for clients that are denied.
pub(crate) fn turns_away(plan: &ListenerPlan, standing: Verdict) -> bool {
    standing == Verdict::Deny && plan.settings.denied_pool.is_none()
}

/// Records a client that is closed because the access list denies it.
fn deny(worker: &Rc<Worker>, plan: &ListenerPlan, peer: Peer) {
    Outcome::new(worker, &plan.state, Kind::Tcp, peer, None).end(Ending::Denied);
}

/// Returns true if the listener trusts a proxy at this address: the clients behind it do not share one client's limit.
fn is_trusted(plan: &ListenerPlan, peer: Peer) -> bool {
    match &plan.settings.protocol {
        Protocol::Http(settings) => settings.trusted_proxies.contains(&peer),
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => false,
    }
}
/// Closes a client that is refused, with an answer if the answer costs no handshake.
pub(crate) fn turn_away(
    worker: &Rc<Worker>,
    plan: &ListenerPlan,
    plain: Plain,
    peer: Peer,
    why: impl Into<TurnedAway>,
) {
    let (ending, status, wait) = match why.into() {
        TurnedAway::Refused(why) => {
            worker.front.state.account.count(why);
            (Ending::NoDescriptors(why), "503 Service Unavailable", RETRY_AFTER)
        }
        TurnedAway::ConnectionRate(wait) => (Ending::ConnectionRate, TOO_MANY, whole_seconds(wait)),
        TurnedAway::SourceFull => (Ending::SourceFull, TOO_MANY, RETRY_AFTER),
    };
    let mut outcome = Outcome::new(worker, &plan.state, Kind::Tcp, peer, None);
    if plan.settings.protocol.is_http() && plan.tls.is_none() {
        let answer = format!(
            "HTTP/1.1 {status}\r\nRetry-After: {wait}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let stream = Stream::plain(plain);
        // Closing with unread bytes would send a TCP reset, and the answer would be lost.
        stream.discard_arrived();
        if stream.write_now(answer.as_bytes()) == answer.len() {
            outcome.status = if status == TOO_MANY { 429 } else { 503 };
        }
    }
    outcome.end(ending);
}

const TOO_MANY: &str = "429 Too Many Requests";

/// Seconds after which a client may try again that was refused for want of room.
const RETRY_AFTER: u64 = 5;

/// Rounds up, for `Retry-After`: a client that waits so long is not refused again.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
