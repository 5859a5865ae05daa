//! Tarpit: addresses of a network that no machine has answer connections, and keep who opens them.
//!
//! 1. An ARP request or neighbour solicitation for an address starts a search: the network is asked whether a machine has it. A machine that answers, or
//!    that is about to take the address, or asks for another one from it, keeps it. If none does, questions are answered from then on.
//! 2. A SYN to such an address is answered with SYN and ACK and a window of 0. The client believes that it is connected,
//!    and may send nothing: it sends window probes, each of which is answered with a window of 0.
//! 3. Nothing else is answered, and nothing is kept of a client: its own sequence number is in ours, hidden by a hash of its
//!    addresses and ports with a secret key (as with SYN cookies, RFC 4987 section 3.6), so that a probe says what belongs
//!    to it, and packets that belong to no such connection are known.
//!
//! Everything that is sent takes from one limit, so that forged sources get no more than that.
//! `crates/logic/src/dsr/tarpit/frames.rs` builds frames, `crates/logic/src/dsr/tarpit/filter.rs` lets the kernel leave out
//! others. No sockets, no clock: `crates/proxy/src/dsr/tarpit.rs` has both.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::owner;
use super::packet::{self, Content, Mac, Question};

pub mod filter;
mod frames;
#[cfg(test)]
mod tests;

use frames::Asked;

/// Addresses that are known at a time. Further ones are not answered until others are forgotten.
pub const ADDRESSES: usize = 4096;

/// Networks of one tarpit.
pub const NETWORKS: usize = 16;

/// Time in which a machine that has an address answers for it.
const SEARCH: Duration = Duration::from_millis(800);

/// The network is asked a second time after this time: a frame may be lost.
const SEARCH_AGAIN: Duration = Duration::from_millis(400);

/// Time after which the network is asked again for an address, and after which an address without questions is forgotten.
const KNOWN: Duration = Duration::from_secs(60);

/// What is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// At most [`NETWORKS`].
    pub networks: Vec<IpNet>,
    /// Packets a second that are sent, at most.
    pub rate: u32,
}

/// Networks that are on none of those of an interface, which has these addresses with their prefixes.
pub fn elsewhere(networks: &[IpNet], own: &[(IpAddr, u8)]) -> Vec<IpNet> {
    let on = |(ip, prefix): &(IpAddr, u8)| IpNet::new(*ip, *prefix).ok().map(|net| net.trunc());
    let own: Vec<_> = own.iter().filter_map(on).collect();
    networks.iter().filter(|network| !own.iter().any(|one| one.contains(*network))).copied().collect()
}

/// What was done, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// SYNs that were answered.
    pub tarpitted: u64,
    /// Window probes that were answered.
    pub held: u64,
    /// What was not answered because of the limit.
    pub limited: u64,
}

impl Counted {
    /// Packets of clients that were answered.
    pub fn of_clients(self) -> u64 {
        self.tarpitted + self.held
    }

    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tarpitted: self.tarpitted + other.tarpitted,
            held: self.held + other.held,
            limited: self.limited + other.limited,
        }
    }
}

/// Whether this machine has an address itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    Yes,
    No,
}

/// State of the tarpit of one network interface.
#[derive(Debug)]
pub struct Tarpit {
    rules: Rules,
    key: [u64; 2],
    /// Addresses that are never ours: those of services and backends.
    others: HashSet<IpAddr>,
    addresses: HashMap<IpAddr, Place>,
    limit: Limit,
    counted: Counted,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
enum Place {
    Searched {
        since: Instant,
        again: Again,
        /// Who has asked for it, and gets the answer.
        asker: Option<Question>,
    },
    Ours {
        since: Instant,
    },
    /// A machine has it.
    Used {
        since: Instant,
    },
}

/// Whether the network was asked a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Yes,
    NotYet,
}

impl Tarpit {
    /// `key` is secret.
    pub fn new(rules: Rules, key: [u64; 2], now: Instant) -> Self {
        Self {
            limit: Limit { left: rules.rate, since: now },
            rules,
            key,
            others: HashSet::new(),
            addresses: HashMap::new(),
            counted: Counted::default(),
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Sets addresses that others have. What is known of them is forgotten.
    pub fn set_others(&mut self, others: HashSet<IpAddr>) {
        self.addresses.retain(|address, _| !others.contains(address));
        self.others = others;
    }

    pub fn counted(&self) -> Counted {
        self.counted
    }

    /// Number of addresses that are ours, and of those that a machine has.
    pub fn addresses(&self) -> (usize, usize) {
        let count = |is: fn(&Place) -> bool| self.addresses.values().filter(|place| is(place)).count();
        (
            count(|place| matches!(place, Place::Ours { .. })),
            count(|place| matches!(place, Place::Used { .. })),
        )
    }

    /// Decides about a frame that the interface with the address `own` has received. Returns the frame to send.
    pub fn handle(
        &mut self,
        frame: &[u8],
        own: Mac,
        now: Instant,
        is_local: impl FnOnce(IpAddr) -> Local,
    ) -> Option<Vec<u8>> {
        let packet = packet::parse(frame)?;
        if packet.source == own {
            return None;
        }
        if let Content::Question(Question { asker, asker_mac, .. }) = packet.content
            && self.has(asker)
            && asker_mac != own
        {
            // Who asks for another address from this one has it.
            self.leave(asker, now);
        }
        match packet.content {
            Content::Question(question) if self.has(question.target) => {
                self.asked(question, own, now, is_local)
            }
            Content::Claim { address, mac } if self.has(address) && mac != own => {
                self.leave(address, now);
                None
            }
            Content::Segment(segment) if self.has(segment.flow.vip) => {
                let address = segment.flow.vip;
                let asked = Asked::read(frame, self.key)?;
                if !is_client(segment.flow.client) {
                    return None;
                }
                match self.place(address, now) {
                    Some(Place::Ours { .. }) => {}
                    Some(_) => return None,
                    // A router that sends all packets here has not asked for it.
                    None => return self.search(address, None, own, now, is_local),
                }
                let counter = match asked {
                    Asked::Connection { .. } => &mut self.counted.tarpitted,
                    Asked::Window { .. } => &mut self.counted.held,
                };
                if !self.limit.take(self.rules.rate, now) {
                    self.counted.limited += 1;
                    return None;
                }
                *counter += 1;
                Some(frames::answer(&segment.flow, asked, packet.source, own))
            }
            _ => None,
        }
    }

    /// Ends searches. Returns frames to send. To be called ten times a second.
    pub fn expire(&mut self, own: Mac, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let Self { addresses, limit, rules, counted, .. } = self;
        let mut send = |frame: Vec<u8>| match limit.take(rules.rate, now) {
            true => frames.push(frame),
            false => counted.limited += 1,
        };
        addresses.retain(|address, place| match place {
            Place::Searched { since, again, asker } => {
                let age = now.saturating_duration_since(*since);
                if age >= SEARCH {
                    if let Some(question) = asker {
                        send(owner::answer(question, own));
                    }
                    *place = Place::Ours { since: now };
                } else if age >= SEARCH_AGAIN && *again == Again::NotYet {
                    *again = Again::Yes;
                    send(owner::probe(*address, own));
                }
                true
            }
            Place::Ours { since } | Place::Used { since } => now.saturating_duration_since(*since) < KNOWN,
        });
        frames
    }

    /// Whether an address is of the tarpit.
    fn has(&self, address: IpAddr) -> bool {
        self.rules.networks.iter().any(|network| is_host(network, address)) && !self.others.contains(&address)
    }

    fn place(&self, address: IpAddr, now: Instant) -> Option<Place> {
        let place = *self.addresses.get(&address)?;
        match place {
            Place::Ours { since } | Place::Used { since }
                if now.saturating_duration_since(since) >= KNOWN =>
            {
                None
            }
            place => Some(place),
        }
    }

    /// Leaves an address to the machine that has it.
    fn leave(&mut self, address: IpAddr, now: Instant) {
        if self.addresses.contains_key(&address) || self.addresses.len() < ADDRESSES {
            self.addresses.insert(address, Place::Used { since: now });
        }
    }

    fn asked(
        &mut self,
        question: Question,
        own: Mac,
        now: Instant,
        is_local: impl FnOnce(IpAddr) -> Local,
    ) -> Option<Vec<u8>> {
        let address = question.target;
        if question.asker.is_unspecified() {
            // It is about to take the address, if no other machine has it (RFC 5227, RFC 4862 section 5.4).
            self.leave(address, now);
            return None;
        }
        match self.place(address, now) {
            Some(Place::Ours { .. }) => match self.limit.take(self.rules.rate, now) {
                true => Some(owner::answer(&question, own)),
                false => {
                    self.counted.limited += 1;
                    None
                }
            },
            Some(Place::Searched { since, again, .. }) => {
                let place = Place::Searched { since, again, asker: Some(question) };
                self.addresses.insert(address, place);
                None
            }
            Some(Place::Used { .. }) => None,
            None => self.search(address, Some(question), own, now, is_local),
        }
    }

    /// Begins to search the machine that has an address.
    fn search(
        &mut self,
        address: IpAddr,
        asker: Option<Question>,
        own: Mac,
        now: Instant,
        is_local: impl FnOnce(IpAddr) -> Local,
    ) -> Option<Vec<u8>> {
        if !self.addresses.contains_key(&address) && self.addresses.len() >= ADDRESSES {
            self.counted.limited += 1;
            return None;
        }
        // Without the question no machine could answer it. To find out whether an address is local costs system calls, and a
        // flood must not cause more of them than packets.
        if !self.limit.take(self.rules.rate, now) {
            self.counted.limited += 1;
            return None;
        }
        if is_local(address) == Local::Yes {
            self.limit.give_back();
            self.addresses.insert(address, Place::Used { since: now });
            return None;
        }
        self.addresses.insert(address, Place::Searched { since: now, again: Again::NotYet, asker });
        Some(owner::probe(address, own))
    }
}

/// Whether a network, as it is written, has an address that a tarpit may answer for.
pub fn has(network: &str, address: IpAddr) -> bool {
    network.parse().is_ok_and(|network| is_host(&network, address))
}

/// Whether an address is one of a machine in the network: neither the network itself nor its broadcast address.
fn is_host(network: &IpNet, address: IpAddr) -> bool {
    let is_edge = match network {
        IpNet::V4(v4) => v4.prefix_len() < 31 && (v4.network() == address || v4.broadcast() == address),
        // Anycast address of the routers (RFC 4291 section 2.6.1).
        IpNet::V6(v6) => v6.prefix_len() < 127 && v6.network() == address,
    };
    network.contains(&address) && !is_edge
}

/// Whether an address may be that of one client.
fn is_client(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(ip) if ip.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

/// Packets that may be sent: a second's share at once, then so many a second.
#[derive(Debug)]
struct Limit {
    left: u32,
    since: Instant,
}

impl Limit {
    fn take(&mut self, rate: u32, now: Instant) -> bool {
        let nanoseconds = now.saturating_duration_since(self.since).as_nanos();
        let more = nanoseconds.saturating_mul(rate.into()) / 1_000_000_000;
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(rate);
            self.since = now;
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }

    /// Nothing was sent after all.
    fn give_back(&mut self) {
        self.left = self.left.saturating_add(1);
    }
}
