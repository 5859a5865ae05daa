//! Random fields of HTTP/2: what passes is one clear message of HTTP/1.1, with the framing that its body gets.

use logic::http1::chunked::{ChunkFault, ChunkLimits, Decoder, Step, write_end};
use logic::http1::request::{self, BodyLength, Limits, MethodKind, Parse, RequestKind, UpgradeWish};
use logic::http1::response;
use logic::http2::downgrade::{self, Body, Upload};
use logic::http2::upgrade::{self, Download};
use proptest::prelude::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Bytes that are malformed in most places.
fn odd() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => any::<u8>(),
        1 => Just(b'\r'),
        1 => Just(b'\n'),
        1 => Just(b' '),
        1 => Just(b':'),
        1 => Just(0),
    ];
    prop::collection::vec(byte, 0..8)
}

fn text(pattern: &'static str) -> impl Strategy<Value = Vec<u8>> {
    pattern.prop_map(String::into_bytes)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => text("[a-z][a-z_-]{0,10}"),
        8 => text("content-length|transfer-encoding|host|cookie|te|connection|expect|upgrade|keep-alive"),
        2 => text("sec-websocket-key|content-type|trailer|http2-settings|x-forwarded-for|x_forwarded_for"),
        1 => text("[A-Za-z:]{1,10}"),
        1 => odd(),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => text("[!-~]([ -~]{0,16}[!-~])?"),
        3 => text("[0-9]{0,4}|18446744073709551615|-1|\\+1|1, 1"),
        3 => text("trailers|chunked|close|100-continue|websocket|a=1; b|application/grpc"),
        1 => odd(),
    ]
}

fn fields() -> impl Strategy<Value = Fields> {
    prop::collection::vec((name(), value()), 0..6)
}

fn pseudo() -> impl Strategy<Value = Fields> {
    let method = prop_oneof![
        6 => text("GET|HEAD|POST|PUT|DELETE|OPTIONS"),
        2 => text("CONNECT"),
        1 => text("[A-Za-z]{1,6}"),
        1 => odd(),
    ];
    let path = prop_oneof![
        6 => text("/[!-\"$-~]{0,20}"),
        1 => text("\\*|http://a/|//a|/ HTTP/1.1|/a#b|"),
        1 => odd(),
    ];
    let authority = prop_oneof![4 => text("[a-z]{1,8}(:[0-9]{1,4})?"), 1 => text("a,b|a@b|a/b|"), 1 => odd()];
    let (few, rare) =
        (prop::option::weighted(0.9, authority), prop::option::weighted(0.1, text("websocket|h2c")));
    let scheme = prop_oneof![8 => text("https|http"), 1 => odd()];
    (method, scheme, few, path, rare, prop::bool::weighted(0.05)).prop_map(
        |(method, scheme, authority, path, protocol, twice)| {
            let mut fields = vec![(b":method".to_vec(), method), (b":scheme".to_vec(), scheme)];
            fields.extend(authority.map(|authority| (b":authority".to_vec(), authority)));
            fields.push((b":path".to_vec(), path));
            fields.extend(protocol.map(|protocol| (b":protocol".to_vec(), protocol)));
            if twice {
                fields.extend(fields.last().cloned());
            }
            fields
        },
    )
}

fn borrowed(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (&name[..], &value[..]))
}

fn body(follows: bool) -> Body {
    if follows { Body::Follows } else { Body::None }
}

/// The only empty line of a head is its end.
fn is_one_head(head: &[u8]) -> bool {
    memchr::memmem::find(head, b"\r\n\r\n") == head.len().checked_sub(4)
        && !head.iter().enumerate().any(|(at, byte)| *byte == b'\n' && head[..at].last() != Some(&b'\r'))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn a_request_that_passes_is_one_head_with_the_framing_of_its_body(
        pseudo in pseudo(), regular in fields(), follows in any::<bool>(),
    ) {
        let all = [pseudo, regular].concat();
        let Ok(passed) = downgrade::request(borrowed(&all), body(follows), "dGhlIHNhbXBsZSBub25jZQ==") else {
            return Ok(());
        };
        let shown = passed.head.escape_ascii().to_string();
        prop_assert!(is_one_head(&passed.head), "{}", shown);
        let parsed = match request::parse(&passed.head, &Limits::default()) {
            Ok(Parse::Complete(parsed)) => parsed,
            // It is answered, and not forwarded.
            Err(_) => return Ok(()),
            Ok(Parse::Incomplete) => return Err(TestCaseError::fail(format!("what follows would be of it: {shown}"))),
        };
        prop_assert_eq!(parsed.len, passed.head.len(), "{}", &shown);
        let framed = match passed.upload {
            Upload::None | Upload::Tunnel => matches!(parsed.body, BodyLength::None | BodyLength::Length(0)),
            Upload::Length(length) => parsed.body == BodyLength::Length(length),
            Upload::Chunked => parsed.body == BodyLength::Chunked,
        };
        prop_assert!(framed, "{:?} of {}", passed.upload, &shown);
        prop_assert_eq!(passed.upload == Upload::Tunnel, parsed.upgrade.is_some(), "{}", &shown);
        prop_assert!(follows || !matches!(passed.upload, Upload::Chunked | Upload::Length(_)), "{}", &shown);
    }

    #[test]
    fn a_response_that_passes_is_one_head_with_the_framing_of_its_body(
        status in prop_oneof![200_u16..600, any::<u16>()],
        fields in fields(),
        follows in any::<bool>(),
        is_head in any::<bool>(),
    ) {
        let method = if is_head { MethodKind::Head } else { MethodKind::Other };
        let Ok(passed) = upgrade::response(status, "X", borrowed(&fields), body(follows), method) else {
            return Ok(());
        };
        let shown = passed.head.escape_ascii().to_string();
        prop_assert!(is_one_head(&passed.head), "{}", shown);
        let kind = RequestKind { method, upgrade: UpgradeWish::NotAsked };
        let parsed = match response::parse(&passed.head, &Limits::default(), kind) {
            Ok(Parse::Complete(parsed)) => parsed,
            Err(_) => return Ok(()),
            Ok(Parse::Incomplete) => return Err(TestCaseError::fail(format!("what follows would be of it: {shown}"))),
        };
        prop_assert_eq!(parsed.len, passed.head.len(), "{}", &shown);
        let framed = match passed.body {
            Download::None | Download::Tunnel => matches!(parsed.body, BodyLength::None | BodyLength::Length(0)),
            Download::Length(length) => parsed.body == BodyLength::Length(length),
            Download::Chunked => parsed.body == BodyLength::Chunked,
        };
        prop_assert!(framed, "{:?} of {}", passed.body, &shown);
    }

    #[test]
    fn trailers_that_pass_end_a_chunked_body_and_are_read_as_they_were(fields in fields()) {
        let Ok(trailers) = downgrade::trailers(borrowed(&fields)) else { return Ok(()) };
        prop_assert_eq!(&trailers, &fields);
        let mut wire = Vec::new();
        write_end(&mut wire, &trailers);
        let mut decoder = Decoder::new(ChunkLimits::default());
        match decoder.decode(&wire) {
            Ok(Step::End { consumed }) => {
                prop_assert_eq!(consumed, wire.len());
                prop_assert_eq!(decoder.trailers(), &trailers[..]);
            }
            step => prop_assert_eq!(step, Err(ChunkFault::ForbiddenTrailer)),
        }
    }
}
