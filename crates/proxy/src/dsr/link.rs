//! The network interface of a service: it may go, come back, and get another Ethernet address. And the ownership of the
//! address of the service on it.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use logic::dsr::holding::{Begin, Claimant, Send, Told};
use logic::dsr::packet::shown;
use logic::dsr::{Mac, owner};
use sys::interfaces::Link;
use sys::packet::{self, PacketError, send_frame};

use super::{Round, Server};

impl Server {
    /// Binds the socket to the interface of the configuration, if it is not bound to it.
    pub(super) fn follow_interface(&mut self, round: Round) {
        let Some(settings) = self.settings() else { return };
        let name = settings.interface.clone();
        self.leave_kernel(&name);
        let socket = self.socket.get_ref();
        let now = socket.interface().ok().flatten();
        if let (Some(known), Some(now)) = (self.interface, now)
            && packet::index_of(&name) == Some(now.index)
        {
            if known != now {
                self.holding.announce_anew(Instant::now());
            }
            self.interface = Some(now);
            if self.follow_mtu(&name) && self.kernel.is_some() {
                // What is too long comes here.
                let _ = self.socket.get_ref().bind(&name, &self.filter());
            }
            if self.group.is_none() || round == Round::Rare {
                self.join(&name, now.index);
            }
            return;
        }
        self.follow_mtu(&name);
        let bound = self.socket.get_ref().bind(&name, &self.filter());
        let asks = |error: std::io::Error| PacketError::Asks(name.to_string(), error);
        match bound.and_then(|it| self.neighbours.use_interface(&name).map(|()| it).map_err(asks)) {
            Ok(interface) => {
                self.worker.front.state.restore(&self.interface_subject());
                self.interface = Some(interface);
                if self.is_owner() {
                    self.holding.begin(Begin::Ask, Instant::now());
                }
                if self.earlier.take() != Some(interface) {
                    // Machines of another network may have the same addresses.
                    self.forget_neighbours();
                }
                self.join(&name, interface.index);
            }
            Err(error) => {
                self.interface = None;
                self.worker.front.state.degrade(&self.interface_subject(), &error.to_string());
            }
        }
    }

    fn interface_subject(&self) -> String {
        format!("{}.interface", self.subject())
    }

    /// Joins the group of questions about an IPv6 address; anew from time to time, because an interface whose IPv6 was off
    /// in between has forgotten it.
    fn join(&mut self, name: &str, index: u32) {
        let IpAddr::V6(vip) = self.director.service().vip else { return };
        let state = self.worker.front.state.clone();
        match packet::join(owner::solicited_node(vip), index) {
            Ok(group) => {
                if self.group.replace(group).is_none() {
                    self.holding.announce_anew(Instant::now());
                }
                state.restore(&self.interface_subject());
            }
            Err(error) => {
                self.group = None;
                let message = format!(
                    "questions who has {vip} may not arrive: the group for them cannot be joined on {name}: {error}; is IPv6 off there?"
                );
                state.degrade(&self.interface_subject(), &message);
            }
        }
    }

    /// Asks for the address, announces it and ends conflicts, as far as that is due. Not without a link: nothing would arrive,
    /// and silence says nothing of other machines.
    pub(super) fn announce(&mut self, now: Instant) {
        if self.link != Link::Up {
            return;
        }
        if self.holding.poll_over(now) {
            self.worker.front.state.restore(&self.conflict_subject());
        }
        if let Some(other) = self.holding.yields_to()
            && let Some(backend) = self.backend_at(other)
        {
            self.holding.take(now);
            self.degrade_for(other, Some(&backend));
        }
        let Some(interface) = self.interface else { return };
        let vip = self.director.service().vip;
        while let Some(send) = self.holding.poll(now) {
            let frame = match send {
                Send::Question => owner::probe(vip, interface.mac),
                Send::Announcement => owner::announcement(vip, interface.mac),
            };
            // Each may be lost: the next one is sent, and questions are answered in any case.
            let _ = send_frame(self.socket.get_ref().as_fd(), &frame);
        }
    }

    /// Releases the address.
    pub(super) fn release(&mut self) {
        if self.holding.release() {
            self.worker.front.state.restore(&self.conflict_subject());
        }
    }

    fn conflict_subject(&self) -> String {
        format!("{}.conflict", self.subject())
    }

    /// The backend with this Ethernet address, if packets go to backends without a router between.
    fn backend_at(&self, mac: Mac) -> Option<String> {
        if self.director.room().is_some() {
            return None;
        }
        self.director.name_at(mac).map(str::to_owned)
    }

    /// Another machine claims the address.
    pub(super) fn take_claim(&mut self, other: Mac, now: Instant) {
        let backend = self.backend_at(other);
        let claimant = if backend.is_some() { Claimant::Backend } else { Claimant::Other };
        if self.holding.handle(other, claimant, now) == Told::Conflict {
            self.degrade_for(other, backend.as_deref());
        }
    }

    fn degrade_for(&self, other: Mac, backend: Option<&str>) {
        let (mac, vip) = (shown(other), self.director.service().vip);
        let interface = self.settings().map_or(String::new(), |it| it.interface.to_string());
        let claimed = format!("{} of listener.{} on {interface}", self.key.bind, self.key.listener);
        let message = match backend {
            Some(backend) => format!(
                "the machine with the Ethernet address {mac} claims {claimed}: it is the backend {backend}, and clients that hear it do not come here: `penstock backend setup --vip {vip} --apply` on it"
            ),
            None if self.holding.answers() => format!(
                "the machine with the Ethernet address {mac} claims {claimed}: is it a backend that answers ARP for it, or another balancer?"
            ),
            None => format!(
                "the machine with the Ethernet address {mac} claims {claimed} and had it before: this one neither announces it nor answers for it until that machine has given it up"
            ),
        };
        self.worker.front.state.degrade(&self.conflict_subject(), &message);
    }
}
