//! The backends of a service: which of them take flows, their Ethernet addresses, and what is counted for them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use config::types::BackendAddress;
use logic::balance::{Admission, Availability, Unhealthy};
use logic::dsr::neighbour::Step;
use logic::dsr::packet::shown;
use logic::dsr::{Backend, BackendId, Director, Standing};
use logic::health::State as HealthState;
use state::BackendState;
use state::events::Level;
use sys::interfaces::Link;
use sys::neighbour::Neighbour;

use super::Server;
use super::next_hop::{Next, next};
use crate::snapshot::PoolPlan;
use crate::upstream;

/// Looks at an Ethernet address before its absence is told, and it is withdrawn: a machine that is there answers at once.
const PATIENCE: u32 = 30;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    All,
    /// Those whose Ethernet address is not known.
    Unknown,
}

impl Server {
    pub(super) fn pool(&self) -> Option<Arc<PoolPlan>> {
        Some(self.known.pool(self.settings()?.pool).clone())
    }

    /// Tells the decision which backends there are, and what they take.
    pub(super) fn set_backends(&mut self, now: Instant) {
        let Some(pool) = self.pool() else { return };
        let probes = &self.probes;
        // One that does not accept the VIP is as one whose checks fail.
        let standings = || {
            upstream::standings(&pool, None, now).zip(&pool.backends).map(move |(mut one, plan)| {
                if probes.is_down(&plan.state.name) {
                    one.health = HealthState::Down;
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

    /// Looks up Ethernet addresses of backends.
    pub(super) fn look_up_neighbours(&mut self, which: Which, now: Instant) {
        if self.link != Link::Up {
            // No backend could answer.
            return;
        }
        let (Some(pool), Some(interface)) = (self.pool(), self.interface) else { return };
        let state = self.worker.front.state.clone();
        let Some(name) = self.settings().map(|settings| settings.interface.clone()) else { return };
        for plan in &pool.backends {
            let BackendAddress::Ip(address) = plan.state.address else { continue };
            let ip = address.ip().to_canonical();
            let Some(gauge) = self.gauges.of.get_mut(&plan.state.name) else { continue };
            if which == Which::Unknown && gauge.missing == 0 && !self.claims.changes.is_open(&plan.state.name)
            {
                continue;
            }
            let at = (&*plan.state.name, ip);
            let next = next(&mut self.neighbours, &mut self.director, at, interface.index);
            let mac =
                next.machine().and_then(|machine| match self.neighbours.look_up(machine, interface.index) {
                    Ok(Neighbour::Reachable(mac)) => Some(mac),
                    Ok(Neighbour::Old(mac)) => {
                        self.neighbours.ask(machine);
                        Some(mac)
                    }
                    Ok(Neighbour::Unknown) | Err(_) => {
                        if which == Which::All {
                            self.neighbours.ask(machine);
                        }
                        None
                    }
                });
            let subject = missing_subject(&self.key.listener, &plan.state.name);
            match mac {
                Some(mac) => {
                    if gauge.missing > 0 {
                        // Also what an earlier task of this address has told.
                        state.restore(&subject);
                    }
                    gauge.missing = 0;
                    let at = (&*plan.state.name, next.machine().unwrap_or(ip));
                    let used = self.director.mac(at.0);
                    let step = self.claims.see(at, used, mac, (&*name, interface), now);
                    if matches!(step, Step::Take | Step::Replace(_)) {
                        self.director.set_mac(at.0, mac);
                    }
                    if let Step::Replace(before) = step {
                        let (mac, before) = (shown(mac), shown(before));
                        let message =
                            format!("packets go to {mac} ({}) from now on, and no more to {before}", at.1);
                        state.events.record(Level::Info, subject, message);
                    }
                }
                None => {
                    gauge.missing = gauge.missing.saturating_add(1);
                    if gauge.missing.is_multiple_of(PATIENCE) {
                        self.director.forget_mac(&plan.state.name);
                        let message = match next {
                            Next::Itself(_) if is_own(ip) => format!(
                                "{ip} is an address of this machine: packets reach only backends on other machines; take it out of the pool"
                            ),
                            Next::Itself(_) if self.director.room().is_some() => format!(
                                "no machine on {name} answers for {ip}: it is off, or a route to its network is missing"
                            ),
                            Next::Itself(_) => format!(
                                "no machine on {name} answers for {ip}: a backend must be on the same network as this interface"
                            ),
                            Next::Hop(machine) => format!(
                                "no machine on {name} answers for {machine}, which is the next one on the way to {ip}"
                            ),
                            Next::NoRoute => format!(
                                "no route leads to {ip} through {name}: `ip route get {ip} oif {name}` shows what the kernel knows"
                            ),
                        };
                        state.degrade(&subject, &message);
                    }
                }
            }
        }
    }
}

impl Server {
    /// Withdraws all Ethernet addresses: they are looked up anew.
    pub(super) fn forget_neighbours(&mut self) {
        self.claims.changes.clear();
        let names: Vec<_> = self.director.backends().map(|(_, name, _)| name.to_owned()).collect();
        for name in names {
            self.director.forget_mac(&name);
        }
        for gauge in self.gauges.of.values_mut() {
            gauge.missing = gauge.missing.max(1);
        }
    }
}

/// Whether this machine has the address.
fn is_own(ip: IpAddr) -> bool {
    // Nothing is sent to the port.
    sys::datagram::is_local(SocketAddr::new(ip, 9)).unwrap_or(false)
}

pub(super) fn missing_subject(listener: &str, backend: &str) -> String {
    format!("listener.{listener}.{backend}")
}

/// What is counted for the backends.
#[derive(Default)]
pub(super) struct Gauges {
    of: HashMap<Arc<str>, Gauge>,
    /// The pool that they are of.
    pool: Option<Arc<PoolPlan>>,
    /// What is not counted yet.
    tallies: Vec<Tally>,
    /// Places in `tallies` by the numbers of backends.
    places: Vec<Option<usize>>,
}

struct Gauge {
    state: Arc<BackendState>,
    /// Flows that [`BackendState::in_flight`] has from here.
    shown: u32,
    /// Look-ups in a row that found no Ethernet address of this backend. Starts at 1: none is known yet.
    missing: u32,
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
                let gauge = Gauge { state, shown: 0, missing: 1, packets: 0, bytes: 0 };
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
