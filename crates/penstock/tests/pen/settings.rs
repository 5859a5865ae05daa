//! Settings of Pen that `-O` gives: what clients of both see alike.

use std::sync::mpsc;

use testing::client::End;
use testing::peers::Latch;
use testing::{Scripted, millis, secs};

use crate::doors::{Door, Which, same};

#[test]
fn tcp_fastclose_ends_the_session_with_the_side_that_it_names() {
    let ends = same(|which| {
        let mut ends = Vec::new();
        for word in ["up", "down", "both", "off"] {
            ends.push([server_ends(which, word), client_ends(which, word)]);
        }
        ends
    });
    let (ended, goes_on) = ("ended", "goes on");
    assert_eq!(ends, [[ended, goes_on], [goes_on, ended], [ended, ended], [goes_on, goes_on]]);
}

/// What becomes of the direction of the client after the server has ended its own.
fn server_ends(which: Which, word: &str) -> &'static str {
    let (sender, seen) = mpsc::channel();
    let server = Scripted::start(move |talk| {
        talk.send("hello\n");
        talk.client.finish_sending();
        let _ = sender.send(talk.client.read_to_end_within(millis(1500)).1);
    });
    let door = Door::open(which, &format!("-r -O tcp_fastclose~{word} @ {}", server.address));
    let (mut client, _) = door.hold(secs(8)).unwrap();
    assert_ne!(client.read_to_end_within(secs(8)).1, End::Open, "the end of the server is passed on");
    said(seen.recv_timeout(secs(8)).unwrap())
}

/// What becomes of the direction of the server after the client has ended its own.
fn client_ends(which: Which, word: &str) -> &'static str {
    let gate = Latch::default();
    let (sender, heard) = mpsc::channel();
    let stays = gate.clone();
    let server = Scripted::start(move |talk| {
        talk.send("hello\n");
        let _ = sender.send(talk.client.read_to_end_within(secs(8)).1);
        stays.wait();
    });
    let door = Door::open(which, &format!("-r -O tcp_fastclose~{word} @ {}", server.address));
    let (mut client, _) = door.hold(secs(8)).unwrap();
    client.finish_sending();
    assert_ne!(heard.recv_timeout(secs(8)).unwrap(), End::Open, "the end of the client is passed on");
    let end = client.read_to_end_within(millis(1500)).1;
    gate.open();
    said(end)
}

fn said(end: End) -> &'static str {
    if end == End::Open { "goes on" } else { "ended" }
}
