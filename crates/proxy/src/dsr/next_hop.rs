//! The next machine on the way to a backend, which may be a router if packets go through tunnels.

use std::net::IpAddr;

use logic::dsr::tunnel::Tunnel;
use sys::neighbour::Neighbours;

/// The next machine on the way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How packets go to backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Travel {
    AsTheyAre,
    InTunnels,
}

/// Looks for the way to a backend, and for the ends of its tunnel. This waits for the kernel.
pub(super) fn next(
    neighbours: &mut Neighbours,
    ip: IpAddr,
    travel: Travel,
    interface: u32,
) -> (Next, Option<Tunnel>) {
    if travel == Travel::AsTheyAre {
        return (Next::Itself(ip), None);
    }
    let hop = neighbours.route(ip, interface).ok().flatten();
    match hop.and_then(|hop| Some((hop, Tunnel::new(hop.from, ip)?))) {
        Some((hop, tunnel)) if hop.next == ip => (Next::Itself(ip), Some(tunnel)),
        Some((hop, tunnel)) => (Next::Hop(hop.next), Some(tunnel)),
        None => (Next::NoRoute, None),
    }
}
