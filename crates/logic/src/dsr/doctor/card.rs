//! What a network card does to frames that a service may not survive, or cannot see.

use super::{Balancer, Switch};
use crate::dsr::finding::Finding;
use crate::dsr::path::{Card, DataPath};

/// Longest frame that is forwarded: what segmentation offload makes by default.
const LONGEST_FRAME: u32 = 65_536;

/// None, as a rule.
pub(super) fn findings(balancer: &Balancer) -> Vec<Finding> {
    let Balancer { interface, offloads, data_path, card, longest_frame, .. } = balancer;
    let name = text::shell::word(interface);
    let mut found = Vec::new();
    match longest_frame {
        Some(longest) if *longest > LONGEST_FRAME => found.push(Finding::fault(
            "big-tcp",
            format!(
                "{interface} has frames of up to {longest} bytes (BIG TCP): those of more than {LONGEST_FRAME} are dropped, so that uploads stall"
            ),
            vec![format!(
                "ip link set {name} gso_max_size {LONGEST_FRAME} gro_max_size {LONGEST_FRAME} gso_ipv4_max_size {LONGEST_FRAME} gro_ipv4_max_size {LONGEST_FRAME}"
            )],
        )),
        Some(_) => {}
        None => found.push(Finding::unknown(
            "big-tcp",
            format!("the kernel does not tell how long frames of {interface} can be (BIG TCP)"),
        )),
    }
    let may_be_xdp = matches!((data_path, card), (DataPath::Xdp, _) | (DataPath::Auto, Card::Physical));
    if may_be_xdp && offloads.as_ref().is_some_and(|it| it.vlan == Switch::On) {
        found.push(Finding::unknown(
            "vlan",
            format!(
                "{interface} takes VLAN tags off frames, so that xdp forwards tagged ones as well: whether the network has any cannot be told; if it has: `ethtool -K {name} rxvlan off`"
            ),
        ));
    }
    found
}
