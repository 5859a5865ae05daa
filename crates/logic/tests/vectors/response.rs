//! Responses of broken backends, and odd ones that are legal.

use logic::http1::request::{BodyLength, Limits, MethodKind, Parse, Persistence, RequestKind, UpgradeWish};
use logic::http1::response::{ResponseFault, ResponseHead, parse};
use std::time::Duration;

const GET: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::NotAsked };
const HEAD: RequestKind = RequestKind { method: MethodKind::Head, upgrade: UpgradeWish::NotAsked };
const UPGRADE: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::Asked };

fn complete(head: &[u8], kind: RequestKind) -> Result<ResponseHead, ResponseFault> {
    match parse(head, &Limits::default(), kind)? {
        Parse::Complete(response) => Ok(response),
        Parse::Incomplete => panic!("incomplete: {}", head.escape_ascii()),
    }
}

#[test]
fn broken_responses_are_faults_for_the_reason_that_the_table_names() {
    let table: &[(&str, &[u8])] = &[
        (
            "length-and-coding",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        ),
        ("length-and-coding", b"HTTP/1.1 304 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"),
        ("length-and-coding", b"HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"),
        ("length-repeated", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
        ("length-repeated", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
        ("length-syntax", b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello"),
        ("length-syntax", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello"),
        ("length-syntax", b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello"),
        ("length-syntax", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello"),
        ("length-overflow", b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nhello"),
        (
            "coding-repeated",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("coding-syntax", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
        ("coding-syntax", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n"),
        ("coding-syntax", b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n"),
        ("coding-unknown", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"),
        ("coding-in-old-version", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("framing-lookalike", b"HTTP/1.1 200 OK\r\nContent_Length: 5\r\n\r\nhello"),
        ("framing-lookalike", b"HTTP/1.1 200 OK\r\nTransfer_Encoding: chunked\r\n\r\nhello"),
        ("bare-lf", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello"),
        ("bare-lf", b"HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\nhello"),
        ("bare-lf", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\nhello"),
        ("bare-cr", b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 5\r\n\r\nhello"),
        ("bare-cr", b"HTTP/1.1 200 O\rK\r\n\r\n"),
        ("control-byte", b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n"),
        ("control-byte", b"HTTP/1.1 200 O\x1bK\r\n\r\n"),
        ("obs-fold", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n"),
        ("obs-fold", b"HTTP/1.1 200 OK\r\n X: a\r\n\r\n"),
        ("blank-before-colon", b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello"),
        ("name-syntax", b"HTTP/1.1 200 OK\r\nX(Y): a\r\n\r\n"),
        ("no-colon", b"HTTP/1.1 200 OK\r\nX\r\n\r\n"),
        ("empty-name", b"HTTP/1.1 200 OK\r\n: x\r\n\r\n"),
        (
            "connection-names-framing",
            b"HTTP/1.1 200 OK\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\nhello",
        ),
        ("connection-syntax", b"HTTP/1.1 200 OK\r\nConnection: a b\r\n\r\n"),
        ("status-line", b"200 OK\r\n\r\n"),
        ("status-line", b"\r\nHTTP/1.1 200 OK\r\n\r\n"),
        ("status-line", b" HTTP/1.1 200 OK\r\n\r\n"),
        ("status-line", b"http/1.1 200 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1  200 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1\t200 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 20 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 2000 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 2x0 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 +20 OK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 200\tOK\r\n\r\n"),
        ("status-line", b"HTTP/1.1 \r\n\r\n"),
        ("status-line", b"HTTP/1.1\r\n\r\n"),
        ("status-line", b"HTTP/1\r\n\r\n"),
        ("status-line", b"HTTP/1.11 200 OK\r\n\r\n"),
        ("status-line", b"GET / HTTP/1.1\r\n\r\n"),
        ("status-line", b"<html>"),
        ("status-line", b"\x15\x03\x01\0\x02\x02\x28"),
        ("status-line", b"SSH-2.0-OpenSSH\r\n"),
        ("version-unknown", b"HTTP/2.0 200 OK\r\n\r\n"),
        ("version-unknown", b"HTTP/0.9 200 OK\r\n\r\n"),
        ("version-unknown", b"HTTP/1.2 200 OK\r\n\r\n"),
        ("status-range", b"HTTP/1.1 000 x\r\n\r\n"),
        ("status-range", b"HTTP/1.1 099 x\r\n\r\n"),
        ("status-range", b"HTTP/1.1 600 x\r\n\r\n"),
        ("status-range", b"HTTP/1.1 999 x\r\n\r\n"),
        (
            "unasked-upgrade",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        ),
        ("unasked-upgrade", b"HTTP/1.1 101 \r\n\r\n"),
    ];
    for (reason, head) in table {
        match complete(head, GET) {
            Err(fault) => assert_eq!(fault.reason(), *reason, "{}: {fault}", head.escape_ascii()),
            Ok(response) => panic!("{}: {response:?}", head.escape_ascii()),
        }
    }
}

#[test]
fn switching_protocols_must_be_asked_for_and_named() {
    let good = b"HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let response = complete(good, UPGRADE).unwrap();
    assert_eq!(response.upgrade.unwrap().of(good), b"websocket");
    assert_eq!(response.body, BodyLength::None);
    assert!(!response.is_interim());
    for bad in [
        "HTTP/1.1 101 S\r\n\r\n",
        "HTTP/1.1 101 S\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 S\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        "HTTP/1.0 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    ] {
        assert_eq!(complete(bad.as_bytes(), UPGRADE), Err(ResponseFault::UnnamedUpgrade), "{bad:?}");
    }
    // 200 instead of 101 is an ordinary answer, never a tunnel.
    let ordinary = complete(
        b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
        UPGRADE,
    );
    assert_eq!(ordinary.unwrap().upgrade, None);
}

#[test]
fn the_body_ends_where_method_status_and_headers_say() {
    use BodyLength::*;
    let table: &[(&str, RequestKind, BodyLength, Persistence)] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", GET, Length(5), Persistence::KeepAlive),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n", GET, Length(5), Persistence::Close),
        ("HTTP/1.1 200\r\nTransfer-Encoding: CHUNKED\r\n", GET, Chunked, Persistence::KeepAlive),
        ("HTTP/1.1 200 \r\n", GET, UntilClose, Persistence::Close),
        ("HTTP/1.1 200 \r\nConnection: keep-alive\r\n", GET, UntilClose, Persistence::Close),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", GET, Length(5), Persistence::Close),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n",
            GET,
            Length(5),
            Persistence::KeepAlive,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", HEAD, None, Persistence::KeepAlive),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", HEAD, None, Persistence::KeepAlive),
        ("HTTP/1.1 200 OK\r\n", HEAD, None, Persistence::KeepAlive),
        ("HTTP/1.1 304 N\r\nContent-Length: 5\r\n", GET, None, Persistence::KeepAlive),
        ("HTTP/1.1 304 N\r\nContent-Length: 0\r\n", GET, None, Persistence::KeepAlive),
        ("HTTP/1.1 204 N\r\n", GET, None, Persistence::KeepAlive),
        ("HTTP/1.1 204 N\r\nContent-Length: 0\r\n", GET, None, Persistence::KeepAlive),
        ("HTTP/1.1 204 N\r\nContent-Length: 5\r\n", GET, None, Persistence::Close),
        ("HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n", GET, None, Persistence::Close),
        ("HTTP/1.1 100 C\r\nContent-Length: 5\r\n", GET, None, Persistence::Close),
        ("HTTP/1.1 103 E\r\nLink: </a>\r\n", GET, None, Persistence::KeepAlive),
        (
            "HTTP/1.1 599 \r\nContent-Length: 0\r\nExpect: a\r\nExpect: b\r\n",
            GET,
            Length(0),
            Persistence::KeepAlive,
        ),
        ("HTTP/1.1 200 \u{e9}\tx\r\nContent-Length: 007\r\n", GET, Length(7), Persistence::KeepAlive),
    ];
    for (head, kind, body, persistence) in table {
        let head = format!("{head}\r\n");
        let response = complete(head.as_bytes(), *kind).unwrap_or_else(|fault| panic!("{head:?}: {fault}"));
        assert_eq!((response.body, response.persistence), (*body, *persistence), "{head:?}");
        assert_eq!(response.len, head.len());
    }
    let head = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
    let response = complete(head, GET).unwrap();
    assert_eq!((response.representation, response.reason.of(head)), (Some(5), &b"Not Modified"[..]));
}

#[test]
fn keep_alive_timeout_is_read_when_it_can_be() {
    let timeout = |value: &str| {
        complete(format!("HTTP/1.1 204 N\r\nKeep-Alive: {value}\r\n\r\n").as_bytes(), GET)
            .unwrap()
            .keep_alive_timeout
    };
    assert_eq!(timeout("timeout=5, max=100"), Some(Duration::from_secs(5)));
    assert_eq!(timeout("max=100, Timeout=15"), Some(Duration::from_secs(15)));
    for useless in ["timeout=", "timeout=-1", "timeout=99999999999", "300", "time", ""] {
        assert_eq!(timeout(useless), None, "{useless:?}");
    }
}

#[test]
fn heads_without_an_end_are_cut_off_at_the_limit() {
    let limits = Limits { head: 1000, headers: 10, ..Limits::default() };
    let reason = |head: String| parse(head.as_bytes(), &limits, GET).map_err(ResponseFault::reason);
    assert_eq!(reason(format!("HTTP/1.1 200 {}", "x".repeat(2000))), Err("head-too-large"));
    assert_eq!(reason(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(2000))), Err("head-too-large"));
    assert_eq!(reason(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(11))), Err("too-many-headers"));
    assert_eq!(reason("HTTP/1.1 200 OK\r\nX: y".into()), Ok(Parse::Incomplete));
    assert_eq!(reason("HT".into()), Ok(Parse::Incomplete));
    assert_eq!(reason("HX".into()), Err("status-line"));
}
