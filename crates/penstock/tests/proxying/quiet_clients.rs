//! HTTP/1.1 clients between two requests: after a second the worker keeps their connections without a task.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use testing::client::request;
use testing::pki::{Time, self_signed};
use testing::server::{Lines, Setup};
use testing::{Client, Scripted, Server, eventually, secs};

use crate::sleepers::wait_until_parked;

fn config(backend: &str, listener: &str, process: &str) -> String {
    format!(
        "[process]\nworkers = 1\n{process}\n[access-log]\ntarget = \"stdout\"\nformat = \"json\"\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n[pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

/// A client whose first request was answered and whose connection is parked.
fn quiet(server: &Server) -> Client {
    let mut client = server.client("web");
    assert_eq!(client.get("/first", &[]).status, 200);
    wait_until_parked(server, 1);
    client
}

fn connections(server: &Server) -> u64 {
    server.ctl_json(&["status"])["connections"]["now"].as_u64().unwrap()
}

#[test]
fn a_quiet_client_is_served_again_however_its_request_arrives() {
    let backend = Scripted::answering("ok");
    let server = Server::start(&config(&backend.address, "", ""));
    let mut client = quiet(&server);
    assert_eq!(client.get("/whole", &[]).status, 200);
    wait_until_parked(&server, 1);
    let whole = request("POST", "/pieces", &[], b"a body");
    for piece in whole.chunks(7) {
        client.send(piece);
    }
    assert_eq!(client.response().status, 200);
    wait_until_parked(&server, 1);
    client.send([request("GET", "/one", &[], b""), request("GET", "/two", &[], b"")].concat());
    assert_eq!((client.response().status, client.response().status), (200, 200));
    wait_until_parked(&server, 1);
    client.send("no request\r\n\r\n");
    assert_eq!(client.response().status, 400);
    client.read_to_end();
    let log = server.stdout.wait_for("/two", secs(20));
    assert!(log.contains("\"outcome\":\"ok\""), "{log}");
    eventually("the client is gone", secs(10), || (connections(&server) == 0).then_some(()));
}

#[test]
fn the_idle_timeout_ends_a_quiet_client_and_one_that_leaves_is_noticed() {
    let backend = Scripted::answering("ok");
    let server = Server::start(&config(&backend.address, "timeouts = { idle = \"10s\" }", ""));
    let mut client = quiet(&server);
    assert_eq!(client.read_to_end().0, b"");
    drop(client);
    eventually("the client is gone", secs(10), || (connections(&server) == 0).then_some(()));
    let client = quiet(&server);
    assert_eq!(connections(&server), 1);
    drop(client);
    eventually("the client is gone", secs(2), || (connections(&server) == 0).then_some(()));
    let mut client = quiet(&server);
    client.finish_sending();
    assert_eq!(client.read_to_end().0, b"");
}

#[test]
fn a_request_that_has_arrived_is_answered_after_the_idle_timeout_and_at_a_stop() {
    let backend = Scripted::answering("ok");
    let mut server = Server::start(&config(&backend.address, "timeouts = { idle = \"10s\" }", ""));
    let mut client = quiet(&server);
    // While the server is stopped, the request arrives and the time ends.
    server.signal(Signal::SIGSTOP);
    client.send(request("GET", "/late", &[], b""));
    std::thread::sleep(secs(11));
    server.signal(Signal::SIGCONT);
    assert_eq!(client.response().status, 200);
    let mut clients: Vec<_> = (0..20).map(|_| server.client("web")).collect();
    for client in &mut clients {
        assert_eq!(client.get("/first", &[]).status, 200);
    }
    wait_until_parked(&server, 21);
    server.signal(Signal::SIGSTOP);
    clients.iter_mut().for_each(|client| client.send(request("GET", "/last", &[], b"")));
    server.signal(Signal::SIGTERM);
    server.signal(Signal::SIGCONT);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
        assert_eq!(client.read_to_end().0, b"");
    }
    assert!(server.wait_end(secs(10)).success());
}

#[test]
fn a_quiet_client_is_closed_for_a_new_one_when_there_is_no_room() {
    let backend = Scripted::answering("ok");
    let server = Server::start(&config(&backend.address, "", "max-connections = 2"));
    let mut first = quiet(&server);
    let mut second = server.client("web");
    assert_eq!(second.get("/second", &[]).status, 200);
    wait_until_parked(&server, 2);
    let mut third = server.client("web");
    assert_eq!(third.get("/third", &[]).status, 200);
    assert_eq!(first.read_to_end().0, b"");
    assert_eq!(second.get("/still", &[]).status, 200);
    assert_eq!(server.ctl_json(&["status"])["counters"]["idle_clients_closed"], 1);
}

#[test]
fn a_quiet_client_hears_of_a_reload_and_is_closed_at_once_by_a_stop() {
    let (old, new) = (Scripted::answering("old"), Scripted::answering("new"));
    // Longer than the test waits, so that the stop must have closed them.
    let process = "drain-timeout = \"5m\"";
    let mut server = Server::start(&config(&old.address, "", process));
    let mut client = quiet(&server);
    let mut other = server.client("web");
    assert_eq!(other.get("/", &[]).text(), "old");
    wait_until_parked(&server, 2);
    server.write_config(&config(&new.address, "", process));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(client.get("/", &[]).text(), "new");
    wait_until_parked(&server, 2);
    server.signal(Signal::SIGTERM);
    assert_eq!((client.read_to_end().0, other.read_to_end().0), (vec![], vec![]));
    assert!(server.wait_end(secs(10)).success());
}

#[test]
fn hundreds_of_quiet_clients_that_ask_at_once_are_all_answered() {
    const MANY: usize = 300;
    let backend = Scripted::answering("ok");
    let server = Server::start(&config(&backend.address, "", "shares = { source = 100 }"));
    let mut clients: Vec<_> = (0..MANY).map(|_| server.client("web")).collect();
    for round in 0..2 {
        clients.iter_mut().for_each(|client| client.send(request("GET", "/", &[], b"")));
        for client in &mut clients {
            assert_eq!(client.response().status, 200, "{round}");
        }
        wait_until_parked(&server, MANY);
    }
    drop(clients);
    eventually("all are gone", secs(10), || (connections(&server) == 0).then_some(()));
}

#[test]
fn a_quiet_client_of_tls_keeps_its_connection() {
    let backend = Scripted::answering("ok");
    let tls = "[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = { certificates = \"@DIR@/certs\", ocsp = \"off\" }";
    let setup = Setup::new(&config(&backend.address, tls, ""));
    std::fs::create_dir(setup.dir().join("certs")).unwrap();
    self_signed(&setup.dir().join("certs"), "a", &["localhost"], Time::Now);
    let server = setup.start();
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &server.address("secure")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let heard = Lines::follow(openssl.stdout.take().unwrap());
    let mut client = openssl.stdin.take().unwrap();
    for answers in 1..=2 {
        client.write_all(&request("GET", "/", &[], b"")).unwrap();
        eventually("the client is answered", secs(20), || {
            (heard.count("HTTP/1.1 200") == answers).then_some(())
        });
        // One without TLS is parked after the time that would park the other.
        drop(quiet(&server));
        wait_until_parked(&server, 0);
    }
    assert_eq!(server.ctl_json(&["status"])["connections"]["now"], 1);
    openssl.kill().unwrap();
    openssl.wait().unwrap();
}
