//! Which backend of a pool takes the next session.
//!
//! The caller says what it knows of every backend ([`Candidate`]) and gets an index. Nothing is allocated
//! on that path.

use std::net::IpAddr;
use std::time::Duration;

use smallvec::SmallVec;

pub mod maglev;
mod policy;
pub mod rendezvous;
pub mod sticky;

pub use policy::{HashKey, HashKeyError, Policy, PolicyError};
pub use sticky::{StickyKey, StickyTable};

/// What the balancer may know of one backend at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Effective weight in hundredths of the configured one's unit, slow start applied: see
    /// [`slow_start_weight`]. 0 means never.
    pub weight: u32,
    /// Sessions it has now.
    pub in_flight: u32,
    /// The most sessions it may have.
    pub limit: Option<u32>,
    /// Whether health and operator let it take sessions.
    pub available: Availability,
}

impl Candidate {
    fn could_take(&self) -> bool {
        self.available == Availability::Available && self.weight > 0
    }

    fn is_at_limit(&self) -> bool {
        self.limit.is_some_and(|limit| self.in_flight >= limit)
    }

    /// Sessions per weight if it took one more. An idle backend counts as empty whatever its weight, so
    /// that a light one gets its share when there is little to do.
    fn load(&self) -> Load {
        let sessions = if self.in_flight == 0 { 0 } else { u64::from(self.in_flight) + 1 };
        Load { sessions, weight: u64::from(self.weight) }
    }
}

/// Whether a backend may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// It may.
    #[default]
    Available,
    /// It may not: down, ejected, drained.
    Unavailable,
}

/// A fraction, compared without division.
#[derive(Clone, Copy)]
struct Load {
    sessions: u64,
    weight: u64,
}

impl Load {
    fn compare(self, other: Load) -> std::cmp::Ordering {
        // Both sides fit: each factor comes from a u32, or one more than that.
        (self.sessions * other.weight).cmp(&(other.sessions * self.weight))
    }
}

/// What came out of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Take the backend with this index.
    Backend(usize),
    /// Every backend that could take it is at its limit: wait in the queue.
    AllBusy,
    /// No backend can take it, or each that could was tried.
    NoneAvailable,
}

/// The backends that one request has tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried(SmallVec<[u32; 8]>);

impl Tried {
    /// Notes an attempt at the backend with this index.
    pub fn insert(&mut self, backend: usize) {
        if let Ok(backend) = u32::try_from(backend)
            && !self.0.contains(&backend)
        {
            self.0.push(backend);
        }
    }

    /// Whether the backend with this index was tried.
    pub fn contains(&self, backend: usize) -> bool {
        self.0.iter().any(|tried| *tried as usize == backend)
    }

    /// How many were tried.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none was tried.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What must be equal on every worker and every node to send a key to the same place: made once per snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    backends: Vec<Identity>,
    maglev: Option<maglev::Table>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    seed: u64,
    /// Full weight in the unit of [`Candidate::weight`].
    full_weight: u32,
}

impl Identities {
    /// From each backend's address text and configured weight, in the order of the pool.
    pub fn new(policy: Policy, backends: &[(&str, u32)]) -> Self {
        let identity = |(name, weight): &(&str, u32)| Identity {
            seed: backend_identity(name),
            full_weight: weight.saturating_mul(WEIGHT_UNIT),
        };
        Identities {
            backends: backends.iter().map(identity).collect(),
            maglev: (policy == Policy::Maglev).then(|| maglev::Table::new(backends)),
        }
    }

    /// The identity of the backend with this index, as it stands in a [`StickyTable`].
    pub fn identity(&self, backend: usize) -> Option<u64> {
        self.backends.get(backend).map(|identity| identity.seed)
    }

    /// The backend with this identity: where a sticky client goes.
    pub fn find(&self, identity: u64) -> Option<usize> {
        self.backends.iter().position(|backend| backend.seed == identity)
    }
}

/// The identity of a backend: the hash of its address text.
pub fn backend_identity(address: &str) -> u64 {
    hash_bytes(0, address.as_bytes())
}

/// XXH3, 64 bits. Not secret: a client that may choose its key may choose its backend.
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

/// The key of a client, equal for an IPv4 address and its IPv4-mapped IPv6 form.
pub fn client_key(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(v4) => hash_bytes(0, &v4.octets()),
        IpAddr::V6(v6) => hash_bytes(0, &v6.octets()),
    }
}

/// Spreads a 64-bit number over all its bits; every step can be undone, so different numbers stay different.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

/// One configured weight in the unit of [`Candidate::weight`].
pub const WEIGHT_UNIT: u32 = 100;

/// The weight of a backend that has been up for `up_since`, in hundredths: it rises from a tenth to the
/// whole over `window`, and is 0 only if `configured` is.
pub fn slow_start_weight(configured: u32, up_since: Duration, window: Duration) -> u32 {
    let full = configured.saturating_mul(WEIGHT_UNIT);
    if up_since >= window {
        return full;
    }
    let share = 0.1 + 0.9 * (up_since.as_secs_f64() / window.as_secs_f64());
    ((f64::from(full) * share) as u32).max(1).min(full)
}

/// Chooses backends for one pool. Each worker has its own, so nothing is shared while choosing.
#[derive(Clone, Debug)]
pub struct Balancer {
    policy: Policy,
    /// Smooth weighted round robin: how much each backend is owed, in weights.
    credit: Vec<i64>,
    /// Where the search begins when credits are equal.
    phase: usize,
}

impl Balancer {
    /// A balancer for that many backends.
    pub fn new(policy: Policy, backends: usize) -> Self {
        Balancer::with_phase(policy, backends, 0)
    }

    /// As [`Balancer::new`], with the round beginning at another backend. Workers take their number, so
    /// that the first sessions of all workers do not meet at the first backend.
    pub fn with_phase(policy: Policy, backends: usize, phase: usize) -> Self {
        Balancer { policy, credit: vec![0; backends], phase: phase % backends.max(1) }
    }

    /// Chooses.
    ///
    /// - `key`: hash of what [`HashKey`] names; `hash` and `maglev` look at it.
    /// - `tried`: backends that this request has tried already; none of them is chosen again.
    /// - `random`: a fresh random number; `two-choices` looks at it.
    ///
    /// For [`Policy::Sticky`] the caller looks into the [`StickyTable`] first and asks here for new clients.
    pub fn pick(
        &mut self,
        candidates: &[Candidate],
        identities: &Identities,
        key: u64,
        tried: &Tried,
        random: u64,
    ) -> Choice {
        let field = Field { candidates, tried };
        let chosen = match self.policy {
            Policy::RoundRobin => self.next_in_turn(&field, |_| true),
            Policy::LeastConnections | Policy::Sticky => self.least_loaded(&field),
            Policy::TwoChoices => better_of_two(&field, random),
            Policy::Hash => rendezvous_pick(&field, identities, key),
            Policy::Maglev => maglev_pick(&field, identities, key),
        };
        match chosen {
            Some(backend) => Choice::Backend(backend),
            None if field.any_busy() => Choice::AllBusy,
            None => Choice::NoneAvailable,
        }
    }

    /// Smooth weighted round robin among the open candidates that `among` lets through: each gains its
    /// weight, the richest is chosen and pays what all gained. Over one round each is chosen as often as
    /// its weight says.
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

/// The candidates of one choice.
struct Field<'a> {
    candidates: &'a [Candidate],
    tried: &'a Tried,
}

impl<'a> Field<'a> {
    fn is_open(&self, index: usize) -> bool {
        let candidate = &self.candidates[index];
        candidate.could_take() && !candidate.is_at_limit() && !self.tried.contains(index)
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

fn better_of_two(field: &Field<'_>, random: u64) -> Option<usize> {
    let first = draw(field, None, random)?;
    let Some(second) = draw(field, Some(first), mix(random ^ 0x9e37_79b9_7f4a_7c15)) else {
        return Some(first);
    };
    let second_is_better = field.candidates[second].load().compare(field.candidates[first].load()).is_lt();
    Some(if second_is_better { second } else { first })
}

/// A random open candidate by weight, never `except`.
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

/// The backend of the key's slot; if that cannot take it, the key alone goes on by rendezvous, so that the
/// keys of other backends stay. A backend in slow start takes a growing, fixed part of its keys.
fn maglev_pick(field: &Field<'_>, identities: &Identities, key: u64) -> Option<usize> {
    let owner = identities.maglev.as_ref().and_then(|table| table.lookup(key));
    if let Some(owner) = owner
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
