//! However a message is cut into pieces, it means the same; and no input makes the parsers panic or work
//! without a bound.

use logic::http1::chunked::{ChunkFault, ChunkLimits, Decoder, Step};
use logic::http1::request::{self, Limits, MethodKind, Parse, Progress, RequestKind, UpgradeWish};
use logic::http1::response;
use proptest::prelude::*;
use std::time::{Duration, Instant};

const KIND: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::Asked };

fn token() -> impl Strategy<Value = String> {
    "[A-Za-z!#$%&'*+.^`|~-][A-Za-z0-9!#$%&'*+.^`|~-]{0,12}"
}

fn value() -> impl Strategy<Value = String> {
    "([!-~]([ -~\t]{0,30}[!-~])?)?"
}

fn header() -> impl Strategy<Value = String> {
    // A prefix keeps generated names away from those with a meaning.
    (token(), "[ \t]{0,2}", value(), "[ \t]{0,2}").prop_map(|(n, a, v, b)| format!("Q{n}:{a}{v}{b}\r\n"))
}

fn request_head() -> impl Strategy<Value = String> {
    let target = prop_oneof![
        "/[!-\"$-~]{0,40}",
        "http://[a-z]{1,8}(\\.[a-z]{1,3})?(:[0-9]{1,4})?(/[!-\"$-~]{0,20})?",
    ];
    let method = prop_oneof![
        Just("GET".to_owned()),
        Just("POST".to_owned()),
        Just("DELETE".to_owned()),
        "[A-Z]{1,2}X[A-Z-]{0,8}"
    ];
    let framing = prop_oneof![
        Just(String::new()),
        (0u64..2000).prop_map(|length| format!("Content-Length: {length}\r\n")),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
    ];
    (
        any::<bool>(),
        method,
        target,
        prop::collection::vec(header(), 0..12),
        framing,
        prop::collection::vec(header(), 0..3),
    )
        .prop_map(|(empty_line, method, target, before, framing, after)| {
            let leading = if empty_line { "\r\n" } else { "" };
            let (before, after) = (before.concat(), after.concat());
            format!(
                "{leading}{method} {target} HTTP/1.1\r\n{before}Host: a.test:8080\r\n{framing}{after}\r\n"
            )
        })
}

fn response_head() -> impl Strategy<Value = String> {
    let framing = prop_oneof![
        Just(String::new()),
        (0u64..2000).prop_map(|length| format!("Content-Length: {length}\r\n")),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
    ];
    (200u16..600, "( [ -~]{0,20})?", prop::collection::vec(header(), 0..12), framing).prop_map(
        |(status, reason, headers, framing)| {
            format!("HTTP/1.1 {status}{reason}\r\n{}{framing}\r\n", headers.concat())
        },
    )
}

/// A chunked body on the wire, and its data.
fn chunked_body() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let extension = prop_oneof![
        3 => Just(String::new()),
        1 => (token(), token()).prop_map(|(n, v)| format!(";{n}={v}")),
        1 => (token(), "[ !#-\\[\\]-~\t]{0,10}").prop_map(|(n, v)| format!(";{n}=\"{v}\\\"\";z")),
    ];
    let chunk = (prop::collection::vec(any::<u8>(), 1..60), "0{0,3}", any::<bool>(), extension);
    (prop::collection::vec(chunk, 0..6), prop::collection::vec(header(), 0..3)).prop_map(
        |(chunks, trailers)| {
            let (mut wire, mut data) = (Vec::new(), Vec::new());
            for (bytes, zeros, upper, extension) in chunks {
                let digits = if upper { format!("{:X}", bytes.len()) } else { format!("{:x}", bytes.len()) };
                wire.extend_from_slice(format!("{zeros}{digits}{extension}\r\n").as_bytes());
                wire.extend_from_slice(&bytes);
                wire.extend_from_slice(b"\r\n");
                data.extend_from_slice(&bytes);
            }
            wire.extend_from_slice(format!("0\r\n{}\r\n", trailers.concat()).as_bytes());
            (wire, data)
        },
    )
}

/// Feeds `pieces` one after the other. Gives data, trailers, and the bytes of the message; `None` if it did
/// not end.
type Decoded = Option<(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, usize)>;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Decoded, ChunkFault> {
    let mut decoder = Decoder::new(ChunkLimits::default());
    let (mut data, mut len) = (Vec::new(), 0);
    for mut piece in pieces {
        loop {
            match decoder.decode(piece)? {
                Step::Data { offset, len: bytes } => {
                    data.extend_from_slice(&piece[offset..offset + bytes]);
                    piece = &piece[offset + bytes..];
                    len += offset + bytes;
                }
                Step::NeedMore { consumed } => {
                    assert_eq!(consumed, piece.len());
                    len += consumed;
                    break;
                }
                Step::End { consumed } => {
                    return Ok(Some((data, decoder.trailers().to_vec(), len + consumed)));
                }
            }
        }
    }
    Ok(None)
}

/// Cuts `bytes` at these places.
fn cut<'a>(bytes: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn a_request_head_means_the_same_split_at_every_byte(head in request_head(),
        behind in "[ -~]{0,9}",
        places in prop::collection::vec(any::<usize>(), 0..6)) {
        let limits = Limits::default();
        let bytes = format!("{head}{behind}").into_bytes();
        let whole = request::parse(&bytes, &limits);
        let Ok(Parse::Complete(parsed)) = &whole else { panic!("{whole:?} of {head:?}") };
        prop_assert_eq!(parsed.len, head.len());
        for split in 0..head.len() {
            let mut progress = Progress::default();
            prop_assert_eq!(request::resume(&bytes[..split], &mut progress, &limits), Ok(Parse::Incomplete));
            prop_assert_eq!(&request::resume(&bytes, &mut progress, &limits), &whole, "split at {}", split);
        }
        let mut progress = Progress::default();
        let mut places: Vec<usize> = places.iter().map(|place| place % head.len()).collect();
        places.sort_unstable();
        for place in places {
            prop_assert_eq!(request::resume(&bytes[..place], &mut progress, &limits), Ok(Parse::Incomplete));
        }
        prop_assert_eq!(&request::resume(&bytes, &mut progress, &limits), &whole);
        let mut progress = Progress::default();
        for len in 0..head.len() {
            prop_assert_eq!(request::resume(&bytes[..len], &mut progress, &limits), Ok(Parse::Incomplete));
        }
        prop_assert_eq!(&request::resume(&bytes, &mut progress, &limits), &whole);
    }

    #[test]
    fn a_response_head_means_the_same_split_at_every_byte(head in response_head(),
        behind in "[ -~]{0,9}") {
        let limits = Limits::default();
        let bytes = format!("{head}{behind}").into_bytes();
        let whole = response::parse(&bytes, &limits, KIND);
        let Ok(Parse::Complete(parsed)) = &whole else { panic!("{whole:?} of {head:?}") };
        prop_assert_eq!(parsed.len, head.len());
        let mut bytewise = Progress::default();
        for split in 0..head.len() {
            prop_assert_eq!(response::resume(&bytes[..split], &mut bytewise, &limits, KIND), Ok(Parse::Incomplete));
            let mut progress = Progress::default();
            prop_assert_eq!(response::resume(&bytes[..split], &mut progress, &limits, KIND), Ok(Parse::Incomplete));
            prop_assert_eq!(&response::resume(&bytes, &mut progress, &limits, KIND), &whole, "split at {}", split);
        }
        prop_assert_eq!(&response::resume(&bytes, &mut bytewise, &limits, KIND), &whole);
    }

    #[test]
    fn a_chunked_body_decodes_to_the_same_however_it_is_cut((wire, data) in chunked_body(),
        places in prop::collection::vec(any::<usize>(), 0..8)) {
        let mut bytes = wire.clone();
        bytes.extend_from_slice(b"NEXT");
        let whole = decode(std::iter::once(&bytes[..]));
        let Ok(Some((decoded, _, len))) = &whole else { panic!("{whole:?} of {}", wire.escape_ascii()) };
        prop_assert_eq!((decoded, *len), (&data, wire.len()));
        for split in 0..=bytes.len() {
            let (front, back) = bytes.split_at(split);
            prop_assert_eq!(&decode([front, back].into_iter()), &whole, "split at {}", split);
        }
        prop_assert_eq!(&decode(cut(&bytes, &places).into_iter()), &whole);
        prop_assert_eq!(&decode(bytes.chunks(1)), &whole);
    }

    #[test]
    fn broken_bodies_fail_alike_however_they_are_cut((mut wire, _) in chunked_body(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        places in prop::collection::vec(any::<usize>(), 0..8)) {
        let at = at.index(wire.len());
        wire[at] = byte;
        let whole = decode(std::iter::once(&wire[..]));
        prop_assert_eq!(&decode(wire.chunks(1)), &whole);
        prop_assert_eq!(&decode(cut(&wire, &places).into_iter()), &whole);
    }

    #[test]
    fn damaged_heads_get_one_verdict_in_pieces_and_whole(head in request_head(),
        at in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':')]) {
        let limits = Limits { head: 600, headers: 10, target: 50, body: Some(1000), ..Limits::default() };
        let mut bytes = head.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let whole = request::parse(&bytes, &limits);
        let mut progress = Progress::default();
        let pieces = (0..=bytes.len())
            .map(|len| request::resume(&bytes[..len], &mut progress, &limits))
            .find(|verdict| !matches!(verdict, Ok(Parse::Incomplete)));
        prop_assert_eq!(pieces.unwrap_or(Ok(Parse::Incomplete)), whole);
    }

    #[test]
    fn no_bytes_make_a_parser_panic(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':')], 0..400),
        skip in 0usize..3) {
        let limits = Limits { head: 300, headers: 10, target: 100, body: None, ..Limits::default() };
        let front: &[u8] = [&b""[..], b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 \r\n"][skip];
        let bytes = [front, &bytes].concat();
        let _ = request::parse(&bytes, &limits);
        let _ = response::parse(&bytes, &limits, KIND);
        let _ = decode(std::iter::once(&bytes[front.len()..]));
    }
}

/// A parser that begins anew with each byte would look at some 10^11 bytes here.
#[test]
#[expect(clippy::disallowed_methods, reason = "the claim is about time")]
fn a_head_that_arrives_byte_by_byte_costs_no_more_than_its_length() {
    const SIZE: usize = 1 << 20;
    let limits = Limits { head: 2 * SIZE, headers: SIZE, target: SIZE, body: None, ..Limits::default() };
    let long_value = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(SIZE));
    let many_lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(SIZE / 6));
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(SIZE - 1));
    for head in [long_value, many_lines, long_target] {
        let start = Instant::now();
        let mut progress = Progress::default();
        for len in 0..head.len() {
            let verdict = request::resume(&head.as_bytes()[..len], &mut progress, &limits);
            assert!(matches!(verdict, Ok(Parse::Incomplete)), "{len}: {verdict:?}");
            if len % 4096 == 0 {
                assert!(start.elapsed() < Duration::from_secs(8), "after {len} bytes of {head:.30}");
            }
        }
        let verdict = request::resume(head.as_bytes(), &mut progress, &limits);
        assert!(matches!(verdict, Ok(Parse::Complete(_))));
    }
}

#[test]
fn legal_vectors_mean_the_same_byte_by_byte() {
    for legal in crate::requests::LEGAL {
        let limits = Limits::default();
        let whole = request::parse(legal.bytes, &limits);
        let mut progress = Progress::default();
        let pieces = (0..=legal.bytes.len())
            .map(|len| request::resume(&legal.bytes[..len], &mut progress, &limits))
            .find(|verdict| !matches!(verdict, Ok(Parse::Incomplete)));
        assert_eq!(pieces, Some(whole), "{}", legal.name);
    }
}
