//! Backends of a service, and which of them a new flow gets.
//!
//! A flow's hash is SipHash-2-4 (Aumasson, Bernstein, 2012) of its addresses and ports with a secret key; the slot of the
//! hash in a Maglev table names the backend. Slots of backends that take no new flows go to others one by one, so that no
//! other flow moves. Flows count at their backend; one that is not configured any more is forgotten after its last flow.

use std::collections::HashMap;
use std::hash::Hasher;
use std::net::IpAddr;

use super::packet::{Flow, Mac, Transport};
use super::quic::ServerId;
use super::tunnel::Tunnel;
use crate::balance::hash_bytes;
use crate::balance::maglev::{SLOTS, Substituted, Table};

/// Backends of a service in the kernel, at most. Further ones get no flows.
pub const BACKENDS: usize = 4096;

/// Number of a backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendId(pub(super) u32);

/// Which flows a backend gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// New ones, and its own.
    Open,
    /// Its own.
    Draining,
    /// None.
    Down,
}

/// A backend as configured, with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend<'a> {
    pub name: &'a str,
    pub weight: u32,
    pub standing: Standing,
}

/// A backend as the decision sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendView {
    pub name: String,
    /// `None`: it is not configured any more, and keeps its flows.
    pub standing: Option<Standing>,
    pub weight: u32,
    pub mac: Option<Mac>,
    pub flows: u32,
}

#[derive(Debug)]
struct Slot {
    name: Box<str>,
    weight: u32,
    standing: Standing,
    mac: Option<Mac>,
    tunnel: Option<Tunnel>,
    /// Its number in connection ids of QUIC.
    server_id: Option<ServerId>,
    configured: Configured,
    flows: u32,
    /// Counts the backends that have had this slot.
    turn: u32,
    /// The backend that an earlier process had here, until it is named.
    before: Option<u64>,
    count: Count,
    /// The call of [`Ring::set`] that has named it last.
    named: u64,
}

/// Whether the next count of flows is complete for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Whole,
    /// Nothing of a backend that was removed meanwhile: flows that began behind the place of the count are not in it.
    BegunBefore,
}

impl Slot {
    fn shown(&self) -> &str {
        if self.before.is_some() { "(of an earlier start)" } else { &self.name }
    }
}

/// A backend as a program in the kernel knows it.
pub(super) struct Place {
    pub(super) mac: Option<Mac>,
    pub(super) tunnel: Option<Tunnel>,
    pub(super) standing: Standing,
    pub(super) turn: u32,
    /// What tells it apart in another process.
    pub(super) identity: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Configured {
    Yes,
    /// It is forgotten after its last flow.
    NoMore,
}

#[derive(Debug)]
pub(super) struct Ring {
    key: [u64; 2],
    slots: Vec<Slot>,
    /// Numbers of slots by the names of their backends.
    numbers: HashMap<Box<str>, usize>,
    /// Counts the calls of [`Ring::set`].
    calls: u64,
    /// `None` once it is out of date: it is built for the next new flow, however much has changed until then.
    tables: Option<Tables>,
    /// The last ones before, if they were built of the same `home`.
    earlier: Option<Tables>,
    /// The table in which every configured backend is open; `None` once names or weights have changed.
    home: Option<Table>,
    /// Backends by their numbers in connection ids; `None` once that is out of date.
    ids: Option<HashMap<ServerId, BackendId>>,
    /// Counts the changes of the tables.
    revision: u32,
    counted: Counted,
}

/// Who knows the flows of backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Here,
    /// A program in the kernel: [`Ring::set_flows`] tells later.
    Elsewhere,
}

#[derive(Debug)]
struct Tables {
    now: Substituted,
    /// The one that follows once all Ethernet addresses are known; `None` if they are.
    later: Option<Substituted>,
}

impl Ring {
    pub(super) fn new(key: [u64; 2]) -> Self {
        Self {
            key,
            slots: Vec::new(),
            numbers: HashMap::new(),
            calls: 0,
            tables: None,
            earlier: None,
            home: None,
            ids: None,
            revision: 0,
            counted: Counted::Here,
        }
    }

    fn outdate(&mut self) {
        if let Some(tables) = self.tables.take() {
            self.earlier = Some(tables);
        }
        self.revision = self.revision.wrapping_add(1);
    }

    /// Names or weights have changed.
    fn outdate_all(&mut self) {
        self.outdate();
        (self.earlier, self.home, self.ids) = (None, None, None);
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.get(*self.numbers.get(name)?)
    }

    fn slot_mut(&mut self, name: &str) -> Option<&mut Slot> {
        self.slots.get_mut(*self.numbers.get(name)?)
    }

    pub(super) fn key(&self) -> [u64; 2] {
        self.key
    }

    pub(super) fn set_key(&mut self, key: [u64; 2]) {
        self.key = key;
    }

    pub(super) fn set(&mut self, backends: &[Backend<'_>]) {
        self.calls += 1;
        let (mut standings_differ, mut shares_differ) = (false, false);
        let mut found = 0;
        for &Backend { name, weight, standing } in backends {
            let calls = self.calls;
            let Some(slot) = self.slot_mut(name) else { continue };
            shares_differ |= (slot.weight, slot.configured) != (weight, Configured::Yes);
            standings_differ |= slot.standing != standing;
            (slot.weight, slot.standing, slot.configured) = (weight, standing, Configured::Yes);
            slot.named = calls;
            found += 1;
        }
        for slot in &mut self.slots {
            if slot.configured == Configured::Yes && slot.named != self.calls {
                (slot.configured, shares_differ) = (Configured::NoMore, true);
                if self.counted == Counted::Elsewhere {
                    // It may have flows that are not counted yet.
                    (slot.flows, slot.count) = (slot.flows.max(1), Count::BegunBefore);
                }
            }
        }
        if found < backends.len() {
            self.add(backends);
            shares_differ = true;
        }
        if shares_differ {
            self.outdate_all();
        } else if standings_differ {
            self.outdate();
        }
    }

    /// Gives slots to those that have none.
    fn add(&mut self, backends: &[Backend<'_>]) {
        let before = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((slot.before?, at)));
        let before: HashMap<u64, usize> = before.collect();
        let is_unused = |slot: &Slot| slot.configured == Configured::NoMore && slot.flows == 0;
        let unused: Vec<_> = (0..self.slots.len()).filter(|at| is_unused(&self.slots[*at])).collect();
        let mut unused = unused.into_iter();
        for &Backend { name, weight, standing } in backends {
            if self.numbers.contains_key(name) {
                continue;
            }
            let new = |turn| Slot {
                name: name.into(),
                weight,
                standing,
                mac: None,
                tunnel: None,
                server_id: None,
                configured: Configured::Yes,
                flows: 0,
                turn,
                before: None,
                count: Count::Whole,
                named: self.calls,
            };
            let was_here = identity(name);
            let was_at = before.get(&was_here).copied();
            // Another backend may have got it meanwhile, if it had no flows.
            let was_at = was_at.filter(|at| self.slots[*at].before == Some(was_here));
            let (at, slot) = match was_at.or_else(|| unused.find(|at| is_unused(&self.slots[*at]))) {
                Some(at) => {
                    let slot = &self.slots[at];
                    let new = match was_at {
                        Some(_) => {
                            Slot { mac: slot.mac, tunnel: slot.tunnel, flows: slot.flows, ..new(slot.turn) }
                        }
                        None => new(slot.turn.wrapping_add(1)),
                    };
                    (at, new)
                }
                None => (self.slots.len(), new(0)),
            };
            match self.slots.get_mut(at) {
                Some(place) => {
                    self.numbers.remove(&place.name);
                    *place = slot;
                }
                None => self.slots.push(slot),
            }
            self.numbers.insert(name.into(), at);
        }
    }

    pub(super) fn set_mac(&mut self, name: &str, mac: Mac) -> bool {
        let Some(slot) = self.slot_mut(name) else { return false };
        let before = slot.mac.replace(mac);
        if before.is_none() {
            self.outdate();
        }
        before != Some(mac)
    }

    /// Forgets an Ethernet address that no machine has any more. Returns whether it was known.
    pub(super) fn forget_mac(&mut self, name: &str) -> bool {
        let was_known = self.slot_mut(name).is_some_and(|slot| slot.mac.take().is_some());
        if was_known {
            self.outdate();
        }
        was_known
    }

    pub(super) fn set_tunnel(&mut self, name: &str, tunnel: Option<Tunnel>) {
        if let Some(slot) = self.slot_mut(name) {
            slot.tunnel = tunnel;
        }
    }

    pub(super) fn tunnel(&self, id: BackendId) -> Option<Tunnel> {
        self.slots.get(id.0 as usize)?.tunnel
    }

    pub(super) fn tunnel_of(&self, name: &str) -> Option<Tunnel> {
        self.slot(name)?.tunnel
    }

    pub(super) fn set_server_id(&mut self, name: &str, id: Option<ServerId>) {
        let Some(slot) = self.slot_mut(name) else { return };
        if std::mem::replace(&mut slot.server_id, id) != id {
            self.ids = None;
            self.outdate();
        }
    }

    /// Backends by their numbers in connection ids. One that is configured is before one that is not any more.
    pub(super) fn ids(&mut self) -> &HashMap<ServerId, BackendId> {
        let slots = &self.slots;
        self.ids.get_or_insert_with(|| {
            let of = |configured| {
                let all = slots.iter().enumerate().filter(move |(_, slot)| slot.configured == configured);
                let used = all.filter(|(_, slot)| slot.configured == Configured::Yes || slot.flows > 0);
                used.filter_map(|(at, slot)| Some((slot.server_id?, BackendId(at as u32))))
            };
            of(Configured::NoMore).chain(of(Configured::Yes)).collect()
        })
    }

    /// The backend with this number, if it takes packets of its flows.
    pub(super) fn named(&mut self, id: ServerId) -> Option<BackendId> {
        let backend = *self.ids().get(&id)?;
        self.keeps(backend).then_some(backend)
    }

    /// Withdraws the numbers of backends that are not configured any more and have no flow.
    fn withdraw_ids(&mut self) {
        let is_over = |slot: &&mut Slot| slot.configured == Configured::NoMore && slot.flows == 0;
        let over = self.slots.iter_mut().filter(is_over).filter_map(|slot| slot.server_id.take());
        if over.count() > 0 {
            self.ids = None;
            self.outdate();
        }
    }

    /// Names and weights, of which those that are not configured any more have none.
    fn weights(&self) -> Vec<(&str, u32)> {
        let weight = |slot: &Slot| if slot.configured == Configured::Yes { slot.weight } else { 0 };
        self.slots.iter().map(|slot| (&*slot.name, weight(slot))).collect()
    }

    fn build(&mut self) -> Tables {
        let earlier = self.earlier.take();
        let home = match self.home.take() {
            Some(home) => home,
            None => Table::new(&self.weights()),
        };
        let tables = self.build_of(&home, earlier.as_ref());
        self.home = Some(home);
        tables
    }

    fn build_of(&self, home: &Table, earlier: Option<&Tables>) -> Tables {
        let backends = self.weights();
        // A program in the kernel has places for so many: flows of others go to these.
        let has_place = |at: usize| self.counted == Counted::Here || at < BACKENDS;
        let is_open = |at: usize| self.slots[at].standing == Standing::Open && has_place(at);
        let is_known = |at: usize| self.slots[at].mac.is_some();
        let is_missed = |at: usize| backends[at].1 > 0 && is_open(at) && !is_known(at);
        // What follows is what is now, once there was a time in which all were known.
        let followed = earlier.map(|earlier| earlier.later.as_ref().unwrap_or(&earlier.now));
        let later =
            (0..backends.len()).any(is_missed).then(|| home.with_substitutes(&backends, is_open, followed));
        let is_open_now = |at| is_open(at) && is_known(at);
        let now = home.with_substitutes(&backends, is_open_now, earlier.map(|earlier| &earlier.now));
        Tables { now, later }
    }

    /// The backend of a new flow.
    pub(super) fn lookup(&mut self, flow: &Flow) -> Option<BackendId> {
        let tables = match self.tables.take() {
            Some(tables) => tables,
            None => self.build(),
        };
        let owner = tables.now.table.lookup(self.hash(flow));
        self.tables = Some(tables);
        owner.map(|at| BackendId(at as u32))
    }

    /// The backend of a flow if every configured one took new flows.
    pub(super) fn home(&self, flow: &Flow) -> Option<BackendId> {
        let hash = self.hash(flow);
        let owner = match &self.home {
            Some(home) => home.lookup(hash),
            None => Table::new(&self.weights()).lookup(hash),
        };
        owner.map(|at| BackendId(at as u32))
    }

    pub(super) fn views(&self) -> Vec<BackendView> {
        let used = self.slots.iter().filter(|slot| slot.configured == Configured::Yes || slot.flows > 0);
        let view = |slot: &Slot| BackendView {
            name: slot.shown().to_owned(),
            standing: (slot.configured == Configured::Yes).then_some(slot.standing),
            weight: slot.weight,
            mac: slot.mac,
            flows: slot.flows,
        };
        used.map(view).collect()
    }

    /// Whether the backend that [`Self::lookup`] has found has the flow only until the Ethernet address of another one is
    /// known.
    pub(super) fn stands_in(&self, flow: &Flow, id: BackendId) -> bool {
        let later = self.tables.as_ref().and_then(|tables| tables.later.as_ref());
        later.is_some_and(|later| later.table.lookup(self.hash(flow)) != Some(id.0 as usize))
    }

    pub(super) fn hash(&self, flow: &Flow) -> u64 {
        keyed_hash(self.key, flow)
    }

    /// Whether a backend takes packets of its flows.
    pub(super) fn keeps(&self, id: BackendId) -> bool {
        self.slots.get(id.0 as usize).is_some_and(|slot| slot.standing != Standing::Down)
    }

    pub(super) fn mac(&self, id: BackendId) -> Option<Mac> {
        self.slots.get(id.0 as usize)?.mac
    }

    pub(super) fn mac_of(&self, name: &str) -> Option<Mac> {
        self.slot(name)?.mac
    }

    /// The backend with this Ethernet address.
    pub(super) fn name_at(&self, mac: Mac) -> Option<&str> {
        let mut used = self.slots.iter().filter(|slot| slot.configured == Configured::Yes || slot.flows > 0);
        used.find(|slot| slot.mac == Some(mac)).map(Slot::shown)
    }

    pub(super) fn name(&self, id: BackendId) -> Option<&str> {
        Some(self.slots.get(id.0 as usize)?.shown())
    }

    /// Which backend of its slot this is.
    pub(super) fn turn(&self, id: BackendId) -> u32 {
        self.slots.get(id.0 as usize).map_or(0, |slot| slot.turn)
    }

    pub(super) fn is_turn(&self, id: BackendId, turn: u32) -> bool {
        self.turn(id) == turn && self.keeps(id)
    }

    pub(super) fn join(&mut self, id: BackendId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            slot.flows += 1;
        }
    }

    pub(super) fn leave(&mut self, id: BackendId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            slot.flows = slot.flows.saturating_sub(1);
            if slot.flows == 0 && slot.configured == Configured::NoMore && slot.server_id.is_some() {
                self.withdraw_ids();
            }
        }
    }

    pub(super) fn backends(&self) -> impl Iterator<Item = (BackendId, &str, u32)> {
        let all = self.slots.iter().enumerate().filter(|(_, slot)| slot.before.is_none());
        let used = all.filter(|(_, slot)| slot.configured == Configured::Yes || slot.flows > 0);
        used.map(|(at, slot)| (BackendId(at as u32), &*slot.name, slot.flows))
    }

    pub(super) fn revision(&self) -> u32 {
        self.revision
    }

    /// For each slot of the tables the backend of new flows, and the one that follows once all Ethernet addresses are known.
    pub(super) fn owners(&mut self) -> impl Iterator<Item = [Option<u32>; 2]> {
        let tables = match self.tables.take() {
            Some(tables) => tables,
            None => self.build(),
        };
        let tables: &Tables = self.tables.insert(tables);
        let now = tables.now.table.slots();
        let later = tables.later.as_ref().map_or(now, |later| later.table.slots());
        (0..SLOTS).map(move |slot| [now, later].map(|owners| owners.get(slot).copied()))
    }

    /// Backends by number.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.slots.iter().map(|slot| Place {
            mac: slot.mac,
            tunnel: slot.tunnel,
            standing: slot.standing,
            turn: slot.turn,
            identity: slot.before.unwrap_or_else(|| identity(&slot.name)),
        })
    }

    /// Gives the flows of an earlier process to backends: before the first ones are set.
    pub(super) fn adopt(&mut self, places: impl Iterator<Item = Place>) {
        self.slots = places
            .map(|Place { mac, tunnel, standing, turn, identity }| Slot {
                name: "".into(),
                weight: 0,
                standing,
                mac,
                tunnel,
                server_id: None,
                configured: Configured::NoMore,
                flows: 1,
                turn,
                before: Some(identity),
                count: Count::Whole,
                named: 0,
            })
            .collect();
        self.numbers.clear();
        self.outdate_all();
    }

    /// From now on flows are counted elsewhere.
    pub(super) fn count_elsewhere(&mut self) {
        self.counted = Counted::Elsewhere;
    }

    /// Number of all flows, if a program in the kernel has them.
    pub(super) fn flows_elsewhere(&self) -> Option<usize> {
        let sum = || self.slots.iter().map(|slot| slot.flows as usize).sum();
        (self.counted == Counted::Elsewhere).then(sum)
    }

    /// Numbers of flows by backend. One count begins after the other.
    pub(super) fn set_flows(&mut self, flows: &[u32]) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let counted = flows.get(at).copied().unwrap_or(0);
            let is_free = slot.count == Count::Whole || slot.configured == Configured::Yes;
            (slot.flows, slot.count) = (if is_free { counted } else { counted.max(1) }, Count::Whole);
        }
        self.withdraw_ids();
    }

    /// From now on flows are counted here, and none is known.
    pub(super) fn count_here(&mut self) {
        self.counted = Counted::Here;
        self.outdate();
        self.slots.iter_mut().for_each(|slot| (slot.flows, slot.count) = (0, Count::Whole));
    }
}

/// What tells a backend apart in another process.
fn identity(name: &str) -> u64 {
    // 0 is a place that was never used.
    hash_bytes(0, name.as_bytes()).max(1)
}

/// SipHash-2-4 of the addresses and ports of a flow.
pub(super) fn keyed_hash(key: [u64; 2], flow: &Flow) -> u64 {
    #[expect(
        deprecated,
        reason = "it is SipHash-2-4 with our key for all time; std may choose another algorithm for its successor"
    )]
    let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
    for (ip, port) in [(flow.client, flow.client_port), (flow.vip, flow.port)] {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        hasher.write(&ip.octets());
        hasher.write(&port.to_be_bytes());
    }
    hasher.write(&[match flow.transport {
        Transport::Tcp => super::packet::TCP,
        Transport::Udp => super::packet::UDP,
    }]);
    hasher.finish()
}
