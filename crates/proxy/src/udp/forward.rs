//! From clients to backends: finds or begins the flow of each datagram, and sends it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use logic::access_log::Kind as LogKind;
use logic::account::Refusal;
use logic::balance::{Tried, client_key};
use logic::health::Cause;
use logic::peers::Peer;
use logic::udp::{Answerability, Arrival, Course, FlowId, FlowKey};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use state::account::{Kind, Taken};
use state::ending::Ending;
use sys::datagram::{Addresses, SLOTS};

use super::flow::{self, End, Flow, FlowSlot};
use super::{Locals, Server, clear};
use crate::admission::ListenerPermit;
use crate::arrival::canonical;
use crate::connect::{self, ConnectFault};
use crate::outcome::Outcome;
use crate::snapshot::PoolPlan;
use crate::tcp::no_backend;
use crate::upstream::{self, Chosen, Origin, Wanted};

/// Most descriptors that flows take between two looks at the account.
const ROOM_AT_ONCE: usize = 64;

/// How often the datagrams of one batch are sent again because the backend had refused an earlier one.
const MOST_REFUSALS: usize = 3;

impl Server {
    /// Receives a batch of datagrams and forwards them.
    pub(super) fn forward_batch(&mut self, now: Instant) {
        let socket = self.socket.clone();
        let received = self.batch.receive(socket.get_ref().as_fd(), 0, Addresses::Told);
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
        let mut keys = [None; SLOTS];
        for (slot, key) in keys.iter_mut().enumerate().take(count) {
            *key = self.key_of(slot);
        }
        let mut first = 0;
        while first < count {
            // A client often sends several datagrams at once.
            let run = keys[first..count].iter().take_while(|key| **key == keys[first]).count();
            match keys[first] {
                Some(key) => self.forward(key, first..first + run, now),
                None => self.drop_datagrams(run, Ending::BadSource),
            }
            first += run;
        }
    }

    fn key_of(&mut self, slot: usize) -> Option<FlowKey> {
        let local = match self.locals {
            Locals::One => None,
            Locals::Several => self.batch.local(slot),
        };
        // Replies to port 0 cannot be sent. A datagram with our own address as its source is forged: the reply to it would
        // come back as the next one.
        let own = SocketAddr::new(local.unwrap_or(self.bound.ip()), self.bound.port());
        let is_good = |client: &SocketAddr| client.port() != 0 && canonical(*client) != canonical(own);
        let client = self.batch.sender(slot).filter(is_good)?;
        Some(FlowKey { client, local })
    }

    fn forward(&mut self, key: FlowKey, slots: Range<usize>, now: Instant) {
        let begun = match self.table.handle_datagram(&key, now) {
            Arrival::Known(id) => {
                self.follow_health(id, now);
                Ok(id)
            }
            Arrival::New => self.begin(key, None, now),
            Arrival::NewInPlaceOf(old) => self.begin(key, Some(old), now),
            Arrival::Refused(why) => Err(Ending::NoFlow(why)),
        };
        match begun {
            Ok(id) => {
                self.table.handle_further(id, (slots.len() - 1) as u32);
                self.send(id, slots, now);
            }
            Err(why) => self.drop_datagrams(slots.len(), why),
        }
    }

    /// Begins a flow at a backend, in place of `old` if one must end for it.
    fn begin(&mut self, key: FlowKey, old: Option<FlowId>, now: Instant) -> Result<FlowId, Ending> {
        let (mut old, mut choice) = (old, self.choose(&key, &Tried::default(), now));
        if let Err(Ending::QueueFull) = choice
            && let Some(unanswered) = old.take().or_else(|| self.table.longest_unanswered())
        {
            // Its permit at the backend becomes free: forged addresses must not keep all of them.
            self.evict(unanswered);
            choice = self.choose(&key, &Tried::default(), now);
        }
        let (pool, chosen) = choice?;
        if let Some(old) = old {
            self.evict(old);
        }
        let slot = self.take_slot()?;
        let socket = self.open(&pool, &chosen)?;
        let plan = &self.plan;
        let permit = ListenerPermit::take(&plan.state, None).ok_or(Ending::ListenerFull)?;
        plan.state.counters.of(self.worker.index).connections.add(1);
        let client = Peer::Ip(canonical(key.client));
        let mut outcome = Outcome::new(&self.worker, &plan.state, LogKind::Udp, client, None);
        outcome.pool = Some(pool);
        outcome.backend = Some(chosen.index);
        outcome.attempts = 1;
        let replies = self.settings().map(|settings| settings.replies).ok_or(Ending::InternalError)?;
        let flow = Flow {
            socket,
            outcome,
            answers: Answerability::Open,
            _in_flight: chosen.slot,
            replies,
            _slot: slot,
            _permit: permit,
        };
        let id = self.table.insert(key, flow, now);
        self.watch(id)?;
        Ok(id)
    }

    fn choose(&self, key: &FlowKey, tried: &Tried, now: Instant) -> Result<(Arc<PoolPlan>, Chosen), Ending> {
        let settings = self.settings().ok_or(Ending::InternalError)?;
        let pool = self.known.pool(settings.pool);
        let client = canonical(key.client);
        let wanted =
            Wanted { client: Peer::Ip(client), key: client_key(client.ip()), tried, origin: Origin::Client };
        match upstream::choose_at_once(&self.worker, &self.known, pool, &wanted, now) {
            Some(Ok(chosen)) => Ok((pool.clone(), chosen)),
            Some(Err(none)) => Err(no_backend(none)),
            // A datagram does not wait: its client sends it again.
            None => Err(Ending::QueueFull),
        }
    }

    fn open(&mut self, pool: &PoolPlan, chosen: &Chosen) -> Result<UdpSocket, Ending> {
        let mut opened = connect::open_udp(&chosen.backend);
        if let Err(ConnectFault::Ours(_) | ConnectFault::NoDescriptors(_)) = opened
            && let Some(old) = self.table.longest_unanswered()
        {
            // Local ports may run out before descriptors do.
            self.evict(old);
            opened = connect::open_udp(&chosen.backend);
        }
        let counters = chosen.backend.counters.of(self.worker.index);
        match opened {
            Ok(socket) => {
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

    /// Takes a descriptor for a flow: a free one outside of the part that is reserved for other clients, or that of an
    /// unanswered flow.
    fn take_slot(&mut self) -> Result<FlowSlot, Ending> {
        let account = &self.worker.front.state.account;
        if self.room == 0 {
            let room = account.usage().room_for_flows() / self.worker.front.state.workers.max(1);
            self.room = room.min(ROOM_AT_ONCE);
        }
        if self.room > 0 {
            self.room -= 1;
            if let Some(slot) = self.take_free_slot() {
                return Ok(slot);
            }
            // Idle backend connections of all workers give way.
            self.worker.close_idle(1);
            if let Some(slot) = self.take_free_slot() {
                return Ok(slot);
            }
        }
        if let Some(old) = self.table.longest_unanswered() {
            self.evict(old);
            if let Some(slot) = self.take_free_slot() {
                return Ok(slot);
            }
        }
        Err(self.no_descriptors())
    }

    fn take_free_slot(&self) -> Option<FlowSlot> {
        let slot_cache = &self.worker.slot_cache;
        (slot_cache.take_of(Kind::Flows, 1) == Taken::Yes).then(|| FlowSlot::taken(slot_cache.clone()))
    }

    fn evict(&mut self, id: FlowId) {
        if let Some(ended) = self.table.remove(id) {
            flow::end(ended, End::Evicted);
        }
    }

    /// Lets the epoll instance tell of replies to a flow. Without that, the flow ends.
    fn watch(&mut self, id: FlowId) -> Result<(), Ending> {
        let Some(flow) = self.table.get_mut(id) else { return Err(Ending::InternalError) };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(id.number()));
        if self.epoll.0.add(&flow.socket, event).is_ok() {
            return Ok(());
        }
        self.evict(id);
        Err(self.no_descriptors())
    }

    /// Moves a flow away from a backend that is down or has refused it, if another one takes it.
    fn follow_health(&mut self, id: FlowId, now: Instant) {
        let Some(flow) = self.table.get_mut(id) else { return };
        let Some((pool, index)) = flow.backend() else { return };
        let health = pool.backends[index].state.health_state().availability();
        if Course::of(health, flow.answers) == Course::Moves {
            self.relocate(id, now);
        }
    }

    /// Gives a flow another backend. If there is none, it stays.
    fn relocate(&mut self, id: FlowId, now: Instant) {
        let Some(key) = self.table.key(id) else { return };
        let Some((pool, index)) = self.table.get_mut(id).and_then(|flow| flow.backend()) else { return };
        let left = pool.backends[index].state.clone();
        let Some(settings) = self.settings() else { return };
        let mut tried = Tried::default();
        let mut here = self.known.pool(settings.pool).backends.iter();
        if let Some(at) = here.position(|plan| Arc::ptr_eq(&plan.state, &left)) {
            tried.insert(at);
        }
        let Ok((pool, chosen)) = self.choose(&key, &tried, now) else { return };
        let Ok(socket) = self.open(&pool, &chosen) else { return };
        left.counters.of(self.worker.index).moved.add(1);
        let Some(flow) = self.table.get_mut(id) else { return };
        // Dropping the old socket takes it out of the epoll instance.
        flow.socket = socket;
        flow.answers = Answerability::Open;
        flow._in_flight = chosen.slot;
        flow.outcome.pool = Some(pool);
        flow.outcome.backend = Some(chosen.index);
        flow.outcome.attempts += 1;
        flow.outcome.moved += 1;
        // On an error the flow has ended, and the caller drops the datagrams.
        let _ = self.watch(id);
    }

    fn send(&mut self, id: FlowId, slots: Range<usize>, now: Instant) {
        let (mut next, mut refusals) = (slots.start, 0);
        while next < slots.end {
            let Some(flow) = self.table.get_mut(id) else {
                return self.drop_datagrams(slots.end - next, Ending::NotSent);
            };
            let error = match self.batch.send(flow.socket.as_fd(), next..slots.end) {
                Ok(sent) => {
                    let bytes: usize = (next..next + sent).map(|slot| self.batch.datagram(slot).len()).sum();
                    flow.outcome.bytes_in += bytes as u64;
                    next += sent;
                    continue;
                }
                Err(error) => error,
            };
            match connect::udp_cause(error) {
                // The error is that of an earlier datagram: this one was not sent yet.
                Some(cause) if refusals < MOST_REFUSALS => {
                    refusals += 1;
                    self.note_refusal(id, cause);
                    self.relocate(id, now);
                }
                Some(_) | None => {
                    self.drop_datagrams(1, Ending::NotSent);
                    next += 1;
                }
            }
        }
    }

    /// The network or the host of the backend has refused a datagram of this flow.
    pub(super) fn note_refusal(&mut self, id: FlowId, cause: Cause) {
        let worker = self.worker.clone();
        let Some(flow) = self.table.get_mut(id) else { return };
        flow.answers = Answerability::RefusedUs;
        if let Some((pool, index)) = flow.backend() {
            upstream::note_failure(&worker, pool, index, cause);
        }
    }
}
