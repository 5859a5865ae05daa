//! Backends that speak HTTP/2: a real one, and scripted ones that break the rules, refuse, leave, or die.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testing::client::{Complete, request};
use testing::http2::{Http2, block, frame};
use testing::peers::Latch;
use testing::pki::{Pki, Time};
use testing::{BackendConnection, Scripted, Server, eventually, peers, secs, tools};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A backend of raw frames: `on_request` is called for every HEADERS with the number of the connection and the stream.
pub(crate) fn backend(
    settings: &[(u16, u32)],
    on_request: impl Fn(&mut BackendConnection, usize, u32) + Send + Sync + 'static,
) -> Scripted {
    let settings: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
        .collect();
    gated_backend(move |_| settings.clone(), move |talk, number, stream, _| on_request(talk, number, stream))
}

/// The same where `settings` gives them for each connection, once it is to begin, and `on_request` gets the fields as well.
pub(crate) fn gated_backend(
    settings: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
    on_request: impl Fn(&mut BackendConnection, usize, u32, &[u8]) + Send + Sync + 'static,
) -> Scripted {
    Scripted::start(move |talk| {
        talk.client.read_exactly(24);
        talk.send(frame(SETTINGS, 0, 0, &settings(talk.number)));
        loop {
            let head = talk.client.read_exactly(9);
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let payload = talk.client.read_exactly(length);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match head[3] {
                SETTINGS if head[4] & ACK == 0 => drop(talk.send(frame(SETTINGS, ACK, 0, &[]))),
                PING if head[4] & ACK == 0 => drop(talk.send(frame(PING, ACK, 0, &payload))),
                HEADERS => on_request(talk, talk.number, stream, &payload),
                _ => {}
            }
        }
    })
}

fn answer(talk: &mut BackendConnection, stream: u32, fields: &[(&str, &str)], body: &[u8]) {
    let mut all = vec![(":status", "200")];
    all.extend_from_slice(fields);
    talk.send(frame(HEADERS, END_HEADERS, stream, &block(&all)));
    talk.send(frame(DATA, END_STREAM, stream, body));
}

fn config(backends: &[&str], more: &str) -> String {
    format!(
        "[process]\nworkers = 1\n[admin]\nbind = \"127.0.0.1:0\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\nhttp2 = \"on\"\n{more}\n"
    )
}

#[test]
fn clients_of_both_versions_reach_a_real_backend_that_checks_find_up() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let files = pki.issue("backend", &["127.0.0.1"], Time::Now);
    std::fs::write(dir.path().join("page"), vec![b'x'; 300_000]).unwrap();
    let port = testing::port::free();
    let mut command = Command::new(tools::program("nghttpd"));
    command.args(["-a", "127.0.0.1", "-d"]).arg(dir.path()).arg(port.to_string());
    let _nghttpd = peers::Process::start(command.arg(&files.key).arg(&files.certificate));
    let address = format!("127.0.0.1:{port}");
    eventually("nghttpd listens", secs(10), || std::net::TcpStream::connect(&address).ok());
    let tls = format!("tls = {{ ca = \"{}\" }}\nhealth = {{ http = \"/page\" }}", pki.authority().display());
    let server = Server::start(&config(&[&address], &tls));
    eventually("the check passes", secs(10), || (server.health(&address) == "up").then_some(()));
    let url = format!("http://{}/page", server.address("web"));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        assert_eq!(tools::curl_text(&[version, &url]).len(), 300_000, "{version}");
    }
    let connects: u64 = server.backend(&address)["connects"].as_u64().unwrap();
    assert_eq!(connects, 1, "they share a connection");
}

#[test]
fn a_backend_that_does_not_speak_it_is_an_answer_of_502_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let old = Scripted::answering("hello");
    let server = Server::start(&config(&[&old.address], ""));
    assert_eq!(server.client("web").get("/", &[]).status, 502);
    let shown = format!("{:#}", server.backend(&old.address));
    assert!(shown.contains("HTTP/2: "), "{shown}");
    let tls = testing::pki::s_server(&pki.issue("old", &["127.0.0.1"], Time::Now), &[]);
    let more = format!("tls = {{ ca = \"{}\" }}", pki.authority().display());
    let server = Server::start(&config(&[&tls.address], &more));
    assert_eq!(server.client("web").get("/", &[]).status, 502);
    let shown = format!("{:#}", server.backend(&tls.address));
    assert!(shown.contains("does not speak HTTP/2"), "{shown}");
}

#[test]
fn nothing_of_a_malformed_response_reaches_a_client() {
    let vectors: [&[(&str, &str)]; 14] = [
        &[("x", "a\r\nset-cookie: b")],
        &[("x", "a\nb")],
        &[("x", "a\0b")],
        &[("X-Upper", "a")],
        &[("x y", "a")],
        &[("x:y", "a")],
        &[("x\r\ny", "a")],
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("keep-alive", "timeout=1")],
        &[("content-length", "4"), ("content-length", "5")],
        &[("content-length", "+4")],
        &[("content-length", "3")],
        &[("content-length", "5")],
    ];
    for fields in vectors {
        let fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let bad = fields.clone();
        let backend = backend(&[], move |talk, _, stream| {
            let fields: Vec<(&str, &str)> = bad.iter().map(|(name, value)| (&**name, &**value)).collect();
            answer(talk, stream, &fields, b"body");
        });
        let server = Server::start(&config(&[&backend.address], "retries = 0"));
        let mut client = server.client("web");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.try_response(secs(10)).unwrap();
        assert!(answer.status == 502 || answer.complete == Complete::Truncated, "{fields:?}: {answer:?}");
        assert!(!answer.text().contains("set-cookie"), "{answer:?}");
    }
}

#[test]
fn a_response_whose_trailers_have_a_pseudo_field_never_ends_whole() {
    let backend = backend(&[], |talk, _, stream| {
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        talk.send(frame(DATA, 0, stream, b"body"));
        talk.send(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &block(&[(":status", "500"), ("x-sum", "1")]),
        ));
    });
    let server = Server::start(&config(&[&backend.address], "retries = 0"));
    let mut client = server.client("web");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.try_response(secs(10)).unwrap();
    assert!(answer.status == 502 || answer.complete == Complete::Truncated, "{answer:?}");
}

#[test]
fn an_answer_before_the_end_of_the_body_is_passed_on_though_the_backend_closes_at_once() {
    let backend = backend(&[], |talk, _, stream| {
        let head = frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "413")]));
        let goaway = [stream.to_be_bytes(), [0; 4]].concat();
        talk.send(
            [head, frame(DATA, END_STREAM, stream, b"too large"), frame(GOAWAY, 0, 0, &goaway)].concat(),
        );
        // What the client has sent is not read: the kernel resets the connection.
        let _ = talk.client.stream.shutdown(std::net::Shutdown::Both);
    });
    let server = Server::start(&config(&[&backend.address], "passive = \"off\""));
    for _ in 0..20 {
        let mut client = server.client("web");
        // It may be told to stop before it has sent all.
        let _ = client.try_send(request("POST", "/", &[], &[b'x'; 300_000]));
        let answer = client.try_response(secs(20)).unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (413, "too large"));
    }
}

#[test]
fn a_silent_grpc_stream_outlives_the_time_for_bodies_and_another_request_does_not() {
    let backend = backend(&[], |talk, _, stream| {
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        std::thread::sleep(secs(5));
        talk.send(frame(DATA, 0, stream, b"message"));
        talk.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("grpc-status", "0")])));
    });
    let text = config(&[&backend.address], "timeouts = { body = \"300ms\" }");
    let text = text.replace("pool = \"app\"\n", "pool = \"app\"\ntimeouts = { body = \"300ms\" }\n");
    let server = Server::start(&text);
    let call = |kind: &str| {
        let mut client = Http2::connect(&server.address("web"));
        let post = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/"),
            ("content-type", kind),
        ];
        client.request(1, 0, &post);
        client
            .wait_for("an end", |frame| {
                frame.kind == RST_STREAM || frame.flags & END_STREAM != 0 && frame.stream == 1
            })
            .kind
    };
    assert_eq!(call("application/grpc+proto"), HEADERS, "the trailers");
    assert_ne!(call("text/plain"), HEADERS);
}

#[test]
fn refused_streams_and_those_behind_a_goaway_are_asked_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let backend = backend(&[], move |talk, _, stream| match count.fetch_add(1, SeqCst) {
        0 => answer(talk, stream, &[], b"first"),
        1 => drop(talk.send(frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()))),
        2 => answer(talk, stream, &[], b"second"),
        3 => {
            // Nothing above the stream that was answered has been looked at.
            let last = stream.saturating_sub(2).to_be_bytes();
            talk.send(frame(GOAWAY, 0, 0, &[&last[..], &[0; 4]].concat()));
        }
        _ => answer(talk, stream, &[], b"third"),
    });
    let server = Server::start(&config(&[&backend.address], "passive = \"off\""));
    let mut client = server.client("web");
    for answer in ["first", "second", "third"] {
        let said = client.request("POST", "/", &[], b"");
        assert_eq!(said.text(), answer, "nothing was done with it, so even a POST is safe");
    }
    assert_eq!(asked.load(SeqCst), 5);
}

#[test]
fn a_backend_that_dies_in_the_middle_cuts_the_answer_and_the_next_request_gets_a_new_connection() {
    let backend = backend(&[], |talk, number, stream| {
        if number > 0 {
            return answer(talk, stream, &[], b"whole");
        }
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        talk.send(frame(DATA, 0, stream, b"part"));
        panic!("dies");
    });
    let server = Server::start(&config(&[&backend.address], ""));
    let mut client = server.client("web");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.try_response(secs(10)).unwrap().complete, Complete::Truncated);
    assert_eq!(server.client("web").get("/", &[]).text(), "whole");
}

#[test]
fn more_requests_than_a_connection_takes_open_another() {
    // SETTINGS_MAX_CONCURRENT_STREAMS of 2; the first two answers wait for the third request.
    let third = Arc::new(AtomicUsize::new(0));
    let seen = third.clone();
    let backend = backend(&[(3, 2)], move |talk, number, stream| match (number, stream) {
        (0, 1) => {}
        (0, _) => {
            eventually("the third request comes", secs(10), || (seen.load(SeqCst) > 0).then_some(()));
            answer(talk, 1, &[], b"0");
            answer(talk, stream, &[], b"0");
        }
        (number, _) => {
            seen.fetch_add(1, SeqCst);
            answer(talk, stream, &[], format!("{number}").as_bytes());
        }
    });
    let server = Server::start(&config(&[&backend.address], ""));
    let mut clients: Vec<_> = (0..3).map(|_| server.client("web")).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut answers: Vec<String> = clients.iter_mut().map(|client| client.response().text()).collect();
    answers.sort();
    assert_eq!(answers, ["0", "0", "1"]);
}

#[test]
fn a_backend_that_floods_a_client_who_reads_nothing_is_held_back() {
    // The backend is allowed one window; what it sends beyond ends the connection, so it must not be told of more.
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let backend = backend(&[], move |talk, _, stream| {
        if stream > 1 {
            return answer(talk, stream, &[], b"beside");
        }
        talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
        for _ in 0..4 {
            talk.send(frame(DATA, 0, stream, &[b'x'; 16 * 1024 - 1]));
            count.fetch_add(16 * 1024 - 1, SeqCst);
        }
    });
    let server = Server::start(&config(&[&backend.address], ""));
    let mut slow = server.client("web");
    slow.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("one window is full", secs(10), || (sent.load(SeqCst) >= 65_000).then_some(()));
    assert_eq!(server.client("web").get("/", &[]).text(), "beside", "another stream goes on");
}

#[test]
fn a_body_goes_through_tiny_windows_whole() {
    // SETTINGS_INITIAL_WINDOW_SIZE of 1: every byte waits for a WINDOW_UPDATE.
    let dir = tempfile::tempdir().unwrap();
    let port = testing::port::free();
    let mut command = Command::new(tools::program("nghttpd"));
    command.args(["--no-tls", "--echo-upload", "-w", "4", "-W", "4", "-a", "127.0.0.1", "-d"]);
    let _nghttpd = peers::Process::start(command.arg(dir.path()).arg(port.to_string()));
    let address = format!("127.0.0.1:{port}");
    eventually("nghttpd listens", secs(10), || std::net::TcpStream::connect(&address).ok());
    let server = Server::start(&config(&[&address], ""));
    let body: Vec<u8> = (0..20_000_u32).flat_map(u32::to_be_bytes).collect();
    let answer = server.client("web").request("POST", "/", &[], &body);
    assert_eq!((answer.status, answer.body == body), (200, true));
}

#[test]
fn a_target_that_http2_cannot_say_is_the_fault_of_the_client_and_of_no_backend() {
    let backends = [0, 1].map(|_| backend(&[], |talk, _, stream| answer(talk, stream, &[], b"fine")));
    let addresses = [&*backends[0].address, &*backends[1].address];
    let server = Server::start(&config(&addresses, "retries = 3"));
    for target in ["/<x>", "/a`b", "/?q=\"x\"", "/a?b<c"] {
        for _ in 0..4 {
            let said = server.client("web").request("POST", target, &[], b"body");
            assert_eq!(said.status, 400, "{target}: {}", said.text());
        }
    }
    for address in addresses {
        let shown = server.backend(address);
        assert_eq!(shown["failures"], 0, "{shown:#}");
        assert_ne!(shown["state"], "ejected", "{shown:#}");
    }
    assert_eq!(server.client("web").get("/", &[]).text(), "fine");
}

/// SETTINGS_MAX_CONCURRENT_STREAMS of 1 (RFC 9113 section 6.5.2).
const ONE_AT_A_TIME: [u8; 6] = [0, 3, 0, 0, 0, 1];

/// Its requests so far have been read.
fn read_so_far(client: &mut Http2) {
    client.send(PING, 0, 0, b"penstock");
    client.wait_for("the answer to PING", |frame| frame.kind == PING && frame.flags & ACK != 0);
}

fn has_accepted(backend: &Scripted, connections: usize) {
    eventually("connections", secs(10), || (backend.accepted.load(SeqCst) == connections).then_some(()));
}

fn are_in_flight(server: &Server, backend: &Scripted, requests: usize) {
    eventually("requests", secs(10), || {
        (server.backend(&backend.address)["in_flight"] == requests).then_some(())
    });
}

#[test]
fn requests_go_on_over_the_connection_that_there_is_while_a_further_one_hangs() {
    let (first_may_answer, never) = (Latch::default(), Latch::default());
    let (seen, hangs) = (first_may_answer.clone(), never.clone());
    let settings = move |number| {
        if number > 0 {
            hangs.wait();
        }
        ONE_AT_A_TIME.to_vec()
    };
    let backend = gated_backend(settings, move |talk, _, stream, _| {
        seen.wait();
        answer(talk, stream, &[], b"ok");
    });
    let more = "passive = { failures = 1 }\ntimeouts = { connect = \"60s\", queue = \"60s\" }";
    let server = Server::start(&config(&[&backend.address], more));
    let mut clients: Vec<_> = (0..10).map(|_| server.client("web")).collect();
    clients.iter_mut().for_each(|client| client.send(request("GET", "/", &[], b"")));
    has_accepted(&backend, 2);
    are_in_flight(&server, &backend, clients.len());
    first_may_answer.open();
    for client in &mut clients {
        assert_eq!(client.response().text(), "ok");
    }
    let shown = server.backend(&backend.address);
    assert_eq!((&shown["failures"], &shown["connects"]), (&0.into(), &1.into()), "{shown:#}");
    assert_eq!(backend.accepted.load(SeqCst), 2, "one is opened at a time");
    never.open();
}

#[test]
fn requests_of_a_client_that_wait_for_a_connection_reach_the_backend_in_their_order() {
    const REQUESTS: usize = 30;
    let gate = Latch::default();
    let (seen, lengths) = (gate.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let noted = lengths.clone();
    let settings = move |_| {
        seen.wait();
        Vec::new()
    };
    let backend = gated_backend(settings, move |talk, number, stream, fields| {
        noted.lock().unwrap().push((number, fields.len()));
        answer(talk, stream, &[], b"ok");
    });
    let server = Server::start(&config(&[&backend.address], ""));
    let mut client = Http2::connect(&server.address("web"));
    // Each is longer than the one before, by more than the other fields vary.
    for number in 0..REQUESTS {
        client.get(2 * number as u32 + 1, &format!("/{}", "x".repeat(100 * number)));
    }
    read_so_far(&mut client);
    // The first two of a client get wide windows, and so a connection of their own.
    has_accepted(&backend, 2);
    are_in_flight(&server, &backend, REQUESTS);
    gate.open();
    eventually("all have come", secs(20), || (lengths.lock().unwrap().len() == REQUESTS).then_some(()));
    for connection in 0..2 {
        let of_this = lengths.lock().unwrap().clone().into_iter().filter(|(number, _)| *number == connection);
        // The first one says every field in full, those behind it refer to that.
        let lengths: Vec<_> = of_this.map(|(_, length)| length).skip(1).collect();
        assert!(!lengths.is_empty() && lengths.is_sorted(), "{lengths:?}");
    }
    let shown = server.backend(&backend.address);
    assert_eq!((&shown["connects"], &shown["reused"]), (&2.into(), &(REQUESTS - 2).into()), "{shown:#}");
}

#[test]
fn a_connection_whose_request_is_cancelled_while_it_is_opened_carries_those_of_others() {
    let gate = Latch::default();
    let seen = gate.clone();
    let settings = move |_| {
        seen.wait();
        Vec::new()
    };
    let backend = gated_backend(settings, |talk, _, stream, _| answer(talk, stream, &[], b"ok"));
    let server = Server::start(&config(&[&backend.address], ""));
    let [mut first, mut other] = [0, 1].map(|_| Http2::connect(&server.address("web")));
    first.get(1, "/");
    has_accepted(&backend, 1);
    other.get(1, "/");
    read_so_far(&mut other);
    first.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    read_so_far(&mut first);
    are_in_flight(&server, &backend, 1);
    gate.open();
    assert_eq!(other.response(1).0, Some(200));
    first.get(3, "/");
    assert_eq!(first.response(3).0, Some(200));
    assert_eq!(backend.accepted.load(SeqCst), 1);
}

#[test]
fn a_request_that_waited_for_a_connection_which_the_backend_then_closes_is_sent_again_and_blames_none() {
    let (second_may_begin, accepted) = (Latch::default(), Arc::new(AtomicUsize::new(0)));
    let (seen, opened) = (second_may_begin.clone(), accepted.clone());
    let settings = move |number| {
        opened.fetch_add(1, SeqCst);
        if number > 0 {
            seen.wait();
        }
        ONE_AT_A_TIME.to_vec()
    };
    let backend = gated_backend(settings, move |talk, number, stream, _| match (number, stream) {
        (0, 1) => {
            eventually("another is opened", secs(10), || (accepted.load(SeqCst) == 2).then_some(()));
            answer(talk, stream, &[], b"first");
        }
        (0, _) => {
            second_may_begin.open();
            panic!("closes as if it had been idle for too long");
        }
        _ => answer(talk, stream, &[], b"again"),
    });
    let more = "retries = 0\npassive = { failures = 1 }\ntimeouts = { connect = \"60s\" }";
    let server = Server::start(&config(&[&backend.address], more));
    let [mut first, mut second] = [0, 1].map(|_| server.client("web"));
    first.send(request("GET", "/", &[], b""));
    has_accepted(&backend, 1);
    are_in_flight(&server, &backend, 1);
    second.send(request("GET", "/", &[], b""));
    assert_eq!(first.response().text(), "first");
    assert_eq!(second.response().text(), "again");
    let shown = server.backend(&backend.address);
    assert_eq!(shown["failures"], 0, "{shown:#}");
}
