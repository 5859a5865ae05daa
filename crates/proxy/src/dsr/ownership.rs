//! Whether this machine is the owner of the address of a service: always, or while it also has another address
//! (`owner-address`), which keepalived and the like move between machines. Only the owner answers questions who has the
//! address. Packets that come in are forwarded by any machine: its table gives a flow to the same backend.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use logic::dsr::holding::{Begin, Moves};
use logic::dsr::owner::Ownership;
use state::events::Level;

use super::Server;

/// Any port will do: nothing is sent.
const DISCARD: u16 = 9;

impl Server {
    /// Takes the address over or releases it, if that is due.
    pub(super) fn follow_ownership(&mut self, now: Instant) {
        let Some(settings) = self.settings() else { return };
        let asked = settings.owner_address;
        self.holding.set_moves(if asked.is_some() { Moves::AsPlanned } else { Moves::Never });
        let is = match asked.map(is_here) {
            None => Ownership::Owner,
            Some(Some(is)) => is,
            // It cannot be known now: what was known holds, and a start waits.
            Some(None) => self.ownership.unwrap_or(Ownership::Standby),
        };
        let before = self.ownership.replace(is);
        if before == Some(is) {
            return;
        }
        let vip = self.director.service().vip;
        let message = match (is, asked) {
            (Ownership::Owner, asked) => {
                // The machine that was the owner until now may still answer: it is releasing the address.
                let is_take_over = before == Some(Ownership::Standby) && asked.is_some();
                self.holding.begin(if is_take_over { Begin::AtOnce } else { Begin::Ask }, now);
                self.announce(now);
                let Some(address) = asked else { return };
                format!("takes {vip} over: this machine has {address} now")
            }
            (Ownership::Standby, asked) => {
                self.release();
                let address = asked.map_or(String::new(), |address| address.to_string());
                match before {
                    None => format!(
                        "stands by: this machine does not have {address}, and does not answer for {vip}"
                    ),
                    Some(_) => format!(
                        "releases {vip}: this machine does not have {address} any more; packets that still come in are forwarded"
                    ),
                }
            }
        };
        self.worker.front.state.events.record(Level::Info, self.subject(), message);
    }

    pub(super) fn is_owner(&self) -> bool {
        self.ownership == Some(Ownership::Owner)
    }
}

/// Whether an interface of this machine has the address; `None` if that cannot be found out.
fn is_here(address: IpAddr) -> Option<Ownership> {
    let is_local = sys::datagram::is_local(SocketAddr::new(address, DISCARD)).ok()?;
    Some(if is_local { Ownership::Owner } else { Ownership::Standby })
}
