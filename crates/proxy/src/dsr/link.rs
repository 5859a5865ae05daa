//! The network interface of a service: it may go, come back, and get another Ethernet address. And the ownership of the
//! address of the service on it.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use logic::dsr::{Mac, owner};
use state::events::Level;
use state::listen::{filter, questions};
use sys::packet::{self, send_frame};

use super::{CONFLICT_EVERY, Server};

/// Announcements of the address after a start, one a second: one may be lost.
const ANNOUNCEMENTS: u32 = 3;

impl Server {
    /// Binds the socket to the interface of the configuration, if it is not bound to it.
    pub(super) fn follow_interface(&mut self) {
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
            return;
        }
        let service = self.director.service();
        let subject = format!("{}.interface", self.subject());
        let filter = if self.kernel.is_some() { questions(&service) } else { filter(&service) };
        match socket.bind(&name, &filter) {
            Ok(interface) => {
                self.worker.front.state.restore(&subject);
                self.interface = Some(interface);
                self.announcements = ANNOUNCEMENTS;
                self.group = None;
                if let IpAddr::V6(vip) = service.vip {
                    match packet::join(owner::solicited_node(vip), interface.index) {
                        Ok(group) => self.group = Some(group),
                        Err(error) => self.worker.front.state.degrade(
                            &subject,
                            &format!("questions who has {vip} may not arrive on {name}: {error}"),
                        ),
                    }
                }
                self.tell_forwarding(&name);
            }
            Err(error) => {
                self.interface = None;
                self.worker.front.state.degrade(&subject, &error.to_string());
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

    /// Tells the network where the address is, if that is due.
    pub(super) fn announce(&mut self) {
        let Some(interface) = self.interface.filter(|_| self.announcements > 0) else { return };
        self.announcements -= 1;
        let frame = owner::announcement(self.director.service().vip, interface.mac);
        // The next one may be sent, and questions are answered in any case.
        let _ = send_frame(self.socket.get_ref().as_fd(), &frame);
    }

    pub(super) fn tell_conflict(&mut self, other: Mac, now: Instant) {
        if self.conflict.is_some_and(|last| now.duration_since(last) < CONFLICT_EVERY) {
            return;
        }
        self.conflict = Some(now);
        let other = other.map(|byte| format!("{byte:02x}")).join(":");
        let message = format!(
            "the machine with the Ethernet address {other} claims {}: is it a backend that answers ARP for it, or another balancer?",
            self.key.bind
        );
        self.worker.front.state.events.record(Level::Warning, self.subject(), message);
    }
}
