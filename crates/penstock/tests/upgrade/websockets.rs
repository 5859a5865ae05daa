//! WebSockets, and other protocols after HTTP/1.1, at an upgrade: the next process goes on with them as with TCP, and knows the
//! request by which each began.

use std::io::Write;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use testing::client::End;
use testing::peers::{Process, websocket_echo};
use testing::pki::{Time, self_signed};
use testing::server::{Setup, binary};
use testing::websocket::WebSocket;
use testing::{Client, Scripted, eventually, secs, tools};

use crate::front::{Front, is_running};
use crate::many::echo;
use crate::sessions::{connect, metric, old, rows, say, script};

fn config(listener: &str, pool: &str, backend: &str, more: &str) -> String {
    format!(
        "[process]\nworkers = 2\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"@DIR@/access.log\"\nformat = \"json\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\n{listener}\n[[listener.web.route]]\npool = \"app\"\n\
         [pool.app]\nhealth = \"off\"\nbackends = [\"{backend}\"]\n{pool}\n{more}"
    )
}

/// A part of `websockets.py`.
fn peer(arguments: &[&str]) -> Process {
    let mut command = Command::new(tools::python("websockets"));
    Process::start(command.args(["-u", "-c", include_str!("websockets.py")]).args(arguments))
}

fn server() -> Process {
    let mut process = peer(&["serve"]);
    let line = process.stdout.wait_for("port ", secs(20));
    process.address = format!("127.0.0.1:{}", line.trim_start_matches("port "));
    process
}

fn url(front: &Front) -> String {
    format!("ws://{}/chat", front.server.address("web"))
}

#[track_caller]
fn wait_for_rows(front: &Front, count: usize) -> Vec<Value> {
    eventually("all have a row", secs(20), || {
        let rows = rows(front, "web");
        (rows.len() == count).then_some(rows)
    })
}

/// What a row says that does not depend on the moment.
fn lasting(row: &Value) -> Value {
    let mut row = row.as_object().unwrap().clone();
    for key in ["at", "client", "id", "duration_ms", "connect_ms", "first_byte_ms"] {
        assert!(row.remove(key).is_some(), "{key}: {row:?}");
    }
    row.into()
}

#[test]
fn idle_websockets_go_on_in_the_next_process_and_each_is_logged_once_as_its_request() {
    const SOCKETS: usize = 20;
    let backend = websocket_echo();
    let mut front = Front::start(&config("", "", &backend.address, ""));
    let address = front.server.address("web");
    let talk = |socket: &mut WebSocket| {
        ["one", "two", "three"].iter().for_each(|text| socket.echo(text));
    };
    let mut here = WebSocket::open(&address, "/chat?room=1");
    talk(&mut here);
    talk(&mut here);
    drop(here);
    let wanted = lasting(&wait_for_rows(&front, 1)[0]);
    assert_eq!((&wanted["status"], &wanted["backend"]), (&json!(101), &json!(backend.address)), "{wanted}");

    let began = Instant::now();
    let mut sockets: Vec<_> = (0..SOCKETS).map(|_| WebSocket::open(&address, "/chat?room=1")).collect();
    sockets.iter_mut().for_each(talk);
    let shown = |front: &Front| {
        let listed = front.server.ctl_json(&["sessions", "--limit", "100"]);
        let shown = listed["sessions"].as_array().unwrap().iter().map(|one| {
            assert_eq!((&one["protocol"], &one["requests"]), (&json!("websocket"), &json!(1)), "{one:#}");
            assert_eq!(one["backends"], json!([{ "pool": "app", "name": backend.address }]), "{one:#}");
            let parts = ["client", "request_id", "bytes_in", "bytes_out"].map(|key| one[key].clone());
            format!("{parts:?}")
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        shown
    };
    let before = shown(&front);
    assert_eq!(before.len(), SOCKETS);
    for round in 1..=2 {
        let process = front.pid();
        let answer = front.upgrade(&[]);
        assert_eq!(old(&answer), (SOCKETS as u64, json!({})), "round {round}: {answer}");
        front.wait_gone(process);
        assert_eq!(shown(&front), before, "round {round}");
        assert_eq!(front.server.backend(&backend.address)["in_flight"], SOCKETS);
        assert_eq!(metric(&front, "penstock_listener_connections{listener=\"web\"}"), SOCKETS as u64);
    }
    sockets.iter_mut().for_each(talk);
    assert_eq!(rows(&front, "web").len(), 1, "a session that goes on has no end");
    drop(sockets);
    let least = began.elapsed().as_secs_f64() * 1000.0;
    let all = wait_for_rows(&front, SOCKETS + 1);
    for row in &all[1..] {
        assert_eq!(lasting(row), wanted);
        assert_eq!(row["id"].as_str().unwrap().len(), 32, "{row}");
        assert!((row["duration_ms"].as_f64().unwrap() - least).abs() < 5000.0, "{row} and {least} ms");
        assert!(before.iter().any(|shown| shown.contains(row["id"].as_str().unwrap())), "{row}");
    }
    let count = SOCKETS as u64 + 1;
    for (name, wanted) in [
        ("listener_sessions_total{listener=\"web\"}", count),
        ("listener_accepted_total{listener=\"web\"}", count),
        ("listener_connections{listener=\"web\"}", 0),
        ("listener_responses_total{listener=\"web\",code=\"1xx\"}", count),
        ("listener_received_bytes_total{listener=\"web\"}", count * wanted["bytes_in"].as_u64().unwrap()),
        ("listener_sent_bytes_total{listener=\"web\"}", count * wanted["bytes_out"].as_u64().unwrap()),
    ] {
        eventually(name, secs(10), || (metric(&front, &format!("penstock_{name}")) == wanted).then_some(()));
    }
    let metrics = front.server.metrics();
    let answers = metrics
        .lines()
        .find(|line| line.starts_with("penstock_backend_responses_total{") && line.contains("code=\"1xx\""));
    assert!(answers.is_some_and(|line| line.ends_with(&format!(" {count}"))), "{answers:?}");
    assert_eq!(front.server.backend(&backend.address)["in_flight"], 0);
}

#[test]
fn another_protocol_goes_on_too_and_its_row_has_what_the_request_said() {
    let backend = Scripted::start(|talk| {
        if talk.request().is_some_and(|_| talk.answer(200, &[], b"x").is_ok()) && talk.request().is_some() {
            talk.send(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst",
            );
            let mut back = talk.client.stream.again();
            let _ = std::io::copy(&mut talk.client.stream, &mut back);
        }
    });
    // Of an earlier configuration: the next one does not have its backend.
    let mut front = Front::start(&config("trusted-proxies = [\"127.0.0.1\"]", "", &backend.address, ""));
    let mut client = Client::connect(&front.server.address("web"));
    assert_eq!(client.get("/earlier", &[]).text(), "x");
    eventually("the connection waits without a task", secs(20), || {
        let listed = front.server.ctl_json(&["sessions"]);
        (listed["sessions"][0]["idle_seconds"].as_f64()? > 1.5).then_some(())
    });
    client.send(
        &b"GET /a?b=\"c\\d\" HTTP/1.1\r\nHost: b.example\r\nX-Request-Id: of-the-proxy\r\nReferer: https://a.example/\r\n\
           User-Agent: caf\xe9\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"[..],
    );
    assert_eq!(client.response().status, 101);
    assert_eq!(client.read_exactly(5), b"first");
    let shown = |front: &Front| {
        let listed = front.server.ctl_json(&["sessions"]);
        let one = &listed["sessions"][0];
        assert_eq!(one["protocol"], "upgraded", "{listed}");
        ["request_id", "bytes_in", "bytes_out"].map(|key| one[key].clone())
    };
    let first = shown(&front);
    assert_eq!(first[0], "of-the-proxy");
    let other = echo();
    front.server.write_config(&config("", "", &other, ""));
    for _ in 0..2 {
        let before = front.pid();
        assert_eq!(old(&front.upgrade(&[])), (1, json!({})));
        front.wait_gone(before);
        assert_eq!(shown(&front), first, "bytes of the earlier request are among those of the connection");
    }
    client.send("hello");
    assert_eq!(client.read_exactly(5), b"hello");
    client.finish_sending();
    assert_eq!(client.read_to_end(), (Vec::new(), End::Closed));
    let row = &wait_for_rows(&front, 2)[1];
    for (key, value) in [
        ("id", json!("of-the-proxy")),
        ("method", json!("GET")),
        ("host", json!("b.example")),
        ("target", json!("/a?b=\"c\\d\"")),
        ("status", json!(101)),
        ("outcome", json!("ok")),
        ("referer", json!("https://a.example/")),
        ("backend", json!(backend.address)),
        ("attempts", json!(1)),
    ] {
        assert_eq!(row[key], value, "{key}: {row}");
    }
    assert!(row["user_agent"].as_str().unwrap().starts_with("caf"), "{row}");
}

#[test]
fn attempts_that_failed_before_one_are_in_its_row() {
    let backend = websocket_echo();
    let refuses = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let backends = format!("{refuses}\", \"{}", backend.address);
    let mut front = Front::start(&config("", "balance = \"round-robin\"", &backends, ""));
    let address = front.server.address("web");
    // Each worker begins where it likes.
    let sockets: Vec<_> = (0..8).map(|_| WebSocket::open(&address, "/chat")).collect();
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (8, json!({})));
    front.wait_gone(before);
    drop(sockets);
    let rows = wait_for_rows(&front, 8);
    let failed: Vec<_> = rows.iter().filter(|row| row["attempts"] == 2).collect();
    assert!(!failed.is_empty(), "{rows:?}");
    assert!(failed.iter().all(|row| row["failed"] == "refused" && row["status"] == 101), "{rows:?}");
}

#[test]
fn messages_go_on_over_upgrades_that_follow_each_other_and_every_byte_arrives() {
    const UPGRADES: usize = 3;
    let backend = server();
    let mut front = Front::start(&config("", "", &backend.address, ""));
    let mut client = peer(&["stream", &url(&front)]);
    let wait_for_progress = || {
        let before = client.stdout.count("progress");
        eventually("messages come back", secs(60), || {
            (client.stdout.count("progress") > before + 40).then_some(())
        });
    };
    wait_for_progress();
    for _ in 0..UPGRADES {
        let before = front.pid();
        front.upgrade(&[]);
        front.wait_gone(before);
        wait_for_progress();
    }
    client.signal(Signal::SIGUSR1);
    let said = client.stdout.wait_for(" came back", secs(60));
    assert!(client.wait(secs(20)).success(), "{said}");
    eprintln!("{said}");
    for row in wait_for_rows(&front, 4) {
        assert_eq!((&row["outcome"], &row["status"]), (&json!("ok"), &json!(101)), "{row}");
    }
}

#[test]
fn a_message_of_which_a_part_is_on_its_way_arrives_whole() {
    let backend = server();
    let mut front = Front::start(&config("", "", &backend.address, ""));
    let mut client = peer(&["fragments", &url(&front)]);
    // A frame of which the first bytes alone have come, too.
    let mut raw = WebSocket::open(&front.server.address("web"), "/chat");
    raw.send_part(b"\x81\x85\0\0");
    client.stdout.wait_for("a part is sent", secs(20));
    let before = front.pid();
    front.upgrade(&[]);
    front.wait_gone(before);
    client.signal(Signal::SIGUSR1);
    client.stdout.wait_for("the whole message came back", secs(20));
    assert!(client.wait(secs(20)).success());
    raw.send_part(b"\0\0hello");
    raw.hear("hello");
}

#[test]
fn a_close_code_arrives_from_both_sides_after_an_upgrade() {
    let backend = server();
    let mut front = Front::start(&config("", "", &backend.address, ""));
    let mut clients = ["client-closes", "server-closes"].map(|mode| peer(&[mode, &url(&front)]));
    clients.iter().for_each(|client| drop(client.stdout.wait_for("open", secs(20))));
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (2, json!({})));
    front.wait_gone(before);
    for client in &mut clients {
        client.signal(Signal::SIGUSR1);
        assert!(client.wait(secs(20)).success());
    }
    clients[1].stdout.wait_for("client heard 4001 enough", secs(5));
    backend.stdout.wait_for("server heard 4002 bye", secs(5));
    for row in wait_for_rows(&front, 2) {
        assert_eq!((&row["outcome"], &row["status"]), (&json!("ok"), &json!(101)), "{row}");
    }
}

#[test]
fn an_operator_ends_one_in_the_next_process_and_its_row_says_so() {
    let backend = websocket_echo();
    let mut front = Front::start(&config("", "", &backend.address, ""));
    let mut socket = WebSocket::open(&front.server.address("web"), "/chat");
    socket.echo("before");
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (1, json!({})));
    front.wait_gone(before);
    let listed = front.server.ctl_json(&["sessions"]);
    let id = listed["sessions"][0]["request_id"].as_str().unwrap().to_owned();
    front.server.said(&["kill", &id]);
    assert_eq!(socket.end(), End::Reset);
    let row = &wait_for_rows(&front, 1)[0];
    assert_eq!((&row["outcome"], &row["id"]), (&json!("killed-by-operator"), &json!(id)), "{row}");
    assert_eq!((&row["status"], &row["target"]), (&json!(101), &json!("/chat")), "{row}");
    assert_eq!(front.server.backend(&backend.address)["in_flight"], 0);
}

#[test]
fn the_idle_time_of_one_goes_on_in_the_next_process() {
    let backend = websocket_echo();
    let limit = "timeouts = { tunnel = \"4s\" }";
    let mut front = Front::start(&config("timeouts = { idle = \"1s\" }", limit, &backend.address, ""));
    let mut socket = WebSocket::open(&front.server.address("web"), "/chat");
    socket.echo("before");
    let began = Instant::now();
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (1, json!({})));
    front.wait_gone(before);
    assert_eq!(socket.end(), End::Closed);
    assert!(began.elapsed() < secs(4) * 3, "{:?}", began.elapsed());
    let row = &wait_for_rows(&front, 1)[0];
    assert_eq!((&row["outcome"], &row["status"]), (&json!("idle-timeout"), &json!(101)), "{row}");
    assert!(row["duration_ms"].as_f64().unwrap() >= 3900.0, "{row}");
}

#[test]
fn the_next_process_counts_them_at_their_source_before_it_admits_more() {
    let backend = websocket_echo();
    let mut front = Front::start(&config("connections-per-source = 3", "", &backend.address, ""));
    let address = front.server.address("web");
    let mut sockets: Vec<_> = (0..3).map(|_| WebSocket::open(&address, "/chat")).collect();
    sockets.iter_mut().for_each(|socket| socket.echo("before"));
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (3, json!({})));
    front.wait_gone(before);
    // The close of a client that is turned away may destroy its answer.
    let answer = || {
        let mut client = Client::try_connect(&address).ok()?;
        client.try_send(WebSocket::request("/chat")).ok()?;
        client.try_response(secs(5)).ok().map(|answer| answer.status)
    };
    assert_eq!(eventually("there is an answer", secs(10), answer), 429);
    sockets.iter_mut().for_each(|socket| socket.echo("after"));
    drop(sockets);
    eventually("there is room again", secs(10), || answer().filter(|status| *status == 101));
}

#[test]
fn those_of_a_trusted_proxy_have_no_share_of_one_address_in_the_next_process_either() {
    const SOCKETS: usize = 20;
    let backend = websocket_echo();
    let text = config("trusted-proxies = [\"127.0.0.1\"]", "", &backend.address, "");
    // The share of an address is eight connections.
    let text = text.replace("workers = 2", "workers = 2\nshares = { source = 1 }");
    let few = ["sh", "-c", "ulimit -n 1024; exec \"$@\"", "sh"];
    let mut front = Front::of(Setup::new(&text).through(few).start());
    let address = front.server.address("web");
    let mut sockets: Vec<_> = (0..SOCKETS).map(|_| WebSocket::open(&address, "/chat")).collect();
    sockets.iter_mut().for_each(|socket| socket.echo("before"));
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (SOCKETS as u64, json!({})));
    front.wait_gone(before);
    sockets.iter_mut().for_each(|socket| socket.echo("after"));
}

#[test]
fn what_stays_in_the_old_process_is_told_by_the_reason() {
    let backend = server();
    let certificates = tempfile::tempdir().unwrap();
    self_signed(certificates.path(), "a", &["a.example"], Time::Now);
    let more = format!(
        "[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ certificates = \"{}\" }}\n\
         [listener.slow]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nbandwidth = {{ down = \"1MiB/s\" }}\n",
        certificates.path().display(),
    );
    let limited =
        "[[listener.web.route]]\npath = \"/slow\"\npool = \"app\"\nbandwidth = { down = \"1MiB/s\" }";
    let mut front = Front::start(&config(limited, "", &backend.address, &more));
    let mut secure = peer(&["after", &format!("wss://{}/chat", front.server.address("secure"))]);
    secure.stdout.wait_for("open", secs(20));
    let [web, slow] = ["web", "slow"].map(|name| front.server.address(name));
    let mut long = Client::connect(&web);
    let head = String::from_utf8(WebSocket::request("/long")).unwrap();
    let fields = ["User-Agent", "Referer"].map(|name| format!("\r\n{name}: {}", "x".repeat(7_000)));
    long.send(head.replace("\r\n\r\n", &format!("{}\r\n\r\n", fields.concat())));
    assert_eq!(long.response().status, 101);
    let mut staying =
        [(&slow, "/chat"), (&web, "/slow")].map(|(address, path)| WebSocket::open(address, path));
    let mut goes = WebSocket::open(&web, "/chat");
    goes.echo("before");
    staying.iter_mut().for_each(|socket| socket.echo("before"));
    let before = front.pid();
    let answer = front.upgrade(&[]);
    let why = json!({
        "TLS": 1, "limit of bandwidth": 1,
        "WebSocket that is captured or limited, or for which the new process has no room": 2,
    });
    assert_eq!(old(&answer), (1, why), "{answer}");
    goes.echo("after");
    staying.iter_mut().for_each(|socket| socket.echo("after"));
    secure.signal(Signal::SIGUSR1);
    secure.stdout.wait_for("after", secs(20));
    assert!(secure.wait(secs(20)).success() && is_running(before));
    drop((staying, long));
    front.wait_gone(before);
    goes.echo("after");
}

#[test]
fn they_stay_if_the_next_process_is_of_a_version_that_takes_tcp_alone() {
    let backend = websocket_echo();
    let raw = "[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\n[pool.db]\nhealth = \"off\"\n";
    let raw = format!("{raw}backends = [\"{}\"]\n", echo());
    let mut front = Front::start(&config("", "", &backend.address, &raw));
    let mut socket = WebSocket::open(&front.server.address("web"), "/chat");
    socket.echo("before");
    let mut stream = connect(&front.server.address("raw"));
    say(&mut stream, "before");
    let before = front.pid();
    let constants = format!("BINARY, FEW, SESSIONS = {:?}, False, 1", binary());
    let program = script(&front, "without", &constants, include_str!("without.py"));
    let answer = front.upgrade(&[&program]);
    assert_eq!(old(&answer), (1, json!({ "WebSocket, which the new version cannot take": 1 })), "{answer}");
    socket.echo("after");
    say(&mut stream, "after");
    assert!(is_running(before));
    front.follow(front.serving());
    drop(socket);
    front.wait_gone(before);
    stream.flush().unwrap();
    say(&mut stream, "still");
}
