//! Sessions as packets in a file of pcapng (draft-ietf-opsawg-pcapng), for tshark, tcpdump and the like. The packets are
//! made here: of a session only its bytes are known, with both addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

pub mod frames;

/// Largest number of bytes in one packet.
const SEGMENT: usize = 32 * 1024;

/// Longest text of an option in bytes.
const LONGEST_OPTION: usize = 600;

/// LINKTYPE_RAW: each packet begins with its IP header.
const RAW: u16 = 101;

/// Enhanced Packet Block.
const PACKET: u32 = 6;

const FIN: u8 = 1;
const SYN: u8 = 2;
const PUSH: u8 = 8;
const ACK: u8 = 16;

/// Returns the beginning of a file: its section, and one interface with this name.
pub fn start(program: &str, interface: &str) -> Vec<u8> {
    let mut out = section(program);
    describe(&mut out, RAW, interface);
    out
}

fn section(program: &str) -> Vec<u8> {
    const SECTION: u32 = 0x0a0d_0d0a;
    const MAGIC: u32 = 0x1a2b_3c4d;
    let mut out = Vec::new();
    let mut body = Vec::new();
    body.extend(MAGIC.to_le_bytes());
    body.extend(1u16.to_le_bytes());
    body.extend(0u16.to_le_bytes());
    // The length of the section is not known yet.
    body.extend(u64::MAX.to_le_bytes());
    option(&mut body, 4, program);
    body.extend([0; 4]);
    block(&mut out, SECTION, &body);
    out
}

/// Appends the description of the next interface.
fn describe(out: &mut Vec<u8>, link: u16, interface: &str) {
    const INTERFACE: u32 = 1;
    let mut body = Vec::new();
    body.extend(link.to_le_bytes());
    body.extend([0; 2]);
    // No limit of a packet's length.
    body.extend(0u32.to_le_bytes());
    option(&mut body, 2, interface);
    body.extend([0; 4]);
    block(out, INTERFACE, &body);
}

/// Number of packets in whole blocks.
pub fn packets(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((head, _)) = bytes.split_at_checked(8) {
        let [kind, length] =
            [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        count += u64::from(kind == PACKET);
        match bytes.get((length as usize).max(12)..) {
            Some(rest) => bytes = rest,
            None => break,
        }
    }
    count
}

fn option(out: &mut Vec<u8>, code: u16, text: &str) {
    let text = &text.as_bytes()[..text.floor_char_boundary(LONGEST_OPTION)];
    out.extend(code.to_le_bytes());
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text);
    pad(out, text.len());
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.extend(std::iter::repeat_n(0, length.next_multiple_of(4) - length));
}

fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = (body.len() as u32 + 12).to_le_bytes();
    out.extend(kind.to_le_bytes());
    out.extend(length);
    out.extend(body);
    out.extend(length);
}

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

/// One session as a TCP connection.
#[derive(Clone, Debug)]
pub struct Flow {
    client: SocketAddr,
    server: SocketAddr,
    /// Sequence numbers of the next bytes, of the client and of the server.
    next: [u32; 2],
}

impl Flow {
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let (client, server) = of_one_family(client, server);
        Self { client, server, next: [0, 0] }
    }

    /// Appends the handshake.
    pub fn open(&mut self, at: SystemTime, out: &mut Vec<u8>) {
        self.packet(From::Client, SYN, &[], at, out);
        self.next[0] = 1;
        self.packet(From::Server, SYN | ACK, &[], at, out);
        self.next[1] = 1;
        self.packet(From::Client, ACK, &[], at, out);
    }

    /// Appends bytes of one side.
    pub fn data(&mut self, from: From, bytes: &[u8], at: SystemTime, out: &mut Vec<u8>) {
        for segment in bytes.chunks(SEGMENT) {
            self.packet(from, PUSH | ACK, segment, at, out);
            self.skip(from, segment.len());
        }
    }

    /// Counts bytes that are left out: a reader of the file sees a gap.
    pub fn skip(&mut self, from: From, count: usize) {
        let next = &mut self.next[from as usize];
        *next = next.wrapping_add(count as u32);
    }

    /// Appends the end of both directions.
    pub fn close(&mut self, at: SystemTime, out: &mut Vec<u8>) {
        for from in [From::Client, From::Server] {
            self.packet(from, FIN | ACK, &[], at, out);
            self.skip(from, 1);
        }
        self.packet(From::Client, ACK, &[], at, out);
    }

    fn packet(&self, from: From, flags: u8, payload: &[u8], at: SystemTime, out: &mut Vec<u8>) {
        let (source, destination) = ends(from, self.client, self.server);
        let acknowledged = if flags & ACK == 0 { 0 } else { self.next[1 - from as usize] };
        let mut tcp = Vec::with_capacity(20 + payload.len());
        tcp.extend(source.port().to_be_bytes());
        tcp.extend(destination.port().to_be_bytes());
        tcp.extend(self.next[from as usize].to_be_bytes());
        tcp.extend(acknowledged.to_be_bytes());
        tcp.extend([5 << 4, flags]);
        tcp.extend(u16::MAX.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(payload);
        packet(source.ip(), destination.ip(), Transport::Tcp, tcp, at, out);
    }
}

/// Datagrams between a client and us.
#[derive(Clone, Debug)]
pub struct Datagrams {
    client: SocketAddr,
    server: SocketAddr,
}

impl Datagrams {
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let (client, server) = of_one_family(client, server);
        Self { client, server }
    }

    /// Appends a datagram of one side.
    pub fn datagram(&self, from: From, bytes: &[u8], at: SystemTime, out: &mut Vec<u8>) {
        let (source, destination) = ends(from, self.client, self.server);
        let bytes = &bytes[..bytes.len().min(LARGEST_DATAGRAM)];
        let mut udp = Vec::with_capacity(8 + bytes.len());
        udp.extend(source.port().to_be_bytes());
        udp.extend(destination.port().to_be_bytes());
        udp.extend((8 + bytes.len() as u16).to_be_bytes());
        udp.extend([0; 2]);
        udp.extend(bytes);
        packet(source.ip(), destination.ip(), Transport::Udp, udp, at, out);
    }
}

/// Largest number of bytes of a datagram in an IPv4 packet.
const LARGEST_DATAGRAM: usize = 65_507;

/// Both addresses as IPv4 if they are, else as IPv6.
fn of_one_family(client: SocketAddr, server: SocketAddr) -> (SocketAddr, SocketAddr) {
    let (from, to): (IpAddr, IpAddr) = match (client.ip().to_canonical(), server.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (from.into(), to.into()),
        (from, to) => (wide(from).into(), wide(to).into()),
    };
    (SocketAddr::new(from, client.port()), SocketAddr::new(to, server.port()))
}

/// Source and destination of what `from` sends.
fn ends(from: From, client: SocketAddr, server: SocketAddr) -> (SocketAddr, SocketAddr) {
    match from {
        From::Client => (client, server),
        From::Server => (server, client),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    /// The number of the protocol, and where its checksum is.
    fn facts(self) -> (u8, usize) {
        match self {
            Self::Tcp => (6, 16),
            Self::Udp => (17, 6),
        }
    }
}

/// Appends a packet with this segment, whose checksum is 0 yet.
fn packet(
    from: IpAddr,
    to: IpAddr,
    transport: Transport,
    mut segment: Vec<u8>,
    at: SystemTime,
    out: &mut Vec<u8>,
) {
    let mut packet = Vec::with_capacity(segment.len() + 60);
    let length = segment.len() as u16;
    let (protocol, _) = transport.facts();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let pseudo = [&from.octets()[..], &to.octets(), &[0, protocol], &length.to_be_bytes()].concat();
            seal(&mut segment, transport, &pseudo);
            packet.extend([0x45, 0]);
            packet.extend((length + 20).to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = checksum(&packet, 0);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (from, to) => {
            let (from, to) = (wide(from).octets(), wide(to).octets());
            let pseudo = [&from[..], &to, &u32::from(length).to_be_bytes(), &[0, 0, 0, protocol]].concat();
            seal(&mut segment, transport, &pseudo);
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(from);
            packet.extend(to);
        }
    }
    packet.extend(segment);
    let micros = at.duration_since(UNIX_EPOCH).map_or(0, |at| at.as_micros() as u64);
    let mut body = Vec::with_capacity(packet.len() + 24);
    body.extend(0u32.to_le_bytes());
    body.extend(((micros >> 32) as u32).to_le_bytes());
    body.extend((micros as u32).to_le_bytes());
    body.extend((packet.len() as u32).to_le_bytes());
    body.extend((packet.len() as u32).to_le_bytes());
    body.extend(&packet);
    pad(&mut body, packet.len());
    block(out, PACKET, &body);
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn seal(segment: &mut [u8], transport: Transport, pseudo: &[u8]) {
    let sum = match (transport, checksum(segment, partial(pseudo))) {
        // In UDP 0 says that there is no checksum (RFC 768).
        (Transport::Udp, 0) => u16::MAX,
        (_, sum) => sum,
    };
    let (_, at) = transport.facts();
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of the internet (RFC 1071).
fn checksum(bytes: &[u8], before: u64) -> u16 {
    let mut sum = before + partial(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn partial(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    bytes.chunks(2).map(word).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_whole_packets_also_the_largest_and_the_empty_one() {
        let ends =
            |client: &str, server: &str| Datagrams::new(client.parse().unwrap(), server.parse().unwrap());
        for (flow, head) in [(ends("192.0.2.1:5", "192.0.2.2:53"), 20), (ends("[::1]:5", "[::2]:53"), 40)] {
            for length in [0, 1, LARGEST_DATAGRAM, LARGEST_DATAGRAM + 9] {
                let mut out = Vec::new();
                flow.datagram(From::Server, &vec![7; length], UNIX_EPOCH, &mut out);
                let packet = &out[28..][..u32::from_le_bytes(out[20..24].try_into().unwrap()) as usize];
                let udp = &packet[head..];
                assert_eq!(udp.len(), 8 + length.min(LARGEST_DATAGRAM));
                assert_eq!(udp[..4], [0, 53, 0, 5]);
                let mut pseudo = if head == 20 { packet[12..20].to_vec() } else { packet[8..40].to_vec() };
                pseudo.extend([0, 17]);
                pseudo.extend((udp.len() as u16).to_be_bytes());
                assert_eq!(checksum(udp, partial(&pseudo)), 0, "{head} {length}");
            }
        }
    }

    #[test]
    fn blocks_have_their_lengths_and_checksums_fit() {
        let mut out = start("penstock", "web");
        let mut flow = Flow::new("192.0.2.1:5".parse().unwrap(), "[::ffff:192.0.2.2]:80".parse().unwrap());
        flow.open(UNIX_EPOCH, &mut out);
        flow.data(From::Client, b"odd", UNIX_EPOCH, &mut out);
        flow.data(From::Server, &[b'x'; SEGMENT + 1], UNIX_EPOCH, &mut out);
        flow.close(UNIX_EPOCH, &mut out);
        let mut at = 0;
        let mut packets = 0;
        while at < out.len() {
            let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
            let length = word(at + 4) as usize;
            assert_eq!((length % 4, word(at + length - 4) as usize), (0, length));
            if word(at) == 6 {
                packets += 1;
                let packet = &out[at + 28..][..word(at + 20) as usize];
                assert_eq!(checksum(&packet[..20], 0), 0, "the IP header");
                let pseudo = [&packet[12..20], &[0, 6], &((packet.len() - 20) as u16).to_be_bytes()].concat();
                assert_eq!(checksum(&packet[20..], partial(&pseudo)), 0, "TCP");
            }
            at += length;
        }
        assert_eq!((at, packets), (out.len(), 3 + 1 + 2 + 3));
        assert_eq!(flow.next, [1 + 3 + 1, 1 + SEGMENT as u32 + 1 + 1]);
    }
}
