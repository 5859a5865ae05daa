//! `engine = "io-uring"`: sessions begin in a ring, and are served, counted and logged as all others, also when they leave it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use socket2::SockRef;
use testing::client::End;
use testing::peers::{Latch, Pattern};
use testing::server::Setup;
use testing::{Client, Scripted, Server, eventually, secs};

mod balance;
mod fast_close;
mod resets;

fn config(backends: &[&str], listener: &str, pool: &str) -> String {
    format!(
        "[process]\nworkers = 1\nengine = \"io-uring\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"stdout\"\nformat = \"json\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nhealth = \"off\"\nbackends = {backends:?}\n{pool}\n"
    )
}

fn start(backends: &[&str], listener: &str, pool: &str) -> Server {
    let server = Server::start(&config(backends, listener, pool));
    let engine = &server.ctl_json(&["status"])["engine"];
    assert_eq!(engine["in_use"], "io-uring", "this test needs io_uring(7): {engine}");
    server
}

/// Number of operations that the rings of a server were given.
fn operations(server: &Server) -> u64 {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", server.pid())).unwrap();
    let texts = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
    let of = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("SqTail:").map(str::to_owned))?;
        line.trim().parse::<u64>().ok()
    };
    texts.filter_map(of).sum()
}

/// Waits until a session has left the ring: its operations were cancelled.
fn wait_until_left(server: &Server, before: u64) {
    eventually("the session has left the ring", secs(20), || (operations(server) > before).then_some(()));
}

/// Waits until the session is older than sessions in the ring become.
fn wait_until_old(server: &Server) {
    eventually("it is old", secs(20), || {
        let listed = server.ctl_json(&["sessions"]);
        let sessions = listed["sessions"].as_array().unwrap();
        assert_eq!(sessions.len(), 1, "the session goes on: {:?}", server.stdout.all());
        (sessions[0]["age_seconds"].as_f64() > Some(0.7)).then_some(())
    });
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address("raw")).unwrap();
    stream.set_read_timeout(Some(secs(60))).unwrap();
    stream.set_write_timeout(Some(secs(60))).unwrap();
    stream
}

/// The rows of the access log, when there are so many.
fn rows(server: &Server, count: usize) -> Vec<Value> {
    eventually(&format!("{count} rows"), secs(20), || {
        let lines = server.stdout.all();
        let rows: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (rows.len() >= count).then_some(rows)
    })
}

fn metric(server: &Server, name: &str) -> u64 {
    let metrics = server.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Sockets of a server without a session: the listener, admin and control with a client each, and those to its helpers.
const OTHER_SOCKETS: usize = 12;

fn sockets(server: &Server) -> usize {
    let all = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let links = all.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Nothing of a session is left: no place, no permit, no socket.
fn wait_until_clean(server: &Server, backends: &[&str]) {
    eventually("no session is left", secs(20), || {
        let clean = server.ctl_json(&["status"])["connections"]["now"] == 0
            && backends.iter().all(|backend| server.backend(backend)["in_flight"] == 0)
            && sockets(server) <= OTHER_SOCKETS;
        clean.then_some(())
    });
}

/// A backend that sends back what it gets, and its end.
fn echo() -> Scripted {
    Scripted::start(|talk| {
        let deadline = std::time::Instant::now() + secs(120);
        while talk.client.fill(deadline).unwrap_or(0) > 0 {
            let bytes = talk.client.unused().to_vec();
            talk.client.forget();
            if !talk.send(bytes) {
                return;
            }
        }
    })
}

#[test]
fn short_sessions_are_served_in_the_ring_counted_once_and_logged() {
    const THREADS: usize = 8;
    const EACH: usize = 40;
    let backend = Scripted::start(|talk| {
        let asked = talk.client.read_exactly(100);
        talk.send(asked.iter().rev().copied().chain(*b"!").collect::<Vec<u8>>());
    });
    let server = Arc::new(start(&[&backend.address], "", ""));
    let one = |server: &Server, number: u8| {
        let mut client = server.client("raw");
        let asked: Vec<u8> = (0..100).map(|at| number.wrapping_add(at)).collect();
        client.send(&asked);
        let (answer, end) = client.read_to_end();
        assert_eq!(end, End::Closed);
        let wanted: Vec<u8> = asked.iter().rev().copied().chain(*b"!").collect();
        assert_eq!(answer, wanted);
    };
    one(&server, 0);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let server = server.clone();
            thread::spawn(move || (0..EACH).for_each(|at| one(&server, (thread * EACH + at) as u8)))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let all = THREADS * EACH + 1;
    for row in rows(&server, all) {
        assert_eq!((&row["outcome"], &row["backend"]), (&"ok".into(), &(*backend.address).into()), "{row}");
        assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&100.into(), &101.into()), "{row}");
    }
    wait_until_clean(&server, &[&backend.address]);
    let of = |name: &str| metric(&server, &format!("penstock_listener_{name}{{listener=\"raw\"}}"));
    assert_eq!((of("sessions_total"), of("accepted_total"), of("connections")), (all as u64, all as u64, 0));
    assert_eq!((of("received_bytes_total"), of("sent_bytes_total")), (all as u64 * 100, all as u64 * 101));
    // To receive twice, connect, send twice and close twice.
    assert!(operations(&server) >= 7 * all as u64, "{}", operations(&server));
}

#[test]
fn each_end_is_passed_on_alone_in_the_ring_and_after_it() {
    let late = Latch::default();
    let gate = late.clone();
    let backend = Scripted::start(move |talk| {
        if talk.number % 2 == 0 {
            // The client ends first.
            let length = talk.rest().len();
            gate.wait();
            talk.send(format!("{length} bytes"));
        } else {
            talk.send("hello");
            talk.client.finish_sending();
            let heard = talk.rest();
            assert_eq!(heard, b"later");
        }
    });
    let server = start(&[&backend.address], "", "");
    for leaves in [true, false] {
        let mut client = server.client("raw");
        client.send("1234");
        client.finish_sending();
        if leaves {
            wait_until_old(&server);
        }
        late.open();
        assert_eq!(client.read_to_end(), (b"4 bytes".to_vec(), End::Closed));
        let mut client = server.client("raw");
        assert_eq!(client.read_to_end(), (b"hello".to_vec(), End::Closed));
        if leaves {
            // The other session is over.
            rows(&server, 1);
            wait_until_old(&server);
        }
        client.send("later");
        client.finish_sending();
    }
    for row in rows(&server, 4) {
        assert_eq!(row["outcome"], "ok", "{row}");
        let sizes = (row["bytes_in"].as_u64().unwrap(), row["bytes_out"].as_u64().unwrap());
        assert!(sizes == (4, 7) || sizes == (5, 5), "{row}");
    }
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_megabyte_each_way_leaves_the_ring_whole() {
    const BYTES: usize = 1024 * 1024;
    let backend = echo();
    let server = start(&[&backend.address], "", "");
    let pattern = Arc::new(Pattern::new());
    let clients: Vec<_> = (0..20_u64)
        .map(|number| {
            let (mut client, pattern) = (connect(&server), pattern.clone());
            thread::spawn(move || {
                let mut sending = client.try_clone().unwrap();
                let sent = pattern.clone();
                let sender = thread::spawn(move || {
                    // Pieces of a size of their own: the ring has a part of one when the session leaves.
                    let mut at = 0;
                    while at < BYTES {
                        let piece = sent
                            .slice(number * 7919 + at as u64, (5000 + 777 * number as usize).min(BYTES - at));
                        sending.write_all(piece).unwrap();
                        at += piece.len();
                    }
                    sending.shutdown(Shutdown::Write).unwrap();
                });
                let mut back = Vec::new();
                client.read_to_end(&mut back).unwrap();
                sender.join().unwrap();
                assert_eq!(back.len(), BYTES, "client {number}");
                assert!(pattern.is_at(number * 7919, &back), "client {number}");
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    for row in rows(&server, 20) {
        assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&BYTES.into(), &BYTES.into()), "{row}");
        assert_eq!(row["outcome"], "ok", "{row}");
    }
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_ring_that_runs_out_of_buffers_lets_its_sessions_leave_whole() {
    // Together more than the buffers of a ring have room for, and each less than it moves in the ring.
    const CLIENTS: usize = 200;
    const AT_ONCE: usize = 40_000;
    const BYTES: usize = 200_000;
    let pattern = Arc::new(Pattern::new());
    let sent = pattern.clone();
    let backend = Scripted::start(move |talk| {
        let got = talk.rest();
        assert!(got.len() == BYTES && sent.is_at(0, &got), "{} bytes", got.len());
        talk.send(b"right");
    });
    let server = start(&[&backend.address], "max-connections = 1000", "");
    let address = server.address("raw");
    // All come at once: the process finds them with their first bytes.
    server.signal(Signal::SIGSTOP);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(&address).unwrap();
            client.set_read_timeout(Some(secs(60))).unwrap();
            client.write_all(pattern.slice(0, AT_ONCE)).unwrap();
            client
        })
        .collect();
    server.signal(Signal::SIGCONT);
    let clients: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let pattern = pattern.clone();
            thread::spawn(move || {
                client.write_all(pattern.slice(AT_ONCE as u64, BYTES - AT_ONCE)).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let mut answer = Vec::new();
                client.read_to_end(&mut answer).unwrap();
                assert_eq!(answer, b"right");
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    for row in rows(&server, CLIENTS) {
        assert_eq!((&row["outcome"], &row["bytes_in"]), (&"ok".into(), &BYTES.into()), "{row}");
    }
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_slow_reader_gets_all_and_the_ring_is_left_to_others() {
    const BYTES: usize = 16 * 1024 * 1024;
    let pattern = Arc::new(Pattern::new());
    let sent = pattern.clone();
    let backend = Scripted::start(move |talk| {
        for at in (0..BYTES).step_by(512 * 1024) {
            assert!(talk.send(sent.slice(at as u64, 512 * 1024)));
        }
    });
    let server = start(&[&backend.address], "", "");
    let begun = operations(&server);
    let mut slow: Vec<_> = (0..5).map(|_| connect(&server)).collect();
    wait_until_left(&server, begun);
    eventually("the backend waits for its readers", secs(20), || {
        let listed = server.ctl_json(&["sessions"]);
        let all = listed["sessions"].as_array().unwrap();
        (all.len() == 5 && all.iter().all(|one| one["bytes_out"].as_u64() > Some(65_536))).then_some(())
    });
    for client in &mut slow {
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got.len() == BYTES && pattern.is_at(0, &got), "{} bytes", got.len());
    }
    drop(slow);
    assert!(rows(&server, 5).iter().all(|row| row["outcome"] == "ok" && row["bytes_out"] == BYTES));
    wait_until_clean(&server, &[&backend.address]);
}

/// An address at which connections are refused.
fn refusing() -> (TcpListener, String) {
    // Bound and not listening: no other program gets it.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
    (socket.into(), address)
}

#[test]
fn a_refused_connection_is_noted_and_tried_at_another_backend() {
    let backend = Scripted::start(|talk| {
        let asked = talk.client.read_exactly(3);
        talk.send(asked);
    });
    let (_kept, refused) = refusing();
    let server = start(&[&refused, &backend.address], "", "passive = { failures = 100 }\nretries = 2");
    for _ in 0..6 {
        let mut client = server.client("raw");
        client.send("abc");
        assert_eq!(client.read_to_end(), (b"abc".to_vec(), End::Closed));
    }
    let rows = rows(&server, 6);
    let again: Vec<_> = rows.iter().filter(|row| row["attempts"] == 2).collect();
    assert_eq!(again.len(), 3, "{rows:#?}");
    for row in &rows {
        assert_eq!((&row["outcome"], &row["backend"]), (&"ok".into(), &(*backend.address).into()), "{row}");
        assert_eq!((&row["bytes_in"], &row["bytes_out"]), (&3.into(), &3.into()), "{row}");
    }
    assert!(again.iter().all(|row| row["failed"].to_string().contains("refused")), "{again:#?}");
    let bad = server.backend(&refused);
    assert_eq!(
        (&bad["failures"], &bad["in_flight"], &bad["retries"]),
        (&3.into(), &0.into(), &3.into()),
        "{bad:#}"
    );
    // Without retries each refusal ends its session.
    let server = start(&[&refused], "", "retries = 0");
    for _ in 0..3 {
        let mut client = server.client("raw");
        client.send("abc");
        assert_ne!(client.read_to_end().1, End::Open);
    }
    for row in self::rows(&server, 3) {
        assert_eq!((&row["outcome"], &row["attempts"]), (&"connect-failed".into(), &1.into()), "{row}");
    }
    assert_eq!(server.backend(&refused)["failures"], 3);
}

#[test]
fn a_client_that_sends_nothing_leaves_the_ring_and_meets_the_idle_timeout() {
    let backend = echo();
    let server = start(&[&backend.address], "idle-timeout = \"1s\"", "");
    let mut client = server.client("raw");
    assert_eq!(client.read_to_end(), (Vec::new(), End::Closed));
    assert_eq!(rows(&server, 1)[0]["outcome"], "idle-timeout");
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_reset_of_one_side_becomes_a_reset_of_the_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = start(&[&address], "", "");
    let pair = || {
        let mut client = connect(&server);
        client.write_all(b"hello").unwrap();
        let mut backend = listener.accept().unwrap().0;
        let mut heard = [0; 5];
        backend.read_exact(&mut heard).unwrap();
        backend.write_all(b"welcome").unwrap();
        let mut heard = [0; 7];
        client.read_exact(&mut heard).unwrap();
        (client, backend)
    };
    let reset = |stream: TcpStream| {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    };
    let is_reset = |mut stream: TcpStream| {
        let error = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    };
    for _ in 0..5 {
        let (client, backend) = pair();
        reset(client);
        is_reset(backend);
        let (client, backend) = pair();
        reset(backend);
        is_reset(client);
    }
    let rows = rows(&server, 10);
    let count = |word: &str| rows.iter().filter(|row| row["outcome"] == word).count();
    assert_eq!((count("client-closed"), count("backend-aborted")), (5, 5), "{rows:#?}");
    wait_until_clean(&server, &[&address]);
}

#[test]
fn an_operator_sees_and_ends_sessions_of_the_ring() {
    let backend = echo();
    let server = start(&[&backend.address], "", "");
    for _ in 0..5 {
        let mut client = connect(&server);
        client.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        client.read_exact(&mut heard).unwrap();
        let listed = server.ctl_json(&["sessions"]);
        let session = &listed["sessions"][0];
        assert_eq!((&session["bytes_in"], &session["bytes_out"]), (&5.into(), &5.into()), "{listed:#}");
        assert!(listed.to_string().contains(&backend.address), "{listed:#}");
        server.said(&["kill", &session["id"].to_string()]);
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    for row in rows(&server, 5) {
        assert_eq!(row["outcome"], "killed-by-operator", "{row}");
    }
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_drain_lets_sessions_of_the_ring_end() {
    let (backend, gate) = (Latch::default(), Latch::default());
    let (asked, answers) = (backend.clone(), gate.clone());
    let backend = Scripted::start(move |talk| {
        let got = talk.client.read_exactly(3);
        asked.open();
        answers.wait();
        talk.send(got);
    });
    let mut server = start(&[&backend.address], "", "");
    let mut clients: Vec<Client> = (0..10).map(|_| server.client("raw")).collect();
    clients.iter_mut().for_each(|client| client.send("abc"));
    eventually("all have a backend", secs(20), || {
        (server.backend(&backend.address)["in_flight"] == 10).then_some(())
    });
    server.signal(Signal::SIGTERM);
    server.stderr.wait_for("stopping: no new connections", secs(10));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_to_end(), (b"abc".to_vec(), End::Closed));
    }
    drop(clients);
    assert!(server.wait_end(secs(20)).success());
    assert!(rows(&server, 10).iter().all(|row| row["outcome"] == "ok"));
}

#[test]
fn a_reload_gives_listeners_to_the_other_engine_and_takes_them_away() {
    let backend = Scripted::start(|talk| {
        let got = talk.client.read_exactly(3);
        talk.send(got);
        // With `fast-close` the session does not wait for the client's end.
        talk.client.finish_sending();
        talk.rest();
    });
    let backends = [&*backend.address];
    let server = start(&backends, "", "");
    let talk = || {
        let mut client = server.client("raw");
        client.send("abc");
        assert_eq!(client.read_to_end(), (b"abc".to_vec(), End::Closed));
        client
    };
    drop(talk());
    let more = "fast-close = \"up\"\nbandwidth = { up = \"1MiB/s\" }\n\
                [listener.other]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n";
    server.write_config(&config(&backends, more, ""));
    server.said(&["reload"]);
    let engine = server.ctl_json(&["status"])["engine"].clone();
    assert_eq!(engine["by_epoll"], serde_json::json!([{"listener": "raw", "reason": "bandwidth"}]));
    assert!(server.said(&["status"]).contains("engine: io-uring; by epoll: raw (bandwidth)"));
    let before = operations(&server);
    let stays = talk();
    eventually("it has ended with the backend", secs(20), || {
        (server.ctl_json(&["status"])["connections"]["now"] == 0).then_some(())
    });
    drop(stays);
    assert_eq!(operations(&server), before, "it was never in the ring");
    // A listener that a reload takes away serves those that have come.
    let mut clients: Vec<Client> = (0..10)
        .map(|_| {
            let address =
                server.ctl_json(&["status"])["listeners"][1]["bound"][0].as_str().unwrap().to_owned();
            let mut client = Client::connect(&address);
            client.send("ab");
            client
        })
        .collect();
    server.write_config(&config(&backends, "", ""));
    server.said(&["reload"]);
    for client in &mut clients {
        client.send("c");
        assert_eq!(client.read_to_end(), (b"abc".to_vec(), End::Closed));
    }
}
