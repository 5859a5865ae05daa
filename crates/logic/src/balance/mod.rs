//! Chooses the backend of a pool for the next session.
//!
//! The caller passes the state of every backend ([`Candidate`]) and gets an index. The choice allocates no memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use smallvec::SmallVec;

mod choose;
pub mod explain;
mod hash;
pub mod latency;
pub mod maglev;
mod policy;
pub mod priority;
pub mod rendezvous;
pub mod sticky;
pub mod turn;
pub mod view;

pub use choose::{
    Admission, AllDown, Candidates, Question, Remembered, Selection, Standing, Unhealthy, candidates, gather,
};
pub use hash::hash_bytes;
use hash::mix;
pub use policy::{ChoosesBy, HashKey, HashKeyError, Policy};
pub use sticky::{Prefixes, StickyKey, StickyTable};

/// State of one backend at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Effective weight, with slow start, in hundredths of a configured weight of 1: see [`slow_start_weight`]. 0
    /// excludes the backend.
    pub weight: u32,
    /// Current sessions.
    pub in_flight: u32,
    /// Maximum number of sessions.
    pub limit: Option<u32>,
    /// Whether health and the operator allow new sessions.
    pub available: Availability,
    /// Response time in microseconds; 0 if it is not known. Used by `peak-ewma`.
    pub latency: u32,
}

impl Candidate {
    fn could_take(&self) -> bool {
        self.available == Availability::Available && self.weight > 0
    }

    /// Returns true if the backend takes another session now.
    pub fn takes(&self) -> bool {
        self.could_take() && !self.is_at_limit()
    }

    fn is_at_limit(&self) -> bool {
        self.limit.is_some_and(|limit| self.in_flight >= limit)
    }

    /// Sessions per weight, counting the new one. An idle backend has load 0 with any weight, so that a backend of low
    /// weight also gets sessions when traffic is low.
    fn load(&self) -> Load {
        let sessions = if self.in_flight == 0 { 0 } else { u64::from(self.in_flight) + 1 };
        Load { sessions, weight: u64::from(self.weight) }
    }

    /// Time that a new session would cost, per weight. A backend whose response time is not known gets one session at a
    /// time, to learn it.
    fn cost(&self) -> Load {
        let latency = match (self.latency, self.in_flight) {
            (0, 0) => 0,
            (0, _) => u32::MAX,
            (known, _) => known,
        };
        // No overflow: both factors have 32 bits.
        let sessions = u64::from(latency) * (u64::from(self.in_flight.min(u32::MAX - 1)) + 1);
        Load { sessions, weight: u64::from(self.weight) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    #[default]
    Available,
    /// The backend is down, ejected or draining.
    Unavailable,
    /// Its access list denies the client.
    Denied,
    /// The backend is half-open and has its `trial-sessions` already.
    OnTrial,
    /// A backend of higher priority has room: see [`priority::keep_lowest`].
    Standby,
}

/// Fraction, compared without division.
#[derive(Clone, Copy)]
struct Load {
    sessions: u64,
    weight: u64,
}

impl Load {
    fn compare(self, other: Load) -> std::cmp::Ordering {
        // No overflow: weights have 32 bits.
        let product = |load: Load, weight: u64| u128::from(load.sessions) * u128::from(weight);
        product(self, other.weight).cmp(&product(other, self.weight))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Index of the chosen backend.
    Backend(usize),
    /// Every suitable backend is at its session limit: the request waits in the queue.
    AllBusy,
    /// No backend is available, or the request has tried all that are.
    NoneAvailable,
}

/// Backends that one request has tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried(SmallVec<[u32; 8]>);

impl Tried {
    /// Records an attempt at the backend with this index.
    pub fn insert(&mut self, backend: usize) {
        if let Ok(backend) = u32::try_from(backend)
            && !self.0.contains(&backend)
        {
            self.0.push(backend);
        }
    }

    pub fn contains(&self, backend: usize) -> bool {
        self.0.iter().any(|tried| *tried as usize == backend)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Data that must be equal on all workers and nodes, so that all map a key to the same backend. Computed once per
/// snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    backends: Vec<Identity>,
    maglev: Option<maglev::Table>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    seed: u64,
    /// Weight without slow start, in the unit of [`Candidate::weight`].
    full_weight: u32,
}

impl Identities {
    /// Computes the identities from each backend's address text and configured weight, in the order of the pool.
    pub fn new(policy: Policy, backends: &[(&str, u32)]) -> Self {
        let identity = |(name, weight): &(&str, u32)| Identity {
            seed: backend_identity(name),
            full_weight: weight.saturating_mul(WEIGHT_UNIT),
        };
        Identities {
            backends: backends.iter().map(identity).collect(),
            maglev: match policy {
                Policy::Maglev => Some(maglev::Table::new(backends)),
                Policy::RoundRobin
                | Policy::LeastConnections
                | Policy::TwoChoices
                | Policy::PeakEwma
                | Policy::Hash
                | Policy::Sticky => None,
            },
        }
    }

    /// Identity of the backend with this index, as stored in a [`StickyTable`].
    pub fn identity(&self, backend: usize) -> Option<u64> {
        self.backends.get(backend).map(|identity| identity.seed)
    }

    /// Index of the backend with this identity, for a sticky client.
    pub fn find(&self, identity: u64) -> Option<usize> {
        self.backends.iter().position(|backend| backend.seed == identity)
    }
}

/// Hash of a backend's address text.
pub fn backend_identity(address: &str) -> u64 {
    hash_bytes(0, address.as_bytes())
}

/// Key of a client; equal for an IPv4 address and its IPv4-mapped IPv6 form.
pub fn client_key(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => hash_bytes(0, &v4.octets()),
        IpAddr::V6(v6) => hash_bytes(0, &v6.octets()),
    }
}

/// A configured weight of 1 in the unit of [`Candidate::weight`].
pub const WEIGHT_UNIT: u32 = 100;

/// Weight in hundredths of a backend that has been up for `up_since`. The weight rises from a tenth to its full value
/// over `window`; it is 0 only if `configured` is 0.
pub fn slow_start_weight(configured: u32, up_since: Duration, window: Duration) -> u32 {
    let full = configured.saturating_mul(WEIGHT_UNIT);
    if up_since >= window {
        return full;
    }
    let share = 0.1 + 0.9 * (up_since.as_secs_f64() / window.as_secs_f64());
    ((f64::from(full) * share) as u32).max(1).min(full)
}

/// Chooses backends for one pool. Each worker has its own balancer, so the choice needs no shared state.
#[derive(Clone, Debug)]
pub struct Balancer {
    policy: Policy,
    /// Smooth weighted round robin: credit of each backend, in weights.
    credit: Vec<i64>,
    /// Index at which the search begins; decides between equal credits.
    phase: usize,
    bound: Option<Bound>,
}

/// How much more sessions than its share a backend may have before keys of `hash` and `maglev` go to others: consistent
/// hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2016).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Percent of the share; more than 100, so that there is always a backend below it.
    pub percent: u32,
}

impl Balancer {
    pub fn new(policy: Policy, backends: usize) -> Self {
        Balancer::with_phase(policy, backends, 0)
    }

    /// Like [`Balancer::new`], but round robin begins at backend `phase`. Each worker passes its number, so that the
    /// first sessions of all workers do not go to the same backend.
    pub fn with_phase(policy: Policy, backends: usize, phase: usize) -> Self {
        Balancer { policy, credit: vec![0; backends], phase: phase % backends.max(1), bound: None }
    }

    /// Sets the bound of the load for `hash` and `maglev`.
    #[must_use]
    pub fn bounded(self, bound: Option<Bound>) -> Self {
        Balancer { bound, ..self }
    }

    /// Goes on where `before` was: backends that stay keep their turns, and a new one starts in the middle: neither
    /// ahead of the others nor owed turns. `then` are the backends of `before`, `now` those of this one.
    #[must_use]
    pub fn after(mut self, before: &Balancer, then: &Identities, now: &Identities) -> Self {
        let credit = then.backends.iter().zip(&before.credit).map(|(one, credit)| (one.seed, *credit));
        let known: HashMap<u64, i64> = credit.collect();
        let stay: Vec<Option<i64>> = now.backends.iter().map(|one| known.get(&one.seed).copied()).collect();
        let count = i64::try_from(stay.iter().flatten().count()).unwrap_or(i64::MAX);
        // Those that have left may have taken credit with them, or left debts: 0 is the middle again.
        let middle = stay.iter().flatten().sum::<i64>().checked_div(count).unwrap_or(0);
        for (credit, stays) in self.credit.iter_mut().zip(&stay) {
            *credit = stays.map_or(0, |kept| kept - middle);
        }
        self.phase = before.phase % self.credit.len().max(1);
        self
    }

    /// Chooses a backend.
    ///
    /// - `key`: hash of the [`HashKey`]; used by `hash` and `maglev`.
    /// - `tried`: backends that this request has already tried; they are not chosen again.
    /// - `random`: a new random number; used by `two-choices` and `peak-ewma`.
    ///
    /// For [`Policy::Sticky`] the caller looks in the [`StickyTable`] first, and calls this only for new clients.
    pub fn pick(
        &mut self,
        candidates: &[Candidate],
        identities: &Identities,
        key: u64,
        tried: &Tried,
        random: u64,
    ) -> Choice {
        let field = Field { candidates, tried, ceiling: None };
        let chosen = match self.policy {
            Policy::RoundRobin => self.next_in_turn(&field, |_| true),
            Policy::LeastConnections | Policy::Sticky => self.least_loaded(&field),
            Policy::TwoChoices => better_of_two(&field, random, Candidate::load),
            Policy::PeakEwma => better_of_two(&field, random, Candidate::cost),
            Policy::Hash => field.within(self.bound, |field| rendezvous_pick(field, identities, key)),
            Policy::Maglev => field.within(self.bound, |field| maglev_pick(field, identities, key)),
        };
        match chosen {
            Some(backend) => Choice::Backend(backend),
            None if field.any_busy() => Choice::AllBusy,
            None => Choice::NoneAvailable,
        }
    }

    /// Smooth weighted round robin among the open candidates that `among` accepts: each candidate's credit grows by its
    /// weight; the one with the highest credit is chosen and loses the sum of all weights. Over one round each is
    /// chosen in proportion to its weight.
    fn next_in_turn(&mut self, field: &Field<'_>, among: impl Fn(&Candidate) -> bool) -> Option<usize> {
        let backends = field.candidates.len();
        if self.credit.len() != backends {
            self.credit.resize(backends, 0);
        }
        let mut total = 0;
        let mut best = None;
        let order = (self.phase.min(backends)..backends).chain(0..self.phase.min(backends));
        for index in order {
            let candidate = &field.candidates[index];
            if !field.is_open(index) || !among(candidate) {
                continue;
            }
            let weight = i64::from(candidate.weight);
            total += weight;
            self.credit[index] += weight;
            if best.is_none_or(|best: usize| self.credit[index] > self.credit[best]) {
                best = Some(index);
            }
        }
        if let Some(best) = best {
            self.credit[best] -= total;
        }
        best
    }

    fn least_loaded(&mut self, field: &Field<'_>) -> Option<usize> {
        let lowest = field.open().map(|(_, candidate)| candidate.load()).min_by(|a, b| a.compare(*b))?;
        self.next_in_turn(field, |candidate| candidate.load().compare(lowest).is_eq())
    }
}

/// Candidates of one choice.
struct Field<'a> {
    candidates: &'a [Candidate],
    tried: &'a Tried,
    ceiling: Option<Ceiling>,
}

/// Sessions and weights of all candidates, with the new session, of which each may have its bounded share.
#[derive(Clone, Copy)]
struct Ceiling {
    bound: Bound,
    sessions: u64,
    weight: u64,
}

impl Ceiling {
    fn of(bound: Bound, candidates: &[Candidate]) -> Self {
        let able = || candidates.iter().filter(|candidate| candidate.could_take());
        Ceiling {
            bound,
            sessions: able().map(|candidate| u64::from(candidate.in_flight)).sum::<u64>() + 1,
            weight: able().map(|candidate| u64::from(candidate.weight)).sum(),
        }
    }

    fn is_reached(self, candidate: &Candidate) -> bool {
        // Not above the share, rounded up: in_flight < ceil(percent / 100 * sessions * own weight / all weights).
        let own = u128::from(candidate.in_flight) * 100 * u128::from(self.weight);
        own >= u128::from(self.bound.percent) * u128::from(self.sessions) * u128::from(candidate.weight)
    }
}

impl<'a> Field<'a> {
    fn is_open(&self, index: usize) -> bool {
        let candidate = &self.candidates[index];
        candidate.could_take()
            && !candidate.is_at_limit()
            && !self.tried.contains(index)
            && !self.ceiling.is_some_and(|ceiling| ceiling.is_reached(candidate))
    }

    /// Picks among the candidates below the bound; among all, if every one of them was tried or is at its limit.
    fn within(&self, bound: Option<Bound>, pick: impl Fn(&Self) -> Option<usize>) -> Option<usize> {
        let Some(bound) = bound else { return pick(self) };
        let ceiling = Ceiling::of(bound, self.candidates);
        pick(&Field { ceiling: Some(ceiling), ..*self }).or_else(|| pick(self))
    }

    fn open(&self) -> impl Iterator<Item = (usize, &'a Candidate)> {
        self.candidates.iter().enumerate().filter(|(index, _)| self.is_open(*index))
    }

    fn any_busy(&self) -> bool {
        let busy = |(index, candidate): (usize, &Candidate)| {
            candidate.could_take() && candidate.is_at_limit() && !self.tried.contains(index)
        };
        self.candidates.iter().enumerate().any(busy)
    }
}

fn better_of_two(field: &Field<'_>, random: u64, load: fn(&Candidate) -> Load) -> Option<usize> {
    let first = draw(field, None, random)?;
    let Some(second) = draw(field, Some(first), mix(random ^ 0x9e37_79b9_7f4a_7c15)) else {
        return Some(first);
    };
    let of = |index: usize| load(&field.candidates[index]);
    let second_is_better = of(second).compare(of(first)).is_lt();
    Some(if second_is_better { second } else { first })
}

/// Chooses a random open candidate in proportion to weight, never `except`.
fn draw(field: &Field<'_>, except: Option<usize>, random: u64) -> Option<usize> {
    let open = || field.open().filter(|(index, _)| Some(*index) != except);
    let total: u64 = open().map(|(_, candidate)| u64::from(candidate.weight)).sum();
    let mut ticket = scale(random, total);
    for (index, candidate) in open() {
        match ticket.checked_sub(u64::from(candidate.weight)) {
            None => return Some(index),
            Some(rest) => ticket = rest,
        }
    }
    None
}

/// Scales a random number to `0..range`.
fn scale(random: u64, range: u64) -> u64 {
    ((u128::from(random) * u128::from(range)) >> 64) as u64
}

fn rendezvous_pick(field: &Field<'_>, identities: &Identities, key: u64) -> Option<usize> {
    rendezvous::highest(
        key,
        field.open().map(|(index, candidate)| {
            let seed = identities.identity(index).unwrap_or(index as u64);
            (index, seed, candidate.weight)
        }),
    )
}

/// Backend that has the highest score for the key while all backends are up.
fn rendezvous_owner(identities: &Identities, key: u64, backends: usize) -> Option<usize> {
    let all = identities.backends.iter().take(backends).enumerate();
    rendezvous::highest(key, all.map(|(index, one)| (index, one.seed, one.full_weight)))
}

fn maglev_owner(identities: &Identities, key: u64) -> Option<usize> {
    identities.maglev.as_ref().and_then(|table| table.lookup(key))
}

/// Returns the backend of the key's slot. If it cannot take the session, only this key moves, by rendezvous hashing;
/// keys of other backends stay. A backend in slow start takes a growing, fixed part of its keys.
fn maglev_pick(field: &Field<'_>, identities: &Identities, key: u64) -> Option<usize> {
    if let Some(owner) = maglev_owner(identities, key)
        && owner < field.candidates.len()
        && field.is_open(owner)
    {
        let identity = identities.backends[owner];
        let threshold = scale(mix(key ^ identity.seed), u64::from(identity.full_weight));
        if threshold < u64::from(field.candidates[owner].weight) {
            return Some(owner);
        }
    }
    rendezvous_pick(field, identities, key)
}

#[cfg(test)]
mod tests;
