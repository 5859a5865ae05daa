//! Heads and trailers of requests: no flow-control window limits them, so their memory has limits of its own.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use testing::http2::{
    DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, Http2, PING, RST_STREAM, block, frame,
};
use testing::server::Setup;
use testing::{Scripted, Server, eventually, millis, secs};

use crate::http2::anonymous;

/// A field of one byte as a new entry of the dynamic table (RFC 7541 section 6.2.1), and references to it.
pub(crate) fn crumbs(name: &str, count: usize) -> Vec<u8> {
    let mut fields = vec![0x40, u8::try_from(name.len()).unwrap()];
    fields.extend_from_slice(name.as_bytes());
    fields.extend_from_slice(&[1, b'a']);
    fields.resize(fields.len() + count, 0xbe);
    fields
}

fn start(backend: &Scripted) -> Server {
    start_to(&backend.address)
}

fn start_to(backend: &str) -> Server {
    let setup = Setup::new(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\n"
    ));
    setup.start()
}

/// 1 MiB for the connection and 4 MiB for the process, while it floods and after it.
#[track_caller]
fn grows_little<T: Send>(server: &Server, flood: impl Fn() -> T + Sync) {
    // The first touches what the process needs once.
    drop(flood());
    let before = anonymous(server);
    let most = std::thread::scope(|scope| {
        let flooding = scope.spawn(&flood);
        let mut most = 0;
        while !flooding.is_finished() {
            most = anonymous(server).max(most);
            std::thread::sleep(millis(1));
        }
        let open = flooding.join().unwrap();
        most = anonymous(server).max(most);
        drop(open);
        most
    });
    let grown = most.saturating_sub(before);
    println!("{grown} KiB for a connection");
    assert!(grown <= 4096 + 1024, "{grown} KiB for a connection");
}

const PSEUDO: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "t")];

/// 99 requests, each with as many cookies of `size` bytes: the first request puts one into the table of the connection,
/// all others are references to it.
fn with_cookies(size: usize, count: usize) -> Vec<u8> {
    requests(size, count, END_HEADERS | END_STREAM)
}

/// The same with other flags: without `END_STREAM` a body is to follow.
fn requests(size: usize, count: usize, flags: u8) -> Vec<u8> {
    let value = "v".repeat(size);
    // A literal with a name of the static table and a new entry (RFC 7541 section 6.2.1) has another first byte.
    let mut literal = block(&[("", &value)]);
    literal.splice(..2, [0x60]);
    let head = |cookies: &[u8]| [&block(&PSEUDO), cookies].concat();
    let first = frame(HEADERS, flags, 1, &head(&[&literal, &vec![0xbe; count - 1][..]].concat()));
    let rest = (1..99).map(|number| frame(HEADERS, flags, 2 * number + 1, &head(&vec![0xbe; count])));
    first.into_iter().chain(rest.flatten()).collect()
}

/// Length of the head that such a request becomes.
fn head_of(size: usize, count: usize) -> usize {
    "GET / HTTP/1.1\r\nhost: t\r\ncookie: \r\n\r\n".len() + count * size + 2 * (count - 1)
}

/// Room for the heads of one connection's open requests.
const OPEN: usize = 320 * 1024;

/// Takes connections and nothing more.
fn silent() -> (String, Arc<Mutex<Vec<TcpStream>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let taken = Arc::new(Mutex::new(Vec::new()));
    let into = taken.clone();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| into.lock().unwrap().push(stream))
    });
    (address, taken)
}

/// Resident memory in KiB.
fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Resident memory in KiB when it does not change any more.
fn settled(server: &Server) -> usize {
    let (mut last, mut same) = (0, 0);
    eventually("the memory stays the same", secs(60), || {
        let now = resident(server);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same >= 10).then_some(now)
    })
}

/// Memory in KiB that the server needs for connections which send these bytes and wait, each with so many open requests.
fn growth(bytes: &[u8], open: usize) -> usize {
    let (address, taken) = silent();
    let server = start_to(&address);
    let mut clients = Vec::new();
    let mut flood = |count: usize| {
        for _ in 0..count {
            let mut client = Http2::connect(&server.address("web"));
            assert!(client.send_raw(bytes));
            clients.push(client);
        }
        for client in &mut clients {
            // Its answer says that all before it was read.
            client.send(PING, 0, 0, &[7; 8]);
            client.wait_for("the answer to a ping", |frame| frame.kind == PING);
        }
        let all = clients.len() * open;
        eventually("all requests are with the backend", secs(60), || {
            let at_backend = taken.lock().unwrap().len();
            assert!(at_backend <= all, "{at_backend} requests and not {all}");
            (at_backend == all).then_some(())
        });
    };
    // The first touches what the process needs once.
    flood(1);
    let before = settled(&server);
    flood(CONNECTIONS);
    settled(&server).saturating_sub(before)
}

const CONNECTIONS: usize = 6;

#[track_caller]
fn assert_bounded(bytes: &[u8], open: usize) {
    let grown = growth(bytes, open);
    println!("{grown} KiB for {CONNECTIONS} connections");
    assert!(grown <= CONNECTIONS * 1024 + 4096, "{grown} KiB for {CONNECTIONS} connections");
}

#[test]
fn open_requests_with_large_heads_cost_their_heads_once() {
    // All of them have room.
    assert_bounded(&with_cookies(3100, 1), 99);
}

#[test]
fn requests_beyond_the_room_for_heads_wait_and_cost_little() {
    assert_bounded(&with_cookies(3900, 2), OPEN / head_of(3900, 2));
}

#[test]
fn cookies_in_many_crumbs_cost_no_more_than_their_text() {
    assert_bounded(&with_cookies(1, 800), 99);
}

#[test]
fn few_requests_with_a_body_wait_and_others_are_refused_at_once() {
    let (backend, gate) = Scripted::gated();
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    assert!(client.send_raw(&requests(3900, 2, END_HEADERS)));
    let open = OPEN / head_of(3900, 2);
    for _ in open + 4..99 {
        let refused = client.wait_for("a refusal", |frame| frame.kind == RST_STREAM);
        assert_eq!(refused.code(), 7, "REFUSED_STREAM");
    }
    // The body of an open one is not stopped by theirs.
    gate.open();
    assert!(client.send_raw(&frame(DATA, END_STREAM, 1, b"body")));
    client.wait_for("the end of its response", |frame| {
        frame.stream == 1 && matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0
    });
}

#[test]
fn requests_that_wait_for_room_for_their_heads_are_all_served() {
    let (backend, gate) = Scripted::gated();
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    assert!(client.send_raw(&with_cookies(3900, 2)));
    let open = OPEN / head_of(3900, 2);
    eventually("as many are open as have room", secs(20), || {
        (server.backend(&backend.address)["in_flight"].as_u64() == Some(open as u64)).then_some(())
    });
    gate.open();
    for served in 0..99 {
        client.wait_for("the end of a response", |frame| {
            assert_ne!(frame.kind, RST_STREAM, "after {served} responses: {frame:?}");
            matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0
        });
    }
}

#[test]
fn a_request_that_waits_too_long_is_refused_and_the_connection_goes_on() {
    let (backend, gate) = Scripted::gated();
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    assert!(client.send_raw(&with_cookies(3900, 2)));
    let waiting = 99 - OPEN / head_of(3900, 2);
    for _ in 0..waiting {
        let refused = client.wait_for("a refusal", |frame| frame.kind == RST_STREAM);
        assert_eq!(refused.code(), 7, "REFUSED_STREAM");
    }
    gate.open();
    client.get(199, "/");
    client.response(199);
}

#[test]
fn a_request_that_waits_and_is_reset_never_reaches_a_backend() {
    let (backend, gate) = Scripted::gated();
    let server = start(&backend);
    let mut client = Http2::connect(&server.address("web"));
    assert!(client.send_raw(&with_cookies(3900, 2)));
    let open = OPEN / head_of(3900, 2);
    eventually("as many are open as have room", secs(20), || {
        (server.backend(&backend.address)["in_flight"].as_u64() == Some(open as u64)).then_some(())
    });
    // The last ones wait.
    let reset: Vec<u32> = (open as u32 + 1..99).map(|number| 2 * number + 1).collect();
    for stream in &reset {
        client.send(RST_STREAM, 0, *stream, &8_u32.to_be_bytes());
    }
    client.send(PING, 0, 0, &[7; 8]);
    client.wait_for("the answer to a ping", |frame| frame.kind == PING);
    gate.open();
    for _ in 0..99 - reset.len() {
        client.wait_for("the end of a response", |frame| frame.flags & END_STREAM != 0 && frame.stream != 0);
    }
    eventually("every request is counted", secs(10), || {
        (server.ctl_json(&["status"])["listeners"][0]["sessions"].as_u64() == Some(99)).then_some(())
    });
    assert_eq!(server.backend(&backend.address)["sessions"].as_u64(), Some(99 - reset.len() as u64));
}

#[test]
fn trailers_that_come_faster_than_they_are_read_end_their_requests_and_no_other() {
    let backend = Scripted::answering("served");
    let server = start(&backend);
    let head = block(&[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "test")]);
    let streams = (0..99).map(|number| 2 * number + 1);
    let mut bytes: Vec<u8> =
        streams.clone().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head)).collect();
    // 256 KiB in memory are reached after three of them; all are two reads of the server.
    let trailers = crumbs("x", 900);
    bytes.extend(streams.flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)));
    grows_little(&server, || {
        let mut client = Http2::connect(&server.address("web"));
        assert!(client.send_raw(&bytes));
        let reset = client.wait_for("a request is ended", |frame| frame.kind == RST_STREAM);
        assert_eq!(reset.code(), ENHANCE_YOUR_CALM);
        client.send(PING, 0, 0, &[7; 8]);
        client.wait_for("all before it was read", |frame| frame.kind == PING);
        client
    });
    let mut other = Http2::connect(&server.address("web"));
    other.get(1, "/");
    assert_eq!(other.response(1).0, Some(200));
}

/// All heads arrive in a few reads. Decoded at once they would cost 5 MiB; each is accepted before the next is decoded.
#[test]
fn heads_that_come_faster_than_they_are_accepted_are_decoded_one_by_one_and_all_are_served() {
    let backend = Scripted::answering("served");
    let server = start(&backend);
    let mut head = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "test")]);
    head.extend(crumbs("cookie", 400));
    let flags = END_HEADERS | END_STREAM;
    let bytes: Vec<u8> = (0..99).flat_map(|number| frame(HEADERS, flags, 2 * number + 1, &head)).collect();
    grows_little(&server, || {
        let mut client = Http2::connect(&server.address("web"));
        assert!(client.send_raw(&bytes));
        for served in 0..99 {
            let end = client.wait_for("the end of a response", |frame| {
                assert_ne!(frame.kind, RST_STREAM, "after {served} responses: {frame:?}");
                frame.kind == DATA && frame.flags & END_STREAM != 0
            });
            assert_eq!(end.payload, b"served");
        }
        client
    });
}
