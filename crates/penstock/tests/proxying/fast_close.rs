//! `fast-close`: the end of one side ends the session, and the other side gets what was read until then.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;
use testing::client::End;
use testing::hello::{message, records};
use testing::peers::{Latch, Pattern};
use testing::{Client, Scripted, Server, eventually, secs};

use crate::sleepers::wait_until_parked;

const ENGINES: [&str; 2] = ["epoll", "io-uring"];

/// Each word with each engine.
fn with_engines(words: [&str; 2]) -> impl Iterator<Item = (&str, &str)> {
    ENGINES.into_iter().flat_map(move |engine| words.map(|word| (engine, word)))
}

fn start(engine: &str, backend: &str, fast_close: &str) -> Server {
    let server = Server::start(&format!(
        "[process]\nworkers = 1\nengine = \"{engine}\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.mail]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\nfast-close = \"{fast_close}\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\n"
    ));
    assert_eq!(server.ctl_json(&["status"])["engine"]["in_use"], engine, "this test needs io_uring(7)");
    server
}

/// A backend that says "bye" and ends its direction. The gate opens when it has read to the end of the client's.
fn leaving() -> (Scripted, Latch) {
    let ended = Latch::default();
    let heard = ended.clone();
    let backend = Scripted::start(move |talk| {
        talk.send("bye");
        talk.client.finish_sending();
        talk.rest();
        heard.open();
    });
    (backend, ended)
}

/// A backend that reads to the end of the client's direction, answers, and stays.
fn staying() -> (Scripted, Latch) {
    let leaves = Latch::default();
    let gate = leaves.clone();
    let backend = Scripted::start(move |talk| {
        let length = talk.rest().len();
        talk.send(format!("{length} bytes"));
        gate.wait();
    });
    (backend, leaves)
}

fn open(server: &Server) -> u64 {
    server.ctl_json(&["status"])["connections"]["now"].as_u64().unwrap()
}

#[test]
fn a_backend_that_ends_its_direction_ends_the_session_of_a_client_that_stays() {
    for (engine, word) in with_engines(["up", "both"]) {
        let (backend, ended) = leaving();
        let server = start(engine, &backend.address, word);
        let mut client = server.client("mail");
        assert_eq!(client.read_to_end(), (b"bye".to_vec(), End::Closed));
        ended.wait();
        eventually("the session is over", secs(10), || (open(&server) == 0).then_some(()));
        server.stdout.wait_for(" tcp - ok pool=app ", secs(10));
    }
}

#[test]
fn without_it_or_with_that_of_the_client_the_other_direction_goes_on() {
    for (engine, word) in with_engines(["off", "down"]) {
        let backend = Scripted::start(|talk| {
            talk.client.finish_sending();
            // The client has its end already.
            assert_eq!(talk.rest(), b"later");
        });
        let server = start(engine, &backend.address, word);
        let mut client = server.client("mail");
        assert_eq!(client.read_to_end(), (Vec::new(), End::Closed));
        client.send("later");
        client.finish_sending();
        server.stdout.wait_for(" bytes_in=5 ", secs(10));
    }
}

#[test]
fn a_client_that_ends_its_direction_ends_the_session_of_a_backend_that_stays() {
    for (engine, word) in with_engines(["down", "both"]) {
        let (backend, leaves) = staying();
        let server = start(engine, &backend.address, word);
        let mut client = server.client("mail");
        client.send("1234");
        client.finish_sending();
        // The answer may have come in time.
        let (answer, end) = client.read_to_end();
        assert!((answer.is_empty() || answer == b"4 bytes") && end != End::Open, "{answer:?} {end:?}");
        eventually("the session is over", secs(10), || (open(&server) == 0).then_some(()));
        leaves.open();
    }
    for (engine, word) in with_engines(["off", "up"]) {
        let (backend, leaves) = staying();
        let server = start(engine, &backend.address, word);
        let mut client = server.client("mail");
        client.send("1234");
        client.finish_sending();
        assert_eq!(client.read_exactly(7), b"4 bytes");
        assert_eq!(open(&server), 1, "the backend has not ended");
        leaves.open();
        assert_eq!(client.read_to_end(), (Vec::new(), End::Closed));
    }
}

/// Both are in the sockets when Penstock looks: by `fast-close` the end counts.
#[test]
fn an_end_that_comes_with_a_reset_of_the_other_side_ends_the_session_well() {
    for (engine, word) in with_engines(["up", "down"]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = start(engine, &listener.local_addr().unwrap().to_string(), word);
        let mut client = TcpStream::connect(server.address("mail")).unwrap();
        client.write_all(b"x").unwrap();
        let (mut backend, _) = listener.accept().unwrap();
        backend.read_exact(&mut [0]).unwrap();
        server.signal(Signal::SIGSTOP);
        let (ends, resets) = if word == "up" { (backend, client) } else { (client, backend) };
        ends.shutdown(Shutdown::Write).unwrap();
        socket2::SockRef::from(&resets).set_linger(Some(Duration::ZERO)).unwrap();
        drop(resets);
        server.signal(Signal::SIGCONT);
        server.stdout.wait_for(" tcp - ok pool=app ", secs(10));
    }
}

#[test]
fn a_quiet_session_that_is_parked_ends_too() {
    for engine in ENGINES {
        let (leave, gate) = (Latch::default(), Latch::default());
        let (may_leave, stays) = (leave.clone(), gate.clone());
        let backend = Scripted::start(move |talk| {
            may_leave.wait();
            talk.client.finish_sending();
            stays.wait();
        });
        let server = start(engine, &backend.address, "up");
        let mut client = server.client("mail");
        wait_until_parked(&server, 2);
        leave.open();
        assert_eq!(client.read_to_end(), (Vec::new(), End::Closed));
        eventually("the session is over", secs(10), || (open(&server) == 0).then_some(()));
        gate.open();
    }
}

#[test]
fn the_other_side_gets_all_that_was_sent_although_it_sends_itself() {
    const LENGTH: u64 = 3_000_000;
    let backend = Scripted::start(|talk| {
        talk.client.read_exactly(1);
        let _ = Pattern::new().write_to(&mut talk.client.stream, LENGTH);
        talk.client.finish_sending();
        talk.rest();
    });
    let servers = ENGINES.map(|engine| start(engine, &backend.address, "up"));
    for at in 0..10 {
        let server = &servers[at % 2];
        let mut client = server.client("mail");
        client.send("x");
        // It is in the buffers of Penstock when the session ends.
        let rest = client.stream.again();
        let sender = std::thread::spawn(move || {
            let mut client = Client::over(rest);
            for _ in 0..200 {
                if client.try_send([0; 1000]).is_err() {
                    return;
                }
            }
        });
        let got = client.read_exactly(usize::try_from(LENGTH).unwrap());
        assert!(Pattern::new().is_at(0, &got), "bytes were lost or changed");
        sender.join().unwrap();
    }
}

#[test]
fn sessions_that_are_passed_through_have_it_too() {
    let gate = Latch::default();
    let stays = gate.clone();
    let backend = Scripted::start(move |talk| {
        talk.client.finish_sending();
        stays.wait();
    });
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.names]\nbind = \"127.0.0.1:0\"\n\
         protocol = \"tls-passthrough\"\npool = \"app\"\nfast-close = \"both\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let mut client = server.client("names");
    client.send(records(&message(Some(b"localhost"), &[], &[]), 1 << 14));
    assert_eq!(client.read_to_end().1, End::Closed);
    eventually("the session is over", secs(10), || (open(&server) == 0).then_some(()));
    gate.open();
}
