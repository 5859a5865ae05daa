//! Segments of TCP that the tarpit reads and sends.

use std::net::IpAddr;

use crate::dsr::owner::{checksum, ethernet};
use crate::dsr::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Flow, Mac, TCP, be16, be32, whole_ip};
use crate::dsr::ring::keyed_hash;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

const HOPS: u8 = 64;

/// What a client asks for, with the number before the first byte that it sends, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Connection {
        client: u32,
        own: u32,
    },
    /// Whether it may send more, of a connection that was answered.
    Window {
        client: u32,
        own: u32,
    },
}

impl Asked {
    /// Reads a frame. `None` if it is nothing that is answered.
    pub(super) fn read(frame: &[u8], key: [u64; 2]) -> Option<Self> {
        let (_, ip) = whole_ip(frame)?;
        if ip.protocol != TCP {
            return None;
        }
        let segment = ip.payload;
        let flow = Flow {
            client: ip.source,
            client_port: be16(segment, 0)?,
            vip: ip.destination,
            port: be16(segment, 2)?,
            transport: crate::dsr::Transport::Tcp,
        };
        let (sequence, acknowledged) = (be32(segment, 4)?, be32(segment, 8)?);
        let head = usize::from(*segment.get(12)? >> 4) * 4;
        let flags = *segment.get(13)? & (FIN | SYN | RST | ACK);
        if head < 20 || segment.len() < head {
            return None;
        }
        let bytes = segment.len() - head;
        let hash = keyed_hash(key, &flow) as u32;
        if flags == SYN {
            return Some(Self::Connection { client: sequence, own: sequence.wrapping_add(hash) });
        }
        if flags != ACK {
            return None;
        }
        let own = acknowledged.wrapping_sub(1);
        let client = own.wrapping_sub(hash);
        // Where the segment begins, from the first byte of the client on: nothing was taken of it. A probe repeats the number
        // before, or brings bytes (RFC 9293 section 3.8.6.1); the acknowledgement of our SYN does neither.
        match (sequence.wrapping_sub(client.wrapping_add(1)) as i32, bytes) {
            (-1, 0 | 1) | (0, 1..) => Some(Self::Window { client, own }),
            _ => None,
        }
    }
}

/// The frame that answers a client.
pub(super) fn answer(flow: &Flow, asked: Asked, to: Mac, own_mac: Mac) -> Vec<u8> {
    let (client, own, flags) = match asked {
        Asked::Connection { client, own } => (client, own, SYN | ACK),
        Asked::Window { client, own } => (client, own.wrapping_add(1), ACK),
    };
    let mut segment = [flow.port.to_be_bytes(), flow.client_port.to_be_bytes()].concat();
    segment.extend(own.to_be_bytes());
    segment.extend(client.wrapping_add(1).to_be_bytes());
    // No options; a window of 0; checksum; urgent pointer.
    segment.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    let length = segment.len() as u8;
    let (from, towards) = (octets(flow.vip), octets(flow.client));
    let sum = checksum(&[&from, &towards, &[0, 0, 0, length, 0, 0, 0, TCP], &segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut frame;
    match flow.vip {
        IpAddr::V4(_) => {
            frame = ethernet(to, own_mac, ETHERTYPE_IPV4.to_be_bytes());
            // Never to be cut into fragments.
            let mut header = vec![0x45, 0, 0, 20 + length, 0, 0, 0x40, 0, HOPS, TCP, 0, 0];
            header.extend(from);
            header.extend(towards);
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(header);
        }
        IpAddr::V6(_) => {
            frame = ethernet(to, own_mac, ETHERTYPE_IPV6.to_be_bytes());
            frame.extend([0x60, 0, 0, 0, 0, length, TCP, HOPS]);
            frame.extend(from);
            frame.extend(towards);
        }
    }
    frame.extend(segment);
    frame
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
