//! The backends of a service: which of them take flows, their Ethernet addresses, and what is counted for them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use logic::balance::{Admission, Availability, Unhealthy};
use logic::dsr::{Backend, BackendId, Director, Standing};
use logic::health::State as HealthState;
use state::BackendState;

use super::Server;
use crate::snapshot::PoolPlan;
use crate::upstream;

/// Looks at an Ethernet address before its absence is told, and it is withdrawn: a machine that is there answers at once.
pub(super) const PATIENCE: u32 = 30;

impl Server {
    pub(super) fn pool(&self) -> Option<Arc<PoolPlan>> {
        Some(self.known.pool(self.settings()?.pool).clone())
    }

    /// Tells the decision which backends there are, and what they take.
    pub(super) fn set_backends(&mut self, now: Instant) {
        let Some(pool) = self.pool() else { return };
        let (probes, claims) = (&self.probes, &self.claims.changes);
        // One that does not accept the VIP is as one whose checks fail.
        let standings = || {
            upstream::standings(&pool, None, now).zip(&pool.backends).map(move |(mut one, plan)| {
                let name = &*plan.state.name;
                if probes.is_down(name) {
                    one.health = HealthState::Down;
                } else if one.health == HealthState::Down && claims.is_defended(name) && probes.is_up(name) {
                    // The kernel sends the check to the machine that claims the address.
                    one.health = HealthState::Up;
                }
                one
            })
        };
        let (_, unhealthy) = logic::balance::candidates(standings, pool.settings.all_down);
        let backends: Vec<_> = pool
            .backends
            .iter()
            .zip(standings())
            .map(|(plan, one)| {
                let healthy = one.health.availability() == Availability::Available;
                let standing = match one.admission {
                    _ if !healthy && unhealthy == Unhealthy::Excluded => Standing::Down,
                    Admission::Ready => Standing::Open,
                    Admission::Draining => Standing::Draining,
                };
                Backend { name: &plan.state.name, weight: one.full_weight, standing }
            })
            .collect();
        self.director.set_backends(&backends);
        let is_named = self.director.quic_id().is_some();
        for plan in &pool.backends {
            let id = plan.settings.quic_id.filter(|_| is_named).map(|(id, _)| id);
            self.director.set_server_id(&plan.state.name, id);
        }
        for name in self.gauges.follow(&pool, &self.director) {
            self.claims.changes.forget(&name);
            let subject = missing_subject(&self.key.listener, &name);
            self.worker.front.state.forget_degraded(|degraded| degraded == subject);
        }
    }
}

pub(super) fn missing_subject(listener: &str, backend: &str) -> String {
    format!("listener.{listener}.{backend}")
}

/// What is counted for the backends.
#[derive(Default)]
pub(super) struct Gauges {
    pub(super) of: HashMap<Arc<str>, Gauge>,
    /// The pool that they are of.
    pool: Option<Arc<PoolPlan>>,
    /// What is not counted yet.
    tallies: Vec<Tally>,
    /// Places in `tallies` by the numbers of backends.
    places: Vec<Option<usize>>,
}

pub(super) struct Gauge {
    state: Arc<BackendState>,
    /// Flows that [`BackendState::in_flight`] has from here.
    shown: u32,
    /// Look-ups in a row that found no Ethernet address of this backend. Starts at 1: none is known yet.
    pub(super) missing: u32,
    /// The next machine on the way to it.
    pub(super) machine: Option<IpAddr>,
    /// When it was asked last because the backend fails, and how often.
    pub(super) asked: Option<(Instant, u32)>,
    /// The kernel has told of a change.
    pub(super) is_changed: bool,
    /// Packets to it, and their bytes.
    packets: u64,
    bytes: u64,
}

/// Frames for one backend since they were published last.
pub(super) struct Tally {
    pub(super) backend: BackendId,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Flows that began.
    pub(super) began: u64,
}

impl Gauges {
    /// Names of all backends that are counted for.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.of.keys()
    }

    /// Begins to count for the backends of a pool, and ends for those that are not in it and have no flow. Returns the names
    /// of those that are not looked for any more.
    fn follow(&mut self, pool: &Arc<PoolPlan>, director: &Director) -> Vec<Arc<str>> {
        let is_same = self.pool.as_ref().is_some_and(|known| Arc::ptr_eq(known, pool));
        if is_same && self.of.len() == pool.backends.len() {
            return Vec::new();
        }
        self.pool = Some(pool.clone());
        for plan in &pool.backends {
            let same =
                self.of.get(&plan.state.name).is_some_and(|gauge| Arc::ptr_eq(&gauge.state, &plan.state));
            if !same {
                let state = plan.state.clone();
                let gauge = Gauge {
                    state,
                    shown: 0,
                    missing: 1,
                    machine: None,
                    asked: None,
                    is_changed: false,
                    packets: 0,
                    bytes: 0,
                };
                self.of.insert(plan.state.name.clone(), gauge);
            }
        }
        if self.of.len() == pool.backends.len() {
            return Vec::new();
        }
        let kept: HashSet<&str> = director.backends().map(|(_, name, _)| name).collect();
        let gone: Vec<_> = self.of.keys().filter(|name| !kept.contains(&***name)).cloned().collect();
        for name in &gone {
            self.of.remove(name);
        }
        let configured: HashSet<&str> = pool.backends.iter().map(|plan| &*plan.state.name).collect();
        let left = self
            .of
            .iter_mut()
            .filter(|(name, gauge)| gauge.missing >= PATIENCE && !configured.contains(&***name));
        let left = left.map(|(name, gauge)| {
            gauge.missing = 1;
            name.clone()
        });
        gone.into_iter().chain(left).collect()
    }

    /// Shows operators how many flows each backend has.
    pub(super) fn show(&mut self, director: &Director) {
        for (_, name, flows) in director.backends() {
            let Some(gauge) = self.of.get_mut(name) else { continue };
            gauge.state.in_flight.fetch_add(flows.wrapping_sub(gauge.shown), Relaxed);
            gauge.shown = flows;
        }
    }

    /// Counts frames for a backend.
    pub(super) fn add(&mut self, more: Tally) {
        let number = more.backend.number();
        if self.places.len() <= number {
            self.places.resize(number + 1, None);
        }
        match self.places[number].and_then(|at| self.tallies.get_mut(at)) {
            Some(tally) => {
                tally.packets += more.packets;
                (tally.bytes, tally.began) = (tally.bytes + more.bytes, tally.began + more.began);
            }
            None => {
                self.places[number] = Some(self.tallies.len());
                self.tallies.push(more);
            }
        }
    }

    /// Packets and bytes to a backend, since the service began.
    pub(super) fn sent(&self, name: &str) -> (u64, u64) {
        self.of.get(name).map_or((0, 0), |gauge| (gauge.packets, gauge.bytes))
    }

    /// Publishes what was counted.
    pub(super) fn flush(&mut self, director: &Director, worker: usize) {
        for Tally { backend, packets, bytes, began } in self.tallies.drain(..) {
            self.places[backend.number()] = None;
            let gauge = director.name(backend).and_then(|name| self.of.get_mut(name));
            if let Some(gauge) = gauge {
                (gauge.packets, gauge.bytes) = (gauge.packets + packets, gauge.bytes + bytes);
                let counters = gauge.state.counters.of(worker);
                counters.bytes_in.add(bytes);
                counters.sessions.add(began);
            }
        }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.state.in_flight.fetch_sub(self.shown, Relaxed);
    }
}
