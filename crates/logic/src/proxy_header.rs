//! The PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt): who the client of a forwarded
//! connection is.
//!
//! Read strictly: a sender that is believed about addresses must at least say them correctly.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::peers::Peer;

mod additions;

pub use additions::{Additions, ClientProof, Tls};

/// Which form of header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "v1" => Ok(Version::V1),
            "v2" => Ok(Version::V2),
            _ => Err(VersionError(text.into())),
        }
    }
}

/// A word that names no [`Version`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no version of the PROXY protocol: use v1 or v2", .0.escape_debug())]
pub struct VersionError(Box<str>);

/// What the bytes at the beginning of a connection hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A header that has not come whole.
    Incomplete,
    /// A header.
    Complete {
        /// What it says.
        header: Header,
        /// Its length in bytes; what follows is the client's.
        len: usize,
    },
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The sender speaks for itself, for example in a health check: the connection's own addresses count.
    Local,
    /// The sender does not know or say who its client is.
    Unknown,
    /// A TCP client.
    Tcp {
        /// The client.
        source: SocketAddr,
        /// Where the client connected to.
        destination: SocketAddr,
    },
    /// A client of a Unix socket.
    Unix,
}

/// Longest header of version 1, line end included.
pub const MAX_V1: usize = 107;

/// Longest header of version 2 that is accepted, with all its additions. The protocol would allow 64 KiB.
pub const MAX_V2: usize = 4096;

const V1_START: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED: usize = 16;

const CRC32C_TYPE: u8 = 0x03;

/// Reads a header from the beginning of a connection. `Incomplete` asks for more bytes; it is never said
/// when [`MAX_V2`] bytes are there.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    if begins_like(bytes, V1_START) {
        return parse_v1(bytes);
    }
    if begins_like(bytes, V2_SIGNATURE) {
        return parse_v2(bytes);
    }
    Err(ProxyHeaderError::Absent)
}

/// Whether `bytes` begins with `start`, as far as it has come.
fn begins_like(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(a, b)| a == b)
}

fn parse_v1(bytes: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    let within = &bytes[..bytes.len().min(MAX_V1)];
    let Some(end) = memchr::memchr2(b'\r', b'\n', within) else {
        return if bytes.len() < MAX_V1 {
            Ok(Parsed::Incomplete)
        } else {
            Err(ProxyHeaderError::LineTooLong)
        };
    };
    match (within[end], within.get(end + 1)) {
        (b'\r', Some(b'\n')) => {}
        (b'\r', None) if end + 1 < MAX_V1 => return Ok(Parsed::Incomplete),
        (b'\r', None) => return Err(ProxyHeaderError::LineTooLong),
        _ => return Err(ProxyHeaderError::LineEnd),
    }
    // A line end can stand inside the start itself only if the start is wrong, and that was looked at
    // already.
    let line = &within[V1_START.len().min(end)..end];
    let line = std::str::from_utf8(line).map_err(|_| ProxyHeaderError::Text)?;
    let header =
        if line == "UNKNOWN" || line.starts_with("UNKNOWN ") { Header::Unknown } else { tcp_v1(line)? };
    Ok(Parsed::Complete { header, len: end + 2 })
}

/// `TCP4 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT`
fn tcp_v1(line: &str) -> Result<Header, ProxyHeaderError> {
    let mut fields = line.split(' ');
    let mut field = || fields.next().ok_or(ProxyHeaderError::Fields);
    let (family, source, destination, source_port, destination_port) =
        (field()?, field()?, field()?, field()?, field()?);
    if fields.next().is_some() {
        return Err(ProxyHeaderError::Fields);
    }
    let (source, destination) = match family {
        "TCP4" => (address::<Ipv4Addr>(source)?, address::<Ipv4Addr>(destination)?),
        "TCP6" => (address::<Ipv6Addr>(source)?, address::<Ipv6Addr>(destination)?),
        _ => return Err(ProxyHeaderError::Family),
    };
    Ok(Header::Tcp {
        source: SocketAddr::new(source, port(source_port)?),
        destination: SocketAddr::new(destination, port(destination_port)?),
    })
}

fn address<A: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, ProxyHeaderError> {
    text.parse::<A>().map(Into::into).map_err(|_| ProxyHeaderError::Address)
}

/// Decimal, without sign or leading zeros.
fn port(text: &str) -> Result<u16, ProxyHeaderError> {
    let plain = text == "0" || text.starts_with(|c: char| ('1'..='9').contains(&c));
    if !plain {
        return Err(ProxyHeaderError::Port);
    }
    text.parse().map_err(|_| ProxyHeaderError::Port)
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    let command = match bytes.get(12) {
        None => return Ok(Parsed::Incomplete),
        Some(0x20) => Command::Local,
        Some(0x21) => Command::Proxy,
        Some(byte) if byte >> 4 != 2 => return Err(ProxyHeaderError::UnknownVersion),
        Some(_) => return Err(ProxyHeaderError::UnknownCommand),
    };
    let family = match bytes.get(13) {
        None => return Ok(Parsed::Incomplete),
        Some(byte) => V2Family::from_byte(*byte)?,
    };
    let (Some(high), Some(low)) = (bytes.get(14), bytes.get(15)) else { return Ok(Parsed::Incomplete) };
    let len = V2_FIXED + usize::from(u16::from_be_bytes([*high, *low]));
    if len > MAX_V2 {
        return Err(ProxyHeaderError::TooLong { len });
    }
    // A header that cannot be right is refused before the rest of it comes.
    let addresses = V2_FIXED + family.addresses();
    if command == Command::Proxy && len < addresses {
        return Err(ProxyHeaderError::AddressesCutOff);
    }
    let Some(whole) = bytes.get(..len) else { return Ok(Parsed::Incomplete) };
    // For LOCAL and unspecified families the protocol tells receivers to skip what follows without a look.
    if command == Command::Local {
        return Ok(Parsed::Complete { header: Header::Local, len });
    }
    if family == V2Family::Unspecified {
        return Ok(Parsed::Complete { header: Header::Unknown, len });
    }
    check_additions(whole, addresses)?;
    let header = match family {
        V2Family::Unspecified => Header::Unknown,
        V2Family::Unix => Header::Unix,
        V2Family::Tcp4 => tcp4(array(whole, V2_FIXED)),
        V2Family::Tcp6 => tcp6(array(whole, V2_FIXED)),
    };
    Ok(Parsed::Complete { header, len })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    Local,
    Proxy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum V2Family {
    Unspecified,
    Tcp4,
    Tcp6,
    Unix,
}

impl V2Family {
    fn from_byte(byte: u8) -> Result<Self, ProxyHeaderError> {
        match byte {
            0x00 => Ok(V2Family::Unspecified),
            0x11 => Ok(V2Family::Tcp4),
            0x21 => Ok(V2Family::Tcp6),
            0x31 => Ok(V2Family::Unix),
            // Datagrams, on a connection that carries a stream.
            0x12 | 0x22 | 0x32 => Err(ProxyHeaderError::Datagram),
            _ => Err(ProxyHeaderError::Family),
        }
    }

    /// Length of the two addresses with their ports.
    fn addresses(self) -> usize {
        match self {
            V2Family::Unspecified => 0,
            V2Family::Tcp4 => 12,
            V2Family::Tcp6 => 36,
            V2Family::Unix => 216,
        }
    }
}

/// `N` bytes from `at` on; the caller has checked that they are there.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn tcp4(block: [u8; 12]) -> Header {
    let end = |ip: usize, port: usize| {
        SocketAddr::from((array::<4>(&block, ip), u16::from_be_bytes(array(&block, port))))
    };
    Header::Tcp { source: end(0, 8), destination: end(4, 10) }
}

fn tcp6(block: [u8; 36]) -> Header {
    let end = |ip: usize, port: usize| {
        SocketAddr::from((array::<16>(&block, ip), u16::from_be_bytes(array(&block, port))))
    };
    Header::Tcp { source: end(0, 32), destination: end(16, 34) }
}

/// Walks the type-length-value additions behind the addresses: each must fit, and a checksum must be right.
fn check_additions(whole: &[u8], mut at: usize) -> Result<(), ProxyHeaderError> {
    let mut checksum_at = None;
    while at < whole.len() {
        let (Some(kind), Some(high), Some(low)) = (whole.get(at), whole.get(at + 1), whole.get(at + 2))
        else {
            return Err(ProxyHeaderError::AdditionCutOff);
        };
        let value = at + 3;
        let end = value + usize::from(u16::from_be_bytes([*high, *low]));
        if end > whole.len() {
            return Err(ProxyHeaderError::AdditionCutOff);
        }
        if *kind == CRC32C_TYPE {
            if end - value != 4 || checksum_at.is_some() {
                return Err(ProxyHeaderError::Checksum);
            }
            checksum_at = Some(value);
        }
        at = end;
    }
    match checksum_at {
        Some(at) if u32::from_be_bytes(array(whole, at)) != checksum(whole, at) => {
            Err(ProxyHeaderError::Checksum)
        }
        _ => Ok(()),
    }
}

/// CRC32c of the header with zeros in place of the checksum itself (section 2.2.3).
fn checksum(whole: &[u8], field: usize) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&whole[..field]);
    crc.update(&[0; 4]);
    crc.update(&whole[field + 4..]);
    crc.finish()
}

/// CRC-32C, Castagnoli polynomial, reflected (RFC 3720 section 12.1).
struct Crc32c(u32);

impl Crc32c {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut rest = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                rest = if rest & 1 == 1 { (rest >> 1) ^ 0x82f6_3b78 } else { rest >> 1 };
                bit += 1;
            }
            table[byte] = rest;
            byte += 1;
        }
        table
    };

    fn new() -> Self {
        Crc32c(!0)
    }

    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 >> 8) ^ Self::TABLE[((self.0 ^ u32::from(*byte)) & 0xff) as usize];
        }
    }

    fn finish(self) -> u32 {
        !self.0
    }
}

/// Appends a header that tells a backend about a client. If the two ends are of different families, or Unix
/// sockets, the header says that the client is not known. Only version 2 has room for additions.
pub fn write(version: Version, out: &mut Vec<u8>, source: &Peer, destination: &Peer, additions: &Additions) {
    let ends = match (source, destination) {
        (Peer::Ip(source), Peer::Ip(destination)) => Ends::of(*source, *destination),
        _ => None,
    };
    match version {
        Version::V1 => write_v1(out, ends),
        Version::V2 => write_v2(out, ends, additions.as_bytes()),
    }
}

/// Appends a header for a connection of our own, such as a health check.
pub fn write_local(version: Version, out: &mut Vec<u8>) {
    match version {
        Version::V1 => write_v1(out, None),
        Version::V2 => {
            out.extend_from_slice(V2_SIGNATURE);
            out.extend_from_slice(&[0x20, 0x00, 0, 0]);
        }
    }
}

/// Two ends of one family. IPv4-mapped addresses are IPv4.
enum Ends {
    V4 { source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16) },
    V6 { source: (Ipv6Addr, u16), destination: (Ipv6Addr, u16) },
}

impl Ends {
    fn of(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let ports = (source.port(), destination.port());
        match (source.ip().to_canonical(), destination.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Some(Ends::V4 { source: (from, ports.0), destination: (to, ports.1) })
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Some(Ends::V6 { source: (from, ports.0), destination: (to, ports.1) })
            }
            _ => None,
        }
    }
}

fn write_v1(out: &mut Vec<u8>, ends: Option<Ends>) {
    let line = match ends {
        Some(Ends::V4 { source: (from, from_port), destination: (to, to_port) }) => {
            format!("PROXY TCP4 {from} {to} {from_port} {to_port}\r\n")
        }
        Some(Ends::V6 { source: (from, from_port), destination: (to, to_port) }) => {
            format!("PROXY TCP6 {from} {to} {from_port} {to_port}\r\n")
        }
        None => "PROXY UNKNOWN\r\n".to_owned(),
    };
    out.extend_from_slice(line.as_bytes());
}

fn write_v2(out: &mut Vec<u8>, ends: Option<Ends>, additions: &[u8]) {
    out.extend_from_slice(V2_SIGNATURE);
    // Additions are bounded far below what a length of 16 bits can say.
    let length =
        |addresses: usize| u16::try_from(addresses + additions.len()).unwrap_or(u16::MAX).to_be_bytes();
    let ports = match ends {
        Some(Ends::V4 { source, destination }) => {
            out.extend_from_slice(&[0x21, 0x11]);
            out.extend_from_slice(&length(12));
            out.extend_from_slice(&source.0.octets());
            out.extend_from_slice(&destination.0.octets());
            (source.1, destination.1)
        }
        Some(Ends::V6 { source, destination }) => {
            out.extend_from_slice(&[0x21, 0x21]);
            out.extend_from_slice(&length(36));
            out.extend_from_slice(&source.0.octets());
            out.extend_from_slice(&destination.0.octets());
            (source.1, destination.1)
        }
        None => {
            out.extend_from_slice(&[0x21, 0x00, 0, 0]);
            return;
        }
    };
    out.extend_from_slice(&ports.0.to_be_bytes());
    out.extend_from_slice(&ports.1.to_be_bytes());
    out.extend_from_slice(additions);
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The connection begins with something else.
    #[error("the connection does not begin with a PROXY header")]
    Absent,
    /// No line end in time.
    #[error("the PROXY line is longer than 107 bytes")]
    LineTooLong,
    /// CR without LF, or LF without CR.
    #[error("the PROXY line does not end with CR LF")]
    LineEnd,
    /// Bytes that are no text.
    #[error("the PROXY line is not text")]
    Text,
    /// Too few fields, too many, or more than one space between them.
    #[error("the PROXY line does not have its six fields")]
    Fields,
    /// An address family that does not exist.
    #[error("the PROXY header names an unknown address family")]
    Family,
    /// Not an address of the named family.
    #[error("the PROXY line holds a wrong address")]
    Address,
    /// Not a port.
    #[error("the PROXY line holds a wrong port")]
    Port,
    /// Binary, but not version 2.
    #[error("the PROXY header is of an unknown version")]
    UnknownVersion,
    /// Neither LOCAL nor PROXY.
    #[error("the PROXY header holds an unknown command")]
    UnknownCommand,
    /// It announces a datagram.
    #[error("the PROXY header announces a datagram, not a connection")]
    Datagram,
    /// Longer than [`MAX_V2`].
    #[error("the PROXY header is {len} bytes long; 4096 are accepted")]
    TooLong {
        /// Its whole length.
        len: usize,
    },
    /// Shorter than the addresses of its family.
    #[error("the PROXY header is too short for its addresses")]
    AddressesCutOff,
    /// A TLV that does not fit into the header.
    #[error("an addition to the PROXY header is cut off")]
    AdditionCutOff,
    /// The checksum does not fit.
    #[error("the checksum of the PROXY header is wrong")]
    Checksum,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        // RFC 3720 appendix B.4, and the usual check value.
        let crc = |bytes: &[u8]| {
            let mut crc = Crc32c::new();
            crc.update(bytes);
            crc.finish()
        };
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
    }
}
