//! Backends that send much work and little data: what they cost is bounded, and clients of others notice nothing.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use testing::http2::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, Http2, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    block, frame,
};
use testing::server::Setup;
use testing::{BackendConnection, Scripted, Server, eventually, millis, secs};

use crate::backend_http2::backend;
use crate::http2::anonymous;

/// `web` leads to a backend of HTTP/2, `/good` of it to one of HTTP/1.
fn config(bad: &str, good: &str, more: &str) -> String {
    format!(
        "[process]\nworkers = 1\n[admin]\nbind = \"127.0.0.1:0\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"bad\"\n\
         [[listener.web.route]]\npath = \"/good\"\npool = \"good\"\n\
         [pool.good]\nbackends = [\"{good}\"]\n\
         [pool.bad]\nbackends = [\"{bad}\"]\nretries = 0\npassive = \"off\"\nhttp2 = \"on\"\n{more}\n"
    )
}

fn start(config: &str) -> Server {
    Setup::new(config).start()
}

/// 1 MiB for each connection and 4 MiB for the process.
#[track_caller]
fn has_grown_little(server: &Server, before: u64, connections: u64) {
    let grown = anonymous(server).saturating_sub(before);
    assert!(grown <= 4096 + 1024 * connections, "{grown} KiB for {connections} connections");
}

fn floods(server: &Server) -> u64 {
    let text = server.metrics();
    let lines = text.lines().filter(|line| line.starts_with("penstock_backend_floods_total"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn begin(talk: &mut BackendConnection, stream: u32) {
    talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
}

#[test]
fn each_flood_ends_the_connection_and_costs_other_clients_nothing() {
    let many =
        |kind: u8, flags: u8, stream: u32, payload: &[u8]| frame(kind, flags, stream, payload).repeat(20_000);
    let endless = |stream: u32| {
        let more = frame(CONTINUATION, 0, stream, &block(&[("x", "y")]));
        [frame(HEADERS, 0, stream, &block(&[(":status", "200")])), more.repeat(20_000)].concat()
    };
    let interim = |stream: u32| {
        let fields = block(&[(":status", "103"), ("link", &"x".repeat(100))]);
        many(HEADERS, END_HEADERS, stream, &fields)
    };
    type Flood<'a> = (&'a str, &'a str, &'a dyn Fn(u32) -> Vec<u8>);
    let kinds: [Flood; 10] = [
        ("ping", "pings", &|_| many(PING, 0, 0, &[0; 8])),
        ("ping acknowledgement", "pings", &|_| many(PING, 1, 0, &[0; 8])),
        ("settings", "settings", &|_| many(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])),
        // Of an older stream: one that is reset has ended.
        ("reset", "resets", &|_| many(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
        ("window update", "windows", &|_| many(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("empty data", "empty", &|stream| {
            let head =
                frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200"), ("content-length", "1")]));
            [head, many(DATA, 0, stream, &[])].concat()
        }),
        ("priority", "other", &|_| many(PRIORITY, 0, 3, &[0, 0, 0, 0, 1])),
        ("unknown frame", "other", &|_| many(0xbb, 0, 0, &[0; 20])),
        ("continuation", "empty", &endless),
        ("interim", "heads", &interim),
    ];
    let next = Arc::new(Mutex::new(Vec::new()));
    let sent = next.clone();
    let bad = backend(&[], move |talk, _, stream| {
        if stream == 1 {
            begin(talk, 1);
            talk.send(frame(DATA, 1, 1, b"ready"));
            return;
        }
        let flood: Vec<u8> = sent.lock().unwrap().clone();
        talk.send(flood);
    });
    let good = Scripted::answering("good");
    let server = start(&config(&bad.address, &good.address, ""));
    let mut beside = server.client("web");
    assert_eq!(beside.get("/good", &[]).text(), "good");
    let mut before = None;
    for (name, word, bytes) in kinds {
        let mut client = server.client("web");
        // The first stream of a connection, so that the flood meets one that is open.
        assert_eq!(client.get("/", &[]).text(), "ready", "{name}");
        let before = *before.get_or_insert_with(|| anonymous(&server));
        let counted = floods(&server);
        *next.lock().unwrap() = bytes(3);
        // Not safe to repeat: a GET would be sent again on a new connection.
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let mut answer = client.try_response(secs(20)).unwrap_or_else(|why| panic!("{name}: {why}"));
        while answer.status == 103 {
            answer = client.try_response(secs(20)).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        assert!(answer.status == 502 || word == "empty", "{name}: {answer:?}");
        assert_eq!(beside.get("/good", &[]).text(), "good", "{name}");
        has_grown_little(&server, before, 2);
        server.stderr.wait_for(&format!("h2-flood-{word}"), secs(20));
        eventually("the flood is counted", secs(20), || (floods(&server) > counted).then_some(()));
    }
}

#[test]
fn bytes_one_by_one_hold_little_and_end_no_request_of_others() {
    const FRAMES: usize = 10_000;
    const CONNECTIONS: u32 = 10;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let bad = backend(&[], move |talk, _, stream| {
        begin(talk, stream);
        if stream > 2 * 2 * CONNECTIONS {
            talk.send(frame(DATA, 1, stream, b"beside"));
            return;
        }
        talk.send(frame(DATA, 0, stream, b"x").repeat(FRAMES));
        count.fetch_add(1, SeqCst);
    });
    let good = Scripted::answering("good");
    let server = start(&config(&bad.address, &good.address, ""));
    assert_eq!(server.client("web").get("/good", &[]).text(), "good");
    let before = anonymous(&server);
    // Clients that read nothing: their windows are closed.
    let mut clients: Vec<Http2> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = Http2::connect(&server.address("web"));
            client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
            // Two requests of a connection have the wide window, and share one connection to the backend.
            for stream in [1, 3] {
                client.get(stream, "/");
            }
            client
        })
        .collect();
    let streams = 2 * CONNECTIONS as usize;
    eventually("all is sent", secs(60), || (sent.load(SeqCst) == streams).then_some(()));
    assert_eq!(server.client("web").get("/", &[]).text(), "beside", "read after all that was sent before");
    has_grown_little(&server, before, u64::from(CONNECTIONS));
    let shown = server.backend(&bad.address);
    assert_eq!(shown["connects"].as_u64(), Some(1), "the connection goes on: {shown:#}");
    for client in &mut clients {
        client.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 100]);
        let data = client.wait_for("its response", |frame| frame.kind == DATA && frame.stream == 1);
        assert!(!data.payload.is_empty() && data.payload.iter().all(|byte| *byte == b'x'), "{data:?}");
    }
}

#[test]
fn a_backend_of_http1_may_send_a_few_interim_responses_and_an_endless_row_of_them_is_a_502() {
    let interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
    let bad = Scripted::start(move |talk| {
        while let Some(request) = talk.request() {
            let count = if request.target == "/few" { 32 } else { 20_000 };
            if !talk.send(interim.repeat(count)) || talk.answer(200, &[], b"after all").is_err() {
                return;
            }
        }
    });
    let good = Scripted::answering("good");
    let text = config(&bad.address, &good.address, "").replace("http2 = \"on\"\n", "");
    let server = start(&text);
    let mut beside = server.client("web");
    let interims = |target: &str| {
        let mut client = server.client("web");
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let mut before = 0;
        loop {
            let answer = client.try_response(secs(20)).unwrap_or_else(|why| panic!("{target}: {why}"));
            if answer.status != 103 {
                return (before, answer);
            }
            before += 1;
        }
    };
    let (before, answer) = interims("/few");
    assert_eq!((before, answer.status, answer.text().as_str()), (32, 200, "after all"));
    assert_eq!(beside.get("/good", &[]).text(), "good");
    let memory = anonymous(&server);
    for _ in 0..4 {
        let (before, answer) = interims("/many");
        assert_eq!((before, answer.status), (32, 502), "{answer:?}");
        assert_eq!(beside.get("/good", &[]).text(), "good");
    }
    has_grown_little(&server, memory, 4);
    eventually("the log has the reason", secs(20), || {
        (server.stdout.count(" 502 backend-bad-response ") == 4).then_some(())
    });
    let verdicts = server.backend(&bad.address).to_string();
    assert!(verdicts.contains("too many interim responses"), "{verdicts}");
}

#[test]
fn interim_responses_for_a_client_that_reads_nothing_hold_little() {
    const INTERIMS: usize = 30_000;
    const BIG: u32 = 30;
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let bad = backend(&[], move |talk, _, stream| {
        if stream > 1 {
            begin(talk, stream);
            talk.send(frame(DATA, 1, stream, b"beside"));
            return;
        }
        let fields = block(&[(":status", "103"), ("link", &"x".repeat(1000))]);
        talk.send(frame(HEADERS, END_HEADERS, stream, &fields).repeat(INTERIMS));
        count.fetch_add(1, SeqCst);
    });
    let written = Arc::new(AtomicUsize::new(0));
    let progress = written.clone();
    let good = Scripted::start(move |talk| {
        let _ = talk.head();
        talk.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        while talk.send([b'x'; 10_000]) {
            progress.fetch_add(1, SeqCst);
        }
    });
    // The connection goes on, so that what waits for the client is bounded by the limits of the stream alone.
    let all_heads = "http2 = { flood = { heads = { burst = 1000000 } } }";
    let text = config(&bad.address, &good.address, "").replace("http2 = \"on\"", all_heads);
    let server = start(&text);
    let mut client = Http2::connect(&server.address("web"));
    // Windows that never close: the client's socket does.
    client.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    client.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0]);
    // Each may fill a part of what may wait for the client.
    for number in 0..BIG {
        client.get(2 * number + 1, "/good");
    }
    let (mut last, mut equal) = (0, 0);
    eventually("the socket is full: no more is read for it", secs(60), || {
        std::thread::sleep(millis(300));
        let now = written.load(SeqCst);
        equal = if now > 0 && now == std::mem::replace(&mut last, now) { equal + 1 } else { 0 };
        (equal >= 5).then_some(())
    });
    let before = anonymous(&server);
    client.get(2 * BIG + 1, "/");
    eventually("all is sent", secs(60), || (done.load(SeqCst) == 1).then_some(()));
    let beside = server.client("web").get("/", &[]);
    assert!(beside.text() == "beside" || beside.status == 502, "all is read: {beside:?}");
    has_grown_little(&server, before, 2);
}

#[test]
fn a_body_that_drips_ends_at_the_limit_of_the_whole() {
    let bad = backend(&[], |talk, _, stream| {
        begin(talk, stream);
        while talk.send(frame(DATA, 0, stream, b"x")) {
            std::thread::sleep(millis(20));
        }
    });
    let good = Scripted::start(|talk| {
        let _ = talk.head();
        talk.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        while talk.send("x") {
            std::thread::sleep(millis(20));
        }
    });
    let text = config(&bad.address, &good.address, "timeouts = { transfer = \"3s\" }");
    let text = text.replace("[pool.bad]", "timeouts = { transfer = \"3s\" }\n[pool.bad]");
    let server = Server::start(&text);
    for path in ["/", "/good"] {
        let mut client = server.client("web");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.try_response(secs(20)).unwrap_or_else(|why| panic!("{path}: {why}"));
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.text().starts_with("xx"), "{path}: {answer:?}");
        server.stdout.wait_for("backend-aborted", secs(20));
    }
}
