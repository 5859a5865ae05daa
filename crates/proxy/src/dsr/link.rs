//! The network interface of a service: it may go, come back, and get another Ethernet address. And the ownership of the
//! address of the service on it.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use logic::dsr::packet::shown;
use logic::dsr::{Mac, owner};
use state::events::Level;
use sys::packet::{self, PacketError, send_frame};

use super::{Conflict, Round, Server};

/// Announcements of the address after a start, one a second: one may be lost.
const ANNOUNCEMENTS: u32 = 3;

/// Shortest time between two events about another machine that claims the address.
const CONFLICT_EVERY: Duration = Duration::from_secs(60);

/// Time without a claim after which the conflict is over: a few questions were not answered.
const CONFLICT_LASTS: Duration = Duration::from_secs(30);

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
                self.announcements = ANNOUNCEMENTS;
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
                self.announcements = ANNOUNCEMENTS;
                // Machines of another network may have the same addresses.
                self.forget_neighbours();
                self.join(&name, interface.index);
                self.tell_forwarding(&name);
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
                    self.announcements = ANNOUNCEMENTS;
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

    /// Warns of a kernel that forwards packets itself: it would look for the address, too, and tell clients that no machine has it.
    fn tell_forwarding(&self, name: &str) {
        let family = if self.director.service().vip.is_ipv4() { "ipv4" } else { "ipv6" };
        // A few bytes that the kernel makes: this does not block.
        let is_on = std::fs::read(format!("/proc/sys/net/{family}/conf/{name}/forwarding"));
        if is_on.is_ok_and(|text| text.trim_ascii() == b"1") {
            let message = format!(
                "the kernel forwards packets on {name}, those of this service as well, and tells clients that no machine has the address: `sysctl -w net/{family}/conf/{name}/forwarding=0`"
            );
            self.worker.front.state.events.record(Level::Warning, self.subject(), message);
        }
    }

    /// The network is to be told where the address is.
    pub(super) fn announce_anew(&mut self) {
        self.announcements = ANNOUNCEMENTS;
    }

    /// Tells the network where the address is, if that is due, and asks whether another machine has it.
    pub(super) fn announce(&mut self, round: Round, now: Instant) {
        if self.conflict.as_ref().is_some_and(|it| now.duration_since(it.seen) >= CONFLICT_LASTS) {
            self.end_conflict();
        }
        let Some(interface) = self.interface.filter(|_| self.is_owner()) else { return };
        let vip = self.director.service().vip;
        let is_due = self.announcements > 0;
        // Each may be lost: the next one is sent, and questions are answered in any case.
        if is_due || round == Round::Rare {
            let _ = send_frame(self.socket.get_ref().as_fd(), &owner::probe(vip, interface.mac));
        }
        if is_due {
            self.announcements -= 1;
            let _ = send_frame(self.socket.get_ref().as_fd(), &owner::announcement(vip, interface.mac));
        }
    }

    pub(super) fn end_conflict(&mut self) {
        if self.conflict.take().is_some() {
            self.worker.front.state.restore(&self.conflict_subject());
        }
    }

    fn conflict_subject(&self) -> String {
        format!("{}.conflict", self.subject())
    }

    pub(super) fn tell_conflict(&mut self, other: Mac, now: Instant) {
        if let Some(conflict) = &mut self.conflict {
            conflict.seen = now;
            if now.duration_since(conflict.told) < CONFLICT_EVERY {
                return;
            }
        }
        self.conflict = Some(Conflict { seen: now, told: now });
        let message = format!(
            "the machine with the Ethernet address {} claims {}: is it a backend that answers ARP for it, or another balancer?",
            shown(other),
            self.key.bind
        );
        self.worker.front.state.degrade(&self.conflict_subject(), &message);
    }
}
