//! Tunnels to backends (`mode = "ipip"`): a packet of a client travels whole in another one, from an address of ours to that
//! of the backend (RFC 2003: IPv4 in IPv4; RFC 2473: IPv6 in IPv6), so that routers may be between them.
//!
//! [`encapsulate`] makes the frames for one that was received. What the kernel has left to a network card to do is done
//! first, because it can be told of a card only for packets that are in no other one: checksums, and the cutting of a frame
//! with many segments (`crates/logic/src/dsr/tunnel/segments.rs`). [`refusal`] tells a client what fits.
//! `crates/sys/bpf/dsr.bpf.c` does the same in the kernel, which cuts segments itself.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::owner::{checksum, ethernet};
use super::packet::{
    ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, Mac, TCP, UDP, be16, untagged_ip,
};

mod segments;
#[cfg(test)]
mod tests;

use segments::Cut;

text::words! {
    /// How packets reach the backends.
    #[derive(Default)]
    pub enum Mode: "mode" {
        /// With the Ethernet address of the backend.
        #[default]
        L2 = "l2",
        /// In packets to the backend.
        Ipip = "ipip",
    }
}

/// Hops of the outer packet (RFC 1700).
const HOPS: u8 = 64;

/// Protocol numbers of packets in packets.
const IPV4_INSIDE: u8 = 4;
const IPV6_INSIDE: u8 = 41;

/// Shortest packet that every IPv6 link carries whole (RFC 8200 section 5).
const LEAST_IPV6: u16 = 1280;

/// Ends of a tunnel, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    from: IpAddr,
    to: IpAddr,
}

impl Tunnel {
    /// `None` if the ends are of two families.
    pub fn new(from: IpAddr, to: IpAddr) -> Option<Self> {
        (from.is_ipv4() == to.is_ipv4()).then_some(Self { from, to })
    }

    /// The address of ours.
    pub fn from(&self) -> IpAddr {
        self.from
    }

    /// The address of the backend.
    pub fn to(&self) -> IpAddr {
        self.to
    }
}

/// Bytes of the outer header around packets to this address.
pub fn overhead(vip: IpAddr) -> u16 {
    if vip.is_ipv4() { 20 } else { 40 }
}

/// Longest packet to this address that fits into a tunnel through an interface with this MTU.
pub fn room(vip: IpAddr, mtu: u32) -> u16 {
    let room = u16::try_from(mtu).unwrap_or(u16::MAX).saturating_sub(overhead(vip));
    if vip.is_ipv4() { room.max(68) } else { room.max(LEAST_IPV6) }
}

/// What the kernel has left to be done with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where a checksum begins that is not calculated yet, and where it is to be written behind that.
    pub sum: Option<(usize, usize)>,
    pub cut: Cutting,
}

/// Whether a frame is to be cut into several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cutting {
    #[default]
    No,
    /// Into TCP segments with so many bytes.
    Tcp(u16),
    /// Into UDP datagrams with so many bytes.
    Udp(u16),
    /// Into IP fragments, or in a way that is not known here.
    Other,
}

impl Offload {
    /// Reads `struct virtio_net_hdr` (linux/virtio_net.h), in the byte order of this machine.
    pub fn read(header: [u8; 10]) -> Self {
        let [flags, kind, _, _, size @ .., s0, s1, o0, o1] = header;
        let size = u16::from_ne_bytes(size);
        let (start, offset) = (u16::from_ne_bytes([s0, s1]), u16::from_ne_bytes([o0, o1]));
        // The last bit says that ECN is used, which changes nothing here.
        let cut = match kind & 0x7f {
            0 => Cutting::No,
            1 | 4 => Cutting::Tcp(size),
            5 => Cutting::Udp(size),
            _ => Cutting::Other,
        };
        Self { sum: (flags & 1 != 0).then_some((start.into(), offset.into())), cut }
    }
}

/// Way of frames to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub own: Mac,
    /// The next machine.
    pub to: Mac,
    pub tunnel: Tunnel,
    /// Longest packet that fits: [`room`].
    pub room: u16,
}

/// Why a packet cannot be put into another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    TooLong,
    /// The kernel asks for segments, and the packet is not of the protocol that the kernel says.
    NotSegmented,
}

/// Frames that are to be sent, one behind the other.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    sent: usize,
}

impl Frames {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.sent = 0;
    }

    /// Those that were not sent yet.
    pub fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        (self.sent..self.ends.len()).map(|at| {
            let begin = if at == 0 { 0 } else { self.ends[at - 1] };
            &self.bytes[begin..self.ends[at]]
        })
    }

    /// Number of those that were not sent yet.
    pub fn count(&self) -> usize {
        self.ends.len() - self.sent
    }

    /// Passes over the first ones of those that wait.
    pub fn skip(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.ends.len());
    }

    /// Begins a frame with the outer headers around a packet.
    fn begin(&mut self, way: &Way, packet: &[u8], length: usize) {
        self.bytes.extend(way.to);
        self.bytes.extend(way.own);
        let class = service_class(packet);
        match (way.tunnel.from, way.tunnel.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                self.bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                let mut header =
                    [0x45, class, 0, 0, 0, 0, 0x40, 0, HOPS, IPV4_INSIDE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                header[2..4].copy_from_slice(&(20 + length as u16).to_be_bytes());
                header[12..16].copy_from_slice(&from.octets());
                header[16..].copy_from_slice(&to.octets());
                let sum = checksum(&[&header]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                self.bytes.extend(header);
            }
            (from, to) => {
                self.bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                self.bytes.extend([0x60 | class >> 4, class << 4, 0, 0]);
                self.bytes.extend((length as u16).to_be_bytes());
                self.bytes.extend([IPV6_INSIDE, HOPS]);
                for ip in [from, to] {
                    if let IpAddr::V6(ip) = ip {
                        self.bytes.extend(ip.octets());
                    }
                }
            }
        }
    }

    fn end(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

/// Type of service or traffic class of a packet. With its last two bits (ECN) the outer header says what the inner one does
/// (RFC 6040 section 4.1, normal mode).
fn service_class(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0,
    }
}

/// Puts the packet of a frame into others on their way to a backend, behind those in `frames`.
pub fn encapsulate(frame: &[u8], offload: &Offload, way: &Way, frames: &mut Frames) -> Result<(), Unfit> {
    let ip = untagged_ip(frame).ok_or(Unfit::NotSegmented)?;
    if ip.source.is_ipv4() != way.tunnel.from.is_ipv4() {
        return Err(Unfit::NotSegmented);
    }
    let (length, header) = (ip.length(), ip.header);
    let packet = &frame[ETHERNET..];
    match (offload.cut, ip.protocol) {
        (Cutting::No, _) => {
            if length > usize::from(way.room) {
                return Err(Unfit::TooLong);
            }
            let before = frames.bytes.len();
            frames.begin(way, packet, length);
            let at = frames.bytes.len();
            // What is behind the packet fills up the frame.
            frames.bytes.extend(&packet[..length]);
            if let Some((start, offset)) = offload.sum
                && complete(&mut frames.bytes[at..at + length], start, offset).is_none()
            {
                frames.bytes.truncate(before);
                return Err(Unfit::NotSegmented);
            }
            frames.end();
            Ok(())
        }
        (Cutting::Tcp(size), TCP) => {
            Cut::tcp(&packet[..length], header, size.into(), way)?.write(frames, way)
        }
        (Cutting::Udp(size), UDP) => {
            Cut::udp(&packet[..length], header, size.into(), way)?.write(frames, way)
        }
        _ => Err(Unfit::NotSegmented),
    }
}

/// Whether [`encapsulate`] can put the packet of a frame into others.
pub fn check(frame: &[u8], offload: &Offload, way: &Way) -> Result<(), Unfit> {
    let ip = untagged_ip(frame).ok_or(Unfit::NotSegmented)?;
    let packet = &frame[ETHERNET..ETHERNET + ip.length()];
    match (offload.cut, ip.protocol) {
        (Cutting::No, _) if ip.length() > usize::from(way.room) => Err(Unfit::TooLong),
        (Cutting::No, _) => Ok(()),
        (Cutting::Tcp(size), TCP) => Cut::tcp(packet, ip.header, size.into(), way).map(drop),
        (Cutting::Udp(size), UDP) => Cut::udp(packet, ip.header, size.into(), way).map(drop),
        _ => Err(Unfit::NotSegmented),
    }
}

/// Calculates the checksum that begins at `start` of a frame. Its field has the sum of the pseudo header already.
fn complete(packet: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let covered = packet.get_mut(start.checked_sub(ETHERNET)?..)?;
    let sum = match checksum(&[covered]) {
        // Zero would mean that there is none (RFC 768).
        0 => 0xffff,
        sum => sum,
    };
    covered.get_mut(offset..offset + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// The frame that tells the sender of a packet the size that fits (RFC 1191, RFC 8201), in the name of the address that it
/// was for. `None` if none may be told, because the packet is an ICMP message or a later fragment, or has no sender.
pub fn refusal(frame: &[u8], own: Mac, room: u16) -> Option<Vec<u8>> {
    let ip = untagged_ip(frame)?;
    let is_for_one = !ip.source.is_unspecified() && !ip.source.is_multicast() && !ip.source.is_loopback();
    if matches!(ip.protocol, ICMP | ICMPV6) || ip.is_later_fragment() || !is_for_one {
        return None;
    }
    let sender: Mac = frame.get(6..12)?.try_into().ok()?;
    let packet = frame.get(ETHERNET..ETHERNET + ip.length())?;
    match (ip.destination, ip.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // No message is longer than 576 bytes (RFC 1812 section 4.3.2.3).
            let shown = &packet[..packet.len().min(576 - 28)];
            let mut icmp = vec![3, 4, 0, 0, 0, 0];
            icmp.extend(room.to_be_bytes());
            icmp.extend(shown);
            let sum = checksum(&[&icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut header = vec![0x45, 0xc0];
            header.extend((20 + icmp.len() as u16).to_be_bytes());
            header.extend([0, 0, 0, 0, HOPS, ICMP, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            Some([ethernet(sender, own, ETHERTYPE_IPV4.to_be_bytes()), header, icmp].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // RFC 4443 section 2.4 (c).
            let shown = &packet[..packet.len().min(usize::from(LEAST_IPV6) - 48)];
            let mut icmp = vec![2, 0, 0, 0, 0, 0];
            icmp.extend(room.to_be_bytes());
            icmp.extend(shown);
            let length = icmp.len() as u16;
            let pseudo =
                [&from.octets()[..], &to.octets(), &u32::from(length).to_be_bytes(), &[0, 0, 0, ICMPV6]]
                    .concat();
            let sum = checksum(&[&pseudo, &icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([ICMPV6, HOPS]);
            header.extend(from.octets());
            header.extend(to.octets());
            Some([ethernet(sender, own, ETHERTYPE_IPV6.to_be_bytes()), header, icmp].concat())
        }
        _ => None,
    }
}

/// Clients that are told a size in one second, at most: an answer to each packet would let a flood make another one.
const REFUSALS: u32 = 1000;

/// Limits how many clients are told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    since: Option<Instant>,
    count: u32,
}

impl Pace {
    /// Whether one more may be told.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count <= REFUSALS
    }
}
