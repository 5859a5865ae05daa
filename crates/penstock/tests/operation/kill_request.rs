//! `penstock ctl kill` of one request of HTTP/2: the connection and its other requests go on.

use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use serde_json::Value;
use testing::http2::{HEADERS, Http2, RST_STREAM};
use testing::peers::{Latch, Process};
use testing::{Scripted, Server, eventually, secs, tools};

/// Error code CANCEL (RFC 9113 section 7).
const CANCEL: u32 = 8;

fn start(backend: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\nformat = \"json\"\n\
         [process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n{pool}\n"
    ))
}

/// A backend that answers `/slow` after the gate is opened, `/hang` never, `/half` with the first half of a body, and
/// everything else at once.
fn backend() -> (Scripted, Latch) {
    let gate = Latch::default();
    let seen = gate.clone();
    let backend = Scripted::start(move |talk| {
        while let Some(request) = talk.request() {
            match request.target.as_str() {
                "/slow" => seen.wait(),
                "/hang" => {
                    talk.rest();
                    return;
                }
                "/half" => {
                    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n");
                    talk.send(vec![b'x'; 10_000]);
                    talk.rest();
                    return;
                }
                _ => {}
            }
            if talk.answer(200, &[], b"ok").is_err() {
                return;
            }
        }
    });
    (backend, gate)
}

/// Id of the newest request, when so many run.
fn newest(server: &Server, requests: usize) -> String {
    eventually("the requests run", secs(10), || {
        let answer = server.ctl_json(&["sessions"]);
        let one = &answer["sessions"][0];
        let is_there = one["requests"] == requests && !one["backends"].as_array()?.is_empty();
        is_there.then(|| one["request_id"].as_str().unwrap().to_owned())
    })
}

fn kill(server: &Server, words: &[&str]) -> (Option<i32>, String) {
    let output = server.ctl(&[&["kill"], words].concat());
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

fn logged(server: &Server) -> Vec<Value> {
    let text = std::fs::read_to_string(server.dir.path().join("access.log")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_killed_request_is_cancelled_and_its_neighbours_are_not() {
    let (backend, gate) = backend();
    let server = start(&backend.address, "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/hang");
    let first = newest(&server, 1);
    client.get(3, "/slow");
    let second = newest(&server, 2);
    assert_ne!(first, second);
    let (code, text) = kill(&server, &[&first]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&format!("ended request {first} of session ")), "{text}");
    let reset = client.wait_for("the reset", |frame| frame.kind == RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (1, CANCEL));
    eventually("the backend is let go", secs(10), || (backend.open.load(SeqCst) == 1).then_some(()));
    // A body that is half-way is not taken for complete either.
    client.get(5, "/half");
    client.wait_for("a response", |frame| frame.kind == HEADERS && frame.stream == 5);
    let third = newest(&server, 2);
    assert_eq!(server.ctl_json(&["kill", &third])["ended_requests"], serde_json::json!([third]));
    let reset = client.wait_for("the reset", |frame| frame.kind == RST_STREAM);
    assert_eq!((reset.stream, reset.code()), (5, CANCEL));
    // It is gone, the connection is not.
    let (code, text) = kill(&server, &[&first]);
    assert_eq!(
        (code, text),
        (Some(1), format!("error: no open session {first}: it has ended, or never was\n"))
    );
    gate.open();
    assert_eq!(client.response(3), (Some(200), b"ok".to_vec()));
    client.get(7, "/");
    assert_eq!(client.response(7), (Some(200), b"ok".to_vec()));
    let lines = eventually("all are logged", secs(10), || Some(logged(&server)).filter(|all| all.len() == 4));
    for line in lines {
        let is_killed = [&first, &third].iter().any(|id| line["id"] == id.as_str());
        assert_eq!(line["outcome"], if is_killed { "killed-by-operator" } else { "ok" }, "{line}");
        if line["id"] == third.as_str() {
            assert_eq!(line["status"], 200, "the client has seen it: {line}");
        }
    }
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert!(events.contains(&format!(": ended request {first} of session ")), "{events}");
    assert_eq!(server.ctl_json(&["status"])["connections"]["now"], 1);
}

#[test]
fn a_download_that_is_killed_is_logged_and_counted_with_what_the_client_got() {
    let (backend, _gate) = backend();
    let server = start(&backend.address, "");
    let mut client = server.client("web");
    client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
    let got = client.read_until(b"xxxx").len() + client.read_exactly(9000).len();
    assert!(server.ctl(&["kill", "--client", "127.0.0.0/8", "--yes"]).status.success());
    let line = eventually("it is logged", secs(10), || logged(&server).pop());
    assert_eq!((&line["outcome"], &line["status"]), (&"killed-by-operator".into(), &200.into()), "{line}");
    assert!(line["bytes_out"].as_u64().unwrap() >= got as u64, "{got}: {line}");
    let listener = &server.ctl_json(&["status"])["listeners"][0];
    assert_eq!((&listener["statuses"]["2xx"], &listener["bytes_out"]), (&1.into(), &line["bytes_out"]));
    assert_eq!(server.backend(&backend.address)["statuses"]["2xx"], 1);
}

#[test]
fn a_connection_that_is_named_too_ends_whole() {
    let (backend, _gate) = backend();
    let server = start(&backend.address, "");
    let mut client = Http2::connect(&server.address("web"));
    client.get(1, "/hang");
    let request = newest(&server, 1);
    let session = server.ctl_json(&["sessions"])["sessions"][0]["id"].to_string();
    let answer = server.ctl_json(&["kill", &request, &session]);
    assert_eq!(answer["ended_requests"], serde_json::json!([]), "{answer}");
    assert_eq!(answer["ended"][0].to_string(), session);
    assert_eq!(client.end(), None);
}

#[test]
fn nghttp_loses_one_of_two_requests_on_a_connection() {
    let (backend, _gate) = backend();
    let server = start(&backend.address, "");
    let address = server.address("web");
    let mut command = Command::new(tools::program("nghttp"));
    command.args(["-nv", &format!("http://{address}/hang"), &format!("http://{address}/other")]);
    let mut nghttp = Process::start(&mut command);
    let id = eventually("one request waits, the other is answered", secs(20), || {
        let answer = server.ctl_json(&["sessions"]);
        let one = answer["sessions"].as_array()?.iter().find(|one| one["requests"] == 1)?;
        let is_answered = logged(&server).iter().any(|line| line["target"] == "/other");
        is_answered.then(|| one["request_id"].as_str().unwrap().to_owned())
    });
    let (code, text) = kill(&server, &[&id]);
    assert_eq!(code, Some(0), "{text}");
    nghttp.stdout.wait_for("(error_code=CANCEL(0x08))", secs(20));
    nghttp.wait(secs(20));
    assert_eq!(nghttp.stdout.count("recv RST_STREAM"), 1);
    assert_eq!(nghttp.stdout.count("recv GOAWAY"), 0);
}
