//! Settings of Pen that a file or `-O` gives: what clients of both see alike.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

use testing::client::End;
use testing::peers::Latch;
use testing::{Client, Scripted, eventually, millis, secs};

use crate::doors::{Door, Which, greeter, numbered, same};

/// The port of an address on 127.0.0.1.
fn port(server: &Scripted) -> &str {
    server.address.rsplit(':').next().unwrap()
}

#[test]
fn servers_of_a_file_are_used_in_turn() {
    let servers = ["a", "b"].map(Scripted::answering);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pen.cfg");
    let [a, b] = [port(&servers[0]), port(&servers[1])];
    let text = format!(
        "# two servers\nserver 0 address 127.0.0.1 port {a}\nserver 1 address 127.0.0.1 port {b} max 9\n\
         roundrobin\nno stubborn\nno http\n"
    );
    fs::write(&file, text).unwrap();
    let order = same(|which| {
        let order = Door::open(which, &format!("-F {} @", file.display())).asks(4);
        numbered(&order)
    });
    assert_eq!(order, [0, 1, 0, 1]);
}

#[test]
fn the_server_with_the_lowest_priority_number_gets_the_clients_and_then_the_next_one() {
    let after = same(|which| {
        let [second, last] = ["second", "last"].map(Scripted::answering);
        // Not a port that the kernel may give another test when this server is gone.
        let first = Scripted::answering_at(testing::port::free(), "first");
        let (one, two, three) = (&second.address, &first.address, &last.address);
        let line = format!("-r -O prio -O poll @ {one}:0:0:0:2 {two}:0:0:0:1 {three}:0:0:0:3");
        let door = Door::open(which, &line);
        let before = door.asks(3);
        let place = first.address.clone();
        drop(first);
        eventually("the server is gone", secs(5), || Client::try_connect(&place).is_err().then_some(()));
        // Pen gives the client that finds it dead the next server in the order of the command line.
        door.ask();
        (before, door.asks(3))
    });
    assert_eq!(after, (vec!["first".to_owned(); 3], vec!["second".to_owned(); 3]));
}

#[test]
fn servers_are_connected_to_from_the_source_address() {
    let seen = same(|which| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = mpsc::channel();
        std::thread::spawn(move || {
            if let Ok((mut stream, from)) = listener.accept() {
                let _ = stream.write_all(b"hello\n");
                let _ = sender.send(from.ip());
            }
        });
        let door = Door::open(which, &format!("-r -O source~127.0.0.7 @ {address}"));
        let held = door.hold(secs(8));
        assert!(held.is_some(), "{which:?}");
        seen.recv_timeout(secs(8)).unwrap()
    });
    assert_eq!(seen, "127.0.0.7".parse::<IpAddr>().unwrap());
}

#[test]
fn a_client_that_is_silent_is_closed_after_the_idle_timeout() {
    let server = greeter("a");
    let end = same(|which| {
        let door = Door::open(which, &format!("-r -O idle_timeout~1 @ {}", server.address));
        let (mut client, _) = door.hold(secs(8)).unwrap();
        client.read_to_end_within(secs(15)).1
    });
    assert_eq!(end, End::Closed);
}

#[test]
fn a_client_is_forgotten_after_the_tracking_time() {
    // Pen forgets a client when a new one takes its place: `differences.rs` has what it does before that.
    let newcomers = |which| if which == Which::Pen { &[4, 5][..] } else { &[] };
    assert_eq!(same(|which| servers_of_a_client(which, newcomers(which))), (true, false));
}

/// Whether a client has its first server within the time of -T, and after it, when these new clients have come.
pub(crate) fn servers_of_a_client(which: Which, newcomers: &[u16]) -> (bool, bool) {
    let servers = ["a", "b"].map(greeter);
    let line = format!("-T 5 @ {} {}", servers[0].address, servers[1].address);
    let door = Door::open(which, &line);
    let ask = |client| door.hold_from(client, secs(8)).unwrap().1;
    let first = ask(1);
    // A session that has not ended yet would count.
    eventually("its session has ended", secs(10), || {
        servers.iter().all(|server| server.open.load(SeqCst) == 0).then_some(())
    });
    // After this a new client gets the other server from both: it is the next one, and the one with fewer clients.
    let [other, again] = [2, 3].map(|client| door.hold_from(client, secs(8)).unwrap());
    assert!(other.1 != first && again.1 == first, "{which:?}: {first} {} {}", other.1, again.1);
    drop(other);
    let within = ask(1) == first;
    // The time itself is the subject; each question would begin it anew.
    std::thread::sleep(millis(6500));
    newcomers.iter().for_each(|client| drop(ask(*client)));
    (within, ask(1) == first)
}

#[test]
fn a_list_of_one_server_sends_the_clients_that_it_denies_to_the_others() {
    let servers = ["a", "b"].map(Scripted::answering);
    let line = format!(
        "-r -O acl~1~deny~127.0.0.1 -O server~0~acl~1 @ {} {}",
        servers[0].address, servers[1].address
    );
    let seen = same(|which| {
        let door = Door::open(which, &line);
        let denied: Vec<_> = (0..4).map(|_| door.ask_from(1)).collect();
        let mut other: Vec<_> = (0..4).map(|_| door.ask_from(2)).collect();
        other.sort();
        (denied, other)
    });
    assert_eq!(seen, (vec!["b".to_owned(); 4], ["a", "a", "b", "b"].map(str::to_owned).to_vec()));
}

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

/// Time in which a session would have ended.
const GOES_ON: std::time::Duration = secs(4);

/// What becomes of the direction of the client after the server has ended its own.
fn server_ends(which: Which, word: &str) -> &'static str {
    let (sender, seen) = mpsc::channel();
    let server = Scripted::start(move |talk| {
        talk.send("hello\n");
        talk.client.finish_sending();
        let _ = sender.send(talk.client.read_to_end_within(GOES_ON).1);
    });
    let door = Door::open(which, &format!("-r -O tcp_fastclose~{word} @ {}", server.address));
    let (mut client, _) = door.hold(secs(8)).unwrap();
    assert_ne!(client.read_to_end_within(secs(8)).1, End::Open, "the end of the server is passed on");
    said(seen.recv_timeout(secs(20)).unwrap())
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
    let end = client.read_to_end_within(GOES_ON).1;
    gate.open();
    said(end)
}

fn said(end: End) -> &'static str {
    if end == End::Open { "goes on" } else { "ended" }
}

/// Neither is wrong: it is no fault of Pen.
#[test]
fn the_first_client_in_turn_gets_the_second_server_of_pen_and_the_first_here() {
    let servers = ["a", "b"].map(Scripted::answering);
    let line = format!("-r @ {} {}", servers[0].address, servers[1].address);
    assert_eq!(Which::BOTH.map(|which| Door::open(which, &line).ask()), ["b", "a"]);
}
