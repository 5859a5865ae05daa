//! Ethernet addresses of backends: when they are looked up, and what becomes of what the kernel knows.
//!
//! All are looked up once a second; at once those that the kernel tells of, and ten times a second those that are not known, or
//! that another machine claims. The machine of a backend that fails may have been replaced, and the
//! kernel would find that out half a minute later: so it is asked by a frame of ours, whose answer the kernel takes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::BackendAddress;
use logic::dsr::neighbour::Step;
use logic::dsr::owner;
use logic::dsr::packet::shown;
use logic::health::State as HealthState;
use state::BackendState;
use state::events::Level;
use sys::interfaces::Link;
use sys::packet::send_frame;

use super::backends::{PATIENCE, missing_subject};
use super::neighbour_watch::{Asks, Found, Wanted};
use super::next_hop::{Next, Travel};
use super::{Round, Server};

/// Time between questions to the machine of a backend that fails, and after so many of them, when it is not just being replaced. The
/// kernel believes no change within a second of another one.
const PAUSE: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 10;
const LONG_PAUSE: Duration = Duration::from_secs(10);

/// Time after which it is told that the kernel does not answer.
const SLOW: Duration = Duration::from_secs(10);

impl Server {
    /// Takes what was looked up.
    pub(super) fn take_neighbours(&mut self, now: Instant) {
        for found in self.neighbours.take() {
            self.settle(&found, now);
        }
    }

    /// Takes what was looked up, and looks up what is due.
    pub(super) fn look_up_neighbours(&mut self, round: Round, now: Instant) {
        self.take_neighbours(now);
        self.all_due |= round != Round::Usual;
        let Some(interface) = self.interface else { return };
        let changed = self.neighbours.changed(interface.index);
        for gauge in self.gauges.of.values_mut() {
            gauge.is_changed |= gauge.machine.is_some_and(|machine| changed.has(machine));
        }
        if self.link != Link::Up {
            // No backend could answer.
            return;
        }
        self.ask_failing(now);
        let waits = self.neighbours.waits(now);
        self.tell_of_slow_kernel(waits);
        if waits.is_some() {
            return;
        }
        let wanted = self.due();
        if !wanted.is_empty() {
            let travel = if self.director.room().is_some() { Travel::InTunnels } else { Travel::AsTheyAre };
            self.neighbours.ask(wanted, travel, interface.index, now);
        }
    }

    /// Backends whose Ethernet addresses are to be looked up now.
    fn due(&mut self) -> Vec<Wanted> {
        let Some(pool) = self.pool() else { return Vec::new() };
        let is_all = std::mem::take(&mut self.all_due);
        let mut wanted = Vec::new();
        for plan in &pool.backends {
            let BackendAddress::Ip(address) = plan.state.address else { continue };
            let name = &plan.state.name;
            let Some(gauge) = self.gauges.of.get_mut(name) else { continue };
            let is_changed = std::mem::take(&mut gauge.is_changed);
            let is_due = is_all || is_changed || gauge.missing > 0;
            if is_due || self.claims.changes.is_open(name) {
                let asks = if is_all { Asks::Yes } else { Asks::No };
                wanted.push(Wanted { name: name.clone(), ip: address.ip().to_canonical(), asks });
            }
        }
        wanted
    }

    /// Whether a check of a backend has failed last, at its own address or at the VIP.
    fn is_failing(&self, backend: &BackendState) -> bool {
        backend.health_state() == HealthState::Down || self.probes.is_failing(&backend.name)
    }

    /// Asks the network for the machines of backends that fail.
    fn ask_failing(&mut self, now: Instant) {
        let (Some(pool), Some(interface)) = (self.pool(), self.interface) else { return };
        for plan in &pool.backends {
            let is_failing = self.is_failing(&plan.state);
            let Some(gauge) = self.gauges.of.get_mut(&plan.state.name) else { continue };
            if !is_failing || self.claims.changes.is_open(&plan.state.name) {
                gauge.asked = None;
                continue;
            }
            let (last, count) = gauge.asked.unzip();
            let count = count.unwrap_or(0);
            let pause = if count < QUESTIONS { PAUSE } else { LONG_PAUSE };
            let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= pause);
            if let Some(machine) = gauge.machine.filter(|_| is_due) {
                gauge.asked = Some((now, count.saturating_add(1)));
                // One that is lost is sent again.
                let _ = send_frame(self.socket.get_ref().as_fd(), &owner::probe(machine, interface.mac));
            }
        }
    }

    fn tell_of_slow_kernel(&self, waits: Option<Duration>) {
        let subject = format!("{}.neighbours", self.subject());
        let state = &self.worker.front.state;
        match waits.filter(|waits| *waits >= SLOW) {
            Some(_) => state.degrade(
                &subject,
                "the kernel does not answer which Ethernet addresses backends have: a change to a network interface holds its lock (RTNL); \
                 packets go to the addresses that were known",
            ),
            None if waits.is_none() => state.restore(&subject),
            None => {}
        }
    }

    /// Takes what the kernel knows of the way to a backend.
    fn settle(&mut self, found: &Found, now: Instant) {
        let Found { name: backend, ip, next, tunnel, mac } = found;
        let Some(interface) = self.interface else { return };
        let Some(name) = self.settings().map(|settings| settings.interface.clone()) else { return };
        let state = self.worker.front.state.clone();
        let Some(gauge) = self.gauges.of.get_mut(backend) else { return };
        // Without a route the tunnel stays as it was for as long as its Ethernet address does.
        if tunnel.is_some() {
            self.director.set_tunnel(backend, *tunnel);
        }
        gauge.machine = next.machine();
        let subject = missing_subject(&self.key.listener, backend);
        let Some(mac) = *mac else {
            return self.settle_missing(backend, *ip, *next, &name);
        };
        if gauge.missing > 0 {
            // Also what an earlier task of this address has told.
            state.restore(&subject);
        }
        gauge.missing = 0;
        let at = (&**backend, next.machine().unwrap_or(*ip));
        let used = self.director.mac(at.0);
        let step = self.claims.see(at, used, mac, (&*name, interface), now);
        if matches!(step, Step::Take | Step::Replace(_)) {
            self.director.set_mac(at.0, mac);
        }
        if let Step::Replace(before) = step {
            let (mac, before) = (shown(mac), shown(before));
            let message = format!("packets go to {mac} ({}) from now on, and no more to {before}", at.1);
            state.events.record(Level::Info, subject, message);
        }
    }

    /// The kernel knows no Ethernet address of a backend.
    fn settle_missing(&mut self, backend: &Arc<str>, ip: IpAddr, next: Next, name: &str) {
        let Some(gauge) = self.gauges.of.get_mut(backend) else { return };
        gauge.missing = gauge.missing.saturating_add(1);
        // A machine that answers our own questions is there, and the kernel has believed another one.
        if !gauge.missing.is_multiple_of(PATIENCE) || self.claims.changes.is_defended(backend) {
            return;
        }
        self.director.forget_mac(backend);
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
        self.worker.front.state.degrade(&missing_subject(&self.key.listener, backend), &message);
    }

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
