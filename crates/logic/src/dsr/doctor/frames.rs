//! Frames of the questions of a doctor, and what answers say.

use std::net::{IpAddr, SocketAddr};

use crate::dsr::filter::Instruction;
use crate::dsr::owner::{checksum, solicited_node};
use crate::dsr::packet::{self, Content, ICMP, ICMPV6, Mac, TCP, UDP};

/// The machine that asks, on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub mac: Mac,
    /// Unspecified if the interface has no address.
    pub ip: IpAddr,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A machine has an address.
    Claim {
        address: IpAddr,
        mac: Mac,
    },
    /// The service has accepted the connection that this number began, and would go on with the other one.
    Accepted {
        number: u32,
        next: u32,
        /// The longest segment that it takes, if it says so.
        segment: Option<u16>,
    },
    /// No process has the port.
    Refused {
        number: u32,
    },
    /// A datagram came back to a port of ours.
    Datagram {
        port: u16,
    },
    /// No process has the port to which a datagram was sent from this port of ours.
    Unreachable {
        port: u16,
    },
    Echo {
        id: u16,
        sequence: u16,
    },
}

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// Question who has an address: ARP request (RFC 826), neighbour solicitation (RFC 4861).
pub fn question(asker: &Asker, target: IpAddr) -> Option<Vec<u8>> {
    match (asker.ip, target) {
        (IpAddr::V4(ip), IpAddr::V4(target)) => {
            let mut frame =
                [&[0xff; 6][..], &asker.mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &asker.mac].concat();
            frame.extend([&ip.octets()[..], &[0; 6], &target.octets()].concat());
            Some(frame)
        }
        (IpAddr::V6(ip), IpAddr::V6(target)) => {
            let group = solicited_node(target);
            let [.., a, b, c, d] = group.octets();
            let mut body = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
            // RFC 4861 section 4.3: no address, no option.
            if !ip.is_unspecified() {
                body.extend([1, 1]);
                body.extend(asker.mac);
            }
            packet(asker, [0x33, 0x33, a, b, c, d], group.into(), (ICMPV6, 255), body)
        }
        _ => None,
    }
}

/// Hops of packets to the service: a server that lacks its address and forwards packets must not send them on to one that
/// has it, whose answer would count for the first.
const HOPS: u8 = 1;

/// Beginning of a connection, with this sequence number.
pub fn syn(asker: &Asker, to: Mac, vip: SocketAddr, port: u16, number: u32) -> Option<Vec<u8>> {
    tcp(asker, to, vip, (port, number, SYN))
}

/// End of a connection that was accepted: the service need not wait.
pub fn reset(asker: &Asker, to: Mac, vip: SocketAddr, port: u16, next: u32) -> Option<Vec<u8>> {
    tcp(asker, to, vip, (port, next, RST))
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

fn tcp(asker: &Asker, to: Mac, vip: SocketAddr, (port, number, flags): (u16, u32, u8)) -> Option<Vec<u8>> {
    let mut segment =
        [&port.to_be_bytes()[..], &vip.port().to_be_bytes(), &number.to_be_bytes(), &[0; 4]].concat();
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    packet(asker, to, vip.ip(), (TCP, HOPS), segment)
}

/// An empty datagram.
pub fn datagram(asker: &Asker, to: Mac, vip: SocketAddr, port: u16) -> Option<Vec<u8>> {
    let body = [&port.to_be_bytes()[..], &vip.port().to_be_bytes(), &[0, 8, 0, 0]].concat();
    packet(asker, to, vip.ip(), (UDP, HOPS), body)
}

/// An echo request; its packet has `length` bytes.
pub fn echo(
    asker: &Asker,
    to: Mac,
    vip: IpAddr,
    (id, sequence): (u16, u16),
    length: usize,
) -> Option<Vec<u8>> {
    let (kind, protocol, header) = if vip.is_ipv4() { (8, ICMP, IPV4) } else { (128, ICMPV6, IPV6) };
    let mut body = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &sequence.to_be_bytes()].concat();
    body.resize(length.saturating_sub(header).clamp(8, LONGEST), 0);
    packet(asker, to, vip, (protocol, HOPS), body)
}

const LONGEST: usize = 65_535 - IPV6;

/// A frame with an IP packet that no router may cut into fragments. `None` if the addresses are of two families.
pub(super) fn packet(
    asker: &Asker,
    to: Mac,
    destination: IpAddr,
    (protocol, hops): (u8, u8),
    mut body: Vec<u8>,
) -> Option<Vec<u8>> {
    let length = u16::try_from(body.len()).ok()?;
    let (ethertype, header, pseudo) = match (asker.ip, destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = length.checked_add(IPV4 as u16)?;
            let mut header =
                [&[0x45, 0][..], &total.to_be_bytes(), &[0, 0, 0x40, 0, hops, protocol, 0, 0]].concat();
            header.extend([from.octets(), to.octets()].concat());
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            let pseudo = [&header[12..20], &[0, protocol], &length.to_be_bytes()].concat();
            ([0x08, 0x00], header, if protocol == ICMP { Vec::new() } else { pseudo })
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, hops]].concat();
            header.extend([from.octets(), to.octets()].concat());
            let pseudo = [&header[8..40], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, protocol]].concat();
            ([0x86, 0xdd], header, pseudo)
        }
        _ => return None,
    };
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        _ => 2,
    };
    let sum = match checksum(&[&pseudo, &body]) {
        // RFC 768: zero would mean that there is none.
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    body.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some([&to[..], &asker.mac, &ethertype, &header, &body].concat())
}

/// Reads an answer to a question about a service. `None` if the frame is none.
pub fn heard(frame: &[u8], asker: &Asker, vip: SocketAddr) -> Option<Heard> {
    if let Some(packet::Packet { content: Content::Claim { address, mac }, .. }) = packet::parse(frame) {
        return Some(Heard::Claim { address, mac });
    }
    let (source, destination, protocol, body) = open(frame.get(12..)?)?;
    if destination != asker.ip {
        return None;
    }
    let number = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
    let port = |at: usize| half(body, at);
    let is_service = |port: u16| source == vip.ip() && (vip.port() == 0 || port == vip.port());
    match protocol {
        TCP if is_service(port(0)?) => {
            let (flags, acknowledged) = (*body.get(13)?, number(8)?.wrapping_sub(1));
            match flags & (SYN | RST | ACK) {
                flags if flags & RST != 0 => Some(Heard::Refused { number: acknowledged }),
                flags if flags == SYN | ACK => {
                    let (next, segment) = (number(8)?, longest_segment(body));
                    Some(Heard::Accepted { number: acknowledged, next, segment })
                }
                _ => None,
            }
        }
        UDP if is_service(port(0)?) => Some(Heard::Datagram { port: port(2)? }),
        ICMP | ICMPV6 => {
            let answers: [[u8; 2]; 2] = if protocol == ICMP { [[0, 0], [3, 3]] } else { [[129, 0], [1, 4]] };
            match body.get(..2)? {
                kind if kind == answers[0] && source == vip.ip() => {
                    Some(Heard::Echo { id: port(4)?, sequence: port(6)? })
                }
                // Of the packet that did not arrive at a port, our own port is the first field above IP.
                kind if kind == answers[1] => {
                    let ethertype: &[u8] = if protocol == ICMP { &[8, 0] } else { &[0x86, 0xdd] };
                    let (from, to, protocol, inner) = open_as(ethertype, body.get(8..)?)?;
                    let is_ours = from == asker.ip && to == vip.ip() && protocol == UDP;
                    is_ours.then(|| half(inner, 0).map(|port| Heard::Unreachable { port })).flatten()
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The option "maximum segment size" of a TCP header (RFC 9293 section 3.7.1).
fn longest_segment(tcp: &[u8]) -> Option<u16> {
    let end = usize::from(*tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..end)?;
    loop {
        options = match options {
            [] | [0, ..] => return None,
            [1, further @ ..] => further,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, length, ..] => options.get(usize::from(*length).max(2)..)?,
            [_] => return None,
        };
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

type Opened<'a> = (IpAddr, IpAddr, u8, &'a [u8]);

/// Source, destination, protocol and payload of a packet; `bytes` begin with its Ethertype.
fn open(bytes: &[u8]) -> Option<Opened<'_>> {
    open_as(bytes.get(..2)?, bytes.get(2..)?)
}

fn open_as<'a>(ethertype: &[u8], bytes: &'a [u8]) -> Option<Opened<'a>> {
    match ethertype {
        [0x08, 0x00] => {
            let address =
                |at: usize| Some(IpAddr::V4(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into()));
            let header = usize::from(bytes.first()? & 0xf) * 4;
            Some((address(12)?, address(16)?, *bytes.get(9)?, bytes.get(header.max(IPV4)..)?))
        }
        [0x86, 0xdd] => {
            let address =
                |at: usize| Some(IpAddr::V6(<[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?.into()));
            Some((address(8)?, address(24)?, *bytes.get(6)?, bytes.get(IPV6..)?))
        }
        _ => None,
    }
}

/// Program for the kernel that leaves ARP, ICMP and what comes from the address of the service: no packet of a client.
pub fn filter(vip: IpAddr) -> Vec<Instruction> {
    const LD_WORD: u16 = 0x20;
    const LD_HALF: u16 = 0x28;
    const LD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let load = |code, at: usize| Instruction { code, jt: 0, jf: 0, k: at as u32 };
    let test = |k, jt, jf| Instruction { code: JUMP_EQUAL, jt, jf, k };
    let end = |k| Instruction { code: RETURN, jt: 0, jf: 0, k };
    let mut program = match vip {
        IpAddr::V4(vip) => vec![
            load(LD_HALF, 12),
            test(0x0806, 8, 0),
            test(0x86dd, 5, 0),
            test(0x0800, 0, 7),
            load(LD_BYTE, ETHERNET + 9),
            test(ICMP.into(), 4, 0),
            load(LD_WORD, ETHERNET + 12),
            test(vip.to_bits(), 2, 3),
            // Backends may have addresses of the other family.
            load(LD_BYTE, ETHERNET + 6),
            test(ICMPV6.into(), 0, 1),
        ],
        IpAddr::V6(vip) => {
            let next = load(LD_BYTE, ETHERNET + 6);
            let mut program = vec![
                load(LD_HALF, 12),
                test(0x0806, 11, 0),
                test(0x86dd, 0, 11),
                next,
                test(ICMPV6.into(), 8, 0),
            ];
            for (at, word) in vip.octets().chunks_exact(4).enumerate() {
                program.push(load(LD_WORD, ETHERNET + 8 + 4 * at));
                program.push(test(
                    u32::from_be_bytes([word[0], word[1], word[2], word[3]]),
                    0,
                    7 - 2 * at as u8,
                ));
            }
            program
        }
    };
    program.extend([end(u32::MAX), end(0)]);
    program
}
