//! Frames of probes: built whole, with their checksums, and read without a trust in anything.

use std::net::{IpAddr, SocketAddr};

use super::exchange::Back;
use crate::dsr::owner::{checksum, ethernet};
use crate::dsr::packet::{
    Content, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, Mac, TCP, Transport, UDP, be16, be32, parse,
    whole_ip,
};

/// Hops that a probe may take: a server that lacks the VIP and forwards packets must not send it on, perhaps to a machine
/// that has the VIP.
const HOPS: u8 = 1;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Segment size that a probe announces: answers are short, and every way has room for it.
const SEGMENT: u16 = 536;

/// Ends of a probe: our own address, with a port that no program has, and the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub own: SocketAddr,
    pub own_mac: Mac,
    pub vip: SocketAddr,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Sender of the frame.
    pub from: Mac,
    /// Port of the VIP.
    pub port: u16,
    /// Sequence number, of TCP.
    pub sequence: u32,
    pub said: Said<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// SYN and ACK: the sequence number that it acknowledges.
    Accepted(u32),
    /// RST: the same.
    Refused(u32),
    /// A further segment of a connection.
    Segment { acknowledged: u32, payload: &'a [u8], is_last: bool },
    /// An ICMP error: no process has the port.
    Unreachable,
    /// An ICMP error: the server has sent the probe on, which has no further hop.
    SentOn,
    /// Another ICMP error.
    Rejected,
    /// A datagram.
    Datagram(&'a [u8]),
}

impl Ends {
    /// Asks for a connection.
    pub fn syn(&self, to: Mac, sequence: u32) -> Vec<u8> {
        self.segment(to, [sequence, 0], SYN, &[])
    }

    /// Sends what the exchange of a check has for the server.
    pub fn back(&self, to: Mac, back: &Back) -> Vec<u8> {
        match back {
            Back::Reset { sequence } => self.reset(to, *sequence),
            Back::Data { sequence, acknowledged, payload } => {
                let flags = if payload.is_empty() { ACK } else { ACK | PSH };
                self.segment(to, [*sequence, *acknowledged], flags, payload)
            }
        }
    }

    /// Takes back what [`Self::syn`] asked for: the kernel, which knows no such connection, cannot, because it finds no machine
    /// with the VIP.
    pub fn reset(&self, to: Mac, acknowledged: u32) -> Vec<u8> {
        self.segment(to, [acknowledged, 0], RST, &[])
    }

    fn segment(&self, to: Mac, numbers: [u32; 2], flags: u8, payload: &[u8]) -> Vec<u8> {
        let options: &[u8] = if flags == SYN { &[2, 4, (SEGMENT >> 8) as u8, SEGMENT as u8] } else { &[] };
        let mut segment = self.ports();
        numbers.iter().for_each(|number| segment.extend(number.to_be_bytes()));
        segment.extend([((20 + options.len() as u8) / 4) << 4, flags]);
        // Window, checksum, urgent pointer.
        segment.extend([0x10, 0, 0, 0, 0, 0]);
        segment.extend(options);
        segment.extend(payload);
        let sum = self.sum(TCP, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        self.frame(to, TCP, &segment)
    }

    /// Sends a datagram. `None` if it is too large for a packet.
    pub fn datagram(&self, to: Mac, payload: &[u8]) -> Option<Vec<u8>> {
        let mut datagram = self.ports();
        datagram.extend(u16::try_from(8 + payload.len()).ok()?.to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        u16::try_from(40 + datagram.len()).ok()?;
        // Zero would mean that there is none (RFC 768).
        let sum = match self.sum(UDP, &datagram) {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        Some(self.frame(to, UDP, &datagram))
    }

    fn ports(&self) -> Vec<u8> {
        [self.own.port().to_be_bytes(), self.vip.port().to_be_bytes()].concat()
    }

    /// The checksum with the pseudo header.
    fn sum(&self, protocol: u8, payload: &[u8]) -> u16 {
        let length = (payload.len() as u32).to_be_bytes();
        checksum(&[&octets(self.own.ip()), &octets(self.vip.ip()), &length, &[0, 0, 0, protocol], payload])
    }

    fn frame(&self, to: Mac, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let length = payload.len() as u16;
        let mut frame;
        match self.vip.ip() {
            IpAddr::V4(_) => {
                frame = ethernet(to, self.own_mac, ETHERTYPE_IPV4.to_be_bytes());
                let mut header = vec![0x45, 0];
                header.extend((20 + length).to_be_bytes());
                // Never to be cut into fragments.
                header.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
                header.extend(octets(self.own.ip()));
                header.extend(octets(self.vip.ip()));
                let sum = checksum(&[&header]);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(header);
            }
            IpAddr::V6(_) => {
                frame = ethernet(to, self.own_mac, ETHERTYPE_IPV6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([protocol, HOPS]);
                frame.extend(octets(self.own.ip()));
                frame.extend(octets(self.vip.ip()));
            }
        }
        frame.extend(payload);
        frame
    }

    /// Reads a frame. `None` if it is no reply to a probe. Checksums are not looked at: a virtual network card has not filled
    /// them in yet.
    pub fn read<'a>(&self, frame: &'a [u8]) -> Option<Reply<'a>> {
        let (from, ip) = whole_ip(frame)?;
        if ip.destination != self.own.ip() {
            return None;
        }
        if let Some(Content::Error(flow)) = parse(frame).map(|packet| packet.content) {
            // The packet that the error is about, from its other end.
            let is_ours = (flow.vip, flow.port) == (self.own.ip(), self.own.port());
            let said = match (ip.protocol, be16(ip.payload, 0)?) {
                // Destination unreachable: port (RFC 792, RFC 4443 section 3.1).
                (ICMP, 0x0303) | (ICMPV6, 0x0104) => Said::Unreachable,
                // Time exceeded in transit.
                (ICMP, 0x0b00) | (ICMPV6, 0x0300) => Said::SentOn,
                _ => Said::Rejected,
            };
            return (is_ours && flow.client == self.vip.ip()).then_some(Reply {
                from,
                port: flow.client_port,
                sequence: 0,
                said,
            });
        }
        if ip.source != self.vip.ip() || be16(ip.payload, 2)? != self.own.port() {
            return None;
        }
        let port = be16(ip.payload, 0)?;
        let (sequence, said) = match ip.protocol {
            TCP => (be32(ip.payload, 4)?, segment_of(ip.payload)?),
            UDP => (0, Said::Datagram(ip.payload.get(8..)?)),
            _ => return None,
        };
        Some(Reply { from, port, sequence, said })
    }

    /// Transport of the frames that come back, for the filter of the kernel.
    pub fn transports(transport: Transport) -> crate::dsr::Transports {
        match transport {
            Transport::Tcp => crate::dsr::Transports::Tcp,
            Transport::Udp => crate::dsr::Transports::Udp,
        }
    }
}

fn segment_of(segment: &[u8]) -> Option<Said<'_>> {
    let (flags, acknowledged) = (*segment.get(13)?, be32(segment, 8)?);
    Some(match flags & (SYN | ACK | RST | FIN) {
        flags if flags & RST != 0 => Said::Refused(acknowledged),
        flags if flags == SYN | ACK => Said::Accepted(acknowledged),
        flags if flags & (SYN | ACK) == ACK => {
            let payload = segment.get(usize::from(segment.get(12)? >> 4) * 4..)?;
            Said::Segment { acknowledged, payload, is_last: flags & FIN != 0 }
        }
        _ => return None,
    })
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
