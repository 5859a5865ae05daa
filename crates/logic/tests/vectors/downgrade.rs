//! What HTTP/2 requests become in HTTP/1.1: each vector goes the whole way, through the downgrade, the request parser and the
//! writer of the backend's head. What is ambiguous must not come out at the end.

use logic::http1::forward::{ForwardedHeaders, Scheme, Trust, Via, write_request};
use logic::http1::request::{self, Limits, Parse};
use logic::http2::downgrade::{self, Body, Upload};
use logic::peers::Peer;

type Fields<'v> = &'v [(&'v [u8], &'v [u8])];

/// What becomes of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its stream is reset, for this reason.
    Reset(&'static str),
    /// It is answered with this status, for this reason.
    Answered(u16, &'static str),
    /// It is forwarded with this body; the head for the backend begins like this.
    Forwarded(Upload, &'static str),
}

use Fate::{Answered, Forwarded, Reset};

struct Vector {
    name: &'static str,
    fate: Fate,
    body: Body,
    fields: Vec<(&'static [u8], &'static [u8])>,
}

/// GET of `/` at `a`, then more.
fn get(more: &[(&'static [u8], &'static [u8])]) -> Vec<(&'static [u8], &'static [u8])> {
    begun(b"GET", b"/", more)
}

fn begun(
    method: &'static [u8],
    path: &'static [u8],
    more: &[(&'static [u8], &'static [u8])],
) -> Vec<(&'static [u8], &'static [u8])> {
    let mut fields: Vec<(&[u8], &[u8])> =
        vec![(b":method", method), (b":scheme", b"https"), (b":authority", b"a"), (b":path", path)];
    fields.extend(more);
    fields
}

fn at(authority: &'static [u8]) -> Vec<(&'static [u8], &'static [u8])> {
    vec![(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority), (b":path", b"/")]
}

macro_rules! vectors {
    ($($name:literal, $fate:expr, $body:ident, $fields:expr;)*) => {
        vec![$(Vector { name: $name, fate: $fate, body: Body::$body, fields: $fields.to_vec() },)*]
    };
}

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n";

#[rustfmt::skip]
fn vectors() -> Vec<Vector> {
    vectors![
        // Good ones.
        "plain", Forwarded(Upload::None, PLAIN), None, get(&[]);
        "with a query", Forwarded(Upload::None, "GET /x?y=z HTTP/1.1\r\nHost: a\r\n"), None, begun(b"GET", b"/x?y=z", &[]);
        "a field", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nx: y\r\n"), None, get(&[(b"x", b"y")]);
        "an empty value", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nx: \r\n"), None, get(&[(b"x", b"")]);
        "a blank inside a value", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nx: y z\r\n"), None, get(&[(b"x", b"y z")]);
        "obsolete text in a value", Forwarded(Upload::None, PLAIN), None, get(&[(b"x", b"\xe9")]);
        "host only", Forwarded(Upload::None, PLAIN), None,
            [(&b":method"[..], &b"GET"[..]), (b":scheme", b"https"), (b":path", b"/"), (b"host", b"a")];
        "host as :authority", Forwarded(Upload::None, PLAIN), None, get(&[(b"host", b"a")]);
        "host as :authority in another case", Forwarded(Upload::None, PLAIN), None, get(&[(b"host", b"A")]);
        "port in :authority", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a:8080\r\n"), None, at(b"a:8080");
        "IPv6 in :authority", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: [::1]:443\r\n"), None, at(b"[::1]:443");
        "OPTIONS of the server", Forwarded(Upload::None, "OPTIONS * HTTP/1.1\r\nHost: a\r\n"), None, begun(b"OPTIONS", b"*", &[]);
        "POST without a body", Forwarded(Upload::None, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"), None, begun(b"POST", b"/", &[]);
        "POST with a length", Forwarded(Upload::Length(5), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"), Follows,
            begun(b"POST", b"/", &[(b"content-length", b"5")]);
        "POST without a length", Forwarded(Upload::Chunked, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"), Follows,
            begun(b"POST", b"/", &[]);
        "GET with a body", Forwarded(Upload::Chunked, "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"), Follows, get(&[]);
        "length zero", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"), None, get(&[(b"content-length", b"0")]);
        "crumbs of a cookie", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\ncookie: a=1; b=2; c=3\r\n"), None,
            get(&[(b"cookie", b"a=1"), (b"cookie", b"b=2; c=3")]);
        "te with trailers", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nConnection: te\r\nTE: trailers\r\n"), None, get(&[(b"te", b"trailers")]);
        "te with trailers twice", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nConnection: te\r\nTE: trailers\r\n"), None,
            get(&[(b"te", b"trailers"), (b"te", b"Trailers")]);
        "expect", Forwarded(Upload::Length(1), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n"), Follows,
            begun(b"POST", b"/", &[(b"content-length", b"1"), (b"expect", b"100-continue")]);
        "websocket", Forwarded(Upload::Tunnel, "GET /chat HTTP/1.1\r\nHost: a\r\nsec-websocket-key: KEY\r\nsec-websocket-version: 13\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"), Follows,
            [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"websocket"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/chat"), (b"sec-websocket-version", b"13")];
        "a websocket with a key of the client", Forwarded(Upload::Tunnel, "GET /chat HTTP/1.1\r\nHost: a\r\nsec-websocket-key: KEY\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"), Follows,
            [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"websocket"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/chat"), (b"sec-websocket-key", b"x")];
        "an imitation of a forwarding field is left out", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For"), None, get(&[(b"x_forwarded_for", b"1.2.3.4")]);
        "a stranger's forwarding field is left out", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.9\r\n"), None, get(&[(b"x-forwarded-for", b"1.2.3.4")]);
        "the proxy variable of CGI is left out", Forwarded(Upload::None, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For"), None, get(&[(b"proxy", b"evil:80")]);

        // Pseudo-headers.
        "no method", Reset("h2-pseudo-missing"), None, [(&b":scheme"[..], &b"https"[..]), (b":authority", b"a"), (b":path", b"/")];
        "no scheme", Reset("h2-pseudo-missing"), None, [(&b":method"[..], &b"GET"[..]), (b":authority", b"a"), (b":path", b"/")];
        "no path", Reset("h2-pseudo-missing"), None, [(&b":method"[..], &b"GET"[..]), (b":scheme", b"https"), (b":authority", b"a")];
        "nothing", Reset("h2-pseudo-missing"), None, [];
        "two methods", Reset("h2-pseudo-repeated"), None, [(&b":method"[..], &b"GET"[..]), (b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")];
        "two paths", Reset("h2-pseudo-repeated"), None, [(&b":method"[..], &b"GET"[..]), (b":path", b"/"), (b":path", b"/admin"), (b":scheme", b"https"), (b":authority", b"a")];
        "two authorities", Reset("h2-pseudo-repeated"), None, [(&b":method"[..], &b"GET"[..]), (b":path", b"/"), (b":authority", b"a"), (b":scheme", b"https"), (b":authority", b"b")];
        "two schemes", Reset("h2-pseudo-repeated"), None, [(&b":method"[..], &b"GET"[..]), (b":path", b"/"), (b":scheme", b"http"), (b":scheme", b"https"), (b":authority", b"a")];
        "path behind a field", Reset("h2-pseudo-late"), None, [(&b":method"[..], &b"GET"[..]), (b":scheme", b"https"), (b":authority", b"a"), (b"x", b"y"), (b":path", b"/")];
        "authority behind a field", Reset("h2-pseudo-late"), None, get(&[(b"x", b"y"), (b":authority", b"b")]);
        "status of a response", Reset("h2-pseudo-unknown"), None, [(&b":method"[..], &b"GET"[..]), (b":status", b"200"), (b":scheme", b"https"), (b":path", b"/")];
        "unknown pseudo-header", Reset("h2-pseudo-unknown"), None, [(&b":method"[..], &b"GET"[..]), (b":host", b"a"), (b":scheme", b"https"), (b":path", b"/")];
        "pseudo-header in capitals", Reset("h2-pseudo-unknown"), None, [(&b":Method"[..], &b"GET"[..]), (b":scheme", b"https"), (b":path", b"/")];
        "only a colon", Reset("h2-pseudo-unknown"), None, [(&b":"[..], &b"GET"[..])];
        "protocol without CONNECT", Reset("h2-pseudo-unexpected"), None, [(&b":method"[..], &b"GET"[..]), (b":protocol", b"websocket"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")];
        "a scheme of another world", Reset("h2-scheme-unknown"), None, [(&b":method"[..], &b"GET"[..]), (b":scheme", b"file"), (b":authority", b"a"), (b":path", b"/etc/passwd")];
        "a request line in the scheme", Reset("h2-scheme-unknown"), None, [(&b":method"[..], &b"GET"[..]), (b":scheme", b"https://b/x?"), (b":authority", b"a"), (b":path", b"/")];

        // The request line.
        "a blank in the method", Reset("h2-method-syntax"), None, begun(b"GET /admin", b"/", &[]);
        "a request line in the method", Reset("h2-value-syntax"), None, begun(b"GET / HTTP/1.1\r\nHost: b\r\nx: ", b"/", &[]);
        "an empty method", Reset("h2-method-syntax"), None, begun(b"", b"/", &[]);
        "a colon in the method", Reset("h2-method-syntax"), None, begun(b"GET:", b"/", &[]);
        "a method in the wrong case", Answered(400, "method-case"), None, begun(b"get", b"/", &[]);
        "a long method", Answered(501, "method-too-long"), None, begun(b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJ", b"/", &[]);
        "an empty path", Reset("h2-path-syntax"), None, begun(b"GET", b"", &[]);
        "a path without a slash", Reset("h2-path-syntax"), None, begun(b"GET", b"admin", &[]);
        "an absolute path", Reset("h2-path-syntax"), None, begun(b"GET", b"http://b/", &[]);
        "a star for GET", Reset("h2-path-syntax"), None, begun(b"GET", b"*", &[]);
        "a blank in the path", Reset("h2-path-syntax"), None, begun(b"GET", b"/ HTTP/1.1", &[]);
        "CR LF in the path", Reset("h2-value-syntax"), None, begun(b"GET", b"/ HTTP/1.1\r\nHost: b\r\n\r\nGET /", &[]);
        "LF in the path", Reset("h2-value-syntax"), None, begun(b"GET", b"/\nx", &[]);
        "NUL in the path", Reset("h2-value-syntax"), None, begun(b"GET", b"/\0", &[]);
        "HTAB in the path", Reset("h2-path-syntax"), None, begun(b"GET", b"/\tx", &[]);
        "a fragment in the path", Reset("h2-path-syntax"), None, begun(b"GET", b"/#x", &[]);
        "a high byte in the path", Reset("h2-path-syntax"), None, begun(b"GET", b"/\xc3\xa9", &[]);

        // The host.
        "no host at all", Answered(400, "host-missing"), None, [(&b":method"[..], &b"GET"[..]), (b":scheme", b"https"), (b":path", b"/")];
        "another host than :authority", Reset("h2-host-differs"), None, get(&[(b"host", b"b")]);
        "the port makes another host", Reset("h2-host-differs"), None, get(&[(b"host", b"a:80")]);
        "an empty host beside :authority", Reset("h2-host-differs"), None, get(&[(b"host", b"")]);
        "two hosts", Reset("h2-host-repeated"), None, get(&[(b"host", b"a"), (b"host", b"a")]);
        "an empty :authority", Answered(400, "host-syntax"), None, at(b"");
        "userinfo in :authority", Answered(400, "userinfo"), None, at(b"user@a");
        "a path in :authority", Answered(400, "host-syntax"), None, at(b"a/b");
        "two names in :authority", Answered(400, "host-syntax"), None, at(b"a,b");
        "a blank in :authority", Reset("h2-authority-syntax"), None, at(b"a b");
        "CR LF in :authority", Reset("h2-value-syntax"), None, at(b"a\r\nx: y");
        "a bad port in :authority", Answered(400, "host-syntax"), None, at(b"a:x");
        "a high byte in :authority", Reset("h2-authority-syntax"), None, at(b"\xe9");

        // Names.
        "a name in capitals", Reset("h2-name-case"), None, get(&[(b"X", b"y")]);
        "Transfer-Encoding in capitals", Reset("h2-name-case"), Follows, get(&[(b"Transfer-Encoding", b"chunked")]);
        "an empty name", Reset("h2-name-syntax"), None, get(&[(b"", b"y")]);
        "a colon in a name", Reset("h2-name-syntax"), None, get(&[(b"x:y", b"z")]);
        "a field in a name", Reset("h2-name-syntax"), None, get(&[(b"x: y\r\ntransfer-encoding", b"chunked")]);
        "a blank in a name", Reset("h2-name-syntax"), None, get(&[(b"x y", b"z")]);
        "a blank behind a name", Reset("h2-name-syntax"), Follows, get(&[(b"transfer-encoding ", b"chunked")]);
        "a blank before a name", Reset("h2-name-syntax"), None, get(&[(b" x", b"z")]);
        "CR in a name", Reset("h2-name-syntax"), None, get(&[(b"x\r", b"z")]);
        "LF in a name", Reset("h2-name-syntax"), None, get(&[(b"x\ny", b"z")]);
        "NUL in a name", Reset("h2-name-syntax"), None, get(&[(b"x\0", b"z")]);
        "a high byte in a name", Reset("h2-name-syntax"), None, get(&[(b"x\xe9", b"z")]);
        "an imitation of Transfer-Encoding", Answered(400, "framing-lookalike"), None, get(&[(b"transfer_encoding", b"chunked")]);
        "an imitation of Content-Length", Answered(400, "framing-lookalike"), None, get(&[(b"content_length", b"5")]);

        // Values.
        "CR LF in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\r\ntransfer-encoding: chunked")]);
        "a request in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\r\n\r\nGET /admin HTTP/1.1\r\nhost: a\r\n\r\n")]);
        "LF in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\nz: 1")]);
        "CR in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\rz")]);
        "NUL in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\0z")]);
        "DEL in a value", Reset("h2-value-syntax"), None, get(&[(b"x", b"y\x7f")]);
        "a blank before a value", Reset("h2-value-blank"), None, get(&[(b"x", b" y")]);
        "a blank behind a value", Reset("h2-value-blank"), None, get(&[(b"x", b"y\t")]);
        "CR LF in a cookie", Reset("h2-value-syntax"), None, get(&[(b"cookie", b"a=1\r\nx: y")]);
        "CR LF in the user agent", Reset("h2-value-syntax"), None, get(&[(b"user-agent", b"x\r\ncontent-length: 5")]);

        // Fields of one connection.
        "connection", Reset("h2-connection-field"), None, get(&[(b"connection", b"close")]);
        "connection that lists a field", Reset("h2-connection-field"), None, get(&[(b"connection", b"x-user"), (b"x-user", b"me")]);
        "keep-alive", Reset("h2-connection-field"), None, get(&[(b"keep-alive", b"timeout=5")]);
        "proxy-connection", Reset("h2-connection-field"), None, get(&[(b"proxy-connection", b"keep-alive")]);
        "transfer-encoding", Reset("h2-connection-field"), Follows, get(&[(b"transfer-encoding", b"chunked")]);
        "transfer-encoding beside a length", Reset("h2-connection-field"), Follows, get(&[(b"content-length", b"5"), (b"transfer-encoding", b"chunked")]);
        "upgrade", Reset("h2-connection-field"), None, get(&[(b"upgrade", b"websocket")]);
        "upgrade to h2c", Reset("h2-connection-field"), None, get(&[(b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABk")]);
        "http2-settings", Reset("h2-connection-field"), None, get(&[(b"http2-settings", b"AAMAAABk")]);
        "te with a coding", Reset("h2-te"), None, get(&[(b"te", b"gzip")]);
        "te with trailers and a coding", Reset("h2-te"), None, get(&[(b"te", b"trailers, chunked")]);
        "an empty te", Reset("h2-te"), None, get(&[(b"te", b"")]);

        // Length.
        "a length without a body", Reset("h2-length-mismatch"), None, get(&[(b"content-length", b"5")]);
        "two lengths", Reset("h2-length-repeated"), Follows, get(&[(b"content-length", b"5"), (b"content-length", b"5")]);
        "two different lengths", Reset("h2-length-repeated"), Follows, get(&[(b"content-length", b"5"), (b"content-length", b"6")]);
        "a list of lengths", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"5, 5")]);
        "a signed length", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"+5")]);
        "a negative length", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"-1")]);
        "a hexadecimal length", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"0x5")]);
        "an empty length", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"")]);
        "a huge length", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", b"18446744073709551617")]);
        "a length in full-width digits", Reset("h2-length-syntax"), Follows, get(&[(b"content-length", "５".as_bytes())]);
        "an unknown expectation", Answered(417, "expectation-unknown"), None, get(&[(b"expect", b"200-ok")]);
        "TRACE with a body", Answered(400, "body-in-trace"), Follows, begun(b"TRACE", b"/", &[(b"content-length", b"5")]);

        // CONNECT.
        "CONNECT", Answered(501, "method-connect"), Follows, [(&b":method"[..], &b"CONNECT"[..]), (b":authority", b"a:443")];
        "CONNECT with a path", Reset("h2-pseudo-unexpected"), Follows, begun(b"CONNECT", b"/", &[]);
        "CONNECT without an authority", Reset("h2-pseudo-missing"), Follows, [(&b":method"[..], &b"CONNECT"[..])];
        "CONNECT to another protocol", Answered(501, "method-connect"), Follows,
            [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"connect-udp"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")];
        "a websocket with a length", Reset("h2-length-mismatch"), Follows,
            [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"websocket"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/"), (b"content-length", b"5")];
        "a websocket without a path", Reset("h2-pseudo-missing"), Follows,
            [(&b":method"[..], &b"CONNECT"[..]), (b":protocol", b"websocket"), (b":scheme", b"https"), (b":authority", b"a")];
    ]
}

/// The whole way of a request; gives the head for the backend where there is one.
fn travel(fields: Fields<'_>, body: Body) -> Result<(Upload, Vec<u8>), Fate> {
    let downgraded = downgrade::request(fields.iter().copied(), body, "KEY")
        .map_err(|malformed| Reset(malformed.reason()))?;
    let parsed = request::parse(&downgraded.head, &Limits::default())
        .map_err(|refusal| Answered(refusal.status(), refusal.reason()))?;
    let Parse::Complete(request) = parsed else { panic!("a downgraded head is whole") };
    assert_eq!(request.len, downgraded.head.len(), "nothing lies behind the head");
    let via = Via {
        peer: Peer::Ip("192.0.2.9:1".parse().unwrap()),
        local: None,
        scheme: Scheme::Https,
        trust: Trust::Stranger,
        request_id: Some(("X-Request-Id", b"id")),
        forwarded: ForwardedHeaders::Sent,
        client_certificate: &[],
    };
    let mut out = Vec::new();
    write_request(&mut out, &downgraded.head, &request, &via, &[]);
    Ok((downgraded.upload, out))
}

#[test]
fn every_vector_meets_its_fate() {
    let vectors = vectors();
    assert!(vectors.len() >= 80, "{}", vectors.len());
    for Vector { name, fate, body, fields } in vectors {
        match (travel(&fields, body), fate) {
            (Ok((upload, head)), Forwarded(expected, begin)) => {
                assert_eq!(upload, expected, "{name}");
                let head = String::from_utf8_lossy(&head);
                assert!(contains_lines(&head, begin), "{name}: {head}");
            }
            (Ok((_, head)), fate) => panic!("{name}: {fate:?}, but {:?}", String::from_utf8_lossy(&head)),
            (Err(met), fate) => assert_eq!(met, fate, "{name}"),
        }
    }
}

/// Whether all lines of `begin` are there; the first two in front. The writer orders the others.
fn contains_lines(head: &str, begin: &str) -> bool {
    let mut lines = begin.split_inclusive("\r\n");
    let first: String = lines.by_ref().take(2).collect();
    head.starts_with(&first)
        && lines.all(|line| head.to_ascii_lowercase().contains(&line.to_ascii_lowercase()))
}

#[test]
fn what_is_left_out_does_not_reach_the_backend() {
    let fields =
        get(&[(b"x_forwarded_for", b"6.6.6.6"), (b"x-forwarded-for", b"6.6.6.6"), (b"proxy", b"6.6.6.6")]);
    let (_, head) = travel(&fields, Body::None).unwrap();
    assert!(!String::from_utf8(head).unwrap().contains("6.6.6.6"));
}

#[test]
fn trailers_of_a_request_are_checked() {
    let refused: &[(&[u8], &[u8], &str)] = &[
        (b":path", b"/", "h2-pseudo-late"),
        (b"X-Sum", b"1", "h2-name-case"),
        (b"x sum", b"1", "h2-name-syntax"),
        (b"x-sum", b"1\r\n\r\nGET / HTTP/1.1", "h2-value-syntax"),
        (b"transfer-encoding", b"chunked", "h2-trailer-forbidden"),
        (b"content-length", b"5", "h2-trailer-forbidden"),
        (b"host", b"b", "h2-trailer-forbidden"),
        (b"te", b"trailers", "h2-trailer-forbidden"),
        (b"connection", b"close", "h2-trailer-forbidden"),
        (b"authorization", b"x", "h2-trailer-forbidden"),
    ];
    for (name, value, reason) in refused {
        let malformed = downgrade::trailers([(*name, *value)]).unwrap_err();
        assert_eq!(malformed.reason(), *reason, "{}", String::from_utf8_lossy(name));
    }
    let good = downgrade::trailers([(&b"x-sum"[..], &b"1"[..])]).unwrap();
    assert_eq!(good, [(b"x-sum".to_vec(), b"1".to_vec())]);
}
