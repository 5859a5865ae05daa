//! What is written for a backend is itself a request that our own parser reads the same way.

use logic::http1::forward::{ForwardedHeaders, Scheme, Trust, Via, write_request};
use logic::http1::request::{self, BodyLength, Limits, Parse, RequestHead, Version};
use logic::peers::Peer;
use logic::route::{HeaderEdit, HeaderEdits};
use proptest::prelude::*;
use std::net::SocketAddr;

fn parsed(head: &[u8]) -> RequestHead {
    match request::parse(head, &Limits::default()) {
        Ok(Parse::Complete(request)) => request,
        other => panic!("{other:?} for {}", head.escape_ascii()),
    }
}

fn via(trust: Trust) -> Via<'static> {
    Via {
        peer: Peer::Ip(SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 7], 4711))),
        local: Some(SocketAddr::from(([192, 0, 2, 1], 80))),
        scheme: Scheme::Http,
        trust,
        request_id: Some(("X-Request-Id", b"0123456789abcdef")),
        forwarded: ForwardedHeaders::Sent,
        client_certificate: &[],
    }
}

fn lines(head: &[u8], name: &str) -> usize {
    let request = parsed(head);
    request.headers.iter().filter(|line| line.name.of(head).eq_ignore_ascii_case(name.as_bytes())).count()
}

/// Checks everything that must hold for any request that was accepted.
fn check(original: &[u8], trust: Trust) {
    let request = parsed(original);
    let edits = HeaderEdits {
        request: vec![HeaderEdit::Set { name: "X-Edit".into(), value: "1".into() }],
        response: Vec::new(),
    };
    let mut out = b"already there".to_vec();
    write_request(&mut out, original, &request, &via(trust), &[&edits]);
    let out = out.strip_prefix(b"already there").expect("the output is appended");
    let again = parsed(out);
    let what = || format!("{}\n became \n{}", original.escape_ascii(), out.escape_ascii());

    assert_eq!(again.len, out.len(), "{}", what());
    assert_eq!(again.version, Version::Http11);
    assert_eq!(again.method(out), request.method(original), "{}", what());
    assert_eq!(again.path(out), request.path(original), "{}", what());
    assert_eq!(again.query.of(out), request.query.of(original), "{}", what());
    if !request.authority.is_empty() {
        assert_eq!(again.authority.of(out), request.authority.of(original), "{}", what());
        assert_eq!(again.host.of(out), request.host.of(original), "{}", what());
    }
    assert_eq!(again.body, request.body, "{}", what());
    assert_eq!(again.expectation, request.expectation, "{}", what());
    assert_eq!(again.upgrade.map(|u| u.of(out)), request.upgrade.map(|u| u.of(original)), "{}", what());

    let framing = usize::from(request.body != BodyLength::None);
    assert_eq!(lines(out, "content-length") + lines(out, "transfer-encoding"), framing, "{}", what());
    assert_eq!(lines(out, "host"), 1);
    assert!(again.headers[0].name.of(out).eq_ignore_ascii_case(b"host"));
    assert_eq!(again.hops.count(), request.hops.count() + 1, "{}", what());
    for once in ["cdn-loop", "x-forwarded-proto", "forwarded", "x-request-id", "x-edit", "x-forwarded-for"] {
        assert_eq!(lines(out, once), 1, "{once} in {}", what());
    }
    for never in ["keep-alive", "proxy-connection", "proxy-authorization", "proxy", "http2-settings"] {
        assert_eq!(lines(out, never), 0, "{never} in {}", what());
    }
    assert!(lines(out, "connection") <= 1, "{}", what());
}

#[test]
fn every_legal_vector_is_forwarded_as_one_clear_request() {
    for legal in crate::requests::LEGAL {
        check(legal.bytes, Trust::Stranger);
        check(legal.bytes, Trust::TrustedProxy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn all_that_is_accepted_is_forwarded_as_one_clear_request(
        method in prop_oneof![Just("GET"), Just("POST"), Just("OPTIONS"), Just("BREW")],
        target in prop_oneof!["/[!-\"$-~]{0,30}", "http://[a-zA-Z]{1,8}(:[0-9]{0,4})?([/?][!-\"$-~]{0,20})?"],
        headers in prop::collection::vec(prop_oneof![
            "[A-Za-z_-]{1,12}: ?[!-~][ -~]{0,20}",
            "(Connection|connection): (close|keep-alive|upgrade|TE|x-a|X-Forwarded-For|cdn-loop)",
            "(CDN-Loop|cdn-loop|CDN_Loop): [\"\\;=, a-z]{0,9}(, ?)?(penstock|Penstock; x=\"1\"|penstock2|\"penstock\")?",
            "(Upgrade|TE|X-A|Keep-Alive|Proxy|Proxy-Connection|Trailer|X-Forwarded-For|X_Forwarded_For|X-Forwarded-Proto|Forwarded|X-Request-ID|HTTP2-Settings): [a-z/]{0,9}",
        ], 0..10),
        framing in prop_oneof![Just(""), Just("Content-Length: 0\r\n"), Just("Content-Length: 0012\r\nExpect: 100-continue\r\n"), Just("transfer-encoding: CHUNKED\r\n")],
        trusted in any::<bool>(),
    ) {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("{method} {target} HTTP/1.1\r\n{headers}hOsT: a.Test:81\r\n{framing}\r\n");
        let accepted = matches!(request::parse(head.as_bytes(), &Limits::default()), Ok(Parse::Complete(_)));
        prop_assume!(accepted);
        check(head.as_bytes(), if trusted { Trust::TrustedProxy } else { Trust::Stranger });
    }
}
