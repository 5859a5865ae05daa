//! Clients that guess passwords wait, and keep no other client out.

use std::net::TcpStream;
use std::time::Instant;

use testing::{Server, secs};

use super::peer::Peer;
use super::site::Site;

#[test]
fn an_address_that_guesses_must_wait_and_the_local_socket_does_not_notice() {
    let site = Site::start("");
    let mut wrong = 0;
    // Three for each connection, and a wait after the fifth.
    for _ in 0..4 {
        let Some(mut peer) = Peer::try_connect(&site) else { break };
        for _ in 0..3 {
            let answer = peer.scram("SCRAM-SHA-256", "ann", "wrong");
            match answer.get(..3) {
                Some("535") => wrong += 1,
                Some("421" | "454") | None => break,
                other => panic!("{other:?}: {answer}"),
            }
        }
    }
    assert!((6..=7).contains(&wrong), "{wrong} were tried");
    let start = Instant::now();
    for _ in 0..200 {
        // Closed at once, without a handshake.
        drop(TcpStream::connect(("127.0.0.1", site.port)).unwrap());
    }
    let server: &Server = &site.server;
    server.said(&["status"]);
    assert!(start.elapsed() < secs(5), "{:?}", start.elapsed());
}

#[test]
fn silent_clients_of_one_address_are_bounded() {
    let site = Site::start("");
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", site.port)).unwrap()).collect();
    site.server.said(&["status"]);
    drop(silent);
    let answer = testing::eventually("a log-in", secs(20), || {
        Peer::try_connect(&site).map(|mut peer| peer.scram("SCRAM-SHA-256", "ann", "pencil"))
    });
    assert!(answer.starts_with("235 "), "{answer}");
}
