//! Probes of a service: whether its backends accept the VIP. `crates/logic/src/dsr/probe.rs` decides who is asked, and what a
//! reply means; here are the socket, the port and the clocks.
//!
//! A probe is a frame with the Ethernet address of the backend, from our own address and a port that is reserved for it.
//! Its reply comes to our own address, where another packet socket sees it: the kernel would not take all of them, as the
//! VIP is on the wrong machine for it.
//!
//! The verdict is about one VIP and one backend, so it counts for this service alone: a proxied listener with the same
//! pool needs no VIP on the backend, and another VIP may be there. The check of the pool counts everywhere.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use config::types::{BackendAddress, BackendHttp};
use logic::dsr::Service;
use logic::dsr::packet::Transport;
use logic::dsr::probe::{self, Change, Ends, Expired, Moment, OwnAddress, Prober, Question};
use logic::health::{Check, Event, Source, State as HealthState, Verdict, VerdictOutcome};
use state::BackendState;
use state::events::Level;
use state::listen::filter;
use sys::interfaces::Link;
use sys::packet::{PacketSocket, PortKind, own_address, receive_frame, reserve, send_frame};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::sockets::ProbeSocket;
use super::tunnel::wrapped;
use super::{Round, Server};
use crate::snapshot::PoolPlan;

/// Room for a reply: for all that a probe lets a server send at once, put together by a network card.
const ROOM: usize = 8192;

/// Replies that are read at once, before the packets of clients have their turn.
const AT_ONCE: usize = 64;

fn moment(now: Instant) -> Moment {
    Moment { now, at: SystemTime::now() }
}

impl Server {
    /// Sends the probes that are due, and ends those without a reply.
    pub(super) fn probe(&mut self, round: Round, now: Instant) {
        let Some(pool) = self.pool() else { return };
        self.follow_check(&pool, round, now);
        self.open_probe_socket(&pool, round);
        if self.link != Link::Up {
            self.probes.prober.iter_mut().for_each(Prober::forget_asked);
            return;
        }
        self.expire_probes(now);
        let (Some(prober), Some(way)) = (&mut self.probes.prober, &self.probes.way) else { return };
        let service = self.director.service();
        for plan in &pool.backends {
            let BackendAddress::Ip(address) = plan.state.address else { continue };
            if !prober.is_due(&plan.state.name, now) {
                continue;
            }
            // Nothing goes to a backend without one.
            let Some(to) = self.director.mac(&plan.state.name) else { continue };
            let port = if service.port == 0 { address.port() } else { service.port };
            let question = prober.ask(&plan.state.name, to, port, now, fastrand::u64(..));
            let ends =
                Ends { own: way.port.address, own_mac: way.own_mac, vip: SocketAddr::new(service.vip, port) };
            let frame = match question {
                None => continue,
                Some(Question::Syn { sequence }) => Some(ends.syn(to, sequence)),
                Some(Question::Datagram(datagram)) => ends.datagram(to, &datagram),
            };
            if let Some(frame) = frame.and_then(|frame| wrapped(&self.director, &plan.state.name, frame)) {
                // One that is lost is a probe without a reply.
                let _ = send_frame(way.socket.get_ref().as_fd(), &frame);
            }
        }
    }

    /// Takes the check of the pool.
    fn follow_check(&mut self, pool: &PoolPlan, round: Round, now: Instant) {
        let service = self.director.service();
        let wanted = pool
            .settings
            .health
            .as_ref()
            .and_then(|active| Some((active, probe::transport(service.transports, &active.check)?)));
        let wanted = wanted.map(|(active, transport)| match (&active.check, pool.settings.http) {
            // Such a server is asked for a connection alone.
            (Check::Http { .. }, BackendHttp::Http2) => (&Check::Tcp, active.rule, transport),
            (check, _) => (check, active.rule, transport),
        });
        let Some((check, rule, transport)) = wanted else {
            if self.probes.prober.take().is_some() {
                self.forget_probes(|_| true);
            }
            self.probes.way = None;
            return;
        };
        let is_same = self
            .probes
            .prober
            .as_mut()
            .is_some_and(|prober| prober.adopt(check, transport, rule, service.vip, now));
        if !is_same {
            let prober = Prober::new(check.clone(), transport, rule, service.vip);
            if self.probes.prober.replace(prober).is_some() {
                self.forget_probes(|_| true);
            }
            self.probes.way = None;
        }
        if round == Round::Usual {
            return;
        }
        let names: HashSet<&str> = pool.backends.iter().map(|plan| &*plan.state.name).collect();
        if let Some(prober) = &mut self.probes.prober {
            prober.retain(&names);
        }
        let own = self.probe_subject("");
        self.forget_probes(|subject| subject.strip_prefix(&*own).is_some_and(|name| !names.contains(name)));
    }

    /// What is degraded of one backend at this address.
    fn probe_subject(&self, backend: &str) -> String {
        format!("{}.backend.{backend}", self.subject())
    }

    fn forget_probes(&self, gone: impl Fn(&str) -> bool) {
        let own = self.probe_subject("");
        self.worker.front.state.forget_degraded(|degraded| degraded.starts_with(&*own) && gone(degraded));
    }

    /// Opens the socket and reserves the port for probes, also anew when our own address has changed.
    fn open_probe_socket(&mut self, pool: &PoolPlan, round: Round) {
        let (Some(prober), Some(interface)) = (&self.probes.prober, self.interface) else {
            self.probes.way = None;
            return;
        };
        let is_current = |way: &ProbeSocket| way.interface == interface.index && way.own_mac == interface.mac;
        if round == Round::Usual || self.probes.way.as_ref().is_some_and(is_current) && round != Round::Rare {
            return;
        }
        let transport = prober.transport();
        let subject = format!("{}.probes", self.subject());
        let opened = self.own(pool).and_then(|own| match &self.probes.way {
            Some(way) if is_current(way) && way.port.address.ip() == own.ip() => Ok(None),
            _ => self.open(own, transport, interface).map(Some),
        });
        match opened {
            Ok(way) => {
                if let Some(way) = way {
                    self.probes.way = Some(way);
                }
                self.worker.front.state.restore(&subject);
            }
            Err(error) => {
                self.probes.way = None;
                let vip = self.director.service().vip;
                let message = format!("it is not known whether backends accept {vip}: {error}");
                self.worker.front.state.degrade(&subject, &message);
            }
        }
    }

    /// Our address of the family of the VIP on the interface.
    fn own(&self, pool: &PoolPlan) -> io::Result<SocketAddr> {
        let (vip, name) = (self.director.service().vip, self.settings().map_or("", |it| &*it.interface));
        let mut backends = pool.backends.iter().filter_map(|plan| match plan.state.address {
            BackendAddress::Ip(address) => Some(address.ip().to_canonical()),
            _ => None,
        });
        // That of the way to a backend, if it has the family: the VIP may be of another network.
        let to = backends.find(|ip| ip.is_ipv4() == vip.is_ipv4()).unwrap_or(vip);
        let own = own_address(to, name).map_err(|error| no_address(vip, name, &error.to_string()))?;
        if own.ip().is_unspecified() {
            return Err(no_address(vip, name, "the kernel has no source address"));
        }
        if own.ip().to_canonical() == vip {
            return Err(no_address(vip, name, "it would be the virtual one itself"));
        }
        Ok(own)
    }

    fn open(
        &self,
        own: SocketAddr,
        transport: Transport,
        interface: sys::packet::Interface,
    ) -> io::Result<ProbeSocket> {
        let kind = match transport {
            Transport::Tcp => PortKind::Tcp,
            Transport::Udp => PortKind::Udp,
        };
        let port = reserve(own, kind)?;
        let other = |error: sys::packet::PacketError| io::Error::other(error.to_string());
        let socket = PacketSocket::new().map_err(other)?;
        let replies = Service {
            vip: port.address.ip(),
            port: port.address.port(),
            transports: Ends::transports(transport),
        };
        let name = self.settings().map_or("", |it| &*it.interface);
        let bound = socket.bind(name, &filter(&replies)).map_err(other)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `PacketSocket` keeps the one descriptor it owns"
        )]
        let socket = Rc::new(AsyncFd::with_interest(socket, Interest::READABLE | Interest::WRITABLE)?);
        debug_assert_eq!(bound.index, interface.index);
        Ok(ProbeSocket { socket, port, own_mac: bound.mac, interface: bound.index })
    }

    /// Reads replies.
    pub(super) fn take_replies(
        &mut self,
        guard: io::Result<AsyncFdReadyGuard<'_, PacketSocket>>,
        now: Instant,
    ) {
        // An error is about the interface: the next tick sees it.
        let Ok(mut guard) = guard else { return self.probes.way = None };
        let mut changes = Vec::new();
        for _ in 0..AT_ONCE {
            let mut room = [0; ROOM];
            let received = guard.try_io(|socket| receive_frame(socket.get_ref().as_fd(), &mut room));
            let Ok(Ok(length)) = received else { break };
            changes.extend(self.take_reply(&room[..length], now));
        }
        self.tell_changes(changes, now);
    }

    fn take_reply(&mut self, frame: &[u8], now: Instant) -> Option<Change> {
        let way = self.probes.way.as_ref()?;
        let vip = SocketAddr::new(self.director.service().vip, 0);
        let mut ends = Ends { own: way.port.address, own_mac: way.own_mac, vip };
        let reply = ends.read(frame)?;
        ends.vip.set_port(reply.port);
        let prober = self.probes.prober.as_mut()?;
        let heard = prober.hear(&reply, moment(now), fastrand::f64());
        if let Some((name, back)) = heard.back {
            let frame = match self.director.room() {
                None => Some(ends.back(reply.from, &back)),
                // The reply may have come on another way.
                Some(_) => name.and_then(|name| {
                    let to = self.director.mac(&name)?;
                    wrapped(&self.director, &name, ends.back(to, &back))
                }),
            };
            if let (Some(frame), Some(way)) = (frame, &self.probes.way) {
                let _ = send_frame(way.socket.get_ref().as_fd(), &frame);
            }
        }
        heard.change
    }

    fn expire_probes(&mut self, now: Instant) {
        let pool = self.pool();
        let Some(prober) = &mut self.probes.prober else { return };
        prober.set_mode(self.plan.settings.dsr().map(|settings| settings.mode).unwrap_or_default());
        let members = pool.iter().flat_map(|pool| &pool.backends);
        let overdue = prober.overdue(now);
        for plan in members.filter(|plan| overdue.contains(&plan.state.name)) {
            prober.set_own(&plan.state.name, own_address_of(&plan.state));
        }
        let mut changes = Vec::new();
        while let Expired::One(change) = prober.expire(moment(now), fastrand::f64()) {
            changes.extend(change);
        }
        self.tell_changes(changes, now);
    }

    /// Tells operators of verdicts, and lets them count at once.
    fn tell_changes(&mut self, changes: Vec<Change>, now: Instant) {
        if changes.is_empty() {
            return;
        }
        // First what becomes of packets: what is told is so.
        self.set_backends(now);
        self.tell_program();
        let state = self.worker.front.state.clone();
        for Change { backend, event, cause } in changes {
            let subject = self.probe_subject(&backend);
            match event {
                Event::WentDown => state.degrade(&subject, &format!("gets nothing: {cause}")),
                _ if self.is_degraded(&subject) => state.restore(&subject),
                _ => {
                    let message = format!("it accepts {}", self.key.bind);
                    state.events.record(Level::Info, subject, message);
                }
            }
        }
        self.publish();
    }

    fn is_degraded(&self, subject: &str) -> bool {
        self.worker.front.state.degraded().iter().any(|(degraded, _)| degraded == subject)
    }
}

/// What the check of the pool has found last.
fn own_address_of(backend: &BackendState) -> OwnAddress {
    if backend.health_state() == HealthState::Down {
        return OwnAddress::Fails;
    }
    // Its tasks hold the lock for moments, and a worker waits for none of them: the next probe tells.
    let Ok(health) = backend.health.try_lock() else { return OwnAddress::Answers };
    match health.verdicts().find(|verdict| verdict.source == Source::Probe) {
        Some(Verdict { outcome: VerdictOutcome::Fail, .. }) => OwnAddress::Fails,
        _ => OwnAddress::Answers,
    }
}

fn no_address(vip: IpAddr, interface: &str, why: &str) -> io::Error {
    let family = if vip.is_ipv4() { "IPv4" } else { "IPv6" };
    io::Error::other(format!(
        "a probe needs an {family} address of this machine on {interface}, and there is none ({why}): add one with `ip address add`"
    ))
}
