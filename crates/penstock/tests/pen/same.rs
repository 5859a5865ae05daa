//! What clients of Pen and clients of Penstock see alike.
//!
//! With epoll, its default, Pen 0.34.1 takes the end of a connection for an error of it, and neither fails over nor
//! blacklists: `differences.rs` has that. Here servers that fail meet a Pen with `-O poll`, which does what its manual says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::Command;

use testing::peers::{Pattern, nginx};
use testing::pki::server_pair;
use testing::server::run_to_end;
use testing::{Client, Recorder, Scripted, eventually, millis, port, secs};

use crate::doors::{Door, answer, greeter, greeting, numbered, same};

#[test]
fn servers_are_used_in_turn() {
    let servers = ["a", "b", "c"].map(Scripted::answering);
    let line = format!("-r @ {} {} {}", servers[0].address, servers[1].address, servers[2].address);
    let order = same(|which| {
        let order = Door::open(which, &line).asks(6);
        (numbered(&order), order[..3].iter().collect::<BTreeSet<_>>().len())
    });
    assert_eq!(order, (vec![0, 1, 2, 0, 1, 2], 3));
}

#[test]
fn clients_stay_at_their_server() {
    let servers = ["a", "b"].map(Scripted::answering);
    let line = format!("@ {} {}", servers[0].address, servers[1].address);
    let order = same(|which| {
        let door = Door::open(which, &line);
        numbered(&[1, 1, 1, 2, 2, 2, 1, 2].map(|client| door.ask_from(client)))
    });
    assert_eq!(order, [0, 0, 0, 1, 1, 1, 0, 1]);
}

#[test]
fn a_hash_keeps_clients_too() {
    let servers = ["a", "b", "c"].map(Scripted::answering);
    let line = format!("-h @ {} {} {}", servers[0].address, servers[1].address, servers[2].address);
    same(|which| {
        let door = Door::open(which, &line);
        (1..20).all(|client| {
            let first = door.ask_from(client);
            ["a", "b", "c"].contains(&&*first) && (0..2).all(|_| door.ask_from(client) == first)
        })
    });
}

#[test]
fn a_dead_server_costs_nobody_an_answer() {
    let server = Scripted::answering("b");
    let line = format!("-r -O poll @ 127.0.0.1:{} {}", port::free(), server.address);
    assert_eq!(same(|which| Door::open(which, &line).asks(5)), ["b"; 5]);
}

#[test]
fn a_server_that_failed_is_left_alone_for_a_time_and_then_used_again() {
    same(|which| {
        let dead = port::free();
        let server = Scripted::answering("b");
        let door = Door::open(which, &format!("-r -b 8 -O poll @ 127.0.0.1:{dead} {}", server.address));
        let before = door.asks(2);
        let _back = Scripted::answering_at(dead, "a");
        let during = door.asks(4);
        let after = eventually("the first server is used again", secs(10), || {
            Some(door.ask()).filter(|name| name == "a")
        });
        (before, during, after)
    });
}

#[test]
fn stubborn_closes_the_connection_of_the_client_whose_server_is_dead() {
    let server = Scripted::answering("b");
    let counts = same(|which| {
        let line = format!("-r -s -O poll @ 127.0.0.1:{} {}", port::free(), server.address);
        let mut counts = BTreeMap::new();
        for answer in Door::open(which, &line).asks(6) {
            *counts.entry(answer).or_insert(0) += 1;
        }
        counts
    });
    assert_eq!(counts, BTreeMap::from([("b".to_owned(), 5), ("closed".to_owned(), 1)]));
}

#[test]
fn a_client_whose_server_died_stays_at_the_new_one() {
    same(|which| {
        let (one, two) = (port::free(), port::free());
        let mut servers = [Some(Scripted::answering_at(one, "a")), Some(Scripted::answering_at(two, "b"))];
        let door = Door::open(which, &format!("-b 1 -O poll @ 127.0.0.1:{one} 127.0.0.1:{two}"));
        let first = usize::from(door.ask() == "b");
        let (ports, names) = ([one, two], ["a", "b"]);
        servers[first] = None;
        eventually("the server is gone", secs(5), || {
            Client::try_connect(&format!("127.0.0.1:{}", ports[first])).is_err().then_some(())
        });
        let other = names[1 - first];
        let moved = door.asks(2).iter().all(|name| name == other);
        servers[first] = Some(Scripted::answering_at(ports[first], names[first]));
        // Until new clients show that the first server is used again.
        let mut clients = 2..;
        eventually("the server is back in use", secs(20), || {
            clients.by_ref().take(2).any(|client| door.ask_from(client) == names[first]).then_some(())
        });
        (moved, door.asks(3).iter().all(|name| name == other))
    });
}

#[test]
fn a_server_gets_no_more_connections_than_its_limit() {
    let servers = ["a", "b"].map(greeter);
    same(|which| {
        let line = format!("-r @ {}:1 {}:1", servers[0].address, servers[1].address);
        let door = Door::open(which, &line);
        let held: Vec<_> = (0..2).map(|_| door.hold(secs(8)).unwrap()).collect();
        let names: BTreeSet<_> = held.iter().map(|(_, name)| name.clone()).collect();
        (names.len(), door.hold(secs(8)).is_none())
    });
}

#[test]
fn one_client_more_than_all_connections_waits_until_another_one_ends() {
    let server = greeter("a");
    same(|which| {
        let door = Door::open(which, &format!("-r -x 2 @ {}", server.address));
        let mut held: Vec<_> = (0..2).map(|_| door.hold(secs(8)).unwrap()).collect();
        let mut third = Client::connect(&door.address);
        let waits = greeting(&mut third, millis(300)).is_none();
        held.pop();
        (waits, greeting(&mut third, secs(8)))
    });
}

#[test]
fn weights_share_connections_that_are_open() {
    let servers = ["a", "b"].map(greeter);
    same(|which| {
        let line = format!("-W -r @ {}:0:0:2 {}:0:0:1", servers[0].address, servers[1].address);
        let door = Door::open(which, &line);
        let held: Vec<_> = (0..6).map(|_| door.hold(secs(8)).unwrap()).collect();
        let of = |name: &str| held.iter().filter(|(_, server)| server == name).count();
        (of("a"), of("b"))
    });
}

#[test]
fn a_unix_socket_is_a_place_to_listen() {
    let server = Scripted::answering("a");
    let line = format!("-r @DIR/front.sock {}", server.address);
    assert_eq!(same(|which| Door::open(which, &line).asks(2)), ["a", "a"]);
}

#[test]
fn backends_learn_the_address_of_the_client_of_a_get() {
    let server = Recorder::start();
    let seen = same(|which| {
        let door = Door::open(which, &format!("-H @ {}", server.address()));
        answer(Client::try_connect(&door.address));
        let request = server.last();
        ["X-Forwarded-For", "X-Forwarded-Proto"].map(|name| request.header(name))
    });
    assert_eq!(seen, [Some("127.0.0.1".to_owned()), Some("http".to_owned())]);
}

#[test]
fn bytes_pass_both_ways_unchanged() {
    const LENGTH: u64 = 3_000_000;
    let server = Scripted::start(|talk| {
        let all = talk.client.read_exactly(usize::try_from(LENGTH).unwrap());
        talk.send(all);
    });
    same(|which| {
        let door = Door::open(which, &format!("-r @ {}", server.address));
        let mut client = Client::connect(&door.address);
        let pattern = Pattern::new();
        pattern.write_to(&mut client.stream, LENGTH).unwrap();
        pattern.is_at(0, &client.read_exactly(usize::try_from(LENGTH).unwrap()))
    });
}

#[test]
fn a_real_web_server_answers_through_both() {
    let (dir, port) = (tempfile::tempdir().unwrap(), port::free());
    let _server = nginx(dir.path(), &format!("listen 127.0.0.1:{port};"));
    std::fs::write(dir.path().join("www/index.html"), "hello").unwrap();
    let line = format!("-r @ 127.0.0.1:{port}");
    assert_eq!(same(|which| Door::open(which, &line).asks(3)), ["hello"; 3]);
}

#[test]
fn tls_ends_at_both() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("site.pem");
    server_pair(&whole, &["localhost"]);
    let server = Scripted::answering("a");
    let line = format!("-r -E {} @ {}", whole.display(), server.address);
    let seen = same(|which| {
        let door = Door::open(which, &line);
        let mut curl = Command::new(testing::tools::program("curl"));
        curl.args(["-sS", "--http1.1", "--cacert"]).arg(&whole);
        curl.args(["--connect-to", &format!("::{}", door.address), "https://localhost/"]);
        String::from_utf8(run_to_end(&mut curl, secs(20)).stdout).unwrap()
    });
    assert_eq!(seen, "a");
}

#[test]
fn datagrams_of_a_client_stay_at_one_server_and_come_back() {
    let servers = ["a", "b"].map(echo);
    same(|which| {
        let door = Door::open(which, &format!("-U @ {} {}", servers[0], servers[1]));
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(&door.address).unwrap();
        client.set_read_timeout(Some(secs(8))).unwrap();
        let mut names = (0..4).map(|_| {
            client.send(b"x").unwrap();
            let mut room = [0; 100];
            let length = client.recv(&mut room).unwrap();
            String::from_utf8_lossy(&room[..length]).into_owned()
        });
        let first = names.next().unwrap();
        ["a", "b"].contains(&&*first) && names.all(|name| name == first)
    });
}

/// A server for datagrams that answers with its name for as long as the process lives.
pub(crate) fn echo(name: &'static str) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut room = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut room) {
            let _ = socket.send_to(name.as_bytes(), from);
        }
    });
    address
}
