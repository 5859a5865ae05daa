//! The next machine on the way to a backend, which may be a router if packets go through tunnels.

use std::net::IpAddr;

use logic::dsr::Director;
use logic::dsr::tunnel::Tunnel;
use sys::neighbour::Neighbours;

/// The next machine on the way to a backend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The backend, which is on the network of the interface.
    Itself(IpAddr),
    /// The one that the routing table names.
    Hop(IpAddr),
    NoRoute,
}

impl Next {
    pub(super) fn machine(self) -> Option<IpAddr> {
        match self {
            Self::Itself(ip) | Self::Hop(ip) => Some(ip),
            Self::NoRoute => None,
        }
    }
}

/// Looks for the way to a backend, and tells the decision of the tunnel.
pub(super) fn next(
    neighbours: &mut Neighbours,
    director: &mut Director,
    (name, ip): (&str, IpAddr),
    interface: u32,
) -> Next {
    if director.room().is_none() {
        return Next::Itself(ip);
    }
    let hop = neighbours.route(ip, interface).ok().flatten();
    let tunnel = hop.and_then(|hop| Tunnel::new(hop.from, ip));
    // Without a route the tunnel stays as it was for as long as its Ethernet address does.
    match (hop, tunnel) {
        (Some(hop), Some(_)) => {
            director.set_tunnel(name, tunnel);
            if hop.next == ip { Next::Itself(ip) } else { Next::Hop(hop.next) }
        }
        _ => Next::NoRoute,
    }
}
