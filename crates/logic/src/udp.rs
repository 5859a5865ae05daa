//! Flows of a UDP listener: which datagrams of clients belong together, and how long.
//!
//! UDP has no connections, and source addresses can be forged. So the table is bounded: when it is full, a new flow
//! takes the place of one whose client has not spoken after a reply, first of those without any reply. While others
//! can give way, those that began to wait for a reply less than 500 ms ago do not: else the new flows of a flood would
//! end those of clients before their replies come. They may be a quarter of all flows. A flow whose client has spoken
//! after a reply never loses its place to a new client. The caller passes the time and keeps its own data (`T`) in each
//! flow.
//!
//! 1. [`FlowTable::handle_datagram`] finds the flow of a datagram, or says what a new one would cost
//!    (`crates/logic/src/udp/place.rs`).
//! 2. [`FlowTable::insert`] adds the flow once the caller has a backend for it.
//! 3. [`FlowTable::handle_replies`] counts replies of the backend, and says whether the last one was among them.
//! 4. [`FlowTable::poll_timeout`] and [`FlowTable::expire`] end idle flows (`crates/logic/src/udp/wheel.rs`).
//!
//! `crates/logic/src/udp/due.rs` counts the replies that a flow waits for.
//! `crates/logic/src/udp/course.rs` decides whether a flow leaves its backend, `crates/logic/src/udp/own.rs` whether a
//! source is one of our own listeners.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::balance::{Prefixes, StickyKey};

pub(crate) mod chain;
mod course;
mod due;
mod own;
mod place;
mod wheel;

use chain::{Chain, Links};
use due::{ASKED_AGAIN, Due};
use wheel::Wheel;

pub use course::{Answers, Course, Hearing, Membership};
pub use own::{Listening, Source};
pub use place::Place;

/// Identity of a flow on one listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Sender of the datagrams, which gets the replies: the client, or a proxy.
    pub sender: SocketAddr,
    /// Our address to which they were sent; `None` if the socket has only one.
    pub local: Option<IpAddr>,
    /// What the sender's PROXY headers tell.
    pub told: Option<Told>,
}

/// Client and destination of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    pub client: SocketAddr,
    pub destination: SocketAddr,
}

impl FlowKey {
    pub fn client(&self) -> SocketAddr {
        self.told.map_or(self.sender, |told| told.client)
    }
}

/// Number of a flow in its table. It is used again after the flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u32);

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
    /// All addresses of a network with one of these prefixes are one source.
    pub sources: Prefixes,
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
    /// It would begin a flow, for which this one must end.
    NewInPlaceOf(FlowId),
    /// It belongs to this flow, whose backend owes replies and has sent none for so long that the flow ends. It then
    /// begins a new one, for which there is room.
    NewAfter(FlowId),
    Refused(Refused),
}

text::meanings! {
    /// Why a datagram begins no flow.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Refused {
        /// `max-flows` is reached, and the clients of all these flows have spoken after a reply: the datagram was dropped.
        Table = "flows-full",
        /// The source has `flows-per-source` flows, all of whose clients have spoken after a reply: the datagram was dropped.
        Source = "source-flows-full",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No backend has replied.
    Unanswered,
    /// A backend has replied, and the client has sent nothing since: its address may be forged.
    Answered,
    /// The client has sent something after a reply.
    Established,
}

/// What follows a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterReply {
    Continues,
    /// It was the last one that was due: the flow ends.
    Ends,
}

/// Time for which a flow without a reply keeps its place while flows that were answered can give way.
const GRACE: Duration = Duration::from_millis(500);

/// Part of the flows that may have that time.
const PART_IN_GRACE: usize = 4;

/// Flow that has left the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended<T> {
    pub key: FlowKey,
    pub progress: Progress,
    /// Replies that have not come; 0 with [`Replies::Any`].
    pub missing: u32,
    pub value: T,
}

pub struct FlowTable<T> {
    rules: Rules,
    flows: Vec<Option<Flow<T>>>,
    free: Vec<u32>,
    ids: HashMap<FlowKey, u32>,
    sources: HashMap<StickyKey, FlowsOfSource>,
    yielding: Yielding,
    links: Links,
    /// Links of the flows of each source.
    source_links: Links,
    wheel: Wheel,
}

struct Flow<T> {
    key: FlowKey,
    source: StickyKey,
    last: Instant,
    /// Replies that are due; none with [`Replies::Any`].
    due: Due,
    progress: Progress,
    value: T,
}

#[derive(Default)]
struct FlowsOfSource {
    flows: usize,
    yielding: Yielding,
}

/// Flows that may lose their place, of each kind the one that was silent for longest first.
#[derive(Default)]
struct Yielding {
    unanswered: Chain,
    answered: Chain,
}

impl Yielding {
    /// The first one among all `flows`. `is_in_grace` tells whether one waits for a reply since less than `GRACE`.
    fn first(&self, flows: usize, is_in_grace: impl Fn(u32) -> bool) -> Option<u32> {
        let (unanswered, answered) = (self.unanswered.first(), self.answered.first());
        let is_part_small = self.unanswered.len() <= flows / PART_IN_GRACE;
        match unanswered {
            // It was silent for longest: all that wait are in grace.
            Some(id) if answered.is_some() && is_part_small && is_in_grace(id) => answered,
            _ => unanswered.or(answered),
        }
    }

    fn of(&mut self, progress: Progress) -> Option<&mut Chain> {
        match progress {
            Progress::Unanswered => Some(&mut self.unanswered),
            Progress::Answered => Some(&mut self.answered),
            Progress::Established => None,
        }
    }
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
            yielding: Yielding::default(),
            links: Links::default(),
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
            self.flows.iter_mut().flatten().for_each(|flow| flow.due = Due::new(now));
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

    /// Number of flows that it has room for.
    pub fn room(&self) -> usize {
        self.rules.flows.saturating_sub(self.len())
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Places of the table, taken and free.
    pub fn places(&self) -> usize {
        self.flows.len()
    }

    /// The flow at a place, with the time of its last datagram.
    pub fn at(&self, place: usize) -> Option<(FlowId, &FlowKey, Instant, &T)> {
        let flow = self.flows.get(place)?.as_ref()?;
        Some((FlowId(u32::try_from(place).ok()?), &flow.key, flow.last, &flow.value))
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
            Replies::Any => !self.yielding.unanswered.is_empty(),
            Replies::Exactly(0) => false,
            Replies::Exactly(_) => self.flows.iter().flatten().any(|flow| flow.due.count() > 0),
        }
    }

    /// A datagram of a client has arrived.
    pub fn handle_datagram(&mut self, key: &FlowKey, now: Instant) -> Arrival {
        let Some(id) = self.ids.get(key).copied() else { return self.admit(key, now) };
        let replies = self.rules.replies;
        if let Some(flow) = &mut self.flows[id as usize] {
            if flow.due.is_overdue(now) {
                return Arrival::NewAfter(FlowId(id));
            }
            flow.last = now;
            flow.owe(replies, now);
            let then = match flow.progress {
                Progress::Unanswered => Progress::Unanswered,
                Progress::Answered | Progress::Established => Progress::Established,
            };
            self.advance(id, then);
        }
        Arrival::Known(FlowId(id))
    }

    /// Puts a flow behind the others of its progress.
    fn advance(&mut self, id: u32, to: Progress) {
        let Some(Some(flow)) = self.flows.get_mut(id as usize) else { return };
        let from = std::mem::replace(&mut flow.progress, to);
        if from == Progress::Established && to == Progress::Established {
            return;
        }
        self.links.move_between(id, &mut self.yielding, from, to);
        if let Some(source) = self.sources.get_mut(&flow.source) {
            self.source_links.move_between(id, &mut source.yielding, from, to);
        }
    }

    /// Further datagrams of a client have arrived together with the one that [`Self::handle_datagram`] or
    /// [`Self::insert`] knows.
    pub fn handle_further(&mut self, id: FlowId, count: u32) {
        let Replies::Exactly(each) = self.rules.replies else { return };
        if let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) {
            flow.due.add_further(each.saturating_mul(count));
        }
    }

    fn admit(&self, key: &FlowKey, now: Instant) -> Arrival {
        let source = self.sources.get(&self.source(key));
        if let Some(source) = source.filter(|source| source.flows >= self.rules.per_source) {
            // Only the source itself loses a flow to its own limit.
            let oldest = source.yielding.first(source.flows, |id| self.is_in_grace(id, now));
            return oldest.map_or(Arrival::Refused(Refused::Source), |id| Arrival::NewInPlaceOf(FlowId(id)));
        }
        if self.len() < self.rules.flows {
            return Arrival::New;
        }
        self.first_to_yield(now).map_or(Arrival::Refused(Refused::Table), Arrival::NewInPlaceOf)
    }

    /// The first flow to end when anything runs out: the one that was silent for longest among those without a reply,
    /// then among those whose client has not spoken after a reply. Those that have just begun to wait for a reply come last,
    /// if they are few.
    pub fn first_to_yield(&self, now: Instant) -> Option<FlowId> {
        self.yielding.first(self.len(), |id| self.is_in_grace(id, now)).map(FlowId)
    }

    fn is_in_grace(&self, id: u32, now: Instant) -> bool {
        let flow = self.flows.get(id as usize).and_then(Option::as_ref);
        flow.is_some_and(|flow| now.saturating_duration_since(flow.last) < GRACE)
    }

    fn source(&self, key: &FlowKey) -> StickyKey {
        StickyKey::in_network(key.client().ip(), self.rules.sources)
    }

    /// Adds the flow of a datagram for which [`Self::handle_datagram`] has returned a new [`Arrival`]. The caller has
    /// removed the flow whose place it takes.
    pub fn insert(&mut self, key: FlowKey, value: T, now: Instant) -> FlowId {
        let source = self.source(&key);
        let mut flow =
            Flow { key, source, last: now, due: Due::new(now), progress: Progress::Unanswered, value };
        flow.owe(self.rules.replies, now);
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            // `rules.flows` is far below the largest number.
            u32::try_from(self.flows.len() - 1).unwrap_or(u32::MAX)
        });
        self.flows[id as usize] = Some(flow);
        self.ids.insert(key, id);
        self.links.append(&mut self.yielding.unanswered, id);
        let source = self.sources.entry(source).or_default();
        source.flows += 1;
        self.source_links.append(&mut source.yielding.unanswered, id);
        self.wheel.arm(id, now + self.rules.idle);
        FlowId(id)
    }

    /// Largest number of replies after which the flow ends; at least one.
    pub fn most_replies(&self, id: FlowId) -> usize {
        match (self.rules.replies, self.flows.get(id.0 as usize)) {
            (Replies::Exactly(1..), Some(Some(flow))) => flow.due.count().max(1) as usize,
            _ => usize::MAX,
        }
    }

    /// The backend of a flow has sent `count` replies.
    pub fn handle_replies(&mut self, id: FlowId, count: u32, now: Instant) -> AfterReply {
        let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) else { return AfterReply::Continues };
        flow.last = now;
        let is_last = match self.rules.replies {
            Replies::Exactly(1..) => {
                flow.due.take(count);
                flow.due.count() == 0
            }
            Replies::Any | Replies::Exactly(0) => false,
        };
        let then = match flow.progress {
            Progress::Unanswered | Progress::Answered => Progress::Answered,
            Progress::Established => Progress::Established,
        };
        self.advance(id.0, then);
        if is_last { AfterReply::Ends } else { AfterReply::Continues }
    }

    /// The backend has refused a datagram of a flow, so it replies to none that it has got. Where replies are due, the flow
    /// waits for the client to ask again, which takes it to another backend, and not for `idle`.
    pub fn handle_refusal(&mut self, id: FlowId, now: Instant) {
        let Replies::Exactly(1..) = self.rules.replies else { return };
        let Some(Some(flow)) = self.flows.get_mut(id.0 as usize) else { return };
        let end = now + ASKED_AGAIN;
        if let Some(last) = end.checked_sub(self.rules.idle).filter(|last| *last < flow.last) {
            flow.last = last;
            self.wheel.arm(id.0, end);
        }
    }

    pub fn remove(&mut self, id: FlowId) -> Option<Ended<T>> {
        let flow = self.flows.get_mut(id.0 as usize)?.take()?;
        self.wheel.disarm(id.0);
        self.ids.remove(&flow.key);
        if let Some(chain) = self.yielding.of(flow.progress) {
            self.links.remove(chain, id.0);
        }
        if let Some(source) = self.sources.get_mut(&flow.source) {
            if let Some(chain) = source.yielding.of(flow.progress) {
                self.source_links.remove(chain, id.0);
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
        Some(Ended { key: flow.key, progress: flow.progress, missing: flow.due.missing(), value: flow.value })
    }

    fn give_memory_back(&mut self) {
        self.flows = Vec::new();
        self.free = Vec::new();
        self.ids = HashMap::new();
        self.sources = HashMap::new();
        self.links = Links::default();
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
    fn owe(&mut self, replies: Replies, now: Instant) {
        if let Replies::Exactly(each @ 1..) = replies {
            self.due.add(each, now);
        }
    }
}

impl Links {
    /// Moves a flow to the end of the list of its new progress.
    fn move_between(&mut self, id: u32, yielding: &mut Yielding, from: Progress, to: Progress) {
        if let Some(chain) = yielding.of(from) {
            self.remove(chain, id);
        }
        if let Some(chain) = yielding.of(to) {
            self.append(chain, id);
        }
    }
}

#[cfg(test)]
mod tests;
