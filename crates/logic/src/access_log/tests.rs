use super::*;
use proptest::prelude::*;

use crate::tls_alert;

fn entry<'a>() -> Entry<'a> {
    Entry {
        at: "2026-03-01T12:00:00.123Z",
        listener: "web",
        client: Peer::Ip("192.0.2.1:4711".parse().unwrap()),
        kind: Kind::Http,
        request_id: Some("0f3a"),
        method: Some(b"GET"),
        host: Some(b"app.example.com"),
        target: Some(b"/search?q=1&p=2"),
        version: Some("HTTP/1.1"),
        status: Some(200),
        grpc_status: None,
        pool: Some("app"),
        backend: Some("unix:/run/app.sock"),
        attempts: 2,
        failed: Some("refused"),
        moved: 1,
        hedged: 1,
        bytes_in: 120,
        bytes_out: 5120,
        duration: Duration::from_micros(12_345),
        timings: Timings {
            queue: None,
            connect: Some(Duration::from_micros(7)),
            first_byte: Some(Duration::from_secs(1)),
        },
        user_agent: Some(b"curl/8.5.0"),
        referer: None,
        tls: Some("TLSv1.3"),
        sni: Some(b"a.example"),
        refused_certificate: None,
        tls_alert: None,
        outcome: "ok",
    }
}

fn as_text(entry: &Entry<'_>) -> String {
    let mut out = Vec::new();
    text(entry, &mut out);
    String::from_utf8(out).unwrap()
}

fn as_json(entry: &Entry<'_>) -> (String, serde_json::Value) {
    let mut out = Vec::new();
    json(entry, &mut out);
    let line = String::from_utf8(out).unwrap();
    let value = serde_json::from_str(&line).unwrap();
    (line, value)
}

#[test]
fn a_request_reads_well_as_text() {
    assert_eq!(
        as_text(&entry()),
        "2026-03-01T12:00:00.123Z web 192.0.2.1:4711 http 200 ok id=0f3a method=GET host=app.example.com \
         target=/search?q=1&p=2 version=HTTP/1.1 tls=TLSv1.3 sni=a.example pool=app backend=unix:/run/app.sock attempts=2 failed=refused moved=1 hedged=1 \
         bytes_in=120 bytes_out=5120 duration_ms=12.345 connect_ms=0.007 first_byte_ms=1000.000 \
         user_agent=curl/8.5.0\n"
    );
}

#[test]
fn a_request_reads_well_as_json() {
    let (line, value) = as_json(&entry());
    let expected = serde_json::json!({
        "at": "2026-03-01T12:00:00.123Z", "listener": "web", "client": "192.0.2.1:4711", "kind": "http",
        "status": 200, "outcome": "ok", "id": "0f3a", "method": "GET", "host": "app.example.com",
        "target": "/search?q=1&p=2", "version": "HTTP/1.1", "tls": "TLSv1.3", "sni": "a.example", "pool": "app",
        "backend": "unix:/run/app.sock", "attempts": 2, "failed": "refused", "moved": 1, "hedged": 1, "bytes_in": 120,
        "bytes_out": 5120, "duration_ms": 12.345, "connect_ms": 0.007, "first_byte_ms": 1000.0, "user_agent": "curl/8.5.0",
    });
    assert_eq!(value, expected);
    assert_eq!(line.matches('\n').count(), 1);
}

#[test]
fn a_connection_leaves_out_what_it_does_not_have() {
    let connection = Entry {
        client: Peer::Unix,
        kind: Kind::Tcp,
        request_id: None,
        method: None,
        host: None,
        target: None,
        version: None,
        status: None,
        backend: None,
        timings: Timings::default(),
        user_agent: None,
        tls: None,
        sni: None,
        outcome: "no-backend: all down",
        ..entry()
    };
    assert_eq!(
        as_text(&connection),
        "2026-03-01T12:00:00.123Z web unix tcp - \"no-backend: all down\" pool=app attempts=2 failed=refused moved=1 hedged=1 bytes_in=120 \
         bytes_out=5120 duration_ms=12.345\n"
    );
    assert!(as_json(&connection).1.get("status").is_none());
}

#[test]
fn no_client_can_forge_a_line_a_field_or_a_colour_in_text() {
    let vectors: [(&[u8], &str); 10] = [
        (b"a\nb", r#""a\x0ab""#),
        (b"a\r\nb", r#""a\x0d\x0ab""#),
        (b"\" status=200", r#""\x22 status=200""#),
        (b"\x1b[31mred", r#""\x1b[31mred""#),
        (b"\0", r#""\x00""#),
        (b"\xff\xfe", r#""\xff\xfe""#),
        ("é".as_bytes(), r#""\xc3\xa9""#),
        (b"a\\x0ab", r#""a\x5cx0ab""#),
        (b"", r#""""#),
        (b"-", r#""-""#),
    ];
    for (hostile, written) in vectors {
        let line = as_text(&Entry { user_agent: Some(hostile), ..entry() });
        assert!(line.ends_with(&format!(" user_agent={written}\n")), "{line}");
    }
    let line = as_text(&Entry { host: Some(b"a status=200"), method: Some(b"x=y"), ..entry() });
    assert!(line.contains(" method=\"x=y\" host=\"a status=200\" "), "{line}");
}

#[test]
fn hostile_bytes_come_back_from_json_as_what_they_were() {
    let vectors: [(&[u8], &str); 8] = [
        (b"a\nb", "a\nb"),
        (b"\",\"status\":200", "\",\"status\":200"),
        (b"\x1b[31m\x7f", "\x1b[31m\x7f"),
        (b"\0", "\0"),
        (b"a\xffb\xc3", "a\u{ff}b\u{c3}"),
        ("é😀".as_bytes(), "é😀"),
        ("\u{202e}\u{85}\u{e0041}".as_bytes(), "\u{202e}\u{85}\u{e0041}"),
        (b"\\u0041", "\\u0041"),
    ];
    for (hostile, read) in vectors {
        let (line, value) = as_json(&Entry { target: Some(hostile), ..entry() });
        assert_eq!(value["target"], read);
        assert!(!line.trim_end_matches('\n').contains(|c: char| !is_printable(c)), "{line}");
    }
}

/// Removes the quoting of the text form; `None` if it is malformed.
fn unquote(written: &str) -> Option<Vec<u8>> {
    let Some(inside) = written.strip_prefix('"') else { return Some(written.as_bytes().to_vec()) };
    let mut rest = inside.strip_suffix('"')?;
    let mut bytes = Vec::new();
    while let Some(first) = rest.bytes().next() {
        if let Some(escape) = rest.strip_prefix("\\x") {
            bytes.push(u8::from_str_radix(escape.get(..2)?, 16).ok()?);
            rest = &escape[2..];
        } else {
            bytes.push(first);
            rest = &rest[1..];
        }
    }
    Some(bytes)
}

proptest! {
    #[test]
    fn any_bytes_stay_on_one_printable_line_and_can_be_read_back(
        target in proptest::collection::vec(any::<u8>(), 0..60),
        agent in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let entry = Entry { target: Some(&target), user_agent: Some(&agent), ..entry() };
        let line = as_text(&entry);
        let body = line.strip_suffix('\n').unwrap();
        prop_assert!(body.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{body}");
        let written = body.rsplit_once(" user_agent=").unwrap().1;
        prop_assert_eq!(unquote(written), Some(agent.clone()));

        let (line, value) = as_json(&entry);
        prop_assert_eq!(line.matches('\n').count(), 1);
        prop_assert!(value["target"].is_string());
        prop_assert_eq!(&value["status"], 200);
        if let Ok(valid) = std::str::from_utf8(&target) {
            prop_assert_eq!(&value["target"], valid);
        }
    }
}

#[test]
fn the_documented_fields_are_those_of_a_full_line_in_its_order() {
    let timings = Timings { queue: Some(Duration::ZERO), ..entry().timings };
    let full = Entry {
        timings,
        grpc_status: Some(0),
        referer: Some(b"x"),
        refused_certificate: Some("CN=x"),
        tls_alert: Some(tls_alert::ACCESS_DENIED),
        ..entry()
    };
    let (line, value) = as_json(&full);
    let mut written: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    written.sort_by_key(|field| line.find(&format!("\"{field}\":")));
    assert_eq!(written, FIELDS.map(|(field, _)| field));
}
