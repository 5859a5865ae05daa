//! Watches this machine for what keeps packets from a service: a lost link, the address of the service on an interface of
//! its own, a kernel that forwards packets. Operators are told for as long as it lasts; `crates/logic/src/dsr/machine.rs` has
//! the sentences.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use logic::dsr::machine::{self, Forwarder, NoLink};
use sys::interfaces::{self, Link};

use super::{Round, Server};

/// Any port will do: nothing is sent.
pub(super) const DISCARD: u16 = 9;

impl Server {
    /// Looks at this machine: at its link each time, because backends would be blamed for it.
    pub(super) fn look_at_machine(&mut self, round: Round, now: Instant) {
        let Some(name) = self.settings().map(|settings| settings.interface.clone()) else { return };
        self.look_at_link(&name, now);
        if round != Round::Usual {
            self.look_for_own_address();
            self.look_at_forwarding(&name);
        }
    }

    fn look_at_link(&mut self, name: &str, now: Instant) {
        let link = match self.interface {
            // What cannot be found out now stays as it was.
            Some(_) => self.link_watch.look(name).unwrap_or(self.link),
            // One that is gone is told of where the socket is bound.
            None => Link::Up,
        };
        let before = std::mem::replace(&mut self.link, link);
        if link == before {
            return;
        }
        let subject = format!("{}.link", self.subject());
        let Some(why) = cause(link) else {
            self.holding.resume(now);
            return self.worker.front.state.restore(&subject);
        };
        self.worker.front.state.degrade(&subject, &machine::no_link(name, why));
    }

    /// Returns why the interface receives no packets. `None` if it receives them.
    pub(super) fn no_link(&self) -> Option<NoLink> {
        if self.interface.is_none() { Some(NoLink::Missing) } else { cause(self.link) }
    }

    /// The kernel answers clients itself once it has the address of the service.
    fn look_for_own_address(&self) {
        let vip = self.director.service().vip;
        let subject = format!("{}.own-address", self.subject());
        let state = &self.worker.front.state;
        // What cannot be found out now stays as it was.
        let Ok(is_local) = sys::datagram::is_local(SocketAddr::new(vip, DISCARD)) else { return };
        if !is_local {
            return state.restore(&subject);
        }
        let place = place_of(vip);
        let on = place.as_ref().map(|(name, prefix)| (&**name, *prefix));
        let forwarder = if self.kernel.is_some() { Forwarder::Program } else { Forwarder::Process };
        state.degrade(&subject, &machine::own_address(vip, on, forwarder));
    }

    /// A kernel that forwards packets looks for the address, too, and tells clients that no machine has it. What a program
    /// takes behind the driver does not come to that.
    fn look_at_forwarding(&self, name: &str) {
        let family = if self.director.service().vip.is_ipv4() { "ipv4" } else { "ipv6" };
        let subject = format!("{}.forwarding", self.subject());
        let state = &self.worker.front.state;
        // A few bytes that the kernel makes: this does not block.
        let is_on = std::fs::read(format!("/proc/sys/net/{family}/conf/{name}/forwarding"));
        if self.kernel.is_some() || !is_on.is_ok_and(|text| text.trim_ascii() == b"1") {
            return state.restore(&subject);
        }
        state.degrade(&subject, &machine::forwarding(self.director.service().vip, name));
    }
}

fn cause(link: Link) -> Option<NoLink> {
    match link {
        Link::Up => None,
        Link::Down => Some(NoLink::Down),
        Link::NoCarrier => Some(NoLink::NoCarrier),
    }
}

/// Where this machine has an address, with the length of its prefix.
fn place_of(ip: IpAddr) -> Option<(String, u8)> {
    let all = interfaces::all().ok()?;
    all.into_iter().find_map(|one| {
        let found = one.addresses.iter().find(|address| address.ip == ip)?;
        Some((one.name.clone(), found.prefix))
    })
}
