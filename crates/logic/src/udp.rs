//! Flows of a UDP listener: which datagrams of clients belong together, and how long.
//!
//! UDP has no connections, and source addresses can be forged. So the table is bounded: when it is full, a new flow
//! takes the place of an unanswered one. A flow that a backend has answered never loses its place to a new client. The
//! caller passes the time and keeps its own data (`T`) in each flow.
//!
//! 1. [`FlowTable::handle_datagram`] finds the flow of a datagram, or says what a new one would cost.
//! 2. [`FlowTable::insert`] adds the flow once the caller has a backend for it.
//! 3. [`FlowTable::handle_reply`] counts a reply of the backend, and says whether it was the last one.
//! 4. [`FlowTable::poll_timeout`] and [`FlowTable::expire`] end idle flows (`crates/logic/src/udp/wheel.rs`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::balance::{Availability, StickyKey};

mod chain;
mod wheel;

use chain::{Chain, Links};
use wheel::Wheel;

/// Identity of a flow on one listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub client: SocketAddr,
    /// Our address to which the client sent; `None` if the socket has only one.
    pub local: Option<IpAddr>,
}

/// Number of a flow in its table. It is used again after the flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u32);

impl FlowId {
    pub fn number(self) -> u32 {
        self.0
    }

    /// Makes an id from [`Self::number`]; the flow may have ended.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Replies that a backend sends for each datagram of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Any number: a flow ends when it is idle.
    Any,
    /// This number: a flow ends with the last reply that is due, or when it is idle. With 0 no reply is expected.
    Exactly(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Largest number of flows.
    pub flows: usize,
    /// Largest number of flows of one source.
    pub per_source: usize,
    /// All IPv6 addresses with this prefix length are one source.
    pub ipv6_prefix: u8,
    /// Time without a datagram in either direction after which a flow ends.
    pub idle: Duration,
    pub replies: Replies,
}

/// What a datagram of a client meets in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It belongs to this flow, which now counts it.
    Known(FlowId),
    /// It would begin a flow, for which there is room.
    New,
    /// It would begin a flow, for which an unanswered one must end.
    NewInPlaceOf(FlowId),
    Refused(Refused),
}

text::meanings! {
    /// Why a datagram begins no flow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Refused {
        /// `max-flows` is reached, and a backend has answered all of these flows: the datagram was dropped.
        Table = "flows-full",
        /// The source has `flows-per-source` flows, and a backend has answered all of them: the datagram was dropped.
        Source = "source-flows-full",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No backend has replied.
    Unanswered,
    Answered,
}

/// What follows a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterReply {
    Continues,
    /// It was the last one that was due: the flow ends.
    Ends,
}

/// Flow that has left the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended<T> {
    pub key: FlowKey,
    pub progress: Progress,
    /// Replies that were still due; 0 with [`Replies::Any`].
    pub due: u32,
    pub value: T,
}

pub struct FlowTable<T> {
    rules: Rules,
    flows: Vec<Option<Flow<T>>>,
    free: Vec<u32>,
    ids: HashMap<FlowKey, u32>,
    sources: HashMap<StickyKey, Source>,
    /// Unanswered flows, the one that was silent for longest first.
    unanswered: Chain,
    unanswered_links: Links,
    /// The same for the flows of each source.
    source_links: Links,
    wheel: Wheel,
}

struct Flow<T> {
    key: FlowKey,
    source: StickyKey,
    last: Instant,
    /// Replies that are due; always 0 with [`Replies::Any`].
    due: u32,
    progress: Progress,
    value: T,
}

#[derive(Default)]
struct Source {
    flows: usize,
    unanswered: Chain,
}

/// Flows above which the memory of an empty table is freed.
const REMEMBERED: usize = 1024;

impl<T> FlowTable<T> {
    pub fn new(rules: Rules, now: Instant) -> Self {
        Self {
            rules,
            flows: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            sources: HashMap::new(),
            unanswered: Chain::default(),
            unanswered_links: Links::default(),
            source_links: Links::default(),
            wheel: Wheel::new(rules.idle, now),
        }
    }

    /// Applies new rules. Flows beyond a smaller limit stay until they end.
    pub fn set_rules(&mut self, rules: Rules, now: Instant) {
        if rules == self.rules {
            return;
        }
        let idle_changed = rules.idle != self.rules.idle;
        if rules.replies == Replies::Any {
            self.flows.iter_mut().flatten().for_each(|flow| flow.due = 0);
        }
        self.rules = rules;
        if idle_changed {
            self.wheel = Wheel::new(rules.idle, now);
            for (id, flow) in (0..).zip(&self.flows) {
                if let Some(flow) = flow {
                    self.wheel.arm(id, flow.last + rules.idle);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Number of sources that have flows.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        self.flows.get_mut(id.0 as usize)?.as_mut().map(|flow| &mut flow.value)
    }

    pub fn key(&self, id: FlowId) -> Option<FlowKey> {
        self.flows.get(id.0 as usize)?.as_ref().map(|flow| flow.key)
    }

    /// Tells whether a flow waits for a reply of its backend: with [`Replies::Any`] only for its first one.
    pub fn is_any_reply_due(&self) -> bool {
        match self.rules.replies {
            Replies::Any => !self.unanswered.is_empty(),
            Replies::Exactly(0) => false,
            Replies::Exactly(_) => self.flows.iter().flatten().any(|flow| flow.due > 0),
        }
    }

    /// A datagram of a client has arrived.
    pub fn handle_datagram(&mut self, key: &FlowKey, now: Instant) -> Arrival {
        let Some(id) = self.ids.get(key).copied() else { return self.admit(key) };
        let replies = self.rules.replies;
        if let Some(flow) = &mut self.flows[id as usize] {
            flow.last = now;
            flow.owe(replies);
            if flow.progress == Progress::Unanswered {
                let source = flow.source;
                self.unanswered_links.remove(&mut self.unanswered, id);
                self.unanswered_links.append(&mut self.unanswered, id);
                if let Some(source) = self.sources.get_mut(&source) {
                    self.source_links.remove(&mut source.unanswered, id);
                    self.source_links.append(&mut source.unanswered, id);
                }
            }
        }
        Arrival::Known(FlowId(id))
    }

    /// Further datagrams of a client have arrived together with the one that [`Self::handle_datagram`] or
    /// [`Self::insert`] knows.
    pub fn handle_further(&mut self, id: FlowId, count: u32) {
        let Replies::Exactly(each) = self.rules.replies else { return };
        if let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) {
            flow.due = flow.due.saturating_add(each.saturating_mul(count));
        }
    }

    fn admit(&self, key: &FlowKey) -> Arrival {
        let source = self.sources.get(&self.source(key));
        if let Some(source) = source.filter(|source| source.flows >= self.rules.per_source) {
            // Only the source itself loses a flow to its own limit.
            let oldest = source.unanswered.first();
            return oldest.map_or(Arrival::Refused(Refused::Source), |id| Arrival::NewInPlaceOf(FlowId(id)));
        }
        if self.len() < self.rules.flows {
            return Arrival::New;
        }
        self.longest_unanswered().map_or(Arrival::Refused(Refused::Table), Arrival::NewInPlaceOf)
    }

    /// The unanswered flow that was silent for longest: the first to end when anything runs out.
    pub fn longest_unanswered(&self) -> Option<FlowId> {
        self.unanswered.first().map(FlowId)
    }

    fn source(&self, key: &FlowKey) -> StickyKey {
        StickyKey::new(key.client.ip(), self.rules.ipv6_prefix)
    }

    /// Adds the flow of a datagram for which [`Self::handle_datagram`] has returned a new [`Arrival`]. The caller has
    /// removed the flow whose place it takes.
    pub fn insert(&mut self, key: FlowKey, value: T, now: Instant) -> FlowId {
        let source = self.source(&key);
        let mut flow = Flow { key, source, last: now, due: 0, progress: Progress::Unanswered, value };
        flow.owe(self.rules.replies);
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            // `rules.flows` is far below the largest number.
            u32::try_from(self.flows.len() - 1).unwrap_or(u32::MAX)
        });
        self.flows[id as usize] = Some(flow);
        self.ids.insert(key, id);
        self.unanswered_links.append(&mut self.unanswered, id);
        let source = self.sources.entry(source).or_default();
        source.flows += 1;
        self.source_links.append(&mut source.unanswered, id);
        self.wheel.arm(id, now + self.rules.idle);
        FlowId(id)
    }

    /// The backend of a flow has replied.
    pub fn handle_reply(&mut self, id: FlowId, now: Instant) -> AfterReply {
        let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) else { return AfterReply::Continues };
        flow.last = now;
        if flow.progress == Progress::Unanswered {
            flow.progress = Progress::Answered;
            let source = flow.source;
            self.unanswered_links.remove(&mut self.unanswered, id.0);
            if let Some(source) = self.sources.get_mut(&source) {
                self.source_links.remove(&mut source.unanswered, id.0);
            }
        }
        let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) else { return AfterReply::Continues };
        match self.rules.replies {
            Replies::Exactly(1..) => {
                flow.due = flow.due.saturating_sub(1);
                if flow.due == 0 { AfterReply::Ends } else { AfterReply::Continues }
            }
            Replies::Any | Replies::Exactly(0) => AfterReply::Continues,
        }
    }

    pub fn remove(&mut self, id: FlowId) -> Option<Ended<T>> {
        let flow = self.flows.get_mut(id.0 as usize)?.take()?;
        self.wheel.disarm(id.0);
        self.ids.remove(&flow.key);
        if flow.progress == Progress::Unanswered {
            self.unanswered_links.remove(&mut self.unanswered, id.0);
        }
        if let Some(source) = self.sources.get_mut(&flow.source) {
            if flow.progress == Progress::Unanswered {
                self.source_links.remove(&mut source.unanswered, id.0);
            }
            source.flows -= 1;
            if source.flows == 0 {
                self.sources.remove(&flow.source);
            }
        }
        self.free.push(id.0);
        if self.is_empty() && self.flows.len() > REMEMBERED {
            self.give_memory_back();
        }
        Some(Ended { key: flow.key, progress: flow.progress, due: flow.due, value: flow.value })
    }

    fn give_memory_back(&mut self) {
        self.flows = Vec::new();
        self.free = Vec::new();
        self.ids = HashMap::new();
        self.sources = HashMap::new();
        self.unanswered_links = Links::default();
        self.source_links = Links::default();
        self.wheel.give_memory_back();
    }

    /// When to call [`Self::expire`] next. `None` without flows.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wheel.poll_timeout()
    }

    /// Removes a flow that is idle for too long, if there is one. To be called until it returns `None`.
    pub fn expire(&mut self, now: Instant) -> Option<Ended<T>> {
        while let Some(id) = self.wheel.take_due(now) {
            let Some(Some(flow)) = self.flows.get(id as usize) else { continue };
            let due = flow.last + self.rules.idle;
            if due <= now {
                return self.remove(FlowId(id));
            }
            // Activity does not touch the wheel: a flow that was active is armed again only when its old time is over.
            self.wheel.arm(id, due);
        }
        None
    }

    /// Removes every flow.
    pub fn drain(&mut self) -> impl Iterator<Item = Ended<T>> + '_ {
        let ids = 0..u32::try_from(self.flows.len()).unwrap_or(u32::MAX);
        ids.filter_map(|id| self.remove(FlowId(id)))
    }
}

impl<T> Flow<T> {
    fn owe(&mut self, replies: Replies) {
        if let Replies::Exactly(each) = replies {
            self.due = self.due.saturating_add(each);
        }
    }
}

/// Where the next datagram of a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// To the backend of the flow.
    Stays,
    /// To another backend, if one takes it.
    Moves,
}

/// Whether the backend of a flow has refused a datagram since its last reply (ICMP port unreachable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerability {
    Open,
    RefusedUs,
}

impl Course {
    /// A flow leaves a backend that is down or has refused it. It stays at one that an operator drains.
    pub fn of(health: Availability, answers: Answerability) -> Self {
        match (health, answers) {
            (Availability::Available, Answerability::Open) => Self::Stays,
            (Availability::Unavailable, _) | (_, Answerability::RefusedUs) => Self::Moves,
        }
    }
}

#[cfg(test)]
mod tests;
