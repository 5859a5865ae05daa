//! What a service has for tunnels. `crates/proxy/src/dsr/tunnel.rs` uses it.

use std::net::IpAddr;

use logic::dsr::tunnel::{self, Frames, Mode, Pace};

use crate::snapshot::ListenerPlan;

/// MTU of an interface that does not tell it: that of Ethernet.
const USUAL_MTU: u32 = 1500;

/// What a service with tunnels holds.
#[derive(Default)]
pub(super) struct Tunnels {
    /// Frames of the batch that travel through them.
    pub(super) frames: Frames,
    /// How many refusals of packets that are too long may go out.
    pub(super) refusals: Pace,
}

/// Longest packet that fits into a tunnel, until the MTU of the interface is known; `None`: there are no tunnels.
pub(super) fn room_of(plan: &ListenerPlan, vip: IpAddr) -> Option<u16> {
    let mode = plan.settings.dsr().map_or(Mode::default(), |settings| settings.mode);
    (mode == Mode::Ipip).then(|| tunnel::room(vip, USUAL_MTU))
}
