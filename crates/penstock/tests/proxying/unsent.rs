//! A `tcp` session in which neither side has sent anything moves away from a backend that is judged down; one in which
//! the client has sent something stays.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use testing::peers::Latch;
use testing::{Scripted, Server, eventually, secs};

/// What the good backend says first: a greeting to a client, and an answer to a check.
const GREETING: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn a_session_without_a_byte_leaves_a_backend_that_is_down_and_one_with_bytes_stays() {
    let (checks_fail, late) = (Arc::new(AtomicBool::new(false)), Latch::default());
    let (seen, may_answer) = (checks_fail.clone(), late.clone());
    let silent = Scripted::start(move |talk| {
        while let Some(head) = talk.head() {
            if !head.starts_with("GET /healthz") {
                may_answer.wait();
                talk.send("late");
            } else if seen.load(SeqCst) || talk.answer(200, &[], b"").is_err() {
                return;
            }
        }
    });
    let good = Scripted::start(|talk| {
        talk.send(GREETING);
        talk.rest();
    });
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{:?}, {:?}]\nbalance = \"least-connections\"\n\
         health = {{ http = \"/healthz\", interval = \"3s\", timeout = \"3s\", rise = 1, fall = 2 }}\n",
        silent.address, good.address
    ));
    for backend in [&silent, &good] {
        eventually("it is up", secs(20), || (server.health(&backend.address) == "up").then_some(()));
    }
    let connect = || TcpStream::connect(server.address("web")).unwrap();
    let mut clients: Vec<TcpStream> = (0..6).map(|_| connect()).collect();
    let in_flight = |backend: &Scripted| server.backend(&backend.address)["in_flight"].as_u64();
    eventually("each backend has half", secs(20), || (in_flight(&silent) == Some(3)).then_some(()));
    let mut speakers: Vec<TcpStream> = (0..2).map(|_| connect()).collect();
    speakers.iter_mut().for_each(|client| client.write_all(b"hello\r\n\r\n").unwrap());
    eventually("one speaker has the silent one", secs(20), || (in_flight(&silent) == Some(4)).then_some(()));
    checks_fail.store(true, SeqCst);
    for client in &mut clients {
        client.set_read_timeout(Some(secs(60))).unwrap();
        let mut greeting = vec![0; GREETING.len()];
        client.read_exact(&mut greeting).expect("every client gets the greeting of the good backend");
        assert_eq!(greeting, GREETING);
    }
    assert_eq!(server.backend(&silent.address)["moved"].as_u64(), Some(3));
    assert_eq!(in_flight(&silent), Some(1), "the speaker");
    late.open();
    let mut last = Vec::new();
    for speaker in &mut speakers {
        speaker.set_read_timeout(Some(secs(60))).unwrap();
        let mut four = [0; 4];
        speaker.read_exact(&mut four).unwrap();
        last.push(four);
    }
    last.sort();
    assert_eq!(last, [*b"HTTP", *b"late"]);
    drop(clients);
    eventually("the log says which moved", secs(20), || {
        (server.stdout.count(" moved=1 ") == 3).then_some(())
    });
}
