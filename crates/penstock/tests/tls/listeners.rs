//! TLS on listeners: certificates by name, reload, bad handshakes, HSTS; checked with curl and openssl.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use testing::client::get;
use testing::pki::{Pki, Time, self_signed};
use testing::server::{Setup, penstock};
use testing::{Client, Scripted, Server, eventually, secs, tools};

fn set_mode(file: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

fn config(certs: &Path, backend: &str, extra: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\ntls = {{ certificates = \"{}\", handshake-timeout = \"20s\" }}\n{extra}\n\
         [pool.app]\nbackends = [\"{backend}\"]\n",
        certs.display()
    )
}

fn port(server: &Server) -> String {
    server.address("secure").rsplit(':').next().unwrap().to_owned()
}

/// GET with curl, verified against one certificate; the body or curl's complaint.
fn fetch(server: &Server, name: &str, authority: &Path, more: &[&str]) -> Result<String, String> {
    let port = port(server);
    let resolve = format!("{name}:{port}:127.0.0.1");
    let url = format!("https://{name}:{port}/");
    let mut arguments = vec!["--resolve", &resolve, "--cacert", authority.to_str().unwrap()];
    arguments.extend(more);
    arguments.push(&url);
    let output = tools::curl(&arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn the_certificate_is_chosen_by_name_exact_before_wildcard() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    self_signed(dir.path(), "wild", &["*.b.example"], Time::Now);
    self_signed(dir.path(), "exact", &["x.b.example"], Time::Now);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(dir.path(), &backend.address, ""));
    for (name, stem) in
        [("a.example", "a"), ("y.b.example", "wild"), ("x.b.example", "exact"), ("A.EXAMPLE", "a")]
    {
        assert_eq!(
            fetch(&server, name, &dir.path().join(format!("{stem}.crt")), &[]).as_deref(),
            Ok("served"),
            "{name}"
        );
    }
    assert!(
        fetch(&server, "a.example", &dir.path().join("exact.crt"), &[]).is_err(),
        "another's certificate does not verify"
    );
}

#[test]
fn combined_pem_files_and_both_versions_of_tls_work() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let both =
        [fs::read(dir.path().join("a.crt")).unwrap(), fs::read(dir.path().join("a.key")).unwrap()].concat();
    fs::write(certs.join("a.pem"), both).unwrap();
    set_mode(&certs.join("a.pem"), 0o600);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(&certs, &backend.address, ""));
    let authority = dir.path().join("a.crt");
    for versions in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        assert_eq!(
            fetch(&server, "a.example", &authority, &versions).as_deref(),
            Ok("served"),
            "{versions:?}"
        );
    }
    let old = fetch(
        &server,
        "a.example",
        &authority,
        &["--tlsv1.0", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"],
    );
    assert!(old.is_err(), "TLS 1.1 is not spoken");
}

#[test]
fn openssl_sees_a_whole_chain_and_http2() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(dir.path(), &backend.address, ""));
    let connect = format!("127.0.0.1:{}", port(&server));
    let authority = dir.path().join("a.crt");
    let arguments = [
        "s_client",
        "-connect",
        &connect,
        "-servername",
        "a.example",
        "-CAfile",
        authority.to_str().unwrap(),
        "-alpn",
        "h2,http/1.1",
        "-verify_return_error",
    ];
    let output = tools::run("openssl", &arguments, secs(20));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Verify return code: 0 (ok)") || text.contains("Verification: OK"), "{text}");
    assert!(text.contains("ALPN protocol: h2"), "{text}");
}

#[test]
fn hsts_is_sent_over_tls_and_by_default_only_with_a_certificate_that_the_system_trusts() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pki = Pki::new(authority.path());
    pki.issue("a", &["a.example"], Time::Now);
    for file in ["a.crt", "a.key"] {
        fs::copy(authority.path().join(file), dir.path().join(file)).unwrap();
    }
    self_signed(dir.path(), "own", &["own.example"], Time::Now);
    let backend = Scripted::answering("served");
    let start = |more: &str| {
        let config = config(dir.path(), &backend.address, more);
        Setup::new(&config).env("SSL_CERT_FILE", pki.authority().to_str().unwrap()).start()
    };
    let sent = |server: &Server, name: &str, authority: &Path| {
        let headers = fetch(server, name, authority, &["-D", "-", "-o", "/dev/null"]).unwrap();
        let mut lines = headers.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(name, _)| name.eq_ignore_ascii_case("strict-transport-security"))
            .map(|(_, value)| value.to_owned())
    };
    let own = dir.path().join("own.crt");

    let plain = "[listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"";
    let server = start(plain);
    assert_eq!(sent(&server, "a.example", &pki.authority()).as_deref(), Some("max-age=31536000"));
    assert_eq!(sent(&server, "own.example", &own), None, "its user could no longer pass the warning");
    assert_eq!(get(&server.address("plain"), "/").header("strict-transport-security"), None);
    let words = "sends Strict-Transport-Security: max-age=31536000 with 1 of 2 certificates: \
                 this system does not trust the issuer of the others";
    assert_eq!(server.stderr.count(words), 1, "{:#?}", server.stderr.all());
    let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
    assert!(status.contains(&format!("  secure: {words}\n")), "{status}");
    let listeners = server.ctl_json(&["status"])["listeners"].clone();
    let hsts = |name: &str| {
        listeners.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap()["hsts"].clone()
    };
    assert_eq!(
        hsts("secure"),
        serde_json::json!({ "value": "max-age=31536000", "certificates": 1, "of": 2 })
    );
    assert!(hsts("plain").is_null());
    let certificates = server.ctl_json(&["certs"])[0]["certificates"].clone();
    let trusted = |name: &str| {
        certificates.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap()["issuer_trusted"]
            .clone()
    };
    assert_eq!((trusted("a"), trusted("own")), (true.into(), false.into()));

    let always = start("hsts = \"180d\"");
    assert_eq!(sent(&always, "own.example", &own).as_deref(), Some("max-age=15552000"));
    let off = start("hsts = \"off\"");
    assert_eq!(sent(&off, "a.example", &pki.authority()), None);
}

#[test]
fn the_backend_is_told_that_the_client_came_over_https() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let recorder = testing::Recorder::start();
    let server = Server::start(&config(dir.path(), recorder.address(), ""));
    fetch(&server, "a.example", &dir.path().join("a.crt"), &["-H", "X-Forwarded-Proto: http"]).unwrap();
    assert_eq!(recorder.last().lines("x-forwarded-proto"), ["https"]);
}

#[test]
fn a_reload_serves_what_is_new_at_once_and_a_broken_certificate_never_takes_the_others_along() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(dir.path(), &backend.address, ""));
    let authority = dir.path().join("a.crt");
    assert!(fetch(&server, "a.example", &authority, &[]).is_ok());
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    self_signed(dir.path(), "late", &["late.example"], Time::Now);
    assert!(server.ctl(&["reload"]).status.success());
    assert!(fetch(&server, "a.example", &authority, &[]).is_ok());
    assert!(fetch(&server, "late.example", &dir.path().join("late.crt"), &[]).is_ok());

    fs::write(dir.path().join("late.crt"), "no certificate").unwrap();
    let _ = server.ctl(&["reload"]);
    assert!(
        fetch(&server, "a.example", &authority, &[]).is_ok(),
        "one bad certificate degrades nothing else"
    );
}

#[test]
fn a_key_that_others_can_read_is_refused_and_said() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    self_signed(dir.path(), "open", &["open.example"], Time::Now);
    set_mode(&dir.path().join("open.key"), 0o644);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(dir.path(), &backend.address, ""));
    assert!(fetch(&server, "a.example", &dir.path().join("a.crt"), &[]).is_ok());
    assert!(fetch(&server, "open.example", &dir.path().join("open.crt"), &[]).is_err());
    let status = server.ctl_json(&["status"]);
    assert!(status["degraded"].to_string().contains("open"), "{status:#}");
    let file = server.dir.path().join("penstock.toml");
    let output = penstock(&["check", "--strict", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = config(dir.path(), &backend.address, "");
    let strict = Setup::new(&text);
    let path = strict.dir().join("penstock.toml");
    let output = strict.arguments(&["serve", "--strict", "--config", path.to_str().unwrap()]).output();
    assert!(!output.status.success(), "--strict refuses to start");
}

#[test]
fn an_unknown_name_and_plain_http_end_the_handshake_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    self_signed(dir.path(), "b", &["b.example"], Time::Now);
    let backend = Scripted::answering("served");
    let mut server = Server::start(&config(dir.path(), &backend.address, ""));
    assert!(fetch(&server, "unknown.example", &dir.path().join("a.crt"), &[]).is_err());
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        &[0; 100],
        &[0xff; 5000],
        &[0x16, 3, 1, 0xff, 0xff],
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    ] {
        let mut client = server.client("secure");
        let _ = client.try_send(bytes);
        client.finish_sending();
        let (answer, end) = client.read_to_end_within(secs(10));
        assert_ne!(end, testing::End::Open, "{answer:?}");
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
    assert!(fetch(&server, "a.example", &dir.path().join("a.crt"), &[]).is_ok());
    server.assert_running();
    assert_eq!(backend.accepted.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_stalled_handshake_ends_at_its_time() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let backend = Scripted::answering("served");
    let text = config(dir.path(), &backend.address, "");
    let server = Server::start(&text.replace("handshake-timeout = \"20s\"", "handshake-timeout = \"2s\""));
    let mut stalled: Vec<Client> = (0..20).map(|_| server.client("secure")).collect();
    for client in &mut stalled {
        client.send([0x16, 0x03, 0x01]);
    }
    assert!(fetch(&server, "a.example", &dir.path().join("a.crt"), &[]).is_ok());
    for client in &mut stalled {
        assert_ne!(client.read_to_end_within(secs(30)).1, testing::End::Open);
    }
}

#[test]
fn tls_in_front_of_a_relay_passes_bytes_whole() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let data: Vec<u8> = testing::peers::Pattern::new().slice(0, 1_000_000).to_vec();
    let answer = [
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", data.len()).as_bytes(),
        &data,
    ]
    .concat();
    let backend = Scripted::saying(&answer);
    let text = config(dir.path(), &backend.address, "").replace("protocol = \"http\"", "protocol = \"tcp\"");
    let server = Server::start(&text);
    let file = dir.path().join("out");
    fetch(&server, "a.example", &dir.path().join("a.crt"), &["-o", file.to_str().unwrap()]).unwrap();
    assert!(fs::read(&file).unwrap() == data, "the bytes came back changed");
}

#[test]
fn plain_http_on_a_tls_port_gets_an_answer_in_words_and_the_log_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    self_signed(dir.path(), "b", &["b.example"], Time::Now);
    let backend = Scripted::answering("served");
    let text = config(dir.path(), &backend.address, "");
    let server = Server::start(&format!("{text}[access-log]\ntarget = \"@DIR@/access.log\"\n"));
    let mut client = server.client("secure");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let (answer, _) = client.read_to_end();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("HTTPS"), "{answer}");
    assert!(fetch(&server, "unknown.example", &dir.path().join("a.crt"), &[]).is_err());
    let log = server.dir.path().join("access.log");
    for reason in ["tls-not-tls", "tls-no-certificate", " sni=unknown.example "] {
        eventually(reason, secs(10), || fs::read_to_string(&log).ok()?.contains(reason).then_some(()));
    }
    let log = fs::read_to_string(&log).unwrap();
    let line = log.lines().find(|line| line.contains("tls-not-tls")).unwrap();
    let sent = format!(" bytes_out={} ", answer.len());
    assert!(line.contains(" tcp 400 tls-not-tls ") && line.contains(&sent), "{line}");
}

#[test]
fn a_first_message_that_is_no_client_hello_gets_one_alert_and_an_alert_gets_none() {
    const UNEXPECTED_MESSAGE: u8 = 10;
    const DECODE_ERROR: u8 = 50;
    let record = |kind: u8, version: [u8; 2], body: &[u8]| {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind], &version[..], &length[..], body].concat()
    };
    let message = |kind: u8, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        record(22, [3, 1], &[&[kind], &length[1..], body].concat())
    };
    let (ccs, data) = (record(20, [3, 1], &[1]), record(23, [3, 3], b"hello"));
    let interrupted = [record(22, [3, 1], &[1, 0, 0, 40, 3, 3]), ccs.clone()].concat();
    let server_hello = message(2, &[&[3, 3][..], &[7; 32], &[0, 0x13, 1, 0]].concat());
    let cases = [
        ("ServerHello", server_hello, Some(UNEXPECTED_MESSAGE)),
        ("Finished", message(20, &[7; 12]), Some(UNEXPECTED_MESSAGE)),
        ("HelloRequest", message(0, b""), Some(UNEXPECTED_MESSAGE)),
        ("ChangeCipherSpec", ccs, Some(UNEXPECTED_MESSAGE)),
        ("application data", data, Some(UNEXPECTED_MESSAGE)),
        ("a part of a ClientHello, then another record", interrupted, Some(UNEXPECTED_MESSAGE)),
        ("ClientHello of nothing", message(1, b""), Some(DECODE_ERROR)),
        ("longer than any handshake", record(22, [3, 1], &[1, 255, 255, 255, 0]), Some(DECODE_ERROR)),
        ("heartbeat", record(24, [3, 1], &[1, 0, 1, 7]), Some(DECODE_ERROR)),
        ("unknown record", record(99, [3, 1], b"abc"), Some(DECODE_ERROR)),
        ("empty record", record(22, [3, 1], b""), Some(DECODE_ERROR)),
        ("unknown version", record(22, [9, 9], &[1, 0, 0, 0]), Some(DECODE_ERROR)),
        (
            "SSL 2",
            [&[0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10][..], &[7; 37]].concat(),
            Some(DECODE_ERROR),
        ),
        ("alert", record(21, [3, 1], &[2, 40]), None),
    ];
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let server = Server::start(&config(dir.path(), "127.0.0.1:1", ""));
    for (name, bytes, alert) in cases {
        for size in [bytes.len(), 5, 1] {
            let mut client = TcpStream::connect(server.address("secure")).unwrap();
            client.set_read_timeout(Some(secs(20))).unwrap();
            client.set_nodelay(true).unwrap();
            // The server may have refused the first pieces.
            let _ = bytes.chunks(size).try_for_each(|piece| client.write_all(piece));
            let mut answer = Vec::new();
            // A piece that comes after the server has closed is answered with a reset.
            let _ = client.read_to_end(&mut answer);
            let expected = alert.map_or(Vec::new(), |alert| record(21, [3, 3], &[2, alert]));
            assert_eq!(answer, expected, "{name} in pieces of {size}");
        }
    }
}

#[test]
fn a_client_hello_that_is_too_long_is_read_on_until_its_sender_has_the_alert() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let server = Server::start(&config(dir.path(), "127.0.0.1:1", ""));
    // The longest message that TLS libraries take, in records whose headers make it longer than the space for it.
    let records: Vec<u8> = std::iter::once([22, 3, 1, 0, 4, 1, 0, 0xff, 0xff].to_vec())
        .chain((0..0xffff / 64).map(|_| [&[22, 3, 1, 0, 64][..], &[7; 64]].concat()))
        .flatten()
        .collect();
    let mut client = TcpStream::connect(server.address("secure")).unwrap();
    client.set_read_timeout(Some(secs(20))).unwrap();
    client.write_all(&records).unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 50]);
}

#[test]
fn a_reload_says_that_a_broken_certificate_left_the_old_one_in_service() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.example"], Time::Now);
    let backend = Scripted::answering("served");
    let server = Server::start(&config(dir.path(), &backend.address, ""));
    let authority = dir.path().join("authority.pem");
    fs::copy(dir.path().join("a.crt"), &authority).unwrap();
    fs::write(dir.path().join("a.key"), "no key").unwrap();
    let said = String::from_utf8_lossy(&server.ctl(&["reload"]).stdout).into_owned();
    assert!(
        said.contains("warning") && said.contains("a.key") && said.contains("certificate stays in use"),
        "{said}"
    );
    assert!(fetch(&server, "a.example", &authority, &[]).is_ok());
}
