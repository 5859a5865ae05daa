//! Requests that an HTTP/2 backend did not process (RFC 9113 sections 6.8 and 8.7): they go again by every method,
//! while their body is kept. And backends that violate HTTP/2, which is not the loss of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testing::client::request;
use testing::http2::{block, frame};
use testing::{BackendConnection, Scripted, Server, eventually, peers, secs, tools};

use crate::backend_http2::backend;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn front(backends: &[&str], pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\nhttp2 = \"on\"\n{pool}\n"
    ))
}

/// The DATA of a stream: all, or at least `least` bytes of it.
fn data(talk: &mut BackendConnection, stream: u32, least: usize) -> Vec<u8> {
    let mut data = Vec::new();
    loop {
        let head = talk.client.read_exactly(9);
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = talk.client.read_exactly(length);
        if head[3] == DATA && head[5..9] == stream.to_be_bytes() {
            data.extend(payload);
            if head[4] & END_STREAM != 0 || data.len() >= least {
                return data;
            }
        }
    }
}

fn answer(talk: &mut BackendConnection, stream: u32, body: &[u8]) {
    talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])));
    talk.send(frame(DATA, END_STREAM, stream, body));
}

fn leave(talk: &mut BackendConnection, last: u32) {
    talk.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()));
}

fn refuse(talk: &mut BackendConnection, stream: u32) {
    talk.send(frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()));
}

/// A backend whose connections serve one request each, and then do this to the next one when `least` bytes of its body have
/// come.
fn leaving(least: usize, deed: fn(&mut BackendConnection, u32)) -> Scripted {
    backend(&[], move |talk, _, stream| {
        if stream == 1 {
            let body = data(talk, stream, usize::MAX);
            answer(talk, stream, &body);
        } else {
            data(talk, stream, least);
            deed(talk, stream);
        }
    })
}

#[test]
fn a_post_that_a_backend_did_not_process_is_sent_again_with_its_body() {
    let deeds: [fn(&mut BackendConnection, u32); 2] = [|talk, stream| leave(talk, stream - 2), refuse];
    for deed in deeds {
        let refusing = leaving(1, deed);
        let other = backend(&[], |talk, _, stream| {
            let body = data(talk, stream, usize::MAX);
            answer(talk, stream, &body);
        });
        // One that refuses streams is not asked again for this request.
        let server = front(&[&refusing.address, &other.address], "");
        for length in [1, 3000, 4096] {
            let body: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            for _ in 0..6 {
                let mut client = server.client("web");
                let said = client.request("POST", "/", &[], &body);
                assert_eq!((said.status, said.body == body), (200, true), "{length}: {said:?}");
            }
        }
        let refused = server.backend(&refusing.address);
        assert_eq!(refused["state"], "unchecked", "{refused:#}");
    }
}

#[test]
fn a_body_that_came_after_its_head_and_one_in_chunks_are_kept_too() {
    let refusing = leaving(6, |talk, stream| leave(talk, stream - 2));
    let server = front(&[&refusing.address], "");
    assert_eq!(server.client("web").request("POST", "/", &[], b"first").text(), "first");
    let mut client = server.client("web");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n");
    eventually("the backend has its head", secs(20), || {
        (server.backend(&refusing.address)["sessions"].as_u64() == Some(1)).then_some(())
    });
    client.send("first ");
    eventually("the backend left the connection", secs(20), || {
        (server.backend(&refusing.address)["connects"].as_u64() == Some(2)).then_some(())
    });
    client.send("second");
    assert_eq!(client.response().text(), "first second");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n4\r\ntwo \r\n");
    client.send("5\r\nthree\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nX-Next: 1\r\n\r\n");
    assert_eq!(client.response().text(), "one two three");
}

#[test]
fn one_that_was_sent_beyond_four_kibibytes_is_not_and_the_log_says_why() {
    let deeds: [fn(&mut BackendConnection, u32); 2] = [|talk, stream| leave(talk, stream - 2), refuse];
    for deed in deeds {
        let refusing = leaving(4097, deed);
        let server = front(&[&refusing.address], "passive = \"off\"");
        assert_eq!(server.client("web").request("POST", "/", &[], b"first").text(), "first");
        let said = server.client("web").request("POST", "/long", &[], &[b'x'; 4097]);
        assert_eq!(said.status, 502);
        let line = server.stdout.wait_for("/long", secs(20));
        assert!(line.contains(" failed=not-processed "), "{line}");
        assert!(line.contains(" 502 backend-closed ") && line.contains(" attempts=1 "), "{line}");
    }
}

#[test]
fn a_post_is_never_sent_again_that_may_have_been_processed() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let backend = backend(&[], move |talk, _, stream| {
        data(talk, stream, usize::MAX);
        match count.fetch_add(1, SeqCst) {
            // INTERNAL_ERROR says nothing of what was done.
            0 => drop(talk.send(frame(RST_STREAM, 0, stream, &2_u32.to_be_bytes()))),
            // The stream is the last one that was looked at.
            1 => {
                leave(talk, stream);
                panic!("closes");
            }
            // It began to respond.
            _ => {
                talk.send(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "103")])));
                refuse(talk, stream);
            }
        }
    });
    let server = front(&[&backend.address], "passive = \"off\"");
    for number in 0..3 {
        let mut client = server.client("web");
        client.send(request("POST", &format!("/{number}"), &[], b"body"));
        let line = server.stdout.wait_for(&format!(" target=/{number} "), secs(20));
        assert!(line.contains(" 502 backend-closed ") && line.contains(" failed=closed "), "{line}");
    }
    assert_eq!(asked.load(SeqCst), 3);
}

#[test]
fn repeats_end_at_the_number_of_retries() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let leaving = backend(&[], move |talk, _, stream| {
        count.fetch_add(1, SeqCst);
        leave(talk, stream - 1);
    });
    let server = front(&[&leaving.address], "passive = \"off\"\nretries = 3");
    let said = server.client("web").request("POST", "/", &[], b"body");
    assert_eq!((said.status, asked.load(SeqCst)), (502, 4));
    let line = server.stdout.wait_for(" method=POST ", secs(20));
    assert!(line.contains(" failed=not-processed,not-processed,not-processed,not-processed "), "{line}");
}

#[test]
fn no_post_fails_at_an_nginx_that_ends_each_connection_after_fifty_requests() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("h2.sock");
    let extra = format!(
        "listen unix:{} http2; keepalive_requests 50;\n\
         location /echo {{ if ($request_method != POST) {{ return 405; }} return 200 'done'; }}",
        socket.display()
    );
    let _nginx = peers::nginx(dir.path(), &extra);
    let server = front(&[&format!("unix:{}", socket.display())], "");
    std::fs::write(dir.path().join("body"), vec![b'x'; 1000]).unwrap();
    let body = dir.path().join("body");
    for (protocol, streams) in [("h2c", "8"), ("http/1.1", "1")] {
        let url = format!("http://{}/echo", server.address("web"));
        let arguments =
            ["-n", "4000", "-c", "4", "-m", streams, "-p", protocol, "-d", body.to_str().unwrap()];
        let arguments = [&arguments[..], &["--h1"][..usize::from(protocol == "http/1.1")], &[&*url]].concat();
        let said = tools::run("h2load", &arguments, secs(120));
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let load = tools::parse_h2load(&said);
        assert_eq!((load.succeeded, load.failed), (4000, 0), "{protocol}: {said}");
    }
}

#[test]
fn a_backend_that_violates_http2_gives_a_bad_response() {
    let whole = END_HEADERS | END_STREAM;
    let field_of_the_connection = block(&[(":status", "200"), ("connection", "close")]);
    let answers: [(&str, Vec<u8>); 5] = [
        ("DATA before the head", frame(DATA, END_STREAM, 1, b"body")),
        ("a head without status", frame(HEADERS, whole, 1, &block(&[("x", "1")]))),
        ("a field of the connection", frame(HEADERS, whole, 1, &field_of_the_connection)),
        ("no HPACK", frame(HEADERS, END_HEADERS, 1, &[0xff; 40])),
        ("a frame that is too large", vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]),
    ];
    for (what, answer) in answers {
        let bad = backend(&[], move |talk, _, stream| {
            data(talk, stream, usize::MAX);
            talk.send(&answer);
        });
        let server = front(&[&bad.address], "retries = 0\npassive = \"off\"");
        let said = server.client("web").request("POST", "/", &[], b"body");
        assert_eq!(said.status, 502, "{what}");
        let line = server.stdout.wait_for(" method=POST ", secs(20));
        assert!(line.contains(" 502 backend-bad-response "), "{what}: {line}");
        assert!(line.contains(" failed=bad-response "), "{what}: {line}");
    }
}
