//! Direct server return: which packet goes to which backend. Replies of backends go straight to the client, so only the
//! packets of clients are seen here.
//!
//! A service is one virtual address (VIP) with a port. [`Director::handle`] decides about one frame:
//!
//! 1. `crates/logic/src/dsr/packet.rs` reads the frame: its flow, or what else it is.
//! 2. `crates/logic/src/dsr/flows.rs` knows the backends of flows that go on, and
//!    `crates/logic/src/dsr/fragments.rs` those of IP fragments, which have no ports.
//! 3. `crates/logic/src/dsr/ring.rs` has a backend for every other flow, by Maglev hashing with a secret key: the same on
//!    every node with the same key and configuration.
//!    `crates/logic/src/dsr/quic.rs` knows servers by the numbers in their connection ids.
//! 4. `crates/logic/src/dsr/owner.rs` answers the questions of the network who has the VIP (ARP, neighbour discovery), once
//!    `crates/logic/src/dsr/holding.rs` holds it.
//!
//! `crates/logic/src/dsr/image.rs` has the same decision for programs in the kernel, which hold flows themselves.
//! `crates/logic/src/dsr/probe.rs` finds out whether backends accept the VIP, and `crates/logic/src/dsr/neighbour.rs` whether
//! another machine that claims the address of a backend is to have its packets.
//!
//! `crates/logic/src/dsr/tarpit.rs` holds clients of addresses that no machine has.
//! `crates/logic/src/dsr/trace.rs` tells an operator of each frame what is decided.
//! `crates/logic/src/dsr/tunnel.rs` puts packets into others for backends that are on another network.
//!
//! `crates/logic/src/dsr/filter.rs` is the part of this that the kernel does, so that other frames do not come here.
//! No sockets, no clock: `crates/proxy/src/dsr.rs` has both.

use std::net::IpAddr;
use std::time::{Duration, Instant};

pub mod backend_host;
pub mod doctor;
pub mod explain;
pub mod filter;
pub use crate::finding;
mod flows;
mod fragments;
pub mod holding;
mod id_table;
pub mod image;
pub mod machine;
pub mod neighbour;
pub mod owner;
pub mod packet;
pub mod path;
pub mod probe;
pub mod quic;
mod ring;
pub mod tarpit;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod tunnel;

use flows::{CLOSING, Class, Flows};
use fragments::Fragments;
use packet::{Content, Flow, FragmentKey, Packet, Segment};
use quic::{QuicId, ServerId};
use ring::Ring;
use tunnel::Tunnel;

pub use packet::{Mac, Transport};
pub use ring::{Backend, BackendId, Standing};

/// What a service forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    pub vip: IpAddr,
    /// 0: every port but those of other services, see [`Director::set_others`].
    pub port: u16,
    pub transports: Transports,
}

impl Service {
    /// Whether there are packets that both forward.
    pub fn overlaps(&self, other: &Self) -> bool {
        let both = |transport| self.transports.has(transport) && other.transports.has(transport);
        self.vip == other.vip
            && (self.port == other.port || self.port == 0 || other.port == 0)
            && (both(Transport::Tcp) || both(Transport::Udp))
    }
}

text::words! {
    /// Transport protocols of a service.
    #[derive(Default)]
    pub enum Transports: "transport" {
        #[default]
        Tcp = "tcp",
        Udp = "udp",
        TcpAndUdp = "tcp-and-udp",
    }
}

impl Transports {
    pub fn has(self, transport: Transport) -> bool {
        match self {
            Self::Tcp => transport == Transport::Tcp,
            Self::Udp => transport == Transport::Udp,
            Self::TcpAndUdp => true,
        }
    }
}

/// Limits of the state that clients can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Largest number of flows that are remembered.
    pub flows: usize,
    /// Silence after which a TCP flow is forgotten.
    pub tcp_idle: Duration,
    /// The same of a UDP flow.
    pub udp_idle: Duration,
}

/// Flows that are remembered anew in one second. Beyond that, backends are found without: a flood of new flows takes no
/// more places of those that go on, and costs less.
const NEW_FLOWS_PER_SECOND: u32 = 125_000;

/// Expired flows of each class that one call of [`Director::expire`] forgets. Ten calls a second forget more than come anew.
const EXPIRED_AT_ONCE: usize = NEW_FLOWS_PER_SECOND as usize / 8;

/// Flows that one new flow evicts, at most: a reload may have lowered the limit by a million, and packets wait meanwhile.
const EVICTED_AT_ONCE: usize = 64;

/// What becomes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not for this service.
    Pass,
    /// It is for this service and cannot be forwarded.
    Drop(Dropped),
    /// To this backend: [`rewrite`] gives the frame its address.
    Forward { backend: BackendId, to: Mac, flow: Progress },
    /// The service sends this frame.
    Answer(Vec<u8>),
    /// Another machine claims the VIP.
    Conflict(Mac),
}

/// Whether a forwarded packet began a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Began,
    GoesOn,
}

text::meanings! {
    /// Why a packet for a service was not forwarded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Dropped {
        /// No backend of a `dsr` listener takes new flows, or none that does has a known Ethernet address: the packet was dropped.
        NoBackend = "packet-no-backend",
        /// A packet for a `dsr` listener with `mode = "ipip"` does not fit into the tunnel to its backend. The client was told
        /// the size that does, unless too many were told in the same second.
        TooLong = "packet-too-long",
        /// A packet for a `dsr` listener with `mode = "ipip"` was put together by the kernel in a way that it cannot be taken
        /// apart again.
        NotSegmented = "packet-not-segmented",
    }
}

/// State of one service.
#[derive(Debug)]
pub struct Director {
    service: Service,
    rules: Rules,
    ring: Ring,
    flows: Flows,
    fragments: Fragments,
    /// Ports of other services with the same VIP, which a service on every port leaves to them.
    others: Vec<(u16, Transports)>,
    /// Number of flows that were remembered since then.
    pace: (Instant, u32),
    /// Longest packet that fits into a tunnel to a backend; `None`: packets are not put into others.
    room: Option<u16>,
    /// Where connection ids of QUIC have the number of a server; `None`: they are not looked at.
    quic_id: Option<QuicId>,
}

impl Director {
    /// A service without backends. `key` is secret, so that no client can choose its backend.
    pub fn new(service: Service, rules: Rules, key: [u64; 2], now: Instant) -> Self {
        Self {
            service,
            rules,
            ring: Ring::new(key),
            flows: Flows::default(),
            fragments: Fragments::default(),
            others: Vec::new(),
            pace: (now, 0),
            room: None,
            quic_id: None,
        }
    }

    pub fn service(&self) -> Service {
        self.service
    }

    /// Changes what a reload may change.
    pub fn set(&mut self, service: Service, rules: Rules, key: [u64; 2]) {
        (self.service, self.rules) = (service, rules);
        self.ring.set_key(key);
    }

    /// Sets the ports that a service on every port leaves to other services of the same VIP.
    pub fn set_others(&mut self, mut others: Vec<(u16, Transports)>) {
        others.sort_unstable_by_key(|(port, _)| *port);
        self.others = others;
    }

    /// Sets the backends. One that is not in the list any more keeps its flows, as one that drains. Flows of a backend that
    /// is down go to others with their next packets.
    pub fn set_backends(&mut self, backends: &[Backend<'_>]) {
        self.ring.set(backends);
    }

    /// Sets where connection ids of QUIC have the number of a server; `None`: they are not looked at.
    pub fn set_quic_id(&mut self, place: Option<QuicId>) {
        self.quic_id = place;
    }

    pub fn quic_id(&self) -> Option<QuicId> {
        self.quic_id
    }

    /// Sets the number of a backend in connection ids. One that is not configured any more keeps its number as long as it has
    /// flows.
    pub fn set_server_id(&mut self, name: &str, id: Option<ServerId>) {
        self.ring.set_server_id(name, id);
    }

    /// Sets the Ethernet address of a backend, once it is known. Returns whether it changed.
    pub fn set_mac(&mut self, name: &str, mac: Mac) -> bool {
        self.ring.set_mac(name, mac)
    }

    /// Forgets the Ethernet address of a backend that answers no question about it: new flows go to others, and packets of
    /// its own are dropped until it is back. Returns whether it was known.
    pub fn forget_mac(&mut self, name: &str) -> bool {
        self.ring.forget_mac(name)
    }

    /// Lets packets travel through tunnels, for which [`Self::set_tunnel`] has the ends: those of up to this length. `None`: as
    /// they are.
    pub fn set_room(&mut self, room: Option<u16>) {
        self.room = room;
    }

    pub fn room(&self) -> Option<u16> {
        self.room
    }

    /// Sets the tunnel to a backend: before its Ethernet address, which is that of the next machine on the way.
    pub fn set_tunnel(&mut self, name: &str, tunnel: Option<Tunnel>) {
        self.ring.set_tunnel(name, tunnel);
    }

    pub fn tunnel(&self, backend: BackendId) -> Option<Tunnel> {
        self.ring.tunnel(backend)
    }

    /// The tunnel to the backend with this name.
    pub fn tunnel_of(&self, name: &str) -> Option<Tunnel> {
        self.ring.tunnel_of(name)
    }

    /// Backends that have flows or are configured: name and number of flows.
    pub fn backends(&self) -> impl Iterator<Item = (BackendId, &str, u32)> {
        self.ring.backends()
    }

    /// The Ethernet address of a backend, if it is known.
    pub fn mac(&self, name: &str) -> Option<Mac> {
        self.ring.mac_of(name)
    }

    /// The backend with this Ethernet address.
    pub fn name_at(&self, mac: Mac) -> Option<&str> {
        self.ring.name_at(mac)
    }

    pub fn name(&self, backend: BackendId) -> Option<&str> {
        self.ring.name(backend)
    }

    /// Number of remembered flows.
    pub fn flows(&self) -> usize {
        self.ring.flows_elsewhere().unwrap_or_else(|| self.flows.len())
    }

    /// Decides about a frame that the network interface with the address `own` has received.
    pub fn handle(&mut self, frame: &[u8], own: Mac, now: Instant) -> Verdict {
        let Some(packet) = packet::parse(frame) else { return Verdict::Pass };
        if packet.source == own {
            // It would go round for ever.
            return Verdict::Pass;
        }
        match packet.content {
            // A backend that names the address in its own questions (`arp_announce`) takes clients away as well.
            Content::Question(question)
                if question.asker == self.service.vip && question.asker_mac != own =>
            {
                Verdict::Conflict(question.asker_mac)
            }
            Content::Question(question) if question.target == self.service.vip => {
                Verdict::Answer(owner::answer(&question, own))
            }
            Content::Claim { address, mac } if address == self.service.vip && mac != own => {
                Verdict::Conflict(mac)
            }
            Content::Segment(segment) if self.is_ours(&segment.flow) => {
                let named = self.named(frame, &segment.flow);
                self.forward(&packet, segment, named, now)
            }
            // The table has no flow of a reply that the error is about: it was sent straight to the client.
            Content::Error(flow) if self.is_ours(&flow) => {
                match self.known(&flow).or_else(|| self.ring.lookup(&flow)) {
                    Some(backend) => self.to(backend, Progress::GoesOn),
                    None => Verdict::Drop(Dropped::NoBackend),
                }
            }
            Content::LaterFragment(key) if key.destination == self.service.vip => {
                match self
                    .fragments
                    .lookup(&key, now)
                    .filter(|(backend, turn)| self.ring.is_turn(*backend, *turn))
                {
                    Some((backend, _)) => self.to(backend, Progress::GoesOn),
                    // Each service of the VIP sees it.
                    None => Verdict::Pass,
                }
            }
            _ => Verdict::Pass,
        }
    }

    /// Whether a frame has a packet of a flow of this service. Nothing changes.
    pub fn is_of_service(&self, frame: &[u8]) -> bool {
        match packet::parse(frame).map(|packet| packet.content) {
            Some(Content::Segment(Segment { flow, .. }) | Content::Error(flow)) => self.is_ours(&flow),
            _ => false,
        }
    }

    /// The packet of which a frame has a fragment without ports, if it is for the address of the service.
    pub fn later_fragment(&self, frame: &[u8]) -> Option<FragmentKey> {
        match packet::parse(frame)?.content {
            Content::LaterFragment(key) if key.destination == self.service.vip => Some(key),
            _ => None,
        }
    }

    /// Forgets flows that were silent for too long. To be called ten times a second.
    pub fn expire(&mut self, now: Instant) {
        let Rules { tcp_idle, udp_idle, .. } = self.rules;
        // Each class has its own number: none waits for another one.
        for (class, idle) in [(Class::Closing, CLOSING), (Class::Udp, udp_idle), (Class::Tcp, tcp_idle)] {
            for _ in 0..EXPIRED_AT_ONCE {
                let Some(backend) = self.flows.expire(class, idle, now) else { break };
                self.ring.leave(backend);
            }
        }
    }

    fn is_ours(&self, flow: &Flow) -> bool {
        let Service { vip, port, transports } = self.service;
        let is_port = if port == 0 { !self.is_of_another(flow) } else { flow.port == port };
        flow.vip == vip && transports.has(flow.transport) && is_port
    }

    /// Whether a service of one port has the flow.
    fn is_of_another(&self, flow: &Flow) -> bool {
        let first = self.others.partition_point(|(port, _)| *port < flow.port);
        let mut same = self.others[first..].iter().take_while(|(port, _)| *port == flow.port);
        same.any(|(_, transports)| transports.has(flow.transport))
    }

    /// The backend of a flow that goes on, if it still takes its packets.
    fn known(&self, flow: &Flow) -> Option<BackendId> {
        self.flows.lookup(flow).map(|(backend, _)| backend).filter(|backend| self.ring.keeps(*backend))
    }

    /// The backend that the connection id of a packet names, if it takes packets of its flows.
    fn named(&mut self, frame: &[u8], flow: &Flow) -> Option<BackendId> {
        let place = self.quic_id.filter(|_| flow.transport == Transport::Udp)?;
        self.ring.named(place.read(packet::datagram(frame)?)?)
    }

    /// `named` is the backend that the packet itself names.
    fn forward(
        &mut self,
        packet: &Packet,
        segment: Segment,
        named: Option<BackendId>,
        now: Instant,
    ) -> Verdict {
        let Segment { flow, begins, ends, fragment } = segment;
        let class = match (flow.transport, ends) {
            (Transport::Udp, _) => Class::Udp,
            (Transport::Tcp, true) => Class::Closing,
            (Transport::Tcp, false) => Class::Tcp,
        };
        let found = self.flows.lookup(&flow);
        // The client uses a port again whose connection has ended.
        let is_anew = begins && matches!(found, Some((_, Class::Closing)));
        let (backend, progress) = match found {
            Some((backend, before))
                if !is_anew && self.ring.keeps(backend) && named.is_none_or(|named| named == backend) =>
            {
                self.flows.touch(&flow, if before == Class::Closing { before } else { class }, now);
                (backend, Progress::GoesOn)
            }
            found => {
                if found.is_some()
                    && let Some(backend) = self.flows.remove(&flow)
                {
                    self.ring.leave(backend);
                }
                let Some(backend) = named.or_else(|| self.ring.lookup(&flow)) else {
                    return Verdict::Drop(Dropped::NoBackend);
                };
                // A flow that goes on belongs to another backend, perhaps, whose Ethernet address is not known yet.
                if !ends && (begins || !self.ring.stands_in(&flow, backend)) {
                    self.remember(flow, backend, class, now);
                }
                (backend, if begins { Progress::Began } else { Progress::GoesOn })
            }
        };
        if let Some(id) = fragment {
            let key = FragmentKey::new(flow.client, flow.vip, id, packet.protocol);
            self.fragments.insert(key, (backend, self.ring.turn(backend)), now);
        }
        self.to(backend, progress)
    }

    fn remember(&mut self, flow: Flow, backend: BackendId, class: Class, now: Instant) {
        let (since, count) = &mut self.pace;
        if now.saturating_duration_since(*since) >= Duration::from_secs(1) {
            (*since, *count) = (now, 0);
        }
        if *count >= NEW_FLOWS_PER_SECOND || self.rules.flows == 0 {
            return;
        }
        *count += 1;
        for _ in 0..EVICTED_AT_ONCE {
            if self.flows.len() < self.rules.flows {
                break;
            }
            let Some(evicted) = self.flows.evict() else { return };
            self.ring.leave(evicted);
        }
        self.flows.insert(flow, backend, class, now);
        self.ring.join(backend);
    }

    fn to(&self, backend: BackendId, flow: Progress) -> Verdict {
        match self.ring.mac(backend) {
            Some(to) => Verdict::Forward { backend, to, flow },
            None => Verdict::Drop(Dropped::NoBackend),
        }
    }
}

/// Addresses a frame to a backend on the same network.
pub fn rewrite(frame: &mut [u8], own: Mac, to: Mac) {
    if let Some(addresses) = frame.get_mut(..12) {
        addresses[..6].copy_from_slice(&to);
        addresses[6..].copy_from_slice(&own);
    }
}
