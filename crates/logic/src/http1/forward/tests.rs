use super::*;
use crate::http1::request::{self, Limits, MethodKind, Parse, RequestKind, UpgradeWish};
use crate::http1::response;

const CLIENT: Peer = Peer::Ip(SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)), 4711));

fn via(trust: Trust) -> Via<'static> {
    Via {
        peer: CLIENT,
        local: Some("198.51.100.1:80".parse().unwrap()),
        scheme: Scheme::Https,
        trust,
        request_id: Some(("X-Request-Id", b"id-1")),
        forwarded: ForwardedHeaders::Sent,
        client_certificate: &[],
    }
}

fn parsed(head: &[u8]) -> RequestHead {
    match request::parse(head, &Limits::default()) {
        Ok(Parse::Complete(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn forwarded(head: &str, via: &Via<'_>, edits: &[&HeaderEdits]) -> String {
    let mut out = Vec::new();
    write_request(&mut out, head.as_bytes(), &parsed(head.as_bytes()), via, edits);
    String::from_utf8(out).unwrap()
}

fn answered(
    head: &str,
    kind: RequestKind,
    client: Version,
    persistence: Persistence,
    edits: &[&HeaderEdits],
) -> String {
    let Ok(Parse::Complete(response)) = response::parse(head.as_bytes(), &Limits::default(), kind) else {
        panic!("{head:?} does not parse");
    };
    let answer = Answer {
        persistence,
        client,
        framing: response_framing(&response, client),
        hsts: Some("max-age=9"),
        request_id: Some(("X-Request-Id", b"id-1")),
    };
    let mut out = Vec::new();
    write_response(&mut out, head.as_bytes(), &response, &answer, edits);
    String::from_utf8(out).unwrap()
}

const GET: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::NotAsked };
const HEAD: RequestKind = RequestKind { method: MethodKind::Head, upgrade: UpgradeWish::NotAsked };
const WEBSOCKET: RequestKind = RequestKind { method: MethodKind::Other, upgrade: UpgradeWish::Asked };

fn set(name: &str, value: &str) -> HeaderEdit {
    HeaderEdit::Set { name: name.into(), value: value.into() }
}

#[test]
fn hop_by_hop_fields_end_here_and_what_a_stranger_says_of_itself_is_dropped() {
    let head = "POST http://Example.com:81?x HTTP/1.1\r\nhost: other\r\nAccept: */*\r\nConnection: close, X-Drop, keep-alive\r\n\
                X-Drop: 1\r\nKeep-Alive: 5\r\nProxy-Connection: a\r\nProxy-Authorization: b\r\nProxy: c\r\nTE: trailers\r\n\
                X-Forwarded-For: 6.6.6.6\r\nx_forwarded_for: 6.6.6.6\r\nX-Forwarded-Port: 1\r\nForwarded: for=6.6.6.6\r\n\
                X-Real-IP: 6.6.6.6\r\nx-request_id: 6\r\nX-Request-Id: 6\r\nUpgrade: websocket\r\nContent-Length: 007\r\n\
                Expect: 100-CONTINUE\r\n\r\n";
    assert_eq!(
        forwarded(head, &via(Trust::Stranger), &[]),
        "POST /?x HTTP/1.1\r\nHost: Example.com:81\r\nAccept: */*\r\nContent-Length: 7\r\nExpect: 100-continue\r\n\
         X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: Example.com:81\r\n\
         Forwarded: for=192.0.2.7;host=\"Example.com:81\";proto=https\r\nCDN-Loop: penstock\r\n\
         X-Request-Id: id-1\r\n\r\n"
    );
}

#[test]
fn backends_are_told_nothing_of_the_client_if_that_is_off_and_the_id_of_the_client_passes() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Port: 81\r\nX-Real-IP: 1.1.1.1\r\n\
                Forwarded: for=1.1.1.1\r\nx_forwarded_proto: x\r\nX-Request-Id: 6\r\n\r\n";
    for trust in [Trust::Stranger, Trust::TrustedProxy] {
        let via = Via { forwarded: ForwardedHeaders::Removed, request_id: None, ..via(trust) };
        assert_eq!(
            forwarded(head, &via, &[]),
            "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: 6\r\nCDN-Loop: penstock\r\n\r\n"
        );
    }
}

#[test]
fn hops_are_counted_in_one_line_that_no_client_takes_away() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: cdn-loop\r\nCDN-Loop: \"cdn.example;a\r\nX: 1\r\ncdn-loop:\r\n\
                cdn-LOOP: penstock\r\nCDN_Loop: penstock\r\n\r\n";
    assert_eq!(parsed(head.as_bytes()).hops.count(), 1);
    let remove = HeaderEdit::Remove { name: "CDN-Loop".into() };
    for edits in [vec![], vec![remove], vec![set("CDN-Loop", "x")]] {
        let edits = HeaderEdits { request: edits, response: Vec::new() };
        let next = forwarded(head, &via(Trust::Stranger), &[&edits]);
        assert!(next.contains("\r\nX: 1\r\nX-Forwarded-For"), "{next}");
        let line = "\r\nCDN-Loop: \"cdn.example;a, penstock, penstock\r\n";
        assert!(next.contains(line) && next.to_ascii_lowercase().matches("cdn").count() == 2, "{next}");
        assert_eq!(parsed(next.as_bytes()).hops.count(), 2);
    }
}

#[test]
fn a_trusted_proxy_is_believed_and_added_to() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2, 3.3.3.3\r\nX-Forwarded-Proto: http\r\n\
                X-Forwarded-Host: b\r\nX-Forwarded-Port: 81\r\nX-Real-IP: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\nx_forwarded_proto: x\r\n\r\n";
    assert_eq!(
        forwarded(head, &via(Trust::TrustedProxy), &[]),
        "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Port: 81\r\nX-Real-IP: 1.1.1.1\r\n\
         X-Forwarded-For: 1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: b\r\n\
         Forwarded: for=1.1.1.1, for=192.0.2.7;host=\"a\";proto=https\r\nCDN-Loop: penstock\r\n\
         X-Request-Id: id-1\r\n\r\n"
    );
    // Two different values: both are ignored.
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(
        forwarded(head, &via(Trust::TrustedProxy), &[]).matches("X-Forwarded-Proto: https\r\n").count(),
        1
    );
}

#[test]
fn clients_without_an_ipv4_address_are_named_as_the_rfc_wants() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let unix = forwarded(head, &Via { peer: Peer::Unix, ..via(Trust::Stranger) }, &[]);
    assert!(!unix.contains("X-Forwarded-For") && unix.contains("Forwarded: for=_unix;host=\"a\""), "{unix}");
    let told = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n";
    let unix = forwarded(told, &Via { peer: Peer::Unix, ..via(Trust::TrustedProxy) }, &[]);
    assert!(unix.contains("X-Forwarded-For: 1.1.1.1\r\n"), "{unix}");
    let six = Peer::Ip("[2001:db8::1]:5".parse().unwrap());
    let six = forwarded(head, &Via { peer: six, ..via(Trust::Stranger) }, &[]);
    assert!(
        six.contains("X-Forwarded-For: 2001:db8::1\r\n") && six.contains("for=\"[2001:db8::1]\";"),
        "{six}"
    );
    let mapped = Peer::Ip("[::ffff:10.0.0.1]:5".parse().unwrap());
    assert!(
        forwarded(head, &Via { peer: mapped, ..via(Trust::Stranger) }, &[])
            .contains("X-Forwarded-For: 10.0.0.1\r\n")
    );
}

#[test]
fn an_old_client_without_host_gets_our_own_address_as_host() {
    let text = forwarded("GET / HTTP/1.0\r\n\r\n", &via(Trust::Stranger), &[]);
    assert!(text.starts_with("GET / HTTP/1.1\r\nHost: 198.51.100.1:80\r\n"), "{text}");
    assert!(!text.contains("X-Forwarded-Host") && !text.contains("host="), "{text}");
    let text = forwarded("GET / HTTP/1.0\r\n\r\n", &Via { local: None, ..via(Trust::Stranger) }, &[]);
    assert!(text.starts_with("GET / HTTP/1.1\r\nHost: \r\n"), "{text}");
}

#[test]
fn an_upgrade_goes_on_with_its_connection_header_and_te_only_when_both_were_said() {
    let head = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade, TE\r\nUpgrade: websocket\r\nTE: trailers, gzip\r\n\r\n";
    let text = forwarded(head, &via(Trust::Stranger), &[]);
    assert!(text.contains("Upgrade: websocket\r\nConnection: upgrade, te\r\nTE: trailers\r\n"), "{text}");
    let head = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n";
    let text = forwarded(head, &via(Trust::Stranger), &[]);
    assert!(!text.contains("Connection") && !text.contains("pgrade") && !text.contains("HTTP2"), "{text}");
}

#[test]
fn an_edit_of_a_request_removes_what_gateways_read_as_the_same_name() {
    let edits = HeaderEdits {
        request: vec![set("X-Site", "north"), HeaderEdit::Remove { name: "x-debug".into() }],
        response: vec![set("X-Site", "north"), HeaderEdit::Remove { name: "x-debug".into() }],
    };
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX_Site: evil\r\nx.SITE: evil\r\nX_Debug: 1\r\nX-Sites: 1\r\nX_Sites: 2\r\n\
                X_Forwarded_For: 1.2.3.4\r\nX_Request_Id: mine\r\nX-Request_Id: mine\r\n\r\n";
    for trust in [Trust::Stranger, Trust::TrustedProxy] {
        let text = forwarded(head, &via(trust), &[&edits, &HeaderEdits::default()]);
        assert!(
            text.contains("X-Sites: 1\r\nX_Sites: 2\r\n") && text.ends_with("X-Site: north\r\n\r\n"),
            "{text}"
        );
        for twin in ["X_Site: ", "x.SITE", "X_Debug", "X_Forwarded_For", "X_Request_Id", "X-Request_Id"] {
            assert!(!text.contains(twin), "{twin}: {text}");
        }
    }
    let both = HeaderEdits { request: vec![set("X-Site", "a"), set("X_Site", "b")], response: Vec::new() };
    let text = forwarded("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &via(Trust::Stranger), &[&both]);
    assert!(text.ends_with("X-Site: a\r\nX_Site: b\r\n\r\n"), "the operator may want both: {text}");
    let head = "HTTP/1.1 200 OK\r\nX_Site: a\r\nContent-Length: 0\r\n\r\n";
    let text = answered(head, GET, Version::Http11, Persistence::KeepAlive, &[&edits]);
    assert!(text.contains("X_Site: a\r\n"), "clients read names as they are: {text}");
}

#[test]
fn edits_replace_and_remove_every_line_of_a_name_and_the_last_one_counts() {
    let listener = HeaderEdits {
        request: vec![
            set("X-A", "1"),
            set("Host", "in.side"),
            HeaderEdit::Remove { name: "x-forwarded-host".into() },
        ],
        response: vec![
            HeaderEdit::Remove { name: "server".into() },
            set("Strict-Transport-Security", "max-age=1"),
        ],
    };
    let route = HeaderEdits {
        request: vec![set("x-a", "2\r\nX-Evil: 1"), set("Content-Length", "9")],
        response: vec![],
    };
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX-A: 0\r\nx-a: 00\r\n\r\n";
    assert_eq!(
        forwarded(head, &via(Trust::Stranger), &[&listener, &route]),
        "GET / HTTP/1.1\r\nHost: in.side\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
         Forwarded: for=192.0.2.7;host=\"a\";proto=https\r\nCDN-Loop: penstock\r\n\
         X-Request-Id: id-1\r\nx-a: 2  X-Evil: 1\r\n\r\n"
    );
    let head =
        "HTTP/1.1 200 OK\r\nServer: x\r\nStrict-Transport-Security: max-age=0\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        answered(head, GET, Version::Http11, Persistence::KeepAlive, &[&listener, &route]),
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Request-Id: id-1\r\nStrict-Transport-Security: max-age=1\r\n\r\n"
    );
}

#[test]
fn options_of_the_whole_server_keeps_its_asterisk() {
    for head in ["OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n"] {
        assert!(forwarded(head, &via(Trust::Stranger), &[]).starts_with("OPTIONS * HTTP/1.1\r\nHost: a\r\n"));
    }
}

#[test]
fn a_response_is_framed_for_the_client_it_goes_to() {
    let chunked = "HTTP/1.1 200 Fine\r\nTransfer-Encoding: Chunked\r\nConnection: X-B, close\r\nX-B: 1\r\nTrailer: X-T\r\nKeep-Alive: timeout=5\r\n\
                   Set-Cookie: a\r\nSet-Cookie: b\r\nx-request-id: backend\r\n\r\n";
    assert_eq!(
        answered(chunked, GET, Version::Http11, Persistence::KeepAlive, &[]),
        "HTTP/1.1 200 Fine\r\nTrailer: X-T\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nTransfer-Encoding: chunked\r\n\
         Strict-Transport-Security: max-age=9\r\nX-Request-Id: id-1\r\n\r\n"
    );
    assert_eq!(
        answered(chunked, GET, Version::Http10, Persistence::KeepAlive, &[]),
        "HTTP/1.1 200 Fine\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nConnection: close\r\n\
         Strict-Transport-Security: max-age=9\r\nX-Request-Id: id-1\r\n\r\n"
    );
    let length = "HTTP/1.0 200\r\nContent-Length: 05\r\nStrict-Transport-Security: own\r\n\r\n";
    assert_eq!(
        answered(length, GET, Version::Http10, Persistence::KeepAlive, &[]),
        "HTTP/1.1 200 \r\nStrict-Transport-Security: own\r\nContent-Length: 5\r\nConnection: keep-alive\r\nX-Request-Id: id-1\r\n\r\n"
    );
    let closing = answered("HTTP/1.0 200 OK\r\n\r\n", GET, Version::Http11, Persistence::KeepAlive, &[]);
    assert!(closing.contains("Transfer-Encoding: chunked\r\n") && !closing.contains("Connection"));
    let head = answered(length, HEAD, Version::Http11, Persistence::Close, &[]);
    assert!(head.contains("Content-Length: 5\r\n") && head.contains("Connection: close\r\n"));
    let none = answered(
        "HTTP/1.1 204 No\r\nContent-Length: 7\r\n\r\n",
        GET,
        Version::Http11,
        Persistence::KeepAlive,
        &[],
    );
    assert!(!none.contains("Content-Length") && !none.contains("Transfer"));
}

#[test]
fn switching_protocols_keeps_upgrade_and_connection() {
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n";
    let text = answered(head, WEBSOCKET, Version::Http11, Persistence::Close, &[]);
    assert!(text.starts_with(
        "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    ));
}

#[test]
fn interim_responses_pass_without_framing() {
    let head = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    let Ok(Parse::Complete(response)) = response::parse(head, &Limits::default(), GET) else { panic!() };
    assert!(response.is_interim());
    let mut out = Vec::new();
    write_interim(&mut out, head, &response);
    assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
}

#[test]
fn only_a_trusted_proxy_may_name_a_request_and_only_plainly() {
    let id = |head: &str, trust| {
        trusted_request_id(head.as_bytes(), &parsed(head.as_bytes()), trust, Some("x-request-id"))
            .map(str::to_owned)
    };
    let one = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: abc-1\r\n\r\n";
    assert_eq!(id(one, Trust::TrustedProxy).as_deref(), Some("abc-1"));
    assert_eq!(id(one, Trust::Stranger), None);
    for bad in [
        "X-Request-Id: a b\r\n",
        "X-Request-Id: \r\n",
        "X-Request-Id: a\r\nx-request-id: b\r\n",
        "X-Request-Id: \"\r\n",
    ] {
        assert_eq!(
            id(&format!("GET / HTTP/1.1\r\nHost: a\r\n{bad}\r\n"), Trust::TrustedProxy),
            None,
            "{bad:?}"
        );
    }
}

#[test]
fn what_clients_say_of_certificates_is_dropped_and_only_what_was_verified_is_told() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nClient-Cert: :AAAA:\r\nclient_cert: :AAAA:\r\nX-Client-Cert-Subject: CN=root\r\n\
                x_client_cert_subject: CN=root\r\nX.Client.Cert.Names: x\r\nClient-Cert-Chain: :AAAA:\r\n\
                X-Client-Cert-Unheard-Of: 1\r\n\r\n";
    for trust in [Trust::Stranger, Trust::TrustedProxy] {
        let text = forwarded(head, &via(trust), &[]).to_ascii_lowercase().replace(['_', '.'], "-");
        assert!(!text.contains("client-cert"), "{text}");
    }
    let told = [("Client-Cert", ":BBBB:".into()), ("X-Client-Cert-Subject", "CN=me".into())];
    let told = Via { client_certificate: &told, ..via(Trust::Stranger) };
    let text = forwarded(head, &told, &[]);
    assert!(text.contains("\r\nClient-Cert: :BBBB:\r\nX-Client-Cert-Subject: CN=me\r\n"), "{text}");
    assert!(!text.contains("AAAA") && !text.contains("root"), "{text}");
    let edits =
        HeaderEdits { request: vec![HeaderEdit::remove("client-cert").unwrap()], response: Vec::new() };
    let text = forwarded(head, &told, &[&edits]);
    assert!(!text.contains("\nClient-Cert:") && text.contains("CN=me"), "{text}");
    assert!(HeaderEdit::set("X-Client-Cert-Subject", "CN=root").is_err());
}
