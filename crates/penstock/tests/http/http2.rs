//! HTTP/2 to clients: curl, nghttp, h2load and h2spec on the good side; hand-written frames on the other.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, mpsc};
use std::time::Instant;

use nix::sys::signal::Signal;
use testing::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, Http2, PING, PRIORITY,
    PROTOCOL_ERROR, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get,
};
use testing::peers::{BackendConnection, websocket_echo};
use testing::server::Setup;
use testing::{Recorder, Scripted, Server, eventually, millis, secs, tools};

/// A plain listener and one with TLS, both to one backend. One worker: each has buffers of its own, and the tests that
/// measure memory have bounds for those of one.
fn config(certificates: &Path, backend: &str, listener: &str, pool: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[process]\nworkers = 1\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ certificates = \"{}\" }}\n\
         [pool.app]\nbackends = [\"{backend}\"]\n{pool}\n",
        certificates.display()
    )
}

fn start(backend: &str, listener: &str, pool: &str) -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (key, chain) = (dir.path().join("a.key"), dir.path().join("a.crt"));
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost -keyout";
    let mut arguments: Vec<&str> = words.split_whitespace().collect();
    arguments.extend([key.to_str().unwrap(), "-out", chain.to_str().unwrap()]);
    assert!(tools::run("openssl", &arguments, secs(30)).status.success());
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    (Setup::new(&config(dir.path(), backend, listener, pool)).start(), dir)
}

fn plain(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address("web"))
}

fn secure(server: &Server, path: &str) -> String {
    let address = server.address("secure");
    format!("https://localhost:{}{path}", address.rsplit(':').next().unwrap())
}

/// Answers each request with its body.
fn echo(talk: &mut BackendConnection) {
    while let Some(request) = talk.request() {
        let body = if request.method == "HEAD" { b"" } else { &request.body[..] };
        if talk.answer(200, &[("X-Method", &request.method)], body).is_err() {
            break;
        }
    }
}

/// Reads one head and then nothing until the proxy gives up.
fn deaf(talk: &mut BackendConnection) {
    if talk.head().is_some() {
        talk.rest();
    }
}

#[test]
fn curl_is_served_over_tls_and_in_the_clear_and_the_log_says_so() {
    let backend = Recorder::start();
    let (server, _dir) = start(backend.address(), "", "");
    let tls = tools::curl_text(&["-k", "--http2", "-w", " %{http_version}", &secure(&server, "/a?b=c")]);
    assert_eq!(tls, "GET /a?b=c 2");
    let clear =
        tools::curl_text(&["--http2-prior-knowledge", "-w", " %{http_version}", &plain(&server, "/x")]);
    assert_eq!(clear, "GET /x 2");
    let old = tools::curl_text(&["-k", "--http1.1", "-w", " %{http_version}", &secure(&server, "/")]);
    assert_eq!(old, "GET / 1.1");
    server.stdout.wait_for("target=/a?b=c version=HTTP/2 tls=TLSv1.3", secs(5));
    server.stdout.wait_for("target=/x version=HTTP/2", secs(5));
    server.stdout.wait_for("target=/ version=HTTP/1.1", secs(5));
    let first = &backend.requests()[0];
    assert_eq!(first.lines("x-forwarded-proto"), ["https"]);
    assert_eq!(first.lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(first.lines("host").len(), 1);
}

#[test]
fn bodies_pass_unchanged_in_both_directions_with_and_without_a_length() {
    let backend = Scripted::start(echo);
    let (server, dir) = start(&backend.address, "", "");
    let bytes: Vec<u8> =
        (0..1_500_000u32).flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()).collect();
    let (sent, came) = (dir.path().join("sent"), dir.path().join("came"));
    fs::write(&sent, &bytes).unwrap();
    let data = format!("@{}", sent.display());
    for url in [plain(&server, "/"), secure(&server, "/")] {
        let version = if url.starts_with("https") { "--http2" } else { "--http2-prior-knowledge" };
        let chunked = ["-H", "Content-Length:", "--data-binary", &data];
        let counted = ["--data-binary", &data];
        for upload in [&chunked[..], &counted] {
            let mut arguments = vec!["-k", version, "-o", came.to_str().unwrap()];
            arguments.extend(upload);
            arguments.push(&url);
            tools::curl_text(&arguments);
            assert!(fs::read(&came).unwrap() == bytes, "{arguments:?}");
        }
    }
}

#[test]
fn head_redirects_and_our_own_pages_are_answered_in_http2() {
    let backend = Scripted::start(echo);
    let routes = "[[listener.web.route]]\npath = \"/old\"\nredirect = \"https://example.com{path}\"\n\
                  [[listener.web.route]]\npath = \"/app\"\npool = \"app\"\n\
                  [[listener.web.route]]\npath = \"/gone\"\npool = \"gone\"";
    let more = "[pool.gone]\nbackends = [\"127.0.0.1:1\"]";
    let (server, _dir) = {
        let (config_without_pool, dir) = (config(Path::new("/nowhere"), &backend.address, "", more), ());
        // Only the plain listener, without a pool of its own: what no route takes is not found.
        let start = config_without_pool.find("[listener.secure]").unwrap();
        let end = config_without_pool.find("[pool.app]").unwrap();
        let text = format!("{}{routes}\n{}", &config_without_pool[..start], &config_without_pool[end..]);
        (Server::start(&text.replacen("pool = \"app\"\n", "", 1)), dir)
    };
    let ask = |path: &str, more: &[&str]| {
        let mut arguments = vec!["--http2-prior-knowledge", "-s", "-i"];
        arguments.extend(more);
        let url = plain(&server, path);
        arguments.push(&url);
        tools::curl_text(&arguments)
    };
    let head = ask("/app", &["-I"]);
    assert!(head.starts_with("HTTP/2 200") && head.contains("x-method: HEAD"), "{head}");
    let redirect = ask("/old/x", &[]);
    assert!(redirect.starts_with("HTTP/2 308") && redirect.contains("location: https://example.com/old/x"));
    let missing = ask("/none", &[]);
    assert!(missing.starts_with("HTTP/2 404") && missing.contains("No service is configured"), "{missing}");
    assert!(!missing.to_ascii_lowercase().contains("connection:"), "{missing}");
    let gone = ask("/gone", &[]);
    assert!(gone.starts_with("HTTP/2 502"), "{gone}");
    let long = format!("/app?{}", "x".repeat(9000));
    assert!(ask(&long, &[]).starts_with("HTTP/2 414"));
    let many: Vec<String> = (0..150).map(|n| format!("x-{n}: y")).collect();
    let many: Vec<&str> = many.iter().flat_map(|line| ["-H", line]).collect();
    assert!(ask("/app", &many).starts_with("HTTP/2 431"));
}

#[test]
fn trailers_and_interim_responses_reach_the_client() {
    let backend = Scripted::start(|talk| {
        if talk.request().is_some() {
            talk.send(
                "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
                 HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
                 5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n",
            );
        }
    });
    let (server, _dir) = start(&backend.address, "", "");
    let output = tools::run("nghttp", &["-nv", "--no-dep", &plain(&server, "/")], secs(20));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [":status: 103", "link: </x>", ":status: 200", "x-sum: 42"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("transfer-encoding"), "{text}");
}

#[test]
fn many_streams_at_once_all_succeed() {
    let backend = Scripted::answering("served");
    let (server, _dir) = start(&backend.address, "", "");
    for url in [plain(&server, "/"), secure(&server, "/")] {
        let output = tools::run("h2load", &["-n", "4000", "-c", "8", "-m", "40", &url], secs(60));
        let counted = tools::parse_h2load(&String::from_utf8_lossy(&output.stdout));
        assert_eq!((counted.succeeded, counted.failed), (4000, 0), "{url}");
    }
}

#[test]
fn a_stream_that_its_client_resets_gives_its_backend_free() {
    let backend = Scripted::start(deaf);
    let (server, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/");
    eventually("the request arrives", secs(10), || (backend.open.load(SeqCst) == 1).then_some(()));
    client.send(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    eventually("the backend is free", secs(10), || (backend.open.load(SeqCst) == 0).then_some(()));
    server.stdout.wait_for("client-closed", secs(5));
    client.send(PING, 0, 0, &[7; 8]);
    client.wait_for("the connection goes on", |frame| frame.kind == PING && frame.flags == 1);
}

#[test]
fn a_client_that_leaves_gives_all_its_backends_free() {
    let backend = Scripted::start(deaf);
    let (server, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    for stream in 0..20 {
        client.get(2 * stream + 1, "/");
    }
    eventually("the requests arrive", secs(10), || (backend.open.load(SeqCst) == 20).then_some(()));
    drop(client);
    eventually("the backends are free", secs(10), || (backend.open.load(SeqCst) == 0).then_some(()));
}

#[test]
fn a_drain_says_goaway_and_lets_open_streams_end() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let backend = Scripted::start(move |talk| {
        if talk.request().is_some() {
            held.lock().unwrap().recv_timeout(secs(30)).unwrap();
            let _ = talk.answer(200, &[], b"late");
        }
    });
    let (mut server, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/");
    let mut idle = Http2::connect(&server.address("web"));
    idle.wait_for("its settings", |frame| frame.kind == SETTINGS);
    eventually("the request arrives", secs(10), || (backend.accepted.load(SeqCst) == 1).then_some(()));
    server.signal(Signal::SIGTERM);
    let goaway = client.wait_for("GOAWAY", |frame| frame.kind == GOAWAY);
    assert_eq!(goaway.code(), 0);
    assert_eq!(idle.end(), Some(0), "an idle connection is told, too");
    release.send(()).unwrap();
    assert_eq!(client.response(1), (Some(200), b"late".to_vec()));
    drop(client);
    assert!(server.wait_end(secs(20)).success());
}

#[test]
fn an_idle_connection_is_closed_with_goaway() {
    let backend = Scripted::answering("served");
    let (server, _dir) = start(&backend.address, "timeouts = { idle = \"1s\", head = \"3s\" }", "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/");
    assert_eq!(client.response(1).0, Some(200));
    assert_eq!(client.end(), Some(0));
    // One that never asks, one whose fields never end, and one that never says its preface.
    assert_eq!(Http2::connect(&server.address("web")).end(), Some(0));
    let mut endless = Http2::connect(&server.address("web"));
    endless.send(HEADERS, END_STREAM, 1, &block(&get("/")));
    assert_eq!(endless.end(), Some(0));
    let mut silent = server.client("web");
    silent.send("PRI * HTTP/2.0\r\n");
    let (answer, _) = silent.read_to_end_within(secs(10));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{}", testing::show(&answer));
}

#[test]
fn requests_that_could_become_others_are_reset_and_never_forwarded() {
    let backend = Recorder::start();
    let (server, _dir) = start(backend.address(), "", "");
    let with = |more: &[(&'static str, &'static str)]| {
        let mut fields = get("/");
        fields.extend(more);
        fields
    };
    let vectors: Vec<Vec<(&str, &str)>> = vec![
        with(&[("x", "y\r\ntransfer-encoding: chunked")]),
        with(&[("x", "y\nz")]),
        with(&[("x", "y\0z")]),
        with(&[("x", "y\r")]),
        with(&[("x", " y")]),
        with(&[("x: y\r\nz", "1")]),
        with(&[("x:", "1")]),
        with(&[("x y", "1")]),
        with(&[("X", "1")]),
        with(&[("", "1")]),
        with(&[("transfer-encoding", "chunked")]),
        with(&[("connection", "x-user")]),
        with(&[("upgrade", "websocket")]),
        with(&[("keep-alive", "timeout=5")]),
        with(&[("proxy-connection", "close")]),
        with(&[("te", "gzip")]),
        with(&[("host", "other")]),
        with(&[("host", "test"), ("host", "test")]),
        with(&[("content-length", "5")]),
        with(&[("content-length", "0"), ("content-length", "0")]),
        with(&[("content-length", "x")]),
        with(&[(":path", "/admin")]),
        with(&[(":status", "200")]),
        get("/ HTTP/1.1\r\nHost: other\r\n\r\nGET /admin"),
        get("/ HTTP/1.1"),
        get("/public#/admin"),
        get("/#"),
        get("admin"),
        get(""),
        vec![(":method", "GET /admin"), (":scheme", "http"), (":authority", "test"), (":path", "/")],
        vec![(":method", "GET"), (":scheme", "http"), (":authority", "a b"), (":path", "/")],
        vec![(":method", "GET"), (":scheme", "file"), (":authority", "test"), (":path", "/")],
        vec![(":method", "GET"), (":authority", "test"), (":path", "/")],
        vec![(":method", "GET"), (":scheme", "http"), (":authority", "test")],
        vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", "/"),
            (":path", "/x"),
        ],
    ];
    for fields in &vectors {
        let mut client = Http2::connect(&server.address("web"));
        client.request(1, END_STREAM, fields);
        let end = client.wait_for("a refusal", |frame| frame.kind == RST_STREAM || frame.kind == GOAWAY);
        assert_eq!(end.code(), PROTOCOL_ERROR, "{fields:?}");
    }
    // An imitation, a stranger's userinfo: answered by the rules of HTTP/1.1.
    for (fields, status) in [
        (with(&[("transfer_encoding", "chunked")]), Some(400)),
        (vec![(":method", "GET"), (":scheme", "http"), (":authority", "u@test"), (":path", "/")], Some(400)),
        (vec![(":method", "CONNECT"), (":authority", "test:443")], None),
    ] {
        let mut client = Http2::connect(&server.address("web"));
        client.request(1, END_STREAM, &fields);
        assert_eq!(client.response(1).0, status, "{fields:?}");
    }
    assert_eq!(backend.requests(), []);
}

#[test]
fn a_body_that_is_not_as_long_as_announced_never_becomes_a_whole_request() {
    let backend = Recorder::start();
    let (server, _dir) = start(backend.address(), "", "");
    let announced = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", "/"),
        ("content-length", "5"),
    ];
    for (data, flags) in
        [(&b"hell"[..], END_STREAM), (b"hello GET", END_STREAM), (b"", END_STREAM), (b"hello1", 0)]
    {
        let mut client = Http2::connect(&server.address("web"));
        client.request(1, 0, &announced);
        client.send(DATA, flags, 1, data);
        let end = client.wait_for("a reset", |frame| frame.kind == RST_STREAM || frame.kind == GOAWAY);
        assert_eq!(end.code(), PROTOCOL_ERROR);
    }
    for record in backend.take_when_quiet() {
        assert!(record.requests.is_empty() && record.fault.is_none(), "{record:?}");
    }
}

#[test]
fn trailers_with_a_pseudo_field_never_end_a_whole_request() {
    let backend = Recorder::start();
    let (server, _dir) = start(backend.address(), "", "");
    let post = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/")];
    for trailers in [
        &[(":path", "/admin")][..],
        &[(":method", "GET"), (":scheme", "http"), (":authority", "test"), (":path", "/admin")],
        &[(":authority", "other"), ("x-sum", "1")],
        &[(":status", "200")],
        &[("x-sum", "1"), (":path", "/admin")],
    ] {
        let mut client = Http2::connect(&server.address("web"));
        client.request(1, 0, &post);
        client.send(DATA, 0, 1, b"hello");
        client.request(1, END_STREAM, trailers);
        let end = client.wait_for("a reset", |frame| frame.kind == RST_STREAM || frame.kind == GOAWAY);
        assert_eq!(end.code(), PROTOCOL_ERROR, "{trailers:?}");
    }
    for record in backend.take_when_quiet() {
        assert!(record.requests.is_empty() && record.fault.is_none(), "{record:?}");
    }
}

#[test]
fn each_flood_ends_its_connection_and_no_other_client_notices() {
    let backend = Scripted::answering("served");
    // All clients have one address here: `flood_delay.rs` tries what happens to the next connections of one that flooded.
    let (server, _dir) = start(&backend.address, "http2 = { flood-delay = \"0s\" }", "");
    let address = server.address("web");
    let mut beside = Http2::connect(&address);
    let mut next = 1;
    let rapid: Vec<u8> = (0..2000u32)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let mut pair = frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&get("/")));
            pair.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
            pair
        })
        .collect();
    // Streams that the client makes the server reset: a window that overflows.
    let provoked: Vec<u8> = (0..2000u32)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let mut pair = frame(HEADERS, END_HEADERS, stream, &block(&get("/")));
            pair.extend(frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]));
            pair
        })
        .collect();
    let open = frame(HEADERS, END_HEADERS, 1, &block(&get("/")));
    let after_open_flags = |kind: u8, flags: u8, payload: &[u8]| {
        [open.clone(), frame(kind, flags, 1, payload).repeat(5000)].concat()
    };
    // Each waits for its body.
    let held = block(&[(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/")]);
    beside.get(next, "/");
    assert_eq!(beside.response(next).0, Some(200));
    next += 2;
    let before = anonymous(&server);
    let after_open =
        |kind: u8, payload: &[u8]| [open.clone(), frame(kind, 0, 1, payload).repeat(5000)].concat();
    let endless = [
        frame(HEADERS, 0, 1, &block(&get("/"))),
        frame(CONTINUATION, 0, 1, &block(&[("x", "y")])).repeat(5000),
    ];
    let bomb = {
        // One long field in the table, then many short references to it (RFC 7541 section 6.1).
        let mut fields = block(&get("/"));
        fields.extend([0x40, 1, b'x', 0x7f, 0x81, 0x1e]);
        fields.extend(vec![b'a'; 4000]);
        fields.extend(vec![0xbe; 8000]);
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields)
    };
    for (name, bytes) in [
        ("reset", rapid),
        ("provoked resets", provoked),
        ("ping", frame(PING, 0, 0, &[0; 8]).repeat(5000)),
        ("ping acknowledgement", frame(PING, 1, 0, &[0; 8]).repeat(5000)),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]).repeat(5000)),
        ("window update", after_open(WINDOW_UPDATE, &[0, 0, 0, 1])),
        ("empty data", after_open(DATA, &[])),
        ("priority", frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]).repeat(5000)),
        ("unknown frame", frame(0xbb, 0, 0, &[0; 20]).repeat(5000)),
        ("continuation", endless.concat()),
        ("header bomb", bomb),
        ("window update of the connection", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(5000)),
        ("padded empty data", after_open_flags(DATA, 8, &[3, 0, 0, 0])),
        ("goaway", frame(GOAWAY, 0, 0, &[0; 8]).repeat(5000)),
        (
            "priority of streams",
            (0..5000).flat_map(|n| frame(PRIORITY, 0, 2 * n + 1, &[0, 0, 0, 0, 1])).collect(),
        ),
        ("refused streams", (0..5000).flat_map(|n| frame(HEADERS, END_HEADERS, 2 * n + 1, &held)).collect()),
        ("large pings of unknown kind", frame(0xfa, 0, 0, &[0; 16_000]).repeat(1000)),
    ] {
        let mut client = Http2::connect(&address);
        client.send_raw(&bytes);
        let began = Instant::now();
        beside.get(next, "/");
        assert_eq!(beside.response(next).0, Some(200), "{name}");
        assert!(began.elapsed() < secs(15), "{name}: the client beside waited {:?}", began.elapsed());
        next += 2;
        let code = client.end();
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM) | None), "{name}: {code:?}");
        let grown = anonymous(&server).saturating_sub(before);
        assert!(grown <= 2 * 1024 + 4096, "{name}: {grown} KiB for two connections");
    }
    for word in ["resets", "pings", "settings", "windows", "empty", "other"] {
        server.stdout.wait_for(&format!("h2-flood-{word}"), secs(5));
    }
    assert_eq!(server.stdout.count("panicked"), 0);
}

#[test]
fn small_frames_of_a_body_that_its_backend_does_not_read_hold_little() {
    let backend = Scripted::start(deaf);
    let (server, _dir) = start(&backend.address, "", "");
    let address = server.address("web");
    // Everything that a request needs once is there.
    let mut first = Http2::connect(&address);
    first.get(1, "/");
    eventually("a request is there", secs(10), || (backend.open.load(SeqCst) == 1).then_some(()));
    let before = anonymous(&server);
    let post = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/")];
    let mut clients: Vec<Http2> = (0..4)
        .map(|_| {
            let mut client = Http2::connect(&address);
            for stream in [1, 3, 5, 7] {
                client.request(stream, 0, &post);
                client.send_raw(&frame(DATA, 0, stream, b"x").repeat(8000));
            }
            client.send(PING, 0, 0, &[7; 8]);
            client
        })
        .collect();
    for client in &mut clients {
        client.wait_for("all is read, and the connection goes on", |frame| {
            frame.kind == PING && frame.flags == 1
        });
    }
    let grown = anonymous(&server).saturating_sub(before);
    assert!(grown <= 4 * 1024 + 4096, "{grown} KiB for four connections");
}

#[test]
fn a_window_that_settings_make_negative_is_paid_back_before_more_comes() {
    let backend = Scripted::answering(&"x".repeat(4000));
    let (server, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0x03, 0xe8]);
    client.get(1, "/");
    let mut taken = 0;
    let mut take_until = |client: &mut Http2, wanted: usize| {
        while taken < wanted {
            taken += client.wait_for("data", |frame| frame.kind == DATA).payload.len();
        }
        assert_eq!(taken, wanted);
    };
    take_until(&mut client, 1000);
    // From 0 to -1000, and back to 0: nothing may come before the ping is answered.
    client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    client.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0x03, 0xe8]);
    client.send(PING, 0, 0, &[7; 8]);
    let next = client
        .wait_for("data or the ping", |frame| frame.kind == DATA || frame.kind == PING && frame.flags == 1);
    assert_eq!(next.kind, PING);
    // One byte at a time.
    for byte in 1..=20 {
        client.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
        take_until(&mut client, 1000 + byte);
    }
    client.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0x20, 0]);
    take_until(&mut client, 4000);
    // A window of more than 2^31-1 (RFC 9113 section 6.9.1).
    client.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]);
    assert_eq!(client.end(), Some(FLOW_CONTROL_ERROR));
}

/// RFC 9113 section 7.
const FLOW_CONTROL_ERROR: u32 = 3;

/// Memory of the process that no file is behind, in KiB.
pub(crate) fn anonymous(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_configuration_says_how_many_frames_are_a_flood() {
    let backend = Scripted::answering("served");
    let listener = "http2 = { flood = { pings = { burst = 3, per-second = 1 } } }";
    let (server, _dir) = start(&backend.address, listener, "");
    let mut client = Http2::connect(&server.address("web"));
    client.send_raw(&frame(PING, 0, 0, &[0; 8]).repeat(40));
    assert!(matches!(client.end(), Some(ENHANCE_YOUR_CALM) | None));
    server.stdout.wait_for("h2-flood-pings", secs(5));
    // The default allows a hundred at once.
    let (usual, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&usual.address("web"));
    client.send_raw(&frame(PING, 0, 0, &[0; 8]).repeat(40));
    client.get(1, "/");
    assert_eq!(client.response(1).0, Some(200));
}

#[test]
fn reset_streams_never_make_more_requests_than_the_limit_allows() {
    let backend = Scripted::start(deaf);
    let (server, _dir) = start(&backend.address, "limits = { streams = 10 }", "");
    let mut client = Http2::connect(&server.address("web"));
    for n in 0..150u32 {
        client.get(2 * n + 1, "/");
        client.send(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8]);
    }
    client.send(PING, 0, 0, &[7; 8]);
    client.wait_for("the connection goes on", |frame| frame.kind == PING && frame.flags == 1);
    assert!(backend.accepted.load(SeqCst) <= 150, "one connection for each request at most");
    eventually("the backend is free", secs(10), || (backend.open.load(SeqCst) == 0).then_some(()));
    client.get(1001, "/");
    eventually("another request goes on", secs(10), || (backend.open.load(SeqCst) == 1).then_some(()));
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_is_cut_off() {
    let body = vec![b'x'; 4_000_000];
    let backend = Scripted::start(move |talk| {
        while talk.request().is_some() {
            if talk.answer(200, &[], &body).is_err() {
                break;
            }
        }
    });
    let (server, _dir) = start(&backend.address, "timeouts = { write = \"10s\", idle = \"10s\" }", "");
    // The first connection touches what the process needs once.
    let mut first = Http2::connect(&server.address("web"));
    first.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    first.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]);
    first.get(1, "/");
    assert_eq!(first.response(1).0, Some(200));
    let before = anonymous(&server);
    let mut clients: Vec<Http2> = (0..3)
        .map(|_| {
            let mut client = Http2::connect(&server.address("web"));
            client.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
            client.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]);
            for stream in 0..100 {
                client.get(2 * stream + 1, "/");
            }
            client
        })
        .collect();
    eventually("all streams wait", secs(20), || (backend.open.load(SeqCst) >= 100).then_some(()));
    let mut most = 0;
    eventually("the streams are given up", secs(60), || {
        most = most.max(anonymous(&server));
        (backend.open.load(SeqCst) == 0).then_some(())
    });
    // 300 streams of 4 MB each: without bounds this would be 1.2 GB.
    let grown = most.saturating_sub(before);
    println!("{grown} KiB for 3 connections");
    assert!(grown <= 4096 + 3 * 1024, "{grown} KiB for 3 connections");
    drop(clients.pop());
    server.stdout.wait_for("client-timeout", secs(5));
}

#[test]
fn a_stream_whose_backend_takes_nothing_does_not_stop_the_others() {
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let backend = Scripted::start(move |talk| {
        let Some(head) = talk.head() else { return };
        if head.starts_with("POST") {
            // Takes nothing more, but stays until the test is over.
            let _ = held.lock().unwrap().recv();
        } else {
            let _ = talk.answer(200, &[], b"quick");
        }
    });
    let (server, _dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    client.wait_for("the connection's window", |frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
    let post = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/")];
    for stream in 0..20 {
        client.request(2 * stream + 1, 0, &post);
        for _ in 0..3 {
            client.send(DATA, 0, 2 * stream + 1, &[b'x'; 16_000]);
        }
    }
    client.get(101, "/");
    assert_eq!(client.response(101), (Some(200), b"quick".to_vec()));
    drop(release);
}

#[test]
fn a_websocket_runs_over_one_stream() {
    let echo = websocket_echo();
    let (server, _dir) = start(&echo.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    let settings = client.wait_for("settings", |frame| frame.kind == SETTINGS && frame.flags & 1 == 0);
    assert!(settings.payload.chunks(6).any(|setting| setting == [0, 8, 0, 0, 0, 1]), "RFC 8441 section 3");
    client.request(
        1,
        0,
        &[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", "/"),
            ("sec-websocket-version", "13"),
        ],
    );
    let answer = client.wait_for("an answer", |frame| frame.kind == HEADERS && frame.stream == 1);
    assert_eq!((answer.status(), answer.flags & END_STREAM), (Some(200), 0));
    let mask = [1, 2, 3, 4];
    let mut message = vec![0x81, 0x85, 1, 2, 3, 4];
    message.extend(b"hello".iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    client.send(DATA, 0, 1, &message);
    let back = client.wait_for("the echo", |frame| frame.kind == DATA && !frame.payload.is_empty());
    assert_eq!(back.payload, b"\x81\x05hello");
    client.get(3, "/");
    assert_eq!(client.response(3).0, None, "another stream is answered beside it (426)");
    client.send(DATA, END_STREAM, 1, b"");
    client.wait_for("the end of the tunnel", |frame| {
        frame.stream == 1 && (frame.kind == RST_STREAM || frame.flags & END_STREAM != 0)
    });
}

#[test]
fn http2_can_be_switched_off() {
    let backend = Scripted::answering("served");
    let dir = start(&backend.address, "", "").1;
    let text = config(dir.path(), &backend.address, "http2 = \"off\"", "");
    let server = Server::start(&text.replace("tls = {", "http2 = \"off\"\ntls = {"));
    let version = tools::curl_text(&["-k", "--http2", "-w", " %{http_version}", &secure(&server, "/")]);
    assert_eq!(version, "served 1.1");
    let mut client = server.client("web");
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert_eq!(client.response().status, 505);
}

#[test]
fn a_reload_that_switches_http2_off_ends_connections_in_order() {
    let backend = Scripted::answering("served");
    let (server, dir) = start(&backend.address, "", "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/");
    assert_eq!(client.response(1).0, Some(200));
    server.write_config(&config(dir.path(), &backend.address, "http2 = \"off\"", ""));
    assert!(server.ctl(&["reload"]).status.success());
    client.get(3, "/");
    assert_eq!(client.response(3).0, Some(200), "a request on its way is answered");
    assert_eq!(client.end(), Some(0));
}

#[test]
fn h2spec_passes_all_strict_cases_over_tls_while_reloads_run() {
    // The suite opens one stream more than are allowed and wants that one refused: few are allowed, and where several are
    // open, answers take longer than it takes to open them.
    let open = AtomicUsize::new(0);
    let backend = Scripted::start(move |talk| {
        while talk.request().is_some() {
            open.fetch_add(1, SeqCst);
            std::thread::sleep(millis(50));
            if open.load(SeqCst) > 1 {
                std::thread::sleep(millis(1500));
            }
            open.fetch_sub(1, SeqCst);
            if talk.answer(200, &[], b"served").is_err() {
                break;
            }
        }
    });
    let limit = "[listener.secure.limits]\nstreams = 10";
    let (server, dir) = start(&backend.address, "", limit);
    let address = server.address("secure");
    let port = address.rsplit(':').next().unwrap();
    let arguments = ["-h", "localhost", "-p", port, "-t", "-k", "-S", "-o", "5"];
    let (server, ended) = (&server, &AtomicBool::new(false));
    let (output, reloads) = std::thread::scope(|scope| {
        let reloading = scope.spawn(|| {
            let mut reloads = 0;
            while !ended.load(SeqCst) {
                // Every other one changes the listener that is tested, too.
                let change =
                    if reloads % 2 == 0 { "response-headers = { set = { X-Odd = \"1\" } }\n" } else { "" };
                let text = config(dir.path(), &backend.address, "", limit);
                server.write_config(
                    &text.replace("[listener.secure]\n", &format!("[listener.secure]\n{change}")),
                );
                let reload = server.ctl(&["reload"]);
                assert!(reload.status.success(), "{reload:?}");
                reloads += 1;
            }
            reloads
        });
        let output = tools::run_to_end_of(&tools::h2spec(), &arguments, secs(120));
        ended.store(true, SeqCst);
        (output, reloading.join().unwrap())
    });
    assert!(reloads >= 3, "{reloads} reloads");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().rev().find(|line| line.contains(" tests, ")).unwrap_or_default().to_owned();
    assert_eq!(last.trim(), "146 tests, 146 passed, 0 skipped, 0 failed", "{text}");
}
