//! Connection ids of QUIC (RFC 9000). A client whose address changes, by a roaming telephone or a NAT, sends from other ports,
//! and with an id that its server has chosen. Servers that put a number of their own into these ids, each at the same place,
//! keep such connections: the number names the server.
//!
//! Before a server has answered, the client makes the id up: Initial and 0-RTT packets say nothing of a server. The meaning of
//! other long headers depends on the version, so those of unknown versions say nothing, either. The bit that is 1 in version 1
//! is not looked at, because clients may change it (RFC 9287).

/// Longest connection id (RFC 9000 section 17.2).
const LONGEST: u8 = 20;

/// Longest number of a server.
pub const MOST_BYTES: u8 = 8;

/// Place of the number of a server in each connection id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicId {
    offset: u8,
    length: u8,
}

/// Number of a server: its bytes, in the order of the packet, and zeros behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId([u8; MOST_BYTES as usize]);

impl QuicId {
    /// `None` if no connection id has room for it.
    pub fn new(offset: u8, length: u8) -> Option<Self> {
        let is_inside = offset < LONGEST && length <= LONGEST - offset;
        ((1..=MOST_BYTES).contains(&length) && is_inside).then_some(Self { offset, length })
    }

    pub fn offset(self) -> u8 {
        self.offset
    }

    pub fn length(self) -> u8 {
        self.length
    }

    /// The number of the server in a datagram of a client, if it has one.
    pub(super) fn read(self, datagram: &[u8]) -> Option<ServerId> {
        let first = *datagram.first()?;
        let id = if first & 0x80 == 0 {
            datagram.get(1..)?
        } else {
            let (version, length) = (datagram.get(1..5)?, *datagram.get(5)?);
            let kind = first >> 4 & 3;
            // Handshake packets of version 1, and of version 2 (RFC 9369 section 3.2).
            let is_of_server = matches!((version, kind), ([0, 0, 0, 1], 2) | ([0x6b, 0x33, 0x43, 0xcf], 3));
            if !is_of_server || length < self.offset + self.length {
                return None;
            }
            datagram.get(6..)?
        };
        ServerId::new(id.get(usize::from(self.offset)..usize::from(self.offset + self.length))?)
    }
}

impl ServerId {
    /// `None` if it is empty or too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = [0; MOST_BYTES as usize];
        id.get_mut(..bytes.len()).filter(|place| !place.is_empty())?.copy_from_slice(bytes);
        Some(Self(id))
    }

    /// As a program in the kernel has it.
    pub(super) fn word(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bytes: &[u8]) -> Option<ServerId> {
        ServerId::new(bytes)
    }

    #[test]
    fn a_number_has_a_place_inside_the_longest_connection_id() {
        for (offset, length, is_good) in [
            (0, 1, true),
            (0, 8, true),
            (12, 8, true),
            (19, 1, true),
            (0, 0, false),
            (0, 9, false),
            (13, 8, false),
            (19, 2, false),
            (20, 1, false),
            (255, 255, false),
        ] {
            assert_eq!(QuicId::new(offset, length).is_some(), is_good, "{offset} {length}");
        }
        assert_eq!((id(&[]), id(&[1; 9])), (None, None));
    }

    #[test]
    fn a_packet_names_its_server_once_the_server_has_answered() {
        let place = QuicId::new(1, 2).unwrap();
        let short = [0x40, 9, 0x0a, 0x01, 7, 7, 7, 7];
        assert_eq!(place.read(&short), id(&[0x0a, 0x01]));
        assert_eq!(place.read(&[&[0x00], &short[1..]].concat()), id(&[0x0a, 0x01]), "the bit is not fixed");
        assert_eq!(place.read(&short[..4]), id(&[0x0a, 0x01]));
        (0..4).for_each(|length| assert_eq!(place.read(&short[..length]), None, "{length}"));
        let long = |first: u8, version: u32, length: u8| {
            [&[first][..], &version.to_be_bytes(), &[length, 9, 0x0a, 0x01, 7, 7, 7, 7]].concat()
        };
        let (one, two) = (1, 0x6b33_43cf);
        for (first, version, length, names) in [
            (0xe0, one, 8, true),
            (0xe0, one, 3, true),
            (0xe0, one, 2, false),
            // Initial, 0-RTT, Retry.
            (0xc0, one, 8, false),
            (0xd0, one, 8, false),
            (0xf0, one, 8, false),
            (0xf0, two, 8, true),
            (0xe0, two, 8, false),
            (0xd0, two, 8, false),
            // Version negotiation, and a version that is not known.
            (0xe0, 0, 8, false),
            (0xe0, 2, 8, false),
        ] {
            let packet = long(first, version, length);
            let expected = id(&[0x0a, 0x01]).filter(|_| names);
            assert_eq!(place.read(&packet), expected, "{first:x} {version:x} {length}");
            (0..9).for_each(|length| assert_eq!(place.read(&packet[..length]), None, "{length}"));
        }
    }
}
