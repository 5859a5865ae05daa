//! From clients to backends: finds or begins the flows of a batch, then sends its datagrams.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use logic::access_log::Kind as LogKind;
use logic::account::Refusal;
use logic::acl::Verdict;
use logic::balance::{Tried, client_key};
use logic::health::Cause;
use logic::pcapng::From;
use logic::peers::Peer;
use logic::proxy_header::{self, Header};
use logic::udp::{Arrival, Course, FlowId, FlowKey, Hearing, Membership, Place, Source, Told};
use state::BackendState;
use state::account::{Kind, Taken};
use state::ending::Ending;
use sys::datagram::{Addresses, SLOTS};
use sys::socket::Owner;

use super::flow::{End, Flow, Memory};
use super::sockets::{BackendSocket, FlowSlot, Remote};
use super::tap::{self, Tapping, Whose};
use super::{Left, Locals, Server, clear, settings};
use crate::admission::ListenerPermit;
use crate::arrival::canonical;
use crate::connect::{self, ConnectFault};
use crate::fallback;
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::sticky_cookie::Slot;
use crate::tcp::no_backend;
use crate::upstream::{self, Chosen, Origin, Remember, Wanted};

/// How often the datagrams of one flow in a batch are sent again because a backend has refused an earlier one.
const MOST_REFUSALS: usize = 3;

/// Datagrams of a batch that belong to a flow and are not sent yet.
pub(super) struct Unsent {
    flow: FlowId,
    slots: Range<usize>,
}

impl Server {
    /// Receives a batch of datagrams and forwards them.
    pub(super) fn forward_batch(&mut self, now: Instant) -> Left {
        let socket = self.socket.clone();
        let received = self.batch.receive(socket.get_ref().as_fd(), 0..SLOTS, Addresses::Told);
        let count = match received {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => {
                self.complain(&error, now);
                0
            }
        };
        if count < SLOTS {
            clear(&socket);
        }
        self.counters().datagrams_in.add(count as u64);
        // Other workers have taken descriptors since the last batch.
        self.room = 0;
        let mut keys = [Err(Ending::BadSource); SLOTS];
        for (slot, key) in keys.iter_mut().enumerate().take(count) {
            *key = self.key_of(slot);
        }
        let mut first = 0;
        while first < count {
            // A client often sends several datagrams at once.
            let run = keys[first..count].iter().take_while(|key| **key == keys[first]).count();
            match keys[first] {
                Ok(key) => self.forward(key, first..first + run, now),
                Err(why) => self.drop_datagrams(run, why),
            }
            first += run;
        }
        self.send_unsent(now);
        if count < SLOTS { Left::Nothing } else { Left::Perhaps }
    }

    fn key_of(&mut self, slot: usize) -> Result<FlowKey, Ending> {
        let local = match self.locals {
            Locals::One => None,
            Locals::Several => self.batch.local(slot),
        };
        // Replies to port 0 cannot be sent.
        let sender = self.batch.sender(slot).filter(|sender| sender.port() != 0).ok_or(Ending::BadSource)?;
        let proxies = &self.plan.settings.proxy_protocol_from;
        let told = match proxies.is_empty() || !proxies.contains(&Peer::Ip(canonical(sender))) {
            true => None,
            false => self.read_header(slot)?,
        };
        Ok(FlowKey { sender, local, told })
    }

    /// Cuts the PROXY header off a datagram. `None` if it names no client.
    fn read_header(&mut self, slot: usize) -> Result<Option<Told>, Ending> {
        let (header, length) =
            proxy_header::parse_datagram(self.batch.datagram(slot)).map_err(|_| Ending::ProxyHeader)?;
        self.batch.cut(slot, length);
        Ok(match header {
            Header::Client { source, destination } => Some(Told { client: source, destination }),
            Header::Local | Header::Unknown | Header::Unix => None,
        })
    }

    /// The PROXY header for the backends of a pool that a flow's datagrams get; empty if the pool wants none.
    fn header(&self, key: &FlowKey, pool: &PoolPlan) -> Box<[u8]> {
        let mut header = Vec::new();
        if pool.settings.send_proxy.is_some() {
            proxy_header::write_datagram(&mut header, key.client(), tap::ours(key, self.bound));
        }
        header.into()
    }

    fn forward(&mut self, key: FlowKey, slots: Range<usize>, now: Instant) {
        let begun = match self.table.handle_datagram(&key, now) {
            Arrival::Known(id) => {
                self.follow(id, now);
                Ok(id)
            }
            Arrival::New => self.begin(key, Place::Free, now),
            Arrival::NewInPlaceOf(old) => self.begin(key, Place::InPlaceOf(old), now),
            Arrival::NewAfter(old) => {
                // No datagram of this batch waits to be sent in it: an earlier one would have ended it.
                if let Some(ended) = self.table.remove(old) {
                    self.finish(ended, End::Timeout);
                }
                self.begin(key, Place::Paid, now)
            }
            Arrival::Refused(why) => Err(Ending::NoFlow(why)),
        };
        match begun {
            Ok(id) => {
                self.table.handle_further(id, (slots.len() - 1) as u32);
                self.unsent.push(Unsent { flow: id, slots });
            }
            Err(why) => self.drop_datagrams(slots.len(), why),
        }
    }

    /// Begins a flow at a backend.
    fn begin(&mut self, key: FlowKey, mut place: Place, now: Instant) -> Result<FlowId, Ending> {
        if self.is_ours(key.sender) {
            return Err(Ending::BadSource);
        }
        let client = Peer::Ip(canonical(key.client()));
        if let Some(acl) = &self.plan.settings.acl
            && acl.verdict(&client) == Verdict::Deny
        {
            return Err(Ending::Denied);
        }
        let mut choice = self.choose(&key, None, now);
        if let Err(Ending::QueueFull) = choice
            && let Some(old) = place.claim(&self.table, now)
        {
            // Its permit at the backend becomes free: forged addresses must not keep all of them.
            self.evict(old, now);
            choice = self.choose(&key, None, now);
        }
        let (pool, chosen) = choice?;
        if let Some(old) = place.owed() {
            self.evict(old, now);
        }
        let plan = &self.plan;
        let permit = ListenerPermit::take(&plan.state, None).ok_or(Ending::ListenerFull)?;
        let replies = self.settings().map(|settings| settings.replies).ok_or(Ending::InternalError)?;
        let socket = self.open(&pool, &chosen, client, &mut place, now)?;
        let plan = &self.plan;
        plan.state.counters.of(self.worker.index).connections.add(1);
        let header = self.header(&key, &pool);
        let mut outcome = Outcome::new(&self.worker, &plan.state, LogKind::Udp, client, None);
        outcome.pool = Some(pool);
        (outcome.backend, outcome.view) = (Some(chosen.index), chosen.view);
        outcome.attempts = 1;
        let flow = Flow {
            serial: self.worker.mailboxes.next_serial(),
            socket,
            outcome,
            hearing: Hearing::default(),
            refused: None,
            memory: Memory::Due,
            header,
            _in_flight: chosen.slot,
            trial: chosen.trial,
            replies,
            tapping: Tapping::default(),
            _permit: permit,
        };
        let id = self.table.insert(key, flow, now);
        if let Some(flow) = self.table.get_mut(id) {
            self.sockets.assign(&flow.socket, id);
        }
        Ok(id)
    }

    /// Whether a source is one of our own listeners.
    fn is_ours(&self, source: SocketAddr) -> bool {
        match self.worker.front.state.listening_for_datagrams.load().judge(source) {
            Source::Elsewhere => false,
            Source::Ours => true,
            // On an error nothing can be sent there either.
            Source::OursIfLocal => sys::datagram::is_local(source).unwrap_or(true),
        }
    }

    /// Chooses a backend other than `left`.
    fn choose(
        &self,
        key: &FlowKey,
        left: Option<&Arc<BackendState>>,
        now: Instant,
    ) -> Result<(Arc<PoolPlan>, Chosen), Ending> {
        let settings = self.settings().ok_or(Ending::InternalError)?;
        let pool = fallback::serving(&self.worker, &self.known, self.known.pool(settings.pool));
        // A forged datagram would go round between the two for ever, if the backend answers all that it gets.
        let sender = canonical(key.sender);
        if pool.backends.iter().any(|plan| plan.state.addresses.load().contains(&sender)) {
            return Err(Ending::BadSource);
        }
        let mut tried = Tried::default();
        let is_left = |state: &Arc<BackendState>| left.is_some_and(|left| Arc::ptr_eq(state, left));
        if let Some(at) = pool.backends.iter().position(|plan| is_left(&plan.state)) {
            tried.insert(at);
        }
        let client = canonical(key.client());
        let wanted = Wanted {
            client: Peer::Ip(client),
            judged: Some(Peer::Ip(client)),
            key: client_key(client.ip()),
            cookie: Slot::Absent,
            tried: &tried,
            origin: Origin::Datagram,
            remember: Remember::AfterReply,
        };
        match upstream::choose_at_once(&self.worker, &self.known, pool, &wanted, now) {
            Some(Ok(chosen)) => Ok((pool.clone(), chosen)),
            Some(Err(none)) => Err(no_backend(none)),
            // A datagram does not wait.
            None => Err(Ending::QueueFull),
        }
    }

    /// Gets a socket that is connected to a backend.
    fn open(
        &mut self,
        pool: &PoolPlan,
        chosen: &Chosen,
        client: Peer,
        place: &mut Place,
        now: Instant,
    ) -> Result<BackendSocket, Ending> {
        let counters = chosen.backend.counters.of(self.worker.index);
        let outgoing = pool.backends[chosen.index].outgoing_for(client);
        let remote = connect::first_address(&chosen.backend, outgoing).map(Remote::of);
        if let Some(socket) = remote.and_then(|remote| self.sockets.use_again(remote, now)) {
            counters.connects.add(1);
            counters.sessions.add(1);
            return Ok(socket);
        }
        let slot = self.take_slot(place, now)?;
        let mut opened = connect::open_udp(&chosen.backend, outgoing);
        if let Err(ConnectFault::Ours(_)) = opened
            && outgoing.owner == Owner::Client
        {
            // The address of a client that cannot be used, or a missing capability: no other flow has to end for it.
            return Err(Ending::ConnectFailed);
        }
        if let Err(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)) = opened
            && let Some(old) = place.claim(&self.table, now)
        {
            // Local ports may run out before descriptors do.
            self.evict(old, now);
            opened = connect::open_udp(&chosen.backend, outgoing);
        }
        match opened {
            Ok((socket, address, outgoing)) => {
                let remote = Remote::of((address, outgoing));
                let socket = self.sockets.add(socket, remote, slot).map_err(|_| self.no_descriptors())?;
                counters.connects.add(1);
                counters.sessions.add(1);
                Ok(socket)
            }
            Err(ConnectFault::Backend(cause)) => {
                upstream::note_failure(&self.worker, pool, chosen.index, cause);
                Err(Ending::ConnectFailed)
            }
            Err(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)) => Err(self.no_descriptors()),
        }
    }

    fn no_descriptors(&self) -> Ending {
        self.worker.front.state.account.count(Refusal::NoDescriptors);
        Ending::NoDescriptors(Refusal::NoDescriptors)
    }

    /// Takes a descriptor for a flow: a free one outside of the part that is reserved for other clients, or that of the
    /// flow that ends for it.
    fn take_slot(&mut self, place: &mut Place, now: Instant) -> Result<FlowSlot, Ending> {
        if let Some(slot) = self.take_slot_with_room() {
            return Ok(slot);
        }
        if let Some(old) = place.claim(&self.table, now) {
            self.evict(old, now);
            if let Some(slot) = self.take_free_slot() {
                return Ok(slot);
            }
        }
        Err(self.no_descriptors())
    }

    fn take_slot_with_room(&mut self) -> Option<FlowSlot> {
        if self.room == 0 {
            let state = &self.worker.front.state;
            self.room = state.account.usage().flows_at_once(state.workers);
        }
        self.room = self.room.checked_sub(1)?;
        self.take_free_slot().or_else(|| {
            // Idle backend connections of all workers give way.
            self.worker.close_idle(1);
            self.take_free_slot()
        })
    }

    fn take_free_slot(&self) -> Option<FlowSlot> {
        let slot_cache = &self.worker.slot_cache;
        (slot_cache.take_of(Kind::Flows, 1) == Taken::Yes).then(|| FlowSlot::taken(slot_cache.clone()))
    }

    fn evict(&mut self, id: FlowId, now: Instant) {
        // The next flow gets its number: what waits to be sent in this one is sent before.
        if self.unsent.iter().any(|unsent| unsent.flow == id) {
            self.send_unsent(now);
        }
        if let Some(mut ended) = self.table.remove(id) {
            if !self.evicted_logged.is_due(now) {
                ended.value.outcome.leave_out_of_log();
            }
            self.finish(ended, End::Evicted);
        }
    }

    /// Moves a flow away from a backend that does not serve it any more, if another one takes it.
    fn follow(&mut self, id: FlowId, now: Instant) {
        let Some(settings) = settings(&self.plan) else { return };
        let Some(flow) = self.table.get_mut(id) else { return };
        let Some((pool, index)) = flow.backend() else { return };
        let state = &pool.backends[index].state;
        let newest = self.known.pool(settings.pool);
        let has = |newest: &Arc<PoolPlan>| {
            Arc::ptr_eq(pool, newest) || newest.backends.iter().any(|plan| Arc::ptr_eq(&plan.state, state))
        };
        let is_configured = fallback::chain(&self.known, newest).any(has);
        let membership = if is_configured { Membership::Configured } else { Membership::Removed };
        let health = state.health_state().availability();
        if Course::of(health, flow.hearing.answers(now), membership, state.admission()) == Course::Moves {
            self.relocate(id, now);
        }
    }

    /// Gives a flow another backend. If there is none, it stays.
    fn relocate(&mut self, id: FlowId, now: Instant) {
        let Some(key) = self.table.key(id) else { return };
        let Some((pool, index)) = self.table.get_mut(id).and_then(|flow| flow.backend()) else { return };
        let left = pool.backends[index].state.clone();
        let Ok((pool, chosen)) = self.choose(&key, Some(&left), now) else { return };
        if self.turn(id, &pool, &chosen, now).is_none() {
            return;
        }
        left.counters.of(self.worker.index).moved.add(1);
        let header = self.header(&key, &pool);
        let Some(flow) = self.table.get_mut(id) else { return };
        flow.hearing = Hearing::default();
        flow.memory = Memory::Due;
        flow.header = header;
        flow._in_flight = chosen.slot;
        flow.trial = chosen.trial;
        flow.outcome.pool = Some(pool);
        (flow.outcome.backend, flow.outcome.view) = (Some(chosen.index), chosen.view);
        flow.outcome.attempts += 1;
        flow.outcome.moved = flow.outcome.moved.saturating_add(1);
    }

    /// Connects a flow to another backend, with its own socket if that can reach it.
    fn turn(&mut self, id: FlowId, pool: &PoolPlan, chosen: &Chosen, now: Instant) -> Option<()> {
        let client = Peer::Ip(canonical(self.table.key(id)?.client()));
        let outgoing = pool.backends[chosen.index].outgoing_for(client);
        let remote = Remote::of(connect::first_address(&chosen.backend, outgoing)?);
        let flow = self.table.get_mut(id)?;
        if !flow.socket.can_reach(remote) {
            // No other flow ends for one that has a backend.
            let socket = self.open(pool, chosen, client, &mut Place::Paid, now).ok()?;
            let flow = self.table.get_mut(id)?;
            let left = std::mem::replace(&mut flow.socket, socket);
            self.sockets.assign(&flow.socket, id);
            self.sockets.close(left);
            return Some(());
        }
        if flow.socket.turn_to(remote.address).is_err() {
            // It has no backend now: the next datagram tries again.
            flow.hearing.handle_refusal();
            return None;
        }
        let counters = chosen.backend.counters.of(self.worker.index);
        counters.connects.add(1);
        counters.sessions.add(1);
        Some(())
    }

    /// Sends the datagrams of the batch that have a flow, one right after the other: the first one wakes its backend, and the
    /// kernel need not wake it again for each of the others.
    fn send_unsent(&mut self, now: Instant) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for Unsent { flow, slots } in unsent.drain(..) {
            self.send(flow, slots, now);
        }
        self.unsent = unsent;
    }

    fn send(&mut self, id: FlowId, slots: Range<usize>, now: Instant) {
        let (mut next, mut refusals) = (slots.start, 0);
        // Backends to which the next datagram could not be sent.
        let mut tried = Vec::new();
        let Some(key) = self.table.key(id) else { return self.drop_datagrams(slots.len(), Ending::NotSent) };
        while next < slots.end {
            let Some(flow) = self.table.get_mut(id) else {
                return self.drop_datagrams(slots.end - next, Ending::NotSent);
            };
            let error = match self.batch.send(flow.socket.as_fd(), next..slots.end, &flow.header) {
                Ok(sent) => {
                    let bytes: usize = (next..next + sent).map(|slot| self.batch.datagram(slot).len()).sum();
                    flow.outcome.bytes_in += bytes as u64;
                    flow.hearing.handle_sent(now);
                    let whose = Whose { listener: &self.key.listener, key: &key, bound: self.bound };
                    let captures = &self.worker.front.state.captures;
                    flow.tapping.record(captures, whose, From::Client, &self.batch, next..next + sent);
                    next += sent;
                    tried.clear();
                    continue;
                }
                Err(error) => error,
            };
            // The kernel tells the error of an earlier datagram at the next one, which it does not send then. An error at the second
            // attempt to send a datagram to a backend is that of the datagram itself.
            let backend = flow.backend().map(|(pool, index)| (Arc::as_ptr(pool), index));
            let cause = connect::udp_cause(&error);
            let is_full = error.kind() == io::ErrorKind::WouldBlock;
            if is_full || tried.contains(&backend) || (cause.is_some() && refusals == MOST_REFUSALS) {
                self.drop_datagrams(1, Ending::NotSent);
                next += 1;
                tried.clear();
                continue;
            }
            tried.push(backend);
            if let Some(cause) = cause {
                refusals += 1;
                self.note_refusal(id, cause, now);
                self.relocate(id, now);
            }
        }
    }

    /// The network or the host of the backend has refused a datagram of this flow.
    pub(super) fn note_refusal(&mut self, id: FlowId, cause: Cause, now: Instant) {
        let worker = self.worker.clone();
        let Some(flow) = self.table.get_mut(id) else { return };
        flow.hearing.handle_refusal();
        flow.refused = Some(now);
        if let Some((pool, index)) = flow.backend() {
            upstream::note_failure(&worker, pool, index, cause);
        }
    }
}
