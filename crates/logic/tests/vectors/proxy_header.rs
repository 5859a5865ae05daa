//! PROXY headers: byte vectors, every split, and random bytes.

use std::net::SocketAddr;

use logic::peers::Peer;
use logic::proxy_header::{
    Additions, Header, MAX_V1, MAX_V2, Parsed, ProxyHeaderError as Error, Version, parse, parse_datagram,
    write, write_datagram, write_local,
};
use proptest::prelude::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("the tests write addresses well")
}

fn tcp(source: &str, destination: &str) -> Header {
    Header::Client { source: address(source), destination: address(destination) }
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).expect("test bodies are short");
    [SIGNATURE, &[command, family], &len.to_be_bytes(), body].concat()
}

const TCP4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x67, 0x01, 0xbb];

fn tcp4_with(additions: &[u8]) -> Vec<u8> {
    v2(0x21, 0x11, &[&TCP4, additions].concat())
}

/// Every strict beginning of a valid header is incomplete, and what follows the header changes nothing.
fn assert_reads(bytes: &[u8], header: Header) {
    for end in 0..bytes.len() {
        assert_eq!(parse(&bytes[..end]), Ok(Parsed::Incomplete), "{end} bytes of {bytes:?}");
    }
    let complete = Ok(Parsed::Complete { header, len: bytes.len() });
    assert_eq!(parse(bytes), complete, "{bytes:?}");
    for rest in [&b"GET / HTTP/1.1\r\n"[..], b"\r\n", b"PROXY ", &[0; 5000]] {
        assert_eq!(parse(&[bytes, rest].concat()), complete, "{bytes:?}");
    }
}

#[test]
fn version_1_lines_are_read() {
    let v4 = tcp("192.0.2.1:4711", "198.51.100.2:443");
    assert_reads(b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\r\n", v4);
    assert_reads(
        b"PROXY TCP4 255.255.255.255 0.0.0.0 65535 0\r\n",
        tcp("255.255.255.255:65535", "0.0.0.0:0"),
    );
    assert_reads(b"PROXY TCP6 2001:db8::1 ::1 4711 443\r\n", tcp("[2001:db8::1]:4711", "[::1]:443"));
    assert_reads(b"PROXY UNKNOWN\r\n", Header::Unknown);
    let longest = b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n";
    assert_reads(longest, Header::Unknown);
    let mut exactly = b"PROXY UNKNOWN ".to_vec();
    exactly.resize(MAX_V1 - 2, b'x');
    exactly.extend_from_slice(b"\r\n");
    assert_reads(&exactly, Header::Unknown);
}

#[test]
fn wrong_version_1_lines_are_refused() {
    let vectors: [(&[u8], Error); 31] = [
        (b"GET / HTTP/1.1\r\n", Error::Absent),
        (b"proxy TCP4 192.0.2.1 198.51.100.2 4711 443\r\n", Error::Absent),
        (b"PROXYTCP4", Error::Absent),
        (b"PROXY\r\n", Error::Absent),
        (b"\r\nPROXY UNKNOWN\r\n", Error::Absent),
        (b"PROXY \r\n", Error::Fields),
        (b"PROXY UNKNOWN\n", Error::LineEnd),
        (b"PROXY UNKNOWN\r\r\n", Error::LineEnd),
        (b"PROXY UNKNOWN\rX\r\n", Error::LineEnd),
        (b"PROXY UNKNOWN \xff\r\n", Error::Text),
        (b"PROXY UNKNOWNX\r\n", Error::Fields),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4711\r\n", Error::Fields),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443 1\r\n", Error::Fields),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443 \r\n", Error::Fields),
        (b"PROXY TCP4  192.0.2.1 198.51.100.2 4711 443\r\n", Error::Fields),
        (b"PROXY  TCP4 192.0.2.1 198.51.100.2 443\r\n", Error::Family),
        (b"PROXY TCP5 192.0.2.1 198.51.100.2 4711 443\r\n", Error::Family),
        (b"PROXY UDP4 192.0.2.1 198.51.100.2 4711 443\r\n", Error::Family),
        (b"PROXY tcp4 192.0.2.1 198.51.100.2 4711 443\r\n", Error::Family),
        (b"PROXY TCP4 ::1 198.51.100.2 4711 443\r\n", Error::Address),
        (b"PROXY TCP6 192.0.2.1 198.51.100.2 4711 443\r\n", Error::Address),
        (b"PROXY TCP4 192.0.2.01 198.51.100.2 4711 443\r\n", Error::Address),
        (b"PROXY TCP4 192.0.2 198.51.100.2 4711 443\r\n", Error::Address),
        (b"PROXY TCP4 256.0.2.1 198.51.100.2 4711 443\r\n", Error::Address),
        (b"PROXY TCP6 fe80::1%eth0 ::1 4711 443\r\n", Error::Address),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 65536 443\r\n", Error::Port),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 0443\r\n", Error::Port),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 +711 443\r\n", Error::Port),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 -1 443\r\n", Error::Port),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\t\r\n", Error::Port),
        (b"PROXY TCP4 192.0.2.1 198.51.100.2 0x1f 443\r\n", Error::Port),
    ];
    for (bytes, error) in vectors {
        assert_eq!(parse(bytes), Err(error), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_version_1_line_without_end_is_refused_at_its_limit() {
    let mut line = b"PROXY UNKNOWN ".to_vec();
    line.resize(MAX_V1 - 1, b'x');
    assert_eq!(parse(&line), Ok(Parsed::Incomplete));
    line.push(b'x');
    assert_eq!(parse(&line), Err(Error::LineTooLong));
    *line.last_mut().unwrap() = b'\r';
    assert_eq!(parse(&line), Err(Error::LineTooLong), "the LF would be byte 108");
    line.push(b'\n');
    assert_eq!(parse(&line), Err(Error::LineTooLong));
}

#[test]
fn version_2_headers_are_read() {
    let v4 = tcp("192.0.2.1:4711", "198.51.100.2:443");
    assert_reads(&tcp4_with(b""), v4);
    assert_reads(&tcp4_with(b"\x05\x00\x03abc\x04\x00\x00"), v4);
    let mut v6 = [0; 36];
    v6[0..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    (v6[15], v6[31]) = (1, 2);
    v6[32..].copy_from_slice(&[0x12, 0x67, 0x01, 0xbb]);
    assert_reads(&v2(0x21, 0x21, &v6), tcp("[2001:db8::1]:4711", "[::2]:443"));
    assert_reads(&v2(0x21, 0x31, &[b'a'; 216]), Header::Unix);
    assert_reads(&v2(0x21, 0x00, b""), Header::Unknown);
    assert_reads(&v2(0x21, 0x00, b"skipped"), Header::Unknown);
    assert_reads(&v2(0x20, 0x00, b""), Header::Local);
    assert_reads(&v2(0x20, 0x11, &TCP4), Header::Local);
    assert_reads(&v2(0x20, 0x00, b"skipped"), Header::Local);
}

#[test]
fn wrong_version_2_headers_are_refused() {
    let vectors = [
        (v2(0x11, 0x11, &TCP4), Error::UnknownVersion),
        (v2(0x31, 0x11, &TCP4), Error::UnknownVersion),
        (v2(0x22, 0x11, &TCP4), Error::UnknownCommand),
        (v2(0x2f, 0x11, &TCP4), Error::UnknownCommand),
        (v2(0x21, 0x12, &TCP4), Error::Datagram),
        (v2(0x21, 0x22, &[0; 36]), Error::Datagram),
        (v2(0x21, 0x32, &[0; 216]), Error::Datagram),
        (v2(0x21, 0x41, &TCP4), Error::Family),
        (v2(0x21, 0x10, &TCP4), Error::Family),
        (v2(0x21, 0x01, &TCP4), Error::Family),
        (v2(0x21, 0x11, &TCP4[..11]), Error::AddressesCutOff),
        (v2(0x21, 0x21, &TCP4), Error::AddressesCutOff),
        (v2(0x21, 0x31, &[0; 215]), Error::AddressesCutOff),
        (v2(0x21, 0x11, b""), Error::AddressesCutOff),
        (tcp4_with(b"\x05"), Error::AdditionCutOff),
        (tcp4_with(b"\x05\x00"), Error::AdditionCutOff),
        (tcp4_with(b"\x05\x00\x04abc"), Error::AdditionCutOff),
        (tcp4_with(b"\x05\xff\xffabc"), Error::AdditionCutOff),
        (tcp4_with(b"\x04\x00\x00\x05"), Error::AdditionCutOff),
        (tcp4_with(b"\x03\x00\x04\0\0\0\0"), Error::Checksum),
        (tcp4_with(b"\x03\x00\x03\0\0\0"), Error::Checksum),
        (v2(0x21, 0x11, &[0; MAX_V2 - 15]), Error::TooLong { len: MAX_V2 + 1 }),
    ];
    for (bytes, error) in vectors {
        assert_eq!(parse(&bytes), Err(error), "{}", bytes.escape_ascii());
    }
    let mut signature = tcp4_with(b"");
    signature[11] = b'\r';
    assert_eq!(parse(&signature), Err(Error::Absent));
}

#[test]
fn a_header_that_is_too_long_is_refused_before_it_comes() {
    let announced = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat();
    assert_eq!(parse(&announced), Err(Error::TooLong { len: 16 + 0xffff }));
    let local = [SIGNATURE, &[0x20, 0x00, 0xff, 0xff]].concat();
    assert_eq!(parse(&local), Err(Error::TooLong { len: 16 + 0xffff }));
    let largest = v2(0x20, 0x00, &[0; MAX_V2 - 16]);
    assert_eq!(parse(&largest), Ok(Parsed::Complete { header: Header::Local, len: MAX_V2 }));
}

/// CRC-32C bit by bit: slow, and written differently from the one under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn a_checksum_is_verified_over_the_whole_header() {
    let mut bytes = tcp4_with(b"\x03\x00\x04\0\0\0\0\x05\x00\x02ab");
    let sum = crc32c(&bytes);
    bytes[31..35].copy_from_slice(&sum.to_be_bytes());
    assert_reads(&bytes, tcp("192.0.2.1:4711", "198.51.100.2:443"));
    for at in 16..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let refused = matches!(parse(&changed), Err(Error::Checksum | Error::AdditionCutOff))
            // The type of the checksum became another: nothing is left to verify.
            || at == 28;
        assert!(refused, "a change of byte {at} passed");
    }
    let twice = [&bytes[16..], &bytes[28..35]].concat();
    assert_eq!(parse(&v2(0x21, 0x11, &twice)), Err(Error::Checksum));
}

fn peer(text: &str) -> Peer {
    Peer::Ip(address(text))
}

#[test]
fn headers_are_written_as_the_protocol_says() {
    let written = |version, source: &Peer, destination: &Peer| {
        let mut out = Vec::new();
        write(version, &mut out, source, destination, &Additions::default());
        out
    };
    let (v4, v4_mapped) = (peer("192.0.2.1:4711"), peer("[::ffff:192.0.2.1]:4711"));
    let (to, v6) = (peer("198.51.100.2:443"), peer("[2001:db8::1]:4711"));
    for source in [v4, v4_mapped] {
        assert_eq!(written(Version::V1, &source, &to), b"PROXY TCP4 192.0.2.1 198.51.100.2 4711 443\r\n");
        assert_eq!(written(Version::V2, &source, &to), tcp4_with(b""));
    }
    assert_eq!(written(Version::V1, &v6, &v6), b"PROXY TCP6 2001:db8::1 2001:db8::1 4711 4711\r\n");
    for (source, destination) in
        [(v4, v6), (v6, to), (Peer::Unix, to), (v4, Peer::Unix), (Peer::Unix, Peer::Unix)]
    {
        assert_eq!(written(Version::V1, &source, &destination), b"PROXY UNKNOWN\r\n");
        assert_eq!(written(Version::V2, &source, &destination), v2(0x21, 0, b""));
    }
    let (mut one, mut two) = (Vec::new(), Vec::new());
    write_local(Version::V1, &mut one);
    write_local(Version::V2, &mut two);
    assert_eq!((one, two), (b"PROXY UNKNOWN\r\n".to_vec(), v2(0x20, 0, b"")));
}

#[test]
fn datagrams_have_a_whole_header_of_version_2_and_the_client_may_have_come_over_either_transport() {
    let client = tcp("192.0.2.1:4711", "198.51.100.2:443");
    for family in [0x11, 0x12] {
        let header = v2(0x21, family, &TCP4);
        let datagram = [&header[..], b"question"].concat();
        assert_eq!(parse_datagram(&datagram), Ok((client, header.len())), "{family:x}");
        for end in 0..header.len() {
            assert!(parse_datagram(&header[..end]).is_err(), "{end} bytes");
        }
    }
    assert_eq!(parse_datagram(&v2(0x20, 0x00, b"")), Ok((Header::Local, 16)));
    assert_eq!(parse_datagram(&v2(0x21, 0x00, b"")), Ok((Header::Unknown, 16)));
    assert_eq!(parse_datagram(&v2(0x21, 0x32, &[0; 216])), Ok((Header::Unix, 232)));
    assert_eq!(parse_datagram(b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\r\n"), Err(Error::Absent));
    assert_eq!(parse_datagram(b""), Err(Error::Absent));
    assert_eq!(parse_datagram(&v2(0x21, 0x12, &TCP4)[..20]), Err(Error::CutOff));
    assert_eq!(parse_datagram(&v2(0x21, 0x22, &TCP4)), Err(Error::AddressesCutOff));
    assert_eq!(parse(&v2(0x21, 0x12, &TCP4)), Err(Error::Datagram), "a connection is none");
}

#[test]
fn versions_read_what_they_print() {
    for version in [Version::V1, Version::V2] {
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    assert!("2".parse::<Version>().is_err());
}

/// Bytes that begin like a header, so that random ones reach the inside of the parser.
fn nearly_a_header() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(Vec::new()),
        Just(b"PROXY ".to_vec()),
        Just(b"PROXY TCP4 ".to_vec()),
        Just(SIGNATURE.to_vec()),
        Just([SIGNATURE, &[0x21, 0x11, 0x00]].concat()),
        Just(tcp4_with(b"\x03\x00\x04\0\0\0\0")[..28].to_vec()),
    ];
    (start, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(start, rest)| [start, rest].concat())
}

proptest! {
    #[test]
    fn all_that_is_written_is_read_back(
        source: SocketAddr, destination: SocketAddr, v1: bool, rest in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let version = if v1 { Version::V1 } else { Version::V2 };
        let mut bytes = Vec::new();
        write(version, &mut bytes, &Peer::Ip(source), &Peer::Ip(destination), &Additions::default());
        let len = bytes.len();
        prop_assert!(!v1 || len <= MAX_V1);
        for end in 0..len {
            prop_assert_eq!(parse(&bytes[..end]), Ok(Parsed::Incomplete));
        }
        bytes.extend_from_slice(&rest);
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let (source, destination) = (plain(source), plain(destination));
        let header = if source.is_ipv4() == destination.is_ipv4() {
            Header::Client { source, destination }
        } else {
            Header::Unknown
        };
        prop_assert_eq!(parse(&bytes), Ok(Parsed::Complete { header, len }));
    }

    #[test]
    fn all_that_is_written_for_datagrams_is_read_back(source: SocketAddr, destination: SocketAddr, rest: Vec<u8>) {
        let mut bytes = Vec::new();
        write_datagram(&mut bytes, source, destination);
        let len = bytes.len();
        bytes.extend_from_slice(&rest);
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let (source, destination) = (plain(source), plain(destination));
        let is_known = source.is_ipv4() == destination.is_ipv4();
        let header = if is_known { Header::Client { source, destination } } else { Header::Unknown };
        prop_assert_eq!(parse_datagram(&bytes), Ok((header, len)));
    }

    #[test]
    fn random_bytes_never_panic_and_more_of_them_never_change_a_verdict(bytes in nearly_a_header()) {
        let whole = parse(&bytes);
        let first = (0..=bytes.len()).map(|end| parse(&bytes[..end])).find(|parsed| *parsed != Ok(Parsed::Incomplete));
        prop_assert_eq!(whole, first.unwrap_or(Ok(Parsed::Incomplete)));
        if let Ok(Parsed::Complete { len, .. }) = whole {
            prop_assert!(len <= bytes.len());
        }
        if let Ok((_, len)) = parse_datagram(&bytes) {
            prop_assert!(len <= bytes.len());
        }
    }
}
