//! Data paths that do not go together on one network interface: it takes one XDP program, and behind one in generic mode
//! those of `tc` do not get whole frames.

use logic::dsr::path::DataPath;

use crate::parse::parser::Parser;
use crate::raw::RawConfig;
use crate::types::{BindAddress, Listener};

impl Parser<'_> {
    /// Reports listeners whose data path another address of the same interface keeps from working.
    pub(in crate::parse) fn paths_of_dsr(&mut self, raw: &RawConfig, listeners: &[Listener]) {
        let entries = raw.listener.as_ref().map(|listeners| listeners.value.0.as_slice()).unwrap_or_default();
        for (at, (listener, (_, entry))) in listeners.iter().zip(entries).enumerate() {
            let (Some(own), Some(key)) = (listener.dsr(), &entry.value.data_path) else { continue };
            let others = listeners.iter().enumerate().filter(|(other, _)| *other != at);
            let mut same = others.filter_map(|(place, other)| {
                let settings = other.dsr().filter(|it| it.interface == own.interface)?;
                Some((place, &*other.name, settings.data_path))
            });
            let addresses = listener.binds.iter().filter_map(BindAddress::vip).count();
            let (name, interface) = (&listener.name, &own.interface);
            let (reason, hint) = match own.data_path {
                DataPath::XdpGeneric if addresses > 1 => (
                    format!(
                        "is for one address of an interface, which takes one XDP program: listener.{name} has {addresses} on {interface}"
                    ),
                    "data-path = \"tc\", or a listener of its own for each address, of which one has \"xdp-generic\" and the others \"af_packet\"",
                ),
                DataPath::XdpGeneric => {
                    let Some((_, other, path)) =
                        same.find(|(_, _, path)| !matches!(path, DataPath::AfPacket | DataPath::Proxy))
                    else {
                        continue;
                    };
                    (
                        format!(
                            "does not go together with the data-path \"{path}\" of listener.{other} on {interface}: that one would get no packets"
                        ),
                        "data-path = \"tc\" for both, or \"af_packet\" for the other one",
                    )
                }
                DataPath::Xdp if addresses > 1 => (
                    format!(
                        "is for one address of an interface, which takes one XDP program: listener.{name} has {addresses} on {interface}"
                    ),
                    "data-path = \"auto\", which gives the others tc",
                ),
                DataPath::Xdp => {
                    let earlier = same.find(|(place, _, path)| *path == DataPath::Xdp && *place < at);
                    let Some((_, other, _)) = earlier else { continue };
                    (
                        format!(
                            "is the data-path of listener.{other} on {interface} already, which takes one XDP program"
                        ),
                        "data-path = \"tc\"",
                    )
                }
                DataPath::Auto | DataPath::Tc | DataPath::AfPacket | DataPath::Proxy => continue,
            };
            drop(self.refuse(key, &reason).hint(hint));
        }
    }
}
