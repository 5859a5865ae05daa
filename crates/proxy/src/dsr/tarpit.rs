//! The tarpit of a listener: `crates/logic/src/dsr/tarpit.rs` decides; here are its packet socket and its clocks. The task
//! of the listener's first address has it. It works beside every data path: programs in the kernel leave it its packets.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Instant;

use config::types::{BackendAddress, BindAddress};
use logic::dsr::tarpit::{Local, Rules, Tarpit, elsewhere};
use logic::dsr::trace::Told;
use state::events::Level;
use state::listen::instructions;
use sys::packet::{FrameBatch, Interface, PacketSocket, send_frame};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::sockets::Frames;
use super::tarpit_socket::Open;
use super::{Round, Server};

impl Server {
    /// Follows configuration and interface, and ends searches for addresses.
    pub(super) fn tick_tarpit(&mut self, round: Round, now: Instant) {
        // Of two balancers the one that owns the address answers.
        let answers = self.is_owner() && self.plan.settings.binds.first() == Some(&self.key.bind);
        let rules = self.settings().filter(|_| answers).and_then(|settings| settings.tarpit.clone());
        let (Some(rules), Some(interface)) = (rules, self.interface) else {
            self.tarpit.close();
            if round != Round::Usual {
                self.worker.front.state.restore(&self.tarpit_subject());
            }
            return;
        };
        let is_current = |open: &Open| open.interface == interface && *open.tarpit.rules() == rules;
        if !self.tarpit.open.as_deref().is_some_and(is_current) {
            if round == Round::Usual && self.tarpit.open.is_none() && self.ticks > 1 {
                // It failed, and is tried once a second.
                return;
            }
            self.open_tarpit(rules, now);
        } else if round != Round::Usual {
            self.set_others_of_tarpit();
        }
        let Some(open) = &mut self.tarpit.open else { return };
        for frame in open.tarpit.expire(interface.mac, now) {
            // A frame that is lost is asked for again.
            let _ = send_frame(open.socket.get_ref().as_fd(), &frame);
        }
    }

    fn tarpit_subject(&self) -> String {
        format!("{}.tarpit", self.subject())
    }

    fn open_tarpit(&mut self, rules: Rules, now: Instant) {
        self.tarpit.close();
        match self.tarpit_socket(&rules) {
            Ok((socket, interface)) => {
                let tarpit = Tarpit::new(rules, self.worker.front.state.hash_key, now);
                let batch = FrameBatch::default();
                self.tarpit.open = Some(Box::new(Open { socket, batch, tarpit, interface }));
                self.set_others_of_tarpit();
                self.worker.front.state.restore(&self.tarpit_subject());
                self.tell_networks_elsewhere();
            }
            Err(error) => {
                let message = format!("addresses of the tarpit are not answered: {error}");
                self.worker.front.state.degrade(&self.tarpit_subject(), &message);
            }
        }
    }

    /// Warns of networks that are not on the interface: no machine there asks who has their addresses.
    fn tell_networks_elsewhere(&self) {
        let Some(settings) = self.settings() else { return };
        let (Some(rules), Ok(all)) = (&settings.tarpit, sys::interfaces::all()) else { return };
        let own = all.into_iter().find(|one| *one.name == *settings.interface).map(|one| one.addresses);
        let own: Vec<_> = own.unwrap_or_default().iter().map(|it| (it.ip, it.prefix)).collect();
        for network in elsewhere(&rules.networks, &own) {
            let message = format!(
                "{network} of tarpit-networks is on no network of {}: machines of that network send no ARP request or neighbour solicitation here, and only packets that a router sends here are answered",
                settings.interface
            );
            self.worker.front.state.events.record(Level::Warning, self.subject(), message);
        }
    }

    fn tarpit_socket(&self, rules: &Rules) -> Result<(Rc<Frames>, Interface), String> {
        let said = |error: sys::packet::PacketError| error.to_string();
        let socket = PacketSocket::new().map_err(said)?;
        let name = self.settings().map_or("", |it| &*it.interface);
        let filter = instructions(logic::dsr::tarpit::filter::program(&rules.networks));
        let interface = socket.bind(name, &filter).map_err(said)?;
        if rules.networks.iter().any(|network| network.addr().is_ipv6()) {
            // Each address has a group of its own for the questions about it.
            socket.receive_all_groups(interface.index).map_err(|error| error.to_string())?;
        }
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `PacketSocket` keeps the one descriptor it owns"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE).map_err(|error| error.to_string())?;
        Ok((Rc::new(socket), interface))
    }

    /// Leaves to services and backends what is theirs.
    fn set_others_of_tarpit(&mut self) {
        let Some(open) = &mut self.tarpit.open else { return };
        let config = &self.known.config;
        let vips = config.listeners.iter().flat_map(|it| &it.binds).filter_map(BindAddress::vip);
        let backends =
            config.pools.iter().flat_map(|pool| &pool.backends).filter_map(|it| match it.address {
                BackendAddress::Ip(address) => Some(address),
                _ => None,
            });
        let others: HashSet<IpAddr> = vips.chain(backends).map(|it| it.ip().to_canonical()).collect();
        open.tarpit.set_others(others);
    }

    /// Answers what came in.
    pub(super) fn take_tarpit_frames(
        &mut self,
        guard: io::Result<AsyncFdReadyGuard<'_, PacketSocket>>,
        now: Instant,
    ) {
        // An error is about the interface: the next tick sees it.
        let Ok(mut guard) = guard else { return self.tarpit.close() };
        let Some(open) = &mut self.tarpit.open else { return };
        let received = guard.try_io(|socket| open.batch.receive(socket.get_ref().as_fd()));
        let Ok(Ok(count)) = received else { return };
        let mut answered = Vec::new();
        for slot in 0..count {
            let before = open.tarpit.counted().of_clients();
            let answer = open.tarpit.handle(open.batch.frame(slot), open.interface.mac, now, is_local);
            if let Some(frame) = answer {
                // A frame that is lost is asked for again.
                let _ = send_frame(open.socket.get_ref().as_fd(), &frame);
            }
            if open.tarpit.counted().of_clients() > before {
                answered.push(slot);
            }
        }
        if self.tracer.is_on() {
            self.trace_tarpitted(&answered);
        }
    }

    fn trace_tarpitted(&self, answered: &[usize]) {
        let Some(open) = &self.tarpit.open else { return };
        let (interface, place) = self.place();
        for slot in answered {
            let frame = open.batch.frame(*slot);
            self.tracer.record(&interface, frame, &Told::tarpitted(frame), &place);
        }
    }
}

fn is_local(address: IpAddr) -> Local {
    match sys::datagram::is_local(SocketAddr::new(address, 9)) {
        Ok(false) => Local::No,
        // In doubt it is not answered.
        Ok(true) | Err(_) => Local::Yes,
    }
}
