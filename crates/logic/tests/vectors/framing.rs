//! The table of broken and of odd but legal requests against the parser and the chunk decoder.

use crate::requests::{Expect, LEGAL, VECTORS};
use logic::http1::chunked::{ChunkFault, ChunkLimits, Decoder, Step};
use logic::http1::refusal::Refusal;
use logic::http1::request::{self, BodyLength, Limits, Parse, Progress, RequestHead};
use std::collections::HashSet;

/// What one message came to: its head, its decoded body, and how many bytes belong to it.
type Outcome = Result<(RequestHead, Result<(Vec<u8>, usize), ChunkFault>), Refusal>;

fn run(bytes: &[u8]) -> Outcome {
    match request::parse(bytes, &Limits::default())? {
        Parse::Incomplete => panic!("incomplete: {}", bytes.escape_ascii()),
        Parse::Complete(head) => {
            let body = read_body(&bytes[head.len..], head.body).map(|(body, len)| (body, head.len + len));
            Ok((head, body))
        }
    }
}

fn read_body(mut input: &[u8], length: BodyLength) -> Result<(Vec<u8>, usize), ChunkFault> {
    let whole = input.len();
    match length {
        BodyLength::None => Ok((Vec::new(), 0)),
        BodyLength::Length(length) => Ok((input[..length as usize].to_vec(), length as usize)),
        BodyLength::UntilClose => panic!("a request has no such body"),
        BodyLength::Chunked => {
            let mut decoder = Decoder::new(ChunkLimits::default());
            let mut body = Vec::new();
            loop {
                match decoder.decode(input)? {
                    Step::Data { offset, len } => {
                        body.extend_from_slice(&input[offset..offset + len]);
                        input = &input[offset + len..];
                    }
                    Step::NeedMore { .. } => panic!("incomplete body"),
                    Step::End { consumed } => return Ok((body, whole - input.len() + consumed)),
                }
            }
        }
    }
}

#[test]
fn every_broken_request_is_refused_for_the_reason_that_the_table_names() {
    let mut wrong = Vec::new();
    for vector in VECTORS {
        let verdict = std::panic::catch_unwind(|| run(vector.bytes));
        let seen = match &verdict {
            Ok(Err(refusal)) => Some(Expect::Refused { status: refusal.status(), reason: refusal.reason() }),
            Ok(Ok((_, Err(fault)))) => Some(Expect::BodyFault { reason: fault.reason() }),
            _ => None,
        };
        if seen != Some(vector.expect) {
            wrong.push(format!("{}: expected {:?}, got {verdict:?}", vector.name, vector.expect));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), VECTORS.len(), wrong.join("\n"));
}

#[test]
fn the_table_is_as_large_as_promised_and_names_are_unique() {
    assert!(VECTORS.len() >= 180, "{}", VECTORS.len());
    assert!(LEGAL.len() >= 40, "{}", LEGAL.len());
    let names: HashSet<_> = VECTORS.iter().map(|v| v.name).chain(LEGAL.iter().map(|l| l.name)).collect();
    assert_eq!(names.len(), VECTORS.len() + LEGAL.len());
}

#[test]
fn odd_but_legal_requests_pass_with_their_whole_body_and_nothing_more() {
    for legal in LEGAL {
        let (_, body) = run(legal.bytes).unwrap_or_else(|refusal| panic!("{}: {refusal}", legal.name));
        let (body, len) = body.unwrap_or_else(|fault| panic!("{}: {fault}", legal.name));
        assert_eq!(body, legal.body, "{}", legal.name);
        assert_eq!(&legal.bytes[len..], legal.rest, "{}", legal.name);
    }
}

#[test]
fn a_broken_request_gets_the_same_verdict_byte_by_byte() {
    for vector in VECTORS {
        let limits = Limits::default();
        let mut progress = Progress::default();
        let verdict = (0..=vector.bytes.len())
            .map(|len| request::resume(&vector.bytes[..len], &mut progress, &limits))
            .find(|verdict| !matches!(verdict, Ok(Parse::Incomplete)));
        match (verdict, request::parse(vector.bytes, &limits)) {
            (Some(pieces), whole) => assert_eq!(pieces, whole, "{}", vector.name),
            (None, whole) => panic!("{}: {whole:?} in one piece, nothing in many", vector.name),
        }
    }
}

#[test]
fn sizes_beyond_the_limits_have_the_right_status_however_they_arrive() {
    let limits = Limits { head: 4096, headers: 20, target: 1024, body: Some(10), ..Limits::default() };
    let verdict = |text: &str| {
        let whole = request::parse(text.as_bytes(), &limits);
        let mut progress = Progress::default();
        let pieces = (0..=text.len())
            .map(|len| request::resume(&text.as_bytes()[..len], &mut progress, &limits))
            .find(|verdict| !matches!(verdict, Ok(Parse::Incomplete)));
        assert_eq!(Some(whole.clone()), pieces, "{text:.60}");
        whole.map(|_| ()).map_err(|refusal| (refusal.status(), refusal))
    };
    let get = |target: &str, headers: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
    assert_eq!(verdict(&get(&"/".repeat(1024), "")), Ok(()));
    assert_eq!(verdict(&get(&"/".repeat(1025), "")), Err((414, Refusal::TargetTooLong)));
    assert_eq!(verdict(&get(&"/".repeat(100_000), "")), Err((414, Refusal::TargetTooLong)));
    assert_eq!(verdict(&"A".repeat(100_000)), Err((414, Refusal::TargetTooLong)));
    assert_eq!(verdict(&get("/", &"X: y\r\n".repeat(19))), Ok(()));
    assert_eq!(verdict(&get("/", &"X: y\r\n".repeat(20))), Err((431, Refusal::TooManyHeaders)));
    assert_eq!(verdict(&get("/", &"X: y\r\n".repeat(10_000))), Err((431, Refusal::HeadTooLarge)));
    let filling = 4096 - get("/", "X: \r\n").len();
    assert_eq!(verdict(&get("/", &format!("X: {}\r\n", "y".repeat(filling)))), Ok(()));
    assert_eq!(
        verdict(&get("/", &format!("X: {}\r\n", "y".repeat(filling + 1)))),
        Err((431, Refusal::HeadTooLarge))
    );
    assert_eq!(verdict(&get("/", &format!("X: {}", "y".repeat(1 << 20)))), Err((431, Refusal::HeadTooLarge)));
    assert_eq!(verdict(&get("/", "Content-Length: 10\r\n")), Ok(()));
    assert_eq!(verdict(&get("/", "Content-Length: 11\r\n")), Err((413, Refusal::BodyTooLarge)));
    let tiny = Limits { head: 16, ..limits };
    assert_eq!(request::parse(b"GET /aaaaaaaaaaaaaaa", &tiny), Err(Refusal::HeadTooLarge));
    assert_eq!(request::parse(b"", &Limits { head: 0, ..limits }), Ok(Parse::Incomplete));
    assert_eq!(request::parse(b"\r\n", &Limits { head: 1, ..limits }), Err(Refusal::HeadTooLarge));
}

#[test]
fn what_the_parser_understood_is_what_the_bytes_say() {
    let bytes = b"GET http://User.test:81/a/b?c=d HTTP/1.1\r\nHost: other.test\r\nConnection: Upgrade, TE\r\nUpgrade: websocket\r\n\
                  TE: gzip, Trailers\r\nAccept: x\r\nproxy: y\r\n\r\n";
    let (head, _) = run(bytes).unwrap();
    assert_eq!(head.method(bytes), "GET");
    assert_eq!(head.authority.of(bytes), b"User.test:81");
    assert_eq!(head.host.of(bytes), b"User.test");
    assert_eq!((head.path(bytes), head.query.of(bytes)), ("/a/b", &b"c=d"[..]));
    assert_eq!(head.origin.of(bytes), b"/a/b?c=d");
    assert_eq!(head.target.of(bytes), b"http://User.test:81/a/b?c=d");
    assert_eq!(head.upgrade.unwrap().of(bytes), b"websocket");
    assert_eq!(head.trailers, request::Trailers::Accepted);
    assert_eq!(head.header(bytes, "accept"), Some(&b"x"[..]));
    assert_eq!(head.persistence, request::Persistence::KeepAlive);
    let lookup = head.lookup(bytes);
    assert_eq!(logic::route::HeaderLookup::header(&lookup, "accept"), Some(&b"x"[..]));
    assert_eq!(logic::route::HeaderLookup::header(&lookup, "proxy"), None, "a dropped header must not route");
}

#[test]
fn an_upgrade_is_only_seen_where_nothing_else_could_follow() {
    let upgrade = |name: &str| {
        let legal = LEGAL.iter().find(|legal| legal.name == name).unwrap();
        run(legal.bytes).unwrap().0.upgrade.is_some()
    };
    assert!(upgrade("upgrade-websocket"));
    assert!(!upgrade("upgrade-with-body-is-an-ordinary-request"));
    assert!(!upgrade("upgrade-h2c-is-an-ordinary-request"));
    for head in [
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nUpgrade: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade:\r\n\r\n",
    ] {
        assert_eq!(run(head.as_bytes()).unwrap().0.upgrade, None, "{head:?}");
    }
}

#[test]
fn persistence_follows_version_and_connection_and_close_wins() {
    for (version, connection, keeps) in [
        ("1.1", "", true),
        ("1.1", "close", false),
        ("1.1", "Keep-Alive, CLOSE", false),
        ("1.1", "keep-alive", true),
        ("1.0", "", false),
        ("1.0", "keep-alive", true),
        ("1.0", "keep-alive, close", false),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\n\r\n");
        let keep_alive = run(head.as_bytes()).unwrap().0.persistence == request::Persistence::KeepAlive;
        assert_eq!(keep_alive, keeps, "{version} {connection:?}");
    }
}

#[test]
fn only_a_body_that_is_waited_for_makes_an_expectation() {
    let waits = |head: &str| run(head.as_bytes()).unwrap().0.expectation == request::Expectation::Continue;
    let expect = "Host: a\r\nExpect: 100-continue\r\n";
    assert!(waits(&format!("POST / HTTP/1.1\r\n{expect}Content-Length: 1\r\n\r\nx")));
    assert!(waits(&format!("POST / HTTP/1.1\r\n{expect}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")));
    assert!(!waits(&format!("POST / HTTP/1.1\r\n{expect}Content-Length: 0\r\n\r\n")));
    assert!(!waits(&format!("GET / HTTP/1.1\r\n{expect}\r\n")));
    assert!(!waits(&format!("POST / HTTP/1.0\r\n{expect}Content-Length: 1\r\n\r\nx")));
}
