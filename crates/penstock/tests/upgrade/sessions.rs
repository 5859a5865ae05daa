//! TCP sessions at an upgrade: the next process goes on with them, and the one before ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::{Value, json};
use testing::peers::Pattern;
use testing::pki::{Time, self_signed};
use testing::server::binary;
use testing::{Client, Scripted, eventually, secs, tools};

use crate::front::{Front, is_running};
use crate::many::echo;

fn config(more: &str, backend: &str) -> String {
    format!(
        "[process]\nworkers = 2\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"@DIR@/access.log\"\nformat = \"json\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\n{more}\
         [pool.db]\nhealth = \"off\"\nbackends = [\"{backend}\"]\n"
    )
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(secs(30))).unwrap();
    stream.set_write_timeout(Some(secs(30))).unwrap();
    stream
}

/// Sends a text, which must come back.
#[track_caller]
pub(crate) fn say(mut stream: impl Read + Write, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, text.as_bytes());
}

/// Lines of the access log about one listener.
pub(crate) fn rows(front: &Front, listener: &str) -> Vec<Value> {
    let text = fs::read_to_string(front.dir().join("access.log")).unwrap_or_default();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|row| row["listener"] == listener).collect()
}

pub(crate) fn metric(front: &Front, name: &str) -> u64 {
    let metrics = front.server.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// What the answer to an upgrade says of the sessions: how many are given, and how many stay by the reason.
pub(crate) fn old(answer: &Value) -> (u64, Value) {
    (answer["old"]["given"].as_u64().unwrap(), answer["old"]["staying"].clone())
}

#[test]
fn idle_sessions_go_on_in_the_next_process_and_are_counted_once() {
    const SESSIONS: u64 = 300;
    let backend = echo();
    let local = "[listener.local]\nbind = \"unix:@DIR@/raw.sock\"\nprotocol = \"tcp\"\npool = \"db\"\n";
    let mut front = Front::start(&config(local, &backend));
    let address = front.server.address("raw");
    let mut streams: Vec<_> = (0..SESSIONS).map(|_| connect(&address)).collect();
    // One has sent nothing yet.
    let silent = connect(&address);
    let mut unix = UnixStream::connect(front.dir().join("raw.sock")).unwrap();
    say(&mut unix, "unix");
    for stream in &mut streams {
        say(stream, "before");
    }
    eventually("all have a backend", secs(10), || {
        (front.server.backend(&backend)["in_flight"] == SESSIONS + 2).then_some(())
    });
    for round in 1..=2 {
        let before = front.pid();
        let answer = front.upgrade(&[]);
        assert_eq!(old(&answer), (SESSIONS + 2, json!({})), "round {round}: {answer}");
        front.wait_gone(before);
        let listed = front.server.ctl_json(&["sessions", "--limit", "1000"]);
        assert_eq!(listed["matched"], SESSIONS + 2, "round {round}: {listed}");
        assert_eq!(front.server.backend(&backend)["in_flight"], SESSIONS + 2, "round {round}: {listed}");
        for stream in &mut streams {
            say(stream, "after");
        }
        say(&mut unix, "after");
    }
    say(&silent, "first");
    assert!(rows(&front, "raw").is_empty(), "a session that goes on has no end");
    let listed = front.server.ctl_json(&["sessions", "--limit", "1000"]);
    let listed = listed["sessions"].as_array().unwrap();
    assert_eq!(listed.len() as u64, SESSIONS + 2);
    assert!(
        listed.iter().filter(|session| session["bytes_in"] == 16).count() as u64 == SESSIONS,
        "{}",
        listed[0]
    );

    drop((streams, silent, unix));
    let of = |name: &str| metric(&front, &format!("penstock_listener_{name}{{listener=\"raw\"}}"));
    eventually("all are counted", secs(20), || (of("sessions_total") == SESSIONS + 1).then_some(()));
    assert_eq!(of("received_bytes_total"), SESSIONS * 16 + 5);
    assert_eq!((of("accepted_total"), of("connections")), (SESSIONS + 1, 0));
    let rows = eventually("all have a row", secs(20), || {
        let rows = rows(&front, "raw");
        (rows.len() as u64 == SESSIONS + 1).then_some(rows)
    });
    for row in &rows {
        let bytes = if row["bytes_in"] == 5 { 5 } else { 16 };
        assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&json!(bytes), &json!(bytes)), "{row}");
        assert_eq!((&row["outcome"], &row["backend"]), (&json!("ok"), &json!(backend)), "{row}");
    }
    assert_eq!(front.server.backend(&backend)["in_flight"], 0);
    eventually("it is told", secs(10), || {
        front.server.said(&["events"]).contains("sessions of the process before go on here").then_some(())
    });
}

#[test]
fn transfers_go_on_over_upgrades_and_every_byte_arrives() {
    const TRANSFERS: usize = 40;
    const PART: usize = 3 * 1024 * 1024;
    const UPGRADES: usize = 3;
    let backend = echo();
    let mut front = Front::start(&config("", &backend));
    let address = front.server.address("raw");
    let pattern = Arc::new(Pattern::new());
    // Each has a part of its bytes on the way at each upgrade.
    let on_the_way = Arc::new(Barrier::new(TRANSFERS + 1));
    let transfers: Vec<_> = (0..TRANSFERS)
        .map(|number| {
            let (address, pattern, on_the_way) = (address.clone(), pattern.clone(), on_the_way.clone());
            thread::spawn(move || {
                let offset = number as u64 * 1000;
                let mut stream = connect(&address);
                let mut sending = stream.try_clone().unwrap();
                let written = thread::spawn({
                    let pattern = pattern.clone();
                    move || {
                        let mut at = offset;
                        while at < offset + (PART * (UPGRADES + 1)) as u64 {
                            let left = offset + (PART * (UPGRADES + 1)) as u64 - at;
                            let piece = pattern.slice(at, 64 * 1024);
                            let piece = &piece[..piece.len().min(usize::try_from(left).unwrap())];
                            sending.write_all(piece).unwrap();
                            at += piece.len() as u64;
                        }
                        sending.shutdown(Shutdown::Write).unwrap();
                    }
                });
                let mut back = vec![0; PART];
                for part in 0..=UPGRADES {
                    if part > 0 {
                        on_the_way.wait();
                    }
                    stream.read_exact(&mut back).unwrap();
                    assert!(
                        pattern.is_at(offset + (part * PART) as u64, &back),
                        "transfer {number}, part {part}"
                    );
                }
                assert_eq!(stream.read(&mut back).unwrap(), 0);
                written.join().unwrap();
            })
        })
        .collect();
    let mut earlier = Vec::new();
    for _ in 0..UPGRADES {
        earlier.push(front.pid());
        front.upgrade(&[]);
        on_the_way.wait();
    }
    for transfer in transfers {
        transfer.join().unwrap();
    }
    for pid in earlier {
        front.wait_gone(pid);
    }
    let whole = (PART * (UPGRADES + 1)) as u64;
    let rows = eventually("all have a row", secs(20), || {
        let rows = rows(&front, "raw");
        (rows.len() == TRANSFERS).then_some(rows)
    });
    for row in rows {
        assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&json!(whole), &json!(whole)), "{row}");
    }
}

#[test]
fn a_session_that_holds_bytes_goes_on_when_they_are_taken() {
    const BYTES: usize = 32 * 1024 * 1024;
    let pattern = Arc::new(Pattern::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap().to_string();
    let sending = pattern.clone();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let sender = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        sending.write_to(&mut stream, BYTES as u64).unwrap();
        // It has still the connection when the bytes are there.
        wait.recv().unwrap();
        stream.write_all(b"end").unwrap();
    });
    let mut front = Front::start(&config("", &backend));
    let mut client = connect(&front.server.address("raw"));
    let mut first = [0; 1024];
    client.read_exact(&mut first).unwrap();
    let before = front.pid();
    let answer = front.upgrade(&[]);
    let staying = json!({ "TCP, which goes as soon as nothing is on the way": 1 });
    assert_eq!(old(&answer), (0, staying), "{answer}");
    assert!(is_running(before));
    let mut rest = vec![0; BYTES - first.len()];
    client.read_exact(&mut rest).unwrap();
    assert!(pattern.is_at(0, &first) && pattern.is_at(first.len() as u64, &rest));
    front.wait_gone(before);
    go.send(()).unwrap();
    let mut end = Vec::new();
    client.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"end");
    sender.join().unwrap();
}

#[test]
fn a_session_of_which_one_direction_has_ended_goes_on_with_the_other_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let backend = listener.local_addr().unwrap().to_string();
    let mut front = Front::start(&config("", &backend));
    for client_ends in [true, false] {
        let client = connect(&front.server.address("raw"));
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(secs(30))).unwrap();
        let (mut ends, mut other) = if client_ends { (client, server) } else { (server, client) };
        ends.write_all(b"last").unwrap();
        ends.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        other.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"last");
        let before = front.pid();
        let answer = front.upgrade(&[]);
        assert_eq!(old(&answer), (1, json!({})), "{answer}");
        front.wait_gone(before);
        other.write_all(b"answer").unwrap();
        let mut back = [0; 6];
        ends.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"answer");
        drop(other);
        assert_eq!(ends.read(&mut back).unwrap(), 0, "client ends: {client_ends}");
    }
    let rows = eventually("both have a row", secs(10), || {
        let rows = rows(&front, "raw");
        (rows.len() == 2).then_some(rows)
    });
    assert_eq!((&rows[0]["bytes_in"], &rows[0]["bytes_out"]), (&json!(4), &json!(6)), "{}", rows[0]);
    assert_eq!((&rows[1]["bytes_in"], &rows[1]["bytes_out"]), (&json!(6), &json!(4)), "{}", rows[1]);
    assert!(rows.iter().all(|row| row["outcome"] == "ok"), "{rows:?}");
}

#[test]
fn a_session_goes_on_whose_backend_or_listener_is_not_configured_any_more() {
    let (kept, removed) = (echo(), echo());
    let gone = format!(
        "[listener.gone]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"away\"\n\
         [pool.away]\nhealth = \"off\"\nbackends = [\"{kept}\"]\n"
    );
    let mut front = Front::start(&config(&gone, &removed));
    let mut streams = ["raw", "gone"].map(|name| connect(&front.server.address(name)));
    streams.iter_mut().for_each(|stream| say(stream, "before"));
    front.server.write_config(&config("", &kept));
    let before = front.pid();
    let answer = front.upgrade(&[]);
    assert_eq!(old(&answer), (2, json!({})), "{answer}");
    front.wait_gone(before);
    streams.iter_mut().for_each(|stream| say(stream, "after"));
    say(connect(&front.server.address("raw")), "new");
    let listed = front.server.ctl_json(&["sessions"]);
    let gone = listed["sessions"].as_array().unwrap().iter().find(|session| session["listener"] == "gone");
    assert_eq!(gone.unwrap()["backends"][0], json!({ "pool": "away", "name": kept }), "{listed}");
    drop(streams);
    for (listener, pool, backend) in [("raw", "db", &removed), ("gone", "away", &kept)] {
        let row = eventually("it has a row", secs(10), || {
            rows(&front, listener).into_iter().find(|row| row["bytes_in"] == 11)
        });
        assert_eq!((&row["pool"], &row["backend"]), (&json!(pool), &json!(backend)), "{row}");
    }
}

#[test]
fn sessions_with_tls_or_http_stay_and_the_answer_says_so() {
    let (backend, web) = (echo(), Scripted::answering("x"));
    let certificates = tempfile::tempdir().unwrap();
    self_signed(certificates.path(), "a", &["a.example"], Time::Now);
    let more = format!(
        "[listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\ntls = {{ certificates = \"{}\" }}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nhealth = \"off\"\nbackends = [\"{}\"]\n\
         [listener.slow]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\nbandwidth = {{ down = \"1MiB/s\" }}\n",
        certificates.path().display(),
        web.address
    );
    let mut front = Front::start(&config(&more, &backend));
    let mut kept = Client::connect(&front.server.address("web"));
    assert_eq!(kept.get("/", &[]).text(), "x");
    let mut slow = connect(&front.server.address("slow"));
    say(&mut slow, "slow");
    let script = format!(
        "exec openssl s_client -quiet -connect {} -servername a.example 2>&1",
        front.server.address("secure")
    );
    let mut secure = std::process::Command::new(tools::program("sh"))
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    secure.stdin.as_mut().unwrap().write_all(b"secret\n").unwrap();
    let mut back = std::io::BufReader::new(secure.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("secret") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut back, &mut line).unwrap() > 0);
    }
    let before = front.pid();
    let answer = front.upgrade(&[]);
    let staying = json!({ "HTTP/1.1": 1, "TLS": 1, "limit of bandwidth": 1 });
    assert_eq!(old(&answer), (0, staying), "{answer}");
    say(&mut slow, "slow");
    assert!(is_running(before));
    drop((slow, kept));
    secure.kill().unwrap();
    secure.wait().unwrap();
    front.wait_gone(before);
}

#[track_caller]
pub(crate) fn script(front: &Front, name: &str, constants: &str, text: &str) -> String {
    let text = format!("#!/usr/bin/env python3\n{constants}\n{text}");
    front.program(name, text.as_bytes()).to_str().unwrap().to_owned()
}

#[test]
fn sessions_stay_if_the_next_process_is_of_a_version_that_takes_none() {
    let backend = echo();
    let mut front = Front::start(&config("", &backend));
    let mut stream = connect(&front.server.address("raw"));
    say(&mut stream, "before");
    let before = front.pid();
    let program = script(
        &front,
        "without",
        &format!("BINARY, FEW, SESSIONS = {:?}, False, None", binary()),
        include_str!("without.py"),
    );
    let answer = front.upgrade(&[&program]);
    assert_eq!(old(&answer), (0, json!({ "TCP, which the new version cannot take": 1 })), "{answer}");
    say(&mut stream, "after");
    assert!(is_running(before));
    front.follow(front.serving());
    drop(stream);
    front.wait_gone(before);
}

#[test]
fn sessions_that_the_next_process_has_not_taken_when_it_ends_go_on_in_the_one_before() {
    const SESSIONS: usize = 100;
    let backend = echo();
    let mut front = Front::start(&config("", &backend));
    let address = front.server.address("raw");
    let mut streams: Vec<_> = (0..SESSIONS).map(|_| connect(&address)).collect();
    streams.iter_mut().for_each(|stream| say(stream, "before"));
    let constants =
        format!("BINARY, MESSAGE, WHEN, VICTIM = {:?}, \"session\", \"before\", \"new\"", binary());
    let program = script(&front, "between", &constants, include_str!("between.py"));
    let before = front.pid();
    let answer = front.upgrade(&[&program]);
    assert_eq!(old(&answer).0, 0, "{answer}");
    streams.iter_mut().for_each(|stream| say(stream, "after"));
    assert!(is_running(before));
}

#[test]
fn sessions_for_which_the_next_process_has_no_descriptors_stay() {
    const SESSIONS: usize = 300;
    let backend = echo();
    let mut front = Front::start(&config("", &backend));
    let address = front.server.address("raw");
    let mut streams: Vec<_> = (0..SESSIONS).map(|_| connect(&address)).collect();
    streams.iter_mut().for_each(|stream| say(stream, "before"));
    let text = format!("#!/bin/sh\nulimit -n 400\nexec {} \"$@\"\n", binary());
    let program = front.program("few", text.as_bytes());
    let before = front.pid();
    let answer = front.upgrade(&[program.to_str().unwrap()]);
    let (given, _) = old(&answer);
    assert!((1..SESSIONS as u64).contains(&given), "{answer}");
    streams.iter_mut().for_each(|stream| say(stream, "after"));
    assert!(is_running(before));
    drop(streams);
    front.wait_gone(before);
    let bytes = eventually("all have a row", secs(20), || {
        let rows = rows(&front, "raw");
        (rows.len() == SESSIONS)
            .then(|| rows.iter().map(|row| row["bytes_in"].as_u64().unwrap()).sum::<u64>())
    });
    assert_eq!(bytes, 11 * SESSIONS as u64);
}

#[test]
fn sessions_whose_descriptors_the_kernel_does_not_give_to_the_next_process_stay() {
    const SESSIONS: usize = 100;
    let backend = echo();
    // What it opens later would take the place.
    let text = config("", &backend).replace("state-directory = \"@DIR@/state\"\n", "");
    let mut front = Front::start(&text);
    let address = front.server.address("raw");
    let mut streams: Vec<_> = (0..SESSIONS).map(|_| connect(&address)).collect();
    streams.iter_mut().for_each(|stream| say(stream, "before"));
    let constants = format!("BINARY, FEW, SESSIONS = {:?}, True, None", binary());
    let program = script(&front, "few", &constants, include_str!("without.py"));
    let before = front.pid();
    let answer = front.upgrade(&[&program]);
    assert!(old(&answer).0 < SESSIONS as u64, "{answer}");
    streams.iter_mut().for_each(|stream| say(stream, "after"));
    assert!(is_running(before));
    let between = front.pid();
    let child = fs::read_to_string(format!("/proc/{between}/task/{between}/children")).unwrap_or_default();
    if let Ok(child) = child.trim().parse() {
        front.follow(child);
    }
}

#[test]
fn the_next_process_counts_the_sessions_of_a_source_before_it_admits_more() {
    let backend = echo();
    let limit = "connections-per-source = 3\n";
    let mut front = Front::start(&config(limit, &backend));
    let address = front.server.address("raw");
    let mut streams: Vec<_> = (0..3).map(|_| connect(&address)).collect();
    streams.iter_mut().for_each(|stream| say(stream, "before"));
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (3, json!({})));
    front.wait_gone(before);
    let mut refused = connect(&address);
    assert!(matches!(refused.read(&mut [0]), Ok(0) | Err(_)));
    say(&mut streams[0], "after");
    drop(streams);
    eventually("there is room again", secs(10), || {
        let mut stream = connect(&address);
        let _ = stream.write_all(b"x");
        matches!(stream.read(&mut [0]), Ok(1)).then_some(())
    });
}

#[test]
fn the_idle_time_of_a_session_goes_on_in_the_next_process() {
    let backend = echo();
    let mut front = Front::start(&config("idle-timeout = \"4s\"\n", &backend));
    let mut stream = connect(&front.server.address("raw"));
    say(&mut stream, "before");
    let began = std::time::Instant::now();
    let before = front.pid();
    assert_eq!(old(&front.upgrade(&[])), (1, json!({})));
    front.wait_gone(before);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(began.elapsed() < secs(4) * 3, "{:?}", began.elapsed());
    let row = eventually("it has a row", secs(10), || rows(&front, "raw").pop());
    assert_eq!(row["outcome"], "idle-timeout", "{row}");
    assert!(row["duration_ms"].as_f64().unwrap() >= 3900.0, "{row}");
}

#[test]
fn a_session_that_was_offered_goes_on_if_the_process_before_is_killed_then() {
    let backend = echo();
    let mut front = Front::start(&config("", &backend));
    let mut stream = connect(&front.server.address("raw"));
    say(&mut stream, "before");
    let before = front.pid();
    let constants =
        format!("BINARY, MESSAGE, WHEN, VICTIM = {:?}, \"session\", \"after\", {before}", binary());
    let program = script(&front, "between", &constants, include_str!("between.py"));
    assert!(!front.refused(&[&program]).is_empty());
    front.wait_gone(before);
    say(&mut stream, "after");
    let new = eventually("the new one answers", secs(10), || {
        let output = front.server.ctl(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        i32::try_from(status["pid"].as_i64()?).ok()
    });
    front.follow(new);
    assert_eq!(front.server.ctl_json(&["sessions"])["matched"], 1);
}
