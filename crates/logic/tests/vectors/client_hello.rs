//! However a ClientHello is cut into bytes and records, it asks for the same; and nothing makes its reader panic or hold
//! more than its limit.

use logic::client_hello::{ClientHello, HelloFault, LIMIT, Progress, Reader};
use proptest::prelude::*;

fn vector16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

fn vector8(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [kind.to_be_bytes().to_vec(), vector16(value)].concat()
}

fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &vector16(&[vec![0], vector16(name)].concat()))
}

fn alpn(protocols: &[&[u8]]) -> Vec<u8> {
    let list: Vec<u8> = protocols.iter().flat_map(|protocol| vector8(protocol)).collect();
    extension(16, &vector16(&list))
}

/// The message, with its header.
fn message(extensions: &[u8]) -> Vec<u8> {
    let body =
        [&[3, 3][..], &[7; 32], &vector8(&[9; 32]), &vector16(&[0x13, 1]), &[1, 0], &vector16(extensions)]
            .concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &length[1..], &body].concat()
}

/// In records of at most so many bytes.
fn records(message: &[u8], most: usize) -> Vec<u8> {
    message.chunks(most).flat_map(|part| [&[22, 3, 1][..], &vector16(part)].concat()).collect()
}

/// Reads in pieces of `sizes`, over and over.
fn read(bytes: &[u8], sizes: &[usize]) -> Result<Progress, HelloFault> {
    let mut reader = Reader::default();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        let (now, later) = rest.split_at((*size).min(rest.len()));
        rest = later;
        match reader.read(now)? {
            Progress::Incomplete if rest.is_empty() => return Ok(Progress::Incomplete),
            Progress::Incomplete => {}
            complete => {
                let seen = bytes.len() - rest.len();
                assert_eq!(reader.into_bytes(), &bytes[..seen], "what came goes on as it came");
                return Ok(complete);
            }
        }
    }
    unreachable!("there is a size")
}

fn hello(bytes: &[u8]) -> ClientHello {
    match read(bytes, &[usize::MAX]) {
        Ok(Progress::Complete(hello)) => hello,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hello_in_records_of_one_byte_says_the_same() {
    let message =
        message(&[server_name(b"a.example"), extension(0x0a0a, &[]), alpn(&[b"h2", b"acme-tls/1"])].concat());
    let whole = hello(&records(&message, 1 << 14));
    assert_eq!(whole.host().as_deref(), Some("a.example"));
    assert_eq!(whole.protocols().collect::<Vec<_>>(), [&b"h2"[..], b"acme-tls/1"]);
    for (record, piece) in [(1, 1), (1, usize::MAX), (3, 2), (16384, 1)] {
        let bytes = records(&message, record);
        assert_eq!(read(&bytes, &[piece]), Ok(Progress::Complete(whole.clone())));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut], &[piece]), Ok(Progress::Incomplete), "{cut}");
        }
    }
}

#[test]
fn what_follows_the_hello_goes_on_with_it() {
    let mut bytes = records(&message(&server_name(b"a.example")), 100);
    bytes.extend_from_slice(&[7; 2 * LIMIT]);
    assert_eq!(hello(&bytes).host().as_deref(), Some("a.example"));
}

#[test]
fn what_is_no_hello_is_known_by_its_first_bytes() {
    let good = records(&message(&server_name(b"a.example")), 1 << 14);
    for (bytes, fault) in [
        (&b"GET / HTTP/1.1"[..], HelloFault::NotTls),
        (b"SSH-2.0", HelloFault::NotTls),
        (&[0], HelloFault::NotTls),
        (&[22, 2], HelloFault::NotTls),
        (&[21, 3, 3, 0, 2, 1, 0], HelloFault::NotTls),
        (&[0x80, 0x2e, 1, 3, 1], HelloFault::NotTls),
        (&[22, 3, 1, 0, 0], HelloFault::EmptyRecord),
        (&[22, 3, 1, 0x40, 1], HelloFault::LongRecord),
        (&[22, 3, 1, 0, 4, 2], HelloFault::OtherMessage),
        (&[22, 3, 1, 0, 4, 1, 1], HelloFault::TooLong),
        (&[&good[..5], &[2]].concat(), HelloFault::OtherMessage),
        (&[22, 3, 1, 0, 4, 1, 0, 0, 0], HelloFault::Malformed),
    ] {
        assert_eq!(read(bytes, &[1]), Err(fault), "{}", bytes.escape_ascii());
        assert_eq!(read(bytes, &[usize::MAX]), Err(fault), "{}", bytes.escape_ascii());
    }
}

#[test]
fn a_hello_beyond_the_limit_is_refused_and_never_held() {
    let padding = extension(21, &[0; 60_000]);
    let longest = records(&message(&[padding.clone(), server_name(b"a.example")].concat()), 1 << 14);
    assert_eq!(hello(&longest).host().as_deref(), Some("a.example"));
    // In records of ten bytes their headers alone are too much.
    assert_eq!(read(&records(&message(&padding), 10), &[1000]), Err(HelloFault::TooLong));
    let mut endless = Reader::default();
    let record = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0xff, 0xff], &[0; 16380]].concat();
    assert_eq!(endless.read(&record), Ok(Progress::Incomplete));
    let mut result = Ok(Progress::Incomplete);
    while result.is_ok() {
        result = endless.read(&record);
    }
    assert_eq!(result, Err(HelloFault::TooLong));
    assert!(endless.into_bytes().len() <= LIMIT);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let name = server_name(b"a.example");
    for extensions in [
        [name.clone(), name.clone()].concat(),
        [alpn(&[b"h2"]), alpn(&[b"h2"])].concat(),
        extension(0, &[]),
        extension(0, &vector16(&[])),
        extension(0, &vector16(&[vec![0], vector16(b"")].concat())),
        extension(0, &vector16(&[vec![1], vector16(b"a")].concat())),
        extension(0, &vector16(&[vec![0], vector16(b"a"), vec![0], vector16(b"b")].concat())),
        extension(0, &[vector16(&[vec![0], vector16(b"a")].concat()), vec![0]].concat()),
        extension(16, &vector16(&[])),
        extension(16, &vector16(&[0])),
        extension(16, &vector16(&[9, b'h'])),
        [name.clone(), vec![0]].concat(),
        name[..name.len() - 1].to_vec(),
    ] {
        let bytes = records(&message(&extensions), 1 << 14);
        assert_eq!(read(&bytes, &[usize::MAX]), Err(HelloFault::Malformed), "{}", extensions.escape_ascii());
    }
    // Without extensions it is one of old.
    let old = hello(&records(&bare(0x0301, 47), 1 << 14));
    assert_eq!((old.server_name(), old.protocols().next()), (None, None));
}

/// A ClientHello without extensions.
fn bare(version: u16, suite: u16) -> Vec<u8> {
    let (version, suite) = (version.to_be_bytes(), suite.to_be_bytes());
    [&[1, 0, 0, 41][..], &version, &[7; 32], &[0, 0, 2], &suite, &[1, 0]].concat()
}

#[test]
fn what_no_server_may_answer_is_known_with_its_alert() {
    const HANDSHAKE_FAILURE: Option<u8> = Some(40);
    const PROTOCOL_VERSION: Option<u8> = Some(70);
    let versions = |versions: &[u16]| {
        let list: Vec<u8> = versions.iter().flat_map(|version| version.to_be_bytes()).collect();
        extension(43, &vector8(&list))
    };
    let with = |extensions: &[Vec<u8>]| message(&extensions.concat());
    let mut ssl = with(&[versions(&[0x0304])]);
    ssl[5] = 0;
    for (name, message, refusal, offers_tls13) in [
        ("TLS 1.2", bare(0x0303, 47), None, false),
        ("TLS 1.3 in legacy_version alone", bare(0x0304, 47), None, false),
        ("TLS 1.1", bare(0x0302, 47), PROTOCOL_VERSION, false),
        ("SSL 3.0", bare(0x0300, 47), PROTOCOL_VERSION, false),
        ("TLS 1.3 and SSL 3.0", ssl, PROTOCOL_VERSION, true),
        ("1.3, 1.2 and GREASE", with(&[versions(&[0x1a1a, 0x0304, 0x0303])]), None, true),
        ("1.2 in the list", with(&[versions(&[0x0302, 0x0303])]), None, false),
        ("1.1 in the list", with(&[versions(&[0x0302])]), PROTOCOL_VERSION, false),
        ("a draft of 1.3", with(&[versions(&[0x7f1c])]), PROTOCOL_VERSION, false),
        ("a list that cannot be read", with(&[extension(43, &[9])]), None, false),
        ("an empty list", with(&[extension(43, &[0])]), None, false),
        ("a list of half a version", with(&[extension(43, &[1, 3])]), None, false),
        ("a list with more behind it", with(&[extension(43, &[2, 3, 2, 0])]), None, false),
        ("renegotiation that cannot be read", with(&[extension(0xff01, &[])]), None, false),
        ("renegotiation with more behind it", with(&[extension(0xff01, &[1, 7, 7])]), None, false),
        ("no renegotiation", with(&[extension(0xff01, &[0])]), None, false),
        ("renegotiation", with(&[extension(0xff01, &vector8(&[7; 12]))]), HANDSHAKE_FAILURE, false),
    ] {
        let hello = hello(&records(&message, 1 << 14));
        assert_eq!((hello.refusal(), hello.offers_tls13()), (refusal, offers_tls13), "{name}");
    }
}

proptest! {
    #[test]
    fn however_it_is_cut_it_says_the_same(
        name in "[a-z]{1,20}(\\.[a-z]{1,10}){0,3}",
        noise in prop::collection::vec((1u16.., prop::collection::vec(any::<u8>(), 0..300)), 0..8),
        record in 1usize..700,
        sizes in prop::collection::vec(1usize..900, 1..20),
    ) {
        let noise: Vec<u8> = noise.iter().filter(|(kind, _)| *kind != 16).flat_map(|(kind, value)| extension(*kind, value)).collect();
        let message = message(&[noise, server_name(name.as_bytes())].concat());
        let read = read(&records(&message, record), &sizes);
        let Ok(Progress::Complete(hello)) = read else { panic!("{read:?}") };
        prop_assert_eq!(hello.host(), Some(name));
    }

    #[test]
    fn no_bytes_make_it_panic_and_pieces_change_nothing(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        place in 0usize..200,
        value in any::<u8>(),
        begins in any::<bool>(),
        sizes in prop::collection::vec(1usize..50, 1..9),
    ) {
        if begins {
            let mut good = records(&message(&[server_name(b"a.example"), alpn(&[b"h2"])].concat()), 60);
            let at = place % good.len();
            good[at] = value;
            good.append(&mut bytes);
            bytes = good;
        }
        // Every byte is looked at as soon as it is there: a fault is the same fault.
        let (whole, pieces) = (read(&bytes, &[usize::MAX]), read(&bytes, &sizes));
        prop_assert_eq!(whole, pieces);
    }
}
