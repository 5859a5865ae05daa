//! `fast-close` in the ring. `crates/penstock/tests/proxying/fast_close.rs` has what clients and backends see, with both engines.

use std::sync::{Mutex, mpsc};

use super::*;

/// To receive twice, connect, send twice and close twice.
const WHOLE: u64 = 7;

/// A backend that answers three bytes, ends its direction, and reads until the session is over.
fn ending() -> Scripted {
    Scripted::start(|talk| {
        talk.client.read_exactly(3);
        talk.send("bye");
        talk.client.finish_sending();
        talk.rest();
    })
}

/// A client that stays after the end of its session.
fn ended(server: &Server) -> TcpStream {
    let mut client = connect(server);
    client.write_all(b"abc").unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"bye");
    client
}

#[test]
fn a_session_ends_in_the_ring_with_the_side_that_ends_first() {
    const SESSIONS: u64 = 40;
    let backend = ending();
    let server = start(&[&backend.address], "fast-close = \"up\"", "");
    assert_eq!(server.ctl_json(&["status"])["engine"]["by_epoll"], serde_json::json!([]));
    for _ in 0..SESSIONS {
        let mut client = server.client("raw");
        client.send("abc");
        assert_eq!(client.read_to_end(), (b"bye".to_vec(), End::Closed));
    }
    for row in rows(&server, SESSIONS as usize) {
        assert_eq!(
            (&row["outcome"], &row["bytes_in"], &row["bytes_out"]),
            (&"ok".into(), &3.into(), &3.into())
        );
    }
    wait_until_clean(&server, &[&backend.address]);
    let given = operations(&server);
    // One that has left takes six. On a busy machine a few are older than sessions in the ring become.
    assert!(given >= SESSIONS * WHOLE - SESSIONS / 2, "{given}");
}

#[test]
fn the_backend_is_closed_at_once_and_a_client_that_stays_after_a_time() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let backend = Scripted::start(move |talk| {
        talk.client.read_exactly(3);
        talk.send("bye");
        talk.client.finish_sending();
        talk.rest();
        let _ = tell.lock().unwrap().send(());
    });
    let server = start(&[&backend.address], "fast-close = \"up\"", "");
    let mut sessions = 0;
    let mut is_open_when_told = || {
        sessions += 1;
        let client = ended(&server);
        told.recv_timeout(secs(20)).unwrap();
        let is_open = server.ctl_json(&["status"])["connections"]["now"] == 1;
        // The client has not closed its connection.
        wait_until_clean(&server, &[&backend.address]);
        drop(client);
        is_open
    };
    // On a busy machine the time of the client may be over as well.
    assert!((0..10).any(|_| is_open_when_told()));
    assert!(rows(&server, sessions).iter().all(|row| row["outcome"] == "ok"));
}

/// A reset, the answer to what a closed socket gets, could destroy the last bytes on their way to the client.
#[test]
fn what_a_client_sends_after_the_end_is_thrown_away_and_not_answered_with_a_reset() {
    let backend = ending();
    let server = start(&[&backend.address], "fast-close = \"up\"", "");
    let mut sessions = 0;
    // A hundred pieces are more than a session throws away in the ring, and less than a task does.
    for pieces in [2, 100] {
        let mut is_taken = || {
            sessions += 1;
            let mut client = ended(&server);
            // Without a wait for the client, its connection would be closed by now.
            server.ctl_json(&["status"]);
            (0..pieces).all(|_| client.write_all(&[b'x'; 2000]).is_ok())
        };
        // On a busy machine the time of the client may be over before it has sent them.
        assert!((0..10).any(|_| is_taken()), "{pieces}");
    }
    for row in rows(&server, sessions) {
        assert_eq!(
            (&row["outcome"], &row["bytes_in"], &row["bytes_out"]),
            (&"ok".into(), &3.into(), &3.into())
        );
    }
    wait_until_clean(&server, &[&backend.address]);
}

#[test]
fn a_drain_waits_for_what_lingers_no_longer_than_its_time() {
    let backend = ending();
    let mut server = start(&[&backend.address], "fast-close = \"up\"", "");
    let clients: Vec<TcpStream> = (0..10).map(|_| ended(&server)).collect();
    server.signal(Signal::SIGTERM);
    // The clients have not closed their connections.
    assert!(server.wait_end(secs(20)).success());
    assert!(rows(&server, 10).iter().all(|row| row["outcome"] == "ok"));
    drop(clients);
}
