//! PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt): carries the address of the client of a forwarded
//! connection or datagram. Datagrams have version 2 only, each its own header: a later one could go to another process.
//!
//! Parsed strictly: a trusted sender must at least send addresses correctly.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::peers::Peer;

mod additions;

pub use additions::{Additions, ClientProof, Tls};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// Text line; version 2 is binary.
    V1,
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a version of the PROXY protocol: use v1 or v2", .0.escape_debug())]
pub struct VersionError(Box<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The header is incomplete.
    Incomplete,
    Complete {
        header: Header,
        /// Length in bytes; the bytes after it are from the client.
        len: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Command LOCAL: the sender's own connection, for example a health check. The addresses of the connection apply.
    Local,
    /// The sender does not know or does not tell its client.
    Unknown,
    Client {
        source: SocketAddr,
        /// Address that the client connected or sent to.
        destination: SocketAddr,
    },
    /// A client of a Unix socket.
    Unix,
}

/// Maximum length of a version 1 header in bytes, with the line end.
pub const MAX_V1: usize = 107;

/// Maximum accepted length of a version 2 header in bytes, with TLVs. The protocol allows 64 KiB.
pub const MAX_V2: usize = 4096;

const V1_START: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED: usize = 16;

const CRC32C_TYPE: u8 = 0x03;

/// Parses a header at the start of a connection. `Incomplete` asks for more bytes; never returned for [`MAX_V2`] or
/// more bytes.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    if begins_like(bytes, V1_START) {
        return parse_v1(bytes);
    }
    if begins_like(bytes, V2_SIGNATURE) {
        return parse_v2(bytes, Carrier::Connection);
    }
    Err(ProxyHeaderError::Absent)
}

/// Parses the header of a datagram, of version 2. Returns its length as well: the bytes after it are from the client.
pub fn parse_datagram(bytes: &[u8]) -> Result<(Header, usize), ProxyHeaderError> {
    if !bytes.starts_with(V2_SIGNATURE) {
        return Err(ProxyHeaderError::Absent);
    }
    match parse_v2(bytes, Carrier::Datagram)? {
        Parsed::Complete { header, len } => Ok((header, len)),
        Parsed::Incomplete => Err(ProxyHeaderError::CutOff),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Connection,
    Datagram,
}

/// Tells whether `bytes` begins with `start`, as far as received.
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
    // Only a wrong start can contain a line end, and the start was checked before.
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
    Ok(Header::Client {
        source: SocketAddr::new(source, port(source_port)?),
        destination: SocketAddr::new(destination, port(destination_port)?),
    })
}

fn address<A: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, ProxyHeaderError> {
    text.parse::<A>().map(Into::into).map_err(|_| ProxyHeaderError::Address)
}

/// Parses a decimal port without sign or leading zeros.
fn port(text: &str) -> Result<u16, ProxyHeaderError> {
    let plain = text == "0" || text.starts_with(|c: char| ('1'..='9').contains(&c));
    if !plain {
        return Err(ProxyHeaderError::Port);
    }
    text.parse().map_err(|_| ProxyHeaderError::Port)
}

fn parse_v2(bytes: &[u8], carrier: Carrier) -> Result<Parsed, ProxyHeaderError> {
    let command = match bytes.get(12) {
        None => return Ok(Parsed::Incomplete),
        Some(0x20) => Command::Local,
        Some(0x21) => Command::Proxy,
        Some(byte) if byte >> 4 != 2 => return Err(ProxyHeaderError::UnknownVersion),
        Some(_) => return Err(ProxyHeaderError::UnknownCommand),
    };
    let family = match bytes.get(13) {
        None => return Ok(Parsed::Incomplete),
        Some(byte) => V2Family::from_byte(*byte, carrier)?,
    };
    let (Some(high), Some(low)) = (bytes.get(14), bytes.get(15)) else { return Ok(Parsed::Incomplete) };
    let len = V2_FIXED + usize::from(u16::from_be_bytes([*high, *low]));
    if len > MAX_V2 {
        return Err(ProxyHeaderError::TooLong { len });
    }
    // An invalid header is refused before the rest of it arrives.
    let addresses = V2_FIXED + family.addresses();
    if command == Command::Proxy && len < addresses {
        return Err(ProxyHeaderError::AddressesCutOff);
    }
    let Some(whole) = bytes.get(..len) else { return Ok(Parsed::Incomplete) };
    // For LOCAL and unspecified families the protocol requires receivers to skip the rest.
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
        V2Family::Ipv4 => ipv4(array(whole, V2_FIXED)),
        V2Family::Ipv6 => ipv6(array(whole, V2_FIXED)),
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
    Ipv4,
    Ipv6,
    Unix,
}

impl V2Family {
    fn from_byte(byte: u8, carrier: Carrier) -> Result<Self, ProxyHeaderError> {
        match (byte, carrier) {
            (0x00, _) => Ok(V2Family::Unspecified),
            // A datagram may ask for a client that came over a connection: DNS over TCP or TLS.
            (0x11, _) | (0x12, Carrier::Datagram) => Ok(V2Family::Ipv4),
            (0x21, _) | (0x22, Carrier::Datagram) => Ok(V2Family::Ipv6),
            (0x31, _) | (0x32, Carrier::Datagram) => Ok(V2Family::Unix),
            (0x12 | 0x22 | 0x32, Carrier::Connection) => Err(ProxyHeaderError::Datagram),
            _ => Err(ProxyHeaderError::Family),
        }
    }

    /// Length in bytes of the two addresses with their ports.
    fn addresses(self) -> usize {
        match self {
            V2Family::Unspecified => 0,
            V2Family::Ipv4 => 12,
            V2Family::Ipv6 => 36,
            V2Family::Unix => 216,
        }
    }
}

/// Copies `N` bytes from offset `at`; the caller has checked the length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn ipv4(block: [u8; 12]) -> Header {
    let end = |ip: usize, port: usize| {
        SocketAddr::from((array::<4>(&block, ip), u16::from_be_bytes(array(&block, port))))
    };
    Header::Client { source: end(0, 8), destination: end(4, 10) }
}

fn ipv6(block: [u8; 36]) -> Header {
    let end = |ip: usize, port: usize| {
        SocketAddr::from((array::<16>(&block, ip), u16::from_be_bytes(array(&block, port))))
    };
    Header::Client { source: end(0, 32), destination: end(16, 34) }
}

/// Checks the TLVs after the addresses: lengths must fit, and a checksum must be correct.
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

/// CRC32c of the header with the checksum field set to zero (section 2.2.3).
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

/// Appends a header about a client for a backend. If the two addresses are of different families, or of Unix sockets,
/// the header says that the client is unknown. Only version 2 can carry TLVs.
pub fn write(version: Version, out: &mut Vec<u8>, source: &Peer, destination: &Peer, additions: &Additions) {
    let ends = match (source, destination) {
        (Peer::Ip(source), Peer::Ip(destination)) => Ends::of(*source, *destination),
        _ => None,
    };
    match version {
        Version::V1 => write_v1(out, ends),
        Version::V2 => write_v2(out, ends, Carrier::Connection, additions.as_bytes()),
    }
}

/// Appends a header, of version 2, for the datagrams of a client.
pub fn write_datagram(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    write_v2(out, Ends::of(source, destination), Carrier::Datagram, &[]);
}

/// Appends a header for Penstock's own connection, such as a health check.
pub fn write_local(version: Version, out: &mut Vec<u8>) {
    match version {
        Version::V1 => write_v1(out, None),
        Version::V2 => {
            out.extend_from_slice(V2_SIGNATURE);
            out.extend_from_slice(&[0x20, 0x00, 0, 0]);
        }
    }
}

/// Two addresses of one family. IPv4-mapped addresses are IPv4.
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

fn write_v2(out: &mut Vec<u8>, ends: Option<Ends>, carrier: Carrier, additions: &[u8]) {
    let transport = match carrier {
        Carrier::Connection => 1,
        Carrier::Datagram => 2,
    };
    out.extend_from_slice(V2_SIGNATURE);
    // The TLVs are much shorter than 64 KiB.
    let length =
        |addresses: usize| u16::try_from(addresses + additions.len()).unwrap_or(u16::MAX).to_be_bytes();
    let ports = match ends {
        Some(Ends::V4 { source, destination }) => {
            out.extend_from_slice(&[0x21, 0x10 | transport]);
            out.extend_from_slice(&length(12));
            out.extend_from_slice(&source.0.octets());
            out.extend_from_slice(&destination.0.octets());
            (source.1, destination.1)
        }
        Some(Ends::V6 { source, destination }) => {
            out.extend_from_slice(&[0x21, 0x20 | transport]);
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The connection begins with other bytes.
    #[error("the connection does not begin with a PROXY header")]
    Absent,
    #[error("the PROXY line is longer than 107 bytes")]
    LineTooLong,
    /// CR without LF, or LF without CR.
    #[error("the PROXY line does not end with CR LF")]
    LineEnd,
    #[error("the PROXY line is not text")]
    Text,
    /// The line has too few or too many fields, or more than one space between two fields.
    #[error("the PROXY line does not have its six fields")]
    Fields,
    #[error("the PROXY header names an unknown address family")]
    Family,
    /// The address is not of the stated family.
    #[error("the PROXY line holds a wrong address")]
    Address,
    #[error("the PROXY line holds a wrong port")]
    Port,
    /// The header has the binary signature, but not version 2.
    #[error("the PROXY header is of an unknown version")]
    UnknownVersion,
    /// The command is neither LOCAL nor PROXY.
    #[error("the PROXY header holds an unknown command")]
    UnknownCommand,
    #[error("the PROXY header announces a datagram, not a connection")]
    Datagram,
    #[error("the PROXY header is longer than its datagram")]
    CutOff,
    /// The header is longer than [`MAX_V2`].
    #[error("the PROXY header is {len} bytes long; 4096 are accepted")]
    TooLong { len: usize },
    /// The header is shorter than the addresses of its family.
    #[error("the PROXY header is too short for its addresses")]
    AddressesCutOff,
    /// A TLV that is longer than the rest of the header.
    #[error("an addition to the PROXY header is cut off")]
    AdditionCutOff,
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
