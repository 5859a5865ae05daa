//! What operators are told of machines that claim the address of a backend. `crates/proxy/src/dsr/neighbour_socket.rs` asks.

use std::collections::HashSet;
use std::net::IpAddr;

use logic::dsr::packet::shown;

use super::Server;

impl Server {
    /// Tells of machines that claim the address of a backend while another one answers for it.
    pub(super) fn tell_claims(&mut self) {
        if self.claims.told.is_empty() && !self.claims.changes.is_asking() {
            return;
        }
        let state = &self.worker.front.state;
        let subject = |backend: &str| format!("{}.claims.{backend}", self.subject());
        let mut told = HashSet::new();
        for (backend, dispute) in self.claims.changes.disputes() {
            let message = format!(
                "{} claims {}, which is the address of {}; packets go on to {}, which answers for it as well: is it ARP spoofing, or do two \
                 machines have one address?",
                shown(dispute.other),
                dispute.machine,
                if backend_has(backend, dispute.machine) {
                    "this backend"
                } else {
                    "the router on the way to it"
                },
                shown(dispute.holder)
            );
            state.degrade(&subject(backend), &message);
            told.insert(backend.into());
        }
        self.claims.told.difference(&told).for_each(|backend| state.restore(&subject(backend)));
        self.claims.told = told;
    }
}

/// Whether the address in the name of a backend is that of a machine.
fn backend_has(backend: &str, machine: IpAddr) -> bool {
    backend.parse().is_ok_and(|address: std::net::SocketAddr| address.ip().to_canonical() == machine)
}
