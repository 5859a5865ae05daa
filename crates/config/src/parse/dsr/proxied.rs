//! `data-path = "proxy"`: how a service is served whose packets cannot be forwarded, and which keys are for packets alone.

use std::time::Duration;

use logic::dsr::path::DataPath;
use logic::route::PoolId;
use logic::udp::Replies;

use crate::de::At;
use crate::parse::parser::Parser;
use crate::raw::RawListener;
use crate::types::{BindAddress, FastClose, TcpSettings, UdpSettings};

/// Largest number of flows of one source in each worker, as of a `udp` listener.
const FLOWS_PER_SOURCE: usize = 1024;

/// Largest table of flows: each has a socket here.
const FLOWS: usize = 16_384;

pub(super) fn tcp(pool: PoolId, idle_timeout: Duration) -> TcpSettings {
    TcpSettings { pool, idle_timeout, fast_close: FastClose::Off }
}

pub(super) fn udp(pool: PoolId, idle_timeout: Duration, flows: usize) -> UdpSettings {
    UdpSettings {
        pool,
        idle_timeout,
        replies: Replies::Any,
        max_flows: flows.min(FLOWS),
        flows_per_source: FLOWS_PER_SOURCE,
    }
}

impl Parser<'_> {
    /// Reports keys that do nothing without packets.
    pub(super) fn keys_of_packets(
        &mut self,
        at: &At<RawListener>,
        binds: Option<&[BindAddress]>,
        path: Option<DataPath>,
    ) {
        if path != Some(DataPath::Proxy) {
            return;
        }
        let raw = &at.value;
        let keys = [
            (
                raw.owner_address.as_ref().map(|key| key.id),
                "let keepalived move the address of the service itself",
            ),
            (raw.quic_id.as_ref().map(|key| key.id), "no packet is forwarded, so no connection id is seen"),
            (
                raw.tarpit_networks.as_ref().filter(|key| !key.value.is_empty()).map(|key| key.id),
                "questions for unused addresses are answered with a packet socket",
            ),
        ];
        for (id, why) in keys.into_iter().filter_map(|(id, why)| Some((id?, why))) {
            let message = format!("not with data-path = \"proxy\": {why}");
            drop(self.report.at_key(self.nodes, id, message));
        }
        let is_every_port = |bind: &BindAddress| matches!(bind, BindAddress::EveryPort(_));
        if let (Some(key), Some(_)) =
            (&raw.bind, binds.into_iter().flatten().find(|bind| is_every_port(bind)))
        {
            let message = "every port is for packets, and data-path = \"proxy\" listens on one";
            drop(self.report.at_key(self.nodes, key.id, message).hint("bind = \"192.0.2.10:80\""));
        }
    }
}
