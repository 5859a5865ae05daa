//! `penstock ctl sessions` and `kill`: what is open, and its end.

use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

use serde_json::Value;
use testing::client::Stream;
use testing::http2::{END_HEADERS, END_STREAM, Http2};
use testing::peers::{self, Latch, Process};
use testing::websocket::WebSocket;
use testing::{Client, Scripted, Server, eventually, secs, tools};

fn start(backends: &str, more: &str) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\nformat = \"json\"\n\
         [process]\nworkers = 2\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{backends}]\n{more}\n"
    ))
}

fn sessions(server: &Server, arguments: &[&str]) -> Vec<Value> {
    let answer = server.ctl_json(&[&["sessions"], arguments].concat());
    answer["sessions"].as_array().unwrap_or_else(|| panic!("{answer:#}")).clone()
}

/// Waits until the sessions are so many, and returns them.
fn open(server: &Server, count: usize, arguments: &[&str]) -> Vec<Value> {
    eventually("the sessions are open", secs(10), || {
        Some(sessions(server, arguments)).filter(|all| all.len() == count)
    })
}

fn said(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
    let output = server.ctl(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The lines of the access log with this outcome.
fn logged(server: &Server, outcome: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(server.dir.path().join("access.log")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["outcome"] == outcome).collect()
}

fn local(client: &Client) -> String {
    let Stream::Tcp(stream) = &client.stream else { panic!("the listener has a TCP address") };
    stream.local_addr().unwrap().to_string()
}

/// A backend that echoes what it gets, by another program.
fn echo() -> Process {
    let mut command = Command::new(tools::program("socat"));
    command.args(["-d", "-d", "TCP-LISTEN:0,bind=127.0.0.1,fork,reuseaddr", "PIPE"]).stdin(Stdio::null());
    let mut process = Process::start(&mut command);
    let line = process.stderr.wait_for("listening on", secs(10));
    process.address = line.rsplit(' ').next().unwrap().to_owned();
    process
}

/// A backend that never answers, and leaves when it is left.
fn silent() -> Scripted {
    Scripted::start(|talk| {
        talk.request();
        talk.rest();
    })
}

/// A request that waits for its response.
fn waiting(server: &Server, id: &str) -> Client {
    let mut client = server.client("web");
    client.send(format!("GET /slow HTTP/1.1\r\nHost: a\r\nX-Request-Id: {id}\r\n\r\n"));
    client
}

#[test]
fn sessions_of_every_protocol_are_shown_with_what_the_kernel_knows() {
    let echo = peers::websocket_echo();
    let server = start(&format!("\"{}\"", echo.address), "");
    let mut socket = WebSocket::open(&server.address("web"), "/");
    socket.echo("hello");
    let all = open(&server, 1, &[]);
    let one = &all[0];
    assert_eq!((&one["protocol"], &one["requests"]), (&"websocket".into(), &1.into()), "{one:#}");
    assert_eq!(one["backends"][0]["name"], echo.address.as_str(), "{one:#}");
    assert_eq!(one["listener"], "web");
    assert!(one["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{one:#}");
    assert!(one["bytes_in"].as_u64().unwrap() > 0 && one["bytes_out"].as_u64().unwrap() > 0, "{one:#}");
    for side in ["client_tcp", "backend_tcp"] {
        assert!(one[side]["rtt_ms"].as_f64().unwrap() > 0.0, "{one:#}");
        assert_eq!(one[side]["retransmits"], 0, "{one:#}");
    }
    assert!(one["age_seconds"].as_f64().unwrap() < 60.0 && one["idle_seconds"].is_number(), "{one:#}");
    assert_eq!(one["request_id"].as_str().unwrap().len(), 32, "{one:#}");
    assert!(one["rate"].is_number(), "measured between two looks: {one:#}");
    // A TCP session that sends nothing has no task after a while, and is shown all the same.
    let raw = server.client("raw");
    let shown = open(&server, 1, &["--listener", "raw"]);
    assert_eq!((&shown[0]["protocol"], &shown[0]["client"]), (&"tcp".into(), &local(&raw).into()));
    let text = said(&server, &["sessions", "--sort", "newest"]).1;
    assert!(text.contains("retransmits") && text.contains("websocket"), "{text}");
    assert!(text.lines().nth(1).unwrap().contains(" raw "), "the newest first: {text}");
    let text = said(&server, &["sessions", "--limit", "1"]).1;
    assert!(text.contains("and 1 more: --limit 2 shows all"), "{text}");
    drop((socket, raw));
    open(&server, 0, &[]);
    assert_eq!(said(&server, &["sessions"]), (Some(0), "no open session matches\n".to_owned()));
}

#[test]
fn an_http2_connection_is_one_session_with_its_open_requests() {
    let (one, gate) = Scripted::gated();
    let server = start(&format!("\"{}\"", one.address), "");
    let mut client = Http2::connect(&server.address("web"));
    for stream in [1, 3, 5] {
        client.request(
            stream,
            END_HEADERS | END_STREAM,
            &[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")],
        );
    }
    let connection = eventually("three requests run", secs(10), || {
        let all = sessions(&server, &["--backend", &one.address]);
        (all.len() == 1 && all[0]["requests"] == 3).then(|| all[0].clone())
    });
    assert_eq!(connection["protocol"], "http/2", "{connection:#}");
    gate.open();
    eventually("none runs", secs(10), || (sessions(&server, &[])[0]["requests"] == 0).then_some(()));
    let id = connection["id"].to_string();
    assert_eq!(said(&server, &["kill", &id]).0, Some(0));
    open(&server, 0, &[]);
}

#[test]
fn bytes_are_shown_while_they_move() {
    let gate = Latch::default();
    let seen = gate.clone();
    let backend = Scripted::start(move |talk| {
        if talk.request().is_some() {
            talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n");
            talk.send(vec![b'x'; 100_000]);
            seen.wait();
            talk.send(vec![b'x'; 100_000]);
        }
    });
    let server = start(&format!("\"{}\"", backend.address), "");
    let mut client = waiting(&server, "download");
    client.read_until(b"\r\n\r\n");
    client.read_exactly(100_000);
    let one = open(&server, 1, &["--sort", "bytes"]).remove(0);
    assert_eq!(one["bytes_out"], 100_000, "{one:#}");
    gate.open();
    client.read_exactly(100_000);
    let all = eventually("the request has ended", secs(10), || {
        Some(sessions(&server, &[])).filter(|all| all.first().is_some_and(|one| one["requests"] == 0))
    });
    assert!(all[0]["bytes_out"].as_u64().unwrap() > 200_000, "{all:#?}");
    assert!(all[0]["bytes_in"].as_u64().unwrap() > 0, "{all:#?}");
}

#[test]
fn body_bytes_that_come_with_the_head_are_counted_once() {
    let backend = Scripted::answering("x");
    let server = start(&format!("\"{}\"", backend.address), "");
    let mut client = server.client("web");
    let head = "POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n";
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(format!("{head}{}{next}", "b".repeat(3000)));
    assert_eq!((client.response().status, client.response().status), (200, 200));
    let chunked = "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = "5\r\nhello\r\n0\r\n\r\n";
    client.send(format!("{chunked}{body}"));
    assert_eq!(client.response().status, 200);
    // A part with the head, and the rest later.
    client.send(format!("{head}{}", "b".repeat(1000)));
    eventually("the request runs", secs(10), || (sessions(&server, &[])[0]["requests"] == 1).then_some(()));
    client.send("b".repeat(2000));
    assert_eq!(client.response().status, 200);
    let lines = eventually("all are logged", secs(10), || {
        Some(logged(&server, "ok")).filter(|lines| lines.len() == 4)
    });
    let counted: Vec<_> = lines.iter().map(|line| line["bytes_in"].as_u64().unwrap() as usize).collect();
    let whole = head.len() + 3000;
    assert_eq!(counted, [whole, next.len(), chunked.len() + body.len(), whole]);
    let shown = sessions(&server, &[])[0]["bytes_in"].as_u64().unwrap() as usize;
    assert_eq!(shown, counted.iter().sum::<usize>());
}

#[test]
fn a_killed_session_ends_on_both_sides_and_everything_says_why() {
    let slow = silent();
    let server = start(&format!("\"{}\"", slow.address), "");
    // A request that waits, named by the id of the request that the access log has.
    let mut request = waiting(&server, "ignored-from-strangers");
    let shown = open(&server, 1, &[]).remove(0);
    let id = shown["request_id"].as_str().unwrap();
    let (code, text) = said(&server, &["kill", id]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&format!("ended session {}: listener web", shown["id"])), "{text}");
    let (_, end) = request.read_to_end();
    assert_eq!(end, testing::client::End::Reset, "the client sees that it was cut");
    eventually("the backend is let go", secs(10), || (slow.open.load(SeqCst) == 0).then_some(()));
    let line = eventually("the log says it", secs(10), || logged(&server, "killed-by-operator").pop());
    assert_eq!((&line["id"], &line["listener"]), (&id.into(), &"web".into()), "{line:#}");
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["listeners"][0]["endings"]["killed-by-operator"], 1, "{status:#}");
    let events = said(&server, &["events"]).1;
    let uid = nix::unistd::geteuid();
    assert!(events.contains(&format!("(uid {uid}, pid ")) && events.contains(": ended session "), "{events}");
    assert_eq!(status["connections"]["now"], 0, "{status:#}");
    // It is gone.
    let (code, text) = said(&server, &["kill", &shown["id"].to_string()]);
    assert_eq!(code, Some(1));
    assert_eq!(text, format!("error: no open session {}: it has ended, or never was\n", shown["id"]));
}

#[test]
fn idle_sessions_without_a_task_are_killed_too() {
    let echo = echo();
    let server = start(&format!("\"{}\"", echo.address), "");
    let mut raw = server.client("raw");
    raw.send(b"ping");
    raw.read_exactly(4);
    // It waits without a task from 250 ms of silence on.
    let rests = || {
        let one = open(&server, 1, &["--listener", "raw"]).remove(0);
        (one["idle_seconds"].as_f64().unwrap() > 1.0).then_some(one)
    };
    let shown = eventually("the session rests", secs(20), rests);
    assert_eq!(shown["bytes_in"], 4, "{shown:#}");
    assert_eq!(said(&server, &["kill", &local(&raw)]).0, Some(0));
    assert_eq!(raw.read_to_end().1, testing::client::End::Reset);
    eventually("the log says it", secs(10), || logged(&server, "killed-by-operator").pop());
    // A connection between two requests.
    let http = Scripted::answering("x");
    assert!(server.ctl(&["add", "pool.app.backends", &http.address]).status.success());
    assert!(server.ctl(&["remove", "pool.app.backends", &echo.address]).status.success());
    let mut kept = server.client("web");
    assert_eq!(kept.get("/", &[]).status, 200);
    eventually("it rests", secs(20), || {
        let one = open(&server, 1, &["--listener", "web"]).remove(0);
        (one["idle_seconds"].as_f64().unwrap() > 1.5).then_some(())
    });
    assert_eq!(said(&server, &["kill", "--listener", "web", "--yes"]).0, Some(0));
    assert_eq!(kept.read_to_end().1, testing::client::End::Reset);
    open(&server, 0, &[]);
}

#[test]
fn many_are_killed_only_with_consent() {
    let (slow, _gate) = Scripted::gated();
    let fast = Scripted::answering("x");
    let server = start(&format!("\"{}\"", slow.address), "");
    let clients: Vec<_> = (0..5).map(|_| waiting(&server, "x")).collect();
    open(&server, 5, &["--backend", &slow.address]);
    assert!(server.ctl(&["add", "pool.app.backends", &fast.address]).status.success());
    let (code, text) = said(&server, &["kill", "--backend", &slow.address]);
    assert_eq!(code, Some(1));
    assert!(text.starts_with("error: 5 sessions would be ended, none was: --yes ends them\n"), "{text}");
    open(&server, 5, &["--client", "127.0.0.0/8"]);
    open(&server, 0, &["--client", "192.0.2.0/24"]);
    open(&server, 0, &["--longer-than", "1h"]);
    assert_eq!(said(&server, &["kill", "--client", "192.0.2.0/24", "--yes"]).0, Some(1));
    let answer = server.ctl_json(&["kill", "--backend", &slow.address, "--yes"]);
    assert_eq!(answer["ended"].as_array().unwrap().len(), 5, "{answer:#}");
    for mut client in clients {
        assert_eq!(client.read_to_end().1, testing::client::End::Reset);
    }
    assert!(server.ctl(&["drain", &slow.address]).status.success());
    assert_eq!(server.client("web").get("/", &[]).status, 200);
}

#[test]
fn curl_learns_that_its_download_was_cut() {
    let gate = Latch::default();
    let seen = gate.clone();
    let backend = Scripted::start(move |talk| {
        if talk.request().is_some() {
            talk.send(b"HTTP/1.1 200 OK\r\n\r\nsome bytes until the end");
            seen.wait();
        }
    });
    let server = start(&format!("\"{}\"", backend.address), "");
    let mut curl = Command::new(tools::program("curl"));
    curl.args(["-sS", "-o", "/dev/null", &format!("http://{}/", server.address("web"))]);
    let mut curl = Process::start(&mut curl);
    let one = eventually("bytes have moved", secs(10), || {
        sessions(&server, &[]).pop().filter(|one| one["bytes_out"].as_u64() > Some(0))
    });
    assert_eq!(said(&server, &["kill", &one["id"].to_string()]).0, Some(0));
    assert_eq!(curl.wait(secs(10)).code(), Some(56), "CURLE_RECV_ERROR, and not a whole file");
    gate.open();
}

#[test]
fn wrong_words_are_refused_with_what_to_do() {
    let backend = Scripted::answering("x");
    let server = start(&format!("\"{}\"", backend.address), "");
    for (words, code, part) in [
        (&["sessions", "--listener", "wbe"][..], 1, "no listener \"wbe\", did you mean \"web\"?"),
        (&["sessions", "--backend", "nowhere"], 1, "no backend \"nowhere\"; the backends are:"),
        (&["sessions", "--client", "somebody"], 1, "--client somebody: "),
        (&["sessions", "--sort", "colour"], 2, "possible values"),
        (&["sessions", "--limit", "0"], 2, "not in 1..=10000"),
        (&["sessions", "--longer-than", "soon"], 2, "--longer-than"),
        (&["sessions", "17"], 2, "unexpected argument"),
        (&["kill"], 2, "required"),
        (&["kill", "--yes"], 2, "required"),
        (&["kill", ""], 2, "must not be empty"),
        (&["kill", "a b"], 1, "\"a b\" is no session: give its id"),
        (&["kill", "0"], 1, "no open session 0"),
        (&["kill", "18446744073709551615"], 1, "no open session 18446744073709551615"),
        (&["kill", "1", "2", "x"], 1, "none of these sessions is open"),
    ] {
        let (status, text) = said(&server, words);
        assert_eq!(status, Some(code), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
}
