//! TLS to backends: nginx and OpenSSL with good certificates and with every kind of wrong one.

use std::fs;
use std::path::Path;

use testing::client::Complete;
use testing::pki::{Pair, Pki, Time, s_server, self_signed};
use testing::server::penstock;
use testing::{Scripted, Server, eventually, peers, secs};

/// A listener of each kind in front of one pool.
fn config(backend: &str, tls: &str, more: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\ntls = {tls}\n{more}\n"
    )
}

/// nginx with TLS on a Unix socket beside its plain one.
fn nginx(dir: &Path, files: &Pair, more: &str) -> peers::Process {
    fs::create_dir_all(dir.join("www")).unwrap();
    fs::write(dir.join("www/index.html"), "served").unwrap();
    let protocols = if more.contains("ssl_protocols") { "" } else { "ssl_protocols TLSv1.2 TLSv1.3;" };
    let extra = format!(
        "listen unix:{}/tls.sock ssl; {protocols} ssl_certificate {}; ssl_certificate_key {};\n\
         location = /seen {{ return 200 '$ssl_protocol $ssl_session_reused $ssl_server_name $ssl_client_verify \
         $ssl_client_s_dn $connection_requests'; }}\n{more}",
        dir.display(),
        files.certificate.display(),
        files.key.display()
    );
    let mut nginx = peers::nginx(dir, &extra);
    nginx.address = format!("unix:{}/tls.sock", dir.display());
    nginx
}

fn trusting(pki: &Pki, more: &str) -> String {
    format!("{{ ca = \"{}\"{more} }}", pki.authority().display())
}

#[test]
fn requests_reach_a_verified_backend_by_its_name_over_kept_connections() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let nginx = nginx(dir.path(), &pki.issue("app", &["app.internal"], Time::Now), "");
    let server = Server::start(&config(
        &nginx.address,
        &trusting(&pki, ", server-name = \"app.internal\""),
        "health = { http = \"/\", interval = \"1s\" }",
    ));
    let mut client = server.client("web");
    assert_eq!(client.get("/", &[]).text(), "served");
    let seen = client.get("/seen", &[]).text();
    // A session of the check may have been resumed, where it came first.
    assert!(seen.starts_with("TLSv1.3 . ") || seen.starts_with("TLSv1.3 r "), "{seen}");
    assert!(seen[10..].starts_with("app.internal NONE"), "{seen}");
    assert!(seen.ends_with(" 2"), "the second request goes over the same connection: {seen}");
    eventually("the check passes over TLS", secs(10), || {
        (server.health(&nginx.address) == "up").then_some(())
    });
}

#[test]
fn a_certificate_that_cannot_be_believed_is_an_answer_of_502_and_said_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let other = Pki::new(&dir.path().join("other"));
    let here = ["127.0.0.1"];
    let cases = [
        (pki.issue("name", &["other.internal"], Time::Now), "not for 127.0.0.1, but for other.internal"),
        (pki.issue("old", &here, Time::Over), "expired at"),
        (pki.issue("young", &here, Time::ToCome), "not valid before"),
        (other.issue("stranger", &here, Time::Now), "no trusted CA has signed"),
        (self_signed(dir.path(), "own", &here, Time::Now), "self-signed"),
    ];
    for (files, words) in cases {
        let backend = s_server(&files, &[]);
        let server = Server::start(&config(
            &backend.address,
            &trusting(&pki, ""),
            "health = { http = \"/\", interval = \"3s\", fall = 1 }",
        ));
        let answer = server.client("web").get("/", &[]);
        assert!(answer.status >= 502, "{words}: {answer:?}");
        let attempts = u64::from(answer.status == 502); // 503: the check was first
        eventually("the check says why", secs(10), || {
            let shown = format!("{:#}", server.backend(&backend.address));
            shown.contains(words).then_some(())
        });
        assert_eq!(count(&server, "tls_failures"), attempts, "of traffic, not of checks: {words}");
    }
}

#[test]
fn what_is_no_tls_or_never_answers_fails_within_the_time_for_a_connect() {
    let plain = Scripted::start(|talk| {
        talk.send("220 mail.internal ESMTP\r\n");
        let _ = talk.rest();
    });
    let silent = Scripted::start(|talk| drop(talk.rest()));
    let closing = Scripted::start(|_| ());
    for (backend, words, limit) in [
        (&plain, "is not TLS", "20s"),
        (&silent, "no handshake within", "300ms"),
        (&closing, "closed the connection", "20s"),
    ] {
        let limit = format!("timeouts = {{ connect = \"{limit}\" }}");
        let server = Server::start(&config(&backend.address, "\"on\"", &limit));
        assert_eq!(server.client("web").get("/", &[]).status, 502, "{words}");
        let shown = format!("{:#}", server.backend(&backend.address));
        assert!(shown.contains(words), "{words}: {shown}");
        assert_eq!(count(&server, "tls_failures"), 1, "{words}");
        assert_eq!(server.client("raw").read_to_end().0, b"", "{words}");
    }
}

#[test]
fn a_request_is_tried_elsewhere_when_a_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let good = python_tls(&pki.issue("good", &["127.0.0.1"], Time::Now), "unwrap");
    let bad = s_server(&pki.issue("bad", &["127.0.0.1"], Time::Over), &[]);
    let both = format!("{}\", \"{}", bad.address, good.address);
    let server = Server::start(&config(&both, &trusting(&pki, ""), ""));
    for _ in 0..4 {
        let mut client = server.client("web");
        client.send("POST /form HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(client.response().status, 200, "nothing was sent to the first one");
    }
    assert!(count(&server, "tls_failures") > 0);
}

#[test]
fn tcp_sessions_and_a_proxy_header_go_to_a_backend_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let more = format!(
        "listen unix:{}/proxied.sock ssl proxy_protocol;\n\
                        location = /from {{ return 200 '$proxy_protocol_addr'; }}",
        dir.path().display()
    );
    let nginx = nginx(dir.path(), &pki.issue("app", &["app.internal"], Time::Now), &more);
    let tls = trusting(&pki, ", server-name = \"app.internal\"");
    let server = Server::start(&config(&nginx.address, &tls, ""));
    let mut client = server.client("raw");
    assert_eq!(client.get("/", &[]).text(), "served");
    assert!(client.get("/seen", &[]).text().starts_with("TLSv1.3"), "nginx speaks TLS with us");
    let proxied = format!("unix:{}/proxied.sock", dir.path().display());
    let server = Server::start(&config(&proxied, &tls, "send-proxy = \"v2\""));
    for listener in ["web", "raw"] {
        assert_eq!(server.client(listener).get("/from", &[]).text(), "127.0.0.1", "{listener}");
    }
}

#[test]
fn sessions_are_resumed_with_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    for (version, protocol) in [("1.2", "TLSv1.2"), ("1.3", "TLSv1.3")] {
        let dir = dir.path().join(version);
        fs::create_dir(&dir).unwrap();
        let more = format!("ssl_protocols {protocol}; ssl_session_cache shared:s:1m;");
        let nginx = nginx(&dir, &pki.issue("app", &["app.internal"], Time::Now), &more);
        let tls = trusting(&pki, ", server-name = \"app.internal\"");
        let server = Server::start(&format!(
            "[process]\nworkers = 1\n{}",
            config(&nginx.address, &tls, "keep-alive = 0")
        ));
        let seen: Vec<String> = (0..5).map(|_| server.client("web").get("/seen", &[]).text()).collect();
        let resumed = seen.iter().filter(|seen| seen.contains(&format!("{protocol} r "))).count();
        assert_eq!(resumed, 4, "all but the first: {seen:?}");
    }
}

#[test]
fn a_backend_that_wants_a_certificate_gets_ours() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let more = format!("ssl_client_certificate {}; ssl_verify_client on;", pki.authority().display());
    let nginx = nginx(dir.path(), &pki.issue("app", &["app.internal"], Time::Now), &more);
    let ours = pki.issue("ours", &["balancer.internal"], Time::Now);
    let shown = format!(
        ", server-name = \"app.internal\", certificate = \"{}\", key = \"{}\"",
        ours.certificate.display(),
        ours.key.display()
    );
    let server = Server::start(&config(&nginx.address, &trusting(&pki, &shown), ""));
    assert!(server.client("web").get("/seen", &[]).text().contains("app.internal SUCCESS CN=test"));
    let without = trusting(&pki, ", server-name = \"app.internal\"");
    let server = Server::start(&config(&nginx.address, &without, ""));
    assert_eq!(server.client("web").get("/", &[]).status, 400, "nginx says itself what it wants");
}

#[test]
fn a_self_signed_certificate_is_believed_where_it_is_named_and_only_for_its_name_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (self_signed(dir.path(), "good", &["127.0.0.1"], Time::Now), 200),
        (self_signed(dir.path(), "other", &["127.0.0.2"], Time::Now), 502),
        (self_signed(dir.path(), "old", &["127.0.0.1"], Time::Over), 502),
    ];
    for (files, status) in cases {
        let backend = s_server(&files, &[]);
        let tls = format!("{{ ca = \"{}\" }}", files.certificate.display());
        let server = Server::start(&config(&backend.address, &tls, ""));
        assert_eq!(server.client("web").get("/", &[]).status, status, "{}", files.certificate.display());
    }
}

#[test]
fn verification_that_is_off_is_said_loudly_and_accepts_any_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let backend = s_server(&self_signed(dir.path(), "own", &["other"], Time::Over), &[]);
    let server = Server::start(&config(&backend.address, "{ verify = \"off\" }", ""));
    assert_eq!(server.client("web").get("/", &[]).status, 200);
    server.stderr.wait_for("verify is off", secs(5));
    let file = server.dir.path().join("penstock.toml");
    let output = penstock(&["check", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("any certificate is taken"), "{output:?}");
}

#[test]
fn authorities_are_read_again_on_reload_and_a_broken_file_leaves_those_from_before() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, next) = (Pki::new(dir.path()), Pki::new(&dir.path().join("next")));
    let backend = s_server(&pki.issue("app", &["127.0.0.1"], Time::Now), &[]);
    let ca = dir.path().join("trusted.pem");
    fs::copy(pki.authority(), &ca).unwrap();
    let text = config(
        &backend.address,
        &format!("{{ ca = \"{}\" }}", ca.display()),
        "retries = 0\npassive = \"off\"",
    );
    let server = Server::start(&text);
    let status = || server.client("web").get("/", &[]).status;
    assert_eq!(status(), 200);
    fs::write(&ca, "no certificate").unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(status(), 200);
    let shown = server.ctl(&["status"]);
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains("what was read before stays in use"),
        "{shown:?}"
    );
    let checked = penstock(&["check", server.dir.path().join("penstock.toml").to_str().unwrap()]);
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(said.contains("pool.app.tls") && said.contains("holds no certificate"), "{said}");
    fs::copy(next.authority(), &ca).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(status(), 502, "the authority of before is not believed any more");
}

#[test]
fn connections_stay_over_a_change_that_is_not_about_their_tls_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (pki, next) = (Pki::new(dir.path()), Pki::new(&dir.path().join("next")));
    let nginx = nginx(dir.path(), &pki.issue("app", &["app.internal"], Time::Now), "");
    let ca = dir.path().join("trusted.pem");
    fs::copy(pki.authority(), &ca).unwrap();
    let tls = format!("{{ ca = \"{}\", server-name = \"app.internal\" }}", ca.display());
    let server = Server::start(&config(&nginx.address, &tls, ""));
    // The number of the request on its connection to nginx. Each worker has connections of its own.
    let mut client = server.client("web");
    let mut number = || {
        let seen = client.get("/seen", &[]).text();
        seen.rsplit(' ').next().unwrap().parse::<u32>().unwrap_or_else(|_| panic!("{seen}"))
    };
    let first = number();
    assert!(server.ctl(&["reload"]).status.success());
    let changed = server.ctl(&["set", "pool.app.retries", "1"]);
    assert!(changed.status.success(), "{changed:?}");
    assert_eq!(number(), first + 1);
    let both = [fs::read(pki.authority()).unwrap(), fs::read(next.authority()).unwrap()].concat();
    fs::write(&ca, both).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(number(), 1, "others are trusted now");
}

#[test]
fn a_missing_file_of_authorities_never_means_that_any_certificate_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let backend = s_server(&pki.issue("app", &["127.0.0.1"], Time::Now), &[]);
    let server = Server::start(&config(&backend.address, "{ ca = \"/nowhere/ca.pem\" }", ""));
    assert_eq!(server.client("web").get("/", &[]).status, 502);
    assert!(format!("{:#}", server.backend(&backend.address)).contains("/nowhere/ca.pem"));
}

#[test]
fn a_body_that_ends_with_the_connection_is_whole_only_after_a_close_notify() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let files = pki.issue("app", &["127.0.0.1"], Time::Now);
    for (end, whole) in [("unwrap", true), ("close", false)] {
        let backend = python_tls(&files, end);
        let server = Server::start(&config(&backend.address, &trusting(&pki, ""), ""));
        let mut client = server.client("web");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.try_response(secs(10));
        assert_eq!(
            answer.as_ref().is_ok_and(|answer| answer.complete == Complete::Yes),
            whole,
            "{end}: {answer:?}"
        );
    }
}

const PYTHON_TLS: &str = r#"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
while True:
    plain, _ = listener.accept()
    try:
        tls = context.wrap_socket(plain, server_side=True)
        tls.recv(65536)
        tls.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npart")
        if sys.argv[3] == "unwrap":
            tls.unwrap()
        tls.close()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
"#;

/// Answers with a body without a length, and ends the connection as `end` says.
fn python_tls(files: &Pair, end: &str) -> peers::Process {
    let mut command = std::process::Command::new(testing::tools::program("python3"));
    command.args(["-u", "-c", PYTHON_TLS]).arg(&files.certificate).arg(&files.key).arg(end);
    let mut process = peers::Process::start(&mut command);
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

/// A counter of all backends together.
fn count(server: &Server, name: &str) -> u64 {
    let start = format!("penstock_backend_{name}_total{{");
    let metrics = server.metrics();
    let lines = metrics.lines().filter(|line| line.starts_with(&start));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}
