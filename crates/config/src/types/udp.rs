//! Types of `protocol = "udp"` listeners.

use std::time::Duration;

use logic::route::PoolId;
use logic::udp::Replies;

/// What carries the sessions of a listener. Listeners of different transports may have the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Connections: TCP and Unix sockets.
    Stream,
    /// UDP.
    Datagram,
    /// Ethernet frames.
    Packet,
}

/// A `protocol = "udp"` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpSettings {
    /// Pool of all flows.
    pub pool: PoolId,
    /// Idle timeout: a flow without a datagram in either direction for this time is ended.
    pub idle_timeout: Duration,
    /// Replies for each datagram of a client.
    pub replies: Replies,
    /// Largest number of flows over all workers and addresses.
    pub max_flows: usize,
    /// Largest number of flows of one source in each worker.
    pub flows_per_source: usize,
}
