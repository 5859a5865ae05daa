//! Cuts a packet with many segments, which the kernel has put together or has not cut yet, into those that a network card
//! would send.

use std::net::IpAddr;

use super::{Frames, TCP, UDP, Unfit, Way, be16, checksum};
use crate::dsr::packet::be32;

/// Flags of TCP that only the last segment has, and the one that only the first one has.
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// A packet that is to be cut.
pub(super) struct Cut<'a> {
    /// Headers of all layers.
    head: &'a [u8],
    payload: &'a [u8],
    /// Where the header of TCP or UDP begins.
    at: usize,
    protocol: u8,
    /// Payload of each but the last one.
    size: usize,
}

impl<'a> Cut<'a> {
    /// `packet` has a header of TCP at `at`. Segments may become shorter than they were, so that they fit.
    pub(super) fn tcp(packet: &'a [u8], at: usize, size: usize, way: &Way) -> Result<Self, Unfit> {
        let length =
            packet.get(at + 12).map(|byte| usize::from(byte >> 4) * 4).filter(|length| *length >= 20);
        let head = at + length.ok_or(Unfit::NotSegmented)?;
        let room = usize::from(way.room).checked_sub(head).filter(|room| *room > 0).ok_or(Unfit::TooLong)?;
        Self::new(packet, at, TCP, head, size.min(room))
    }

    /// `packet` has a header of UDP at `at`.
    pub(super) fn udp(packet: &'a [u8], at: usize, size: usize, way: &Way) -> Result<Self, Unfit> {
        let head = at + 8;
        if head + size > usize::from(way.room) {
            return Err(Unfit::TooLong);
        }
        Self::new(packet, at, UDP, head, size)
    }

    fn new(packet: &'a [u8], at: usize, protocol: u8, head: usize, size: usize) -> Result<Self, Unfit> {
        let (head, payload) = packet.split_at_checked(head).ok_or(Unfit::NotSegmented)?;
        // Less would be a flood made of one packet.
        if size < LEAST.min(payload.len()) {
            return Err(Unfit::NotSegmented);
        }
        Ok(Self { head, payload, at, protocol, size: size.max(1) })
    }

    /// Writes the segments as frames.
    pub(super) fn write(self, frames: &mut Frames, way: &Way) -> Result<(), Unfit> {
        let number = be16(self.head, 4).unwrap_or(0);
        let sequence = be32(self.head, self.at + 4).unwrap_or(0);
        let mut chunks = self.payload.chunks(self.size).enumerate().peekable();
        if self.payload.is_empty() {
            return Err(Unfit::NotSegmented);
        }
        while let Some((place, chunk)) = chunks.next() {
            frames.begin(way, self.head, self.head.len() + chunk.len());
            let begin = frames.bytes.len();
            frames.bytes.extend(self.head);
            frames.bytes.extend(chunk);
            let packet = &mut frames.bytes[begin..];
            let length = packet.len() as u16;
            match way.tunnel.from() {
                IpAddr::V4(_) => {
                    put(packet, 2, length);
                    put(packet, 4, number.wrapping_add(place as u16));
                    put(packet, 10, 0);
                    let header = usize::from(packet[0] & 0xf) * 4;
                    let sum = checksum(&[&packet[..header]]);
                    put(packet, 10, sum);
                }
                IpAddr::V6(_) => put(packet, 4, length - 40),
            }
            let field = match self.protocol {
                TCP => {
                    let sequence = sequence.wrapping_add((place * self.size) as u32);
                    packet[self.at + 4..self.at + 8].copy_from_slice(&sequence.to_be_bytes());
                    if chunks.peek().is_some() {
                        packet[self.at + 13] &= !FIN_PSH;
                    }
                    if place > 0 {
                        packet[self.at + 13] &= !CWR;
                    }
                    self.at + 16
                }
                _ => {
                    put(packet, self.at + 4, (8 + chunk.len()) as u16);
                    self.at + 6
                }
            };
            put(packet, field, 0);
            let sum = self.sum(packet);
            put(packet, field, sum);
            frames.end();
        }
        Ok(())
    }

    /// The checksum of TCP or UDP, with the pseudo header.
    fn sum(&self, packet: &[u8]) -> u16 {
        let ends = if packet[0] >> 4 == 6 { &packet[8..40] } else { &packet[12..20] };
        let payload = &packet[self.at..];
        let length = (payload.len() as u32).to_be_bytes();
        match checksum(&[ends, &length, &[0, 0, 0, self.protocol], payload]) {
            // Zero would mean that there is none (RFC 768).
            0 if self.protocol == UDP => 0xffff,
            sum => sum,
        }
    }
}

/// Shortest payload of a segment, if there is more than one.
const LEAST: usize = 32;

/// Writes two bytes, within the headers that were checked.
fn put(packet: &mut [u8], at: usize, value: u16) {
    if let Some(place) = packet.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}
