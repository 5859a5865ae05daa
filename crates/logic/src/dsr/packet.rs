//! Reads Ethernet frames as far as the decision needs: IPv4 and IPv6 with TCP, UDP, ICMP errors, and the questions who
//! has an address. A frame of any length and content is read without a panic; what is malformed is nothing of ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ethernet address.
pub type Mac = [u8; 6];

/// An Ethernet address as `ip neighbour` writes it.
pub fn shown(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub(super) const ETHERNET: usize = 14;
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tags of VLANs: IEEE 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMPV6: u8 = 58;

/// Extension headers of IPv6 that are passed over, at most.
const MOST_EXTENSIONS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Client and service between which packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub client: IpAddr,
    pub client_port: u16,
    pub vip: IpAddr,
    pub port: u16,
    pub transport: Transport,
}

/// Identity of a packet that was cut into fragments (RFC 791, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub id: u32,
    /// Protocol number of IPv4. 0 for IPv6, whose identification alone tells packets apart.
    pub protocol: u8,
}

impl FragmentKey {
    pub fn new(source: IpAddr, destination: IpAddr, id: u32, protocol: u8) -> Self {
        Self { source, destination, id, protocol: if source.is_ipv4() { protocol } else { 0 } }
    }
}

/// A packet with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: Flow,
    /// It begins a flow: a SYN, or any datagram.
    pub begins: bool,
    /// It ends a flow: FIN or RST.
    pub ends: bool,
    /// Number of its packet, if it is the first of several fragments.
    pub fragment: Option<u32>,
}

/// Question who has an address: ARP (RFC 826) or neighbour solicitation (RFC 4861 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub target: IpAddr,
    /// Unspecified if the asker is about to take the address itself.
    pub asker: IpAddr,
    pub asker_mac: Mac,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Segment(Segment),
    /// An ICMP error about a packet of this flow from the service to the client.
    Error(Flow),
    /// A fragment without ports.
    LaterFragment(FragmentKey),
    Question(Question),
    /// A machine says that it has an address.
    Claim {
        address: IpAddr,
        mac: Mac,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender of the frame.
    pub source: Mac,
    /// Protocol above IP; 0 for ARP.
    pub protocol: u8,
    pub content: Content,
}

/// Reads a frame. `None` if it is nothing that a service looks at.
pub fn parse(frame: &[u8]) -> Option<Packet> {
    let (source, ethertype, rest) = open(frame)?;
    let (protocol, content) = match ethertype {
        ETHERTYPE_ARP => (0, arp(rest)?),
        ETHERTYPE_IPV4 => ip(Ip::v4(rest)?, source)?,
        ETHERTYPE_IPV6 => ip(Ip::v6(rest)?, source)?,
        _ => return None,
    };
    Some(Packet { source, protocol, content })
}

/// Sender of a frame, with the type and the bytes of what is in it, behind tags of VLANs.
fn open(frame: &[u8]) -> Option<(Mac, u16, &[u8])> {
    let source = mac(frame, 6)?;
    let (ethertype, at) = (0..TAGS.len()).fold((be16(frame, 12)?, ETHERNET), |(ethertype, at), _| match TAGS
        .contains(&ethertype)
    {
        true => (be16(frame, at + 2).unwrap_or(0), at + 4),
        false => (ethertype, at),
    });
    Some((source, ethertype, frame.get(at..)?))
}

/// The IP packet that is whole in a frame, with the sender of the frame.
pub(super) fn whole_ip(frame: &[u8]) -> Option<(Mac, Ip<'_>)> {
    let (source, ethertype, rest) = open(frame)?;
    let ip = match ethertype {
        ETHERTYPE_IPV4 => Ip::v4(rest)?,
        ETHERTYPE_IPV6 => Ip::v6(rest)?,
        _ => return None,
    };
    (ip.fragment == Fragment::None).then_some((source, ip))
}

/// What is in the UDP datagram of a frame: of its first fragment, if it was cut.
pub(super) fn datagram(frame: &[u8]) -> Option<&[u8]> {
    let (_, ethertype, rest) = open(frame)?;
    let ip = match ethertype {
        ETHERTYPE_IPV4 => Ip::v4(rest)?,
        ETHERTYPE_IPV6 => Ip::v6(rest)?,
        _ => return None,
    };
    ip.payload.get(8..).filter(|_| ip.protocol == UDP && !ip.is_later_fragment())
}

/// An IP packet whose headers were read.
pub(super) struct Ip<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    hops: u8,
    fragment: Fragment,
    /// Length of its headers.
    pub(super) header: usize,
    pub(super) payload: &'a [u8],
}

/// The IP packet in a frame without a tag, which begins behind the Ethernet header.
pub(super) fn untagged_ip(frame: &[u8]) -> Option<Ip<'_>> {
    let rest = frame.get(ETHERNET..)?;
    match be16(frame, 12)? {
        ETHERTYPE_IPV4 => Ip::v4(rest),
        ETHERTYPE_IPV6 => Ip::v6(rest),
        _ => None,
    }
}

impl Ip<'_> {
    /// Length of the packet, without what fills up the frame.
    pub(super) fn length(&self) -> usize {
        self.header + self.payload.len()
    }

    /// Whether it is a fragment without ports.
    pub(super) fn is_later_fragment(&self) -> bool {
        matches!(self.fragment, Fragment::Later(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fragment {
    /// The packet is whole.
    None,
    First(u32),
    Later(u32),
}

impl Fragment {
    fn new(offset_is_zero: bool, more: bool, id: u32) -> Self {
        match (offset_is_zero, more) {
            (true, false) => Self::None,
            (true, true) => Self::First(id),
            (false, _) => Self::Later(id),
        }
    }
}

impl<'a> Ip<'a> {
    fn v4(bytes: &'a [u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let header = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || header < 20 || bytes.len() < header {
            return None;
        }
        let total = match be16(bytes, 2)? {
            // A packet that the kernel has put together may be longer than the field can say.
            0 => bytes.len(),
            total => usize::from(total),
        };
        let fragment = be16(bytes, 6)?;
        Some(Self {
            source: v4(bytes, 12)?,
            destination: v4(bytes, 16)?,
            protocol: bytes[9],
            hops: bytes[8],
            fragment: Fragment::new(fragment & 0x1fff == 0, fragment & 0x2000 != 0, be16(bytes, 4)?.into()),
            header,
            // What is behind the packet fills up the frame.
            payload: bytes.get(header..total.min(bytes.len()))?,
        })
    }

    fn v6(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < 40 || bytes[0] >> 4 != 6 {
            return None;
        }
        let end = match be16(bytes, 4)? {
            0 => bytes.len(),
            length => (40 + usize::from(length)).min(bytes.len()),
        };
        let (mut protocol, mut at, mut fragment) = (bytes[6], 40, Fragment::None);
        for _ in 0..MOST_EXTENSIONS {
            let header = bytes.get(at..end)?;
            let length = match protocol {
                // Hop-by-hop options, routing, destination options.
                0 | 43 | 60 => 8 * (usize::from(*header.get(1)?) + 1),
                // Authentication.
                51 => 4 * (usize::from(*header.get(1)?) + 2),
                44 => {
                    let place = be16(header, 2)?;
                    fragment = Fragment::new(place & 0xfff8 == 0, place & 1 != 0, be32(header, 4)?);
                    8
                }
                _ => break,
            };
            protocol = *header.first()?;
            at += length;
            if matches!(fragment, Fragment::Later(_)) {
                break;
            }
        }
        Some(Self {
            source: v6(bytes, 8)?,
            destination: v6(bytes, 24)?,
            protocol,
            hops: bytes[7],
            fragment,
            header: at,
            payload: bytes.get(at..end)?,
        })
    }
}

fn ip(ip: Ip<'_>, sender: Mac) -> Option<(u8, Content)> {
    let fragment = match ip.fragment {
        Fragment::Later(id) => {
            let key = FragmentKey::new(ip.source, ip.destination, id, ip.protocol);
            return Some((ip.protocol, Content::LaterFragment(key)));
        }
        Fragment::First(id) => Some(id),
        Fragment::None => None,
    };
    let content = match ip.protocol {
        TCP | UDP => {
            let transport = if ip.protocol == TCP { Transport::Tcp } else { Transport::Udp };
            let flags = match transport {
                Transport::Tcp => *ip.payload.get(13)?,
                Transport::Udp => 0,
            };
            let (syn, ack, over) = (flags & 0x02 != 0, flags & 0x10 != 0, flags & 0x05 != 0);
            Content::Segment(Segment {
                flow: Flow {
                    client: ip.source,
                    client_port: be16(ip.payload, 0)?,
                    vip: ip.destination,
                    port: be16(ip.payload, 2)?,
                    transport,
                },
                begins: transport == Transport::Udp || syn && !ack,
                ends: over,
                fragment,
            })
        }
        // Destination unreachable with "fragmentation needed", time exceeded, parameter problem.
        ICMP if matches!(ip.payload.first()?, 3 | 11 | 12) => {
            Content::Error(error(Ip::v4(ip.payload.get(8..)?)?, ip.destination)?)
        }
        // Destination unreachable, packet too big, time exceeded, parameter problem.
        ICMPV6 if matches!(ip.payload.first()?, 1..=4) => {
            Content::Error(error(Ip::v6(ip.payload.get(8..)?)?, ip.destination)?)
        }
        // RFC 4861 section 7.1.1: one that has passed a router is forged.
        ICMPV6 if *ip.payload.first()? == 135 && ip.hops == 255 => {
            Content::Question(Question { target: v6(ip.payload, 8)?, asker: ip.source, asker_mac: sender })
        }
        ICMPV6 if *ip.payload.first()? == 136 && ip.hops == 255 => {
            Content::Claim { address: v6(ip.payload, 8)?, mac: sender }
        }
        _ => return None,
    };
    Some((ip.protocol, content))
}

/// Flow of the packet that an error is about: at least its first 8 bytes above IP are there.
fn error(inner: Ip<'_>, vip: IpAddr) -> Option<Flow> {
    let transport = match inner.protocol {
        TCP => Transport::Tcp,
        UDP => Transport::Udp,
        _ => return None,
    };
    if inner.source != vip || matches!(inner.fragment, Fragment::Later(_)) {
        return None;
    }
    Some(Flow {
        client: inner.destination,
        client_port: be16(inner.payload, 2)?,
        vip,
        port: be16(inner.payload, 0)?,
        transport,
    })
}

fn arp(bytes: &[u8]) -> Option<Content> {
    // Ethernet and IPv4.
    if bytes.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let (sender, sender_mac, target) = (v4(bytes, 14)?, mac(bytes, 8)?, v4(bytes, 24)?);
    match be16(bytes, 6)? {
        1 if sender != target => {
            Some(Content::Question(Question { target, asker: sender, asker_mac: sender_mac }))
        }
        // A reply, or an announcement of the address itself.
        1 | 2 => Some(Content::Claim { address: sender, mac: sender_mac }),
        _ => None,
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn mac(bytes: &[u8], at: usize) -> Option<Mac> {
    array(bytes, at)
}

pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

fn v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    array::<4>(bytes, at).map(|octets| Ipv4Addr::from(octets).into())
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    array::<16>(bytes, at).map(|octets| Ipv6Addr::from(octets).into())
}
