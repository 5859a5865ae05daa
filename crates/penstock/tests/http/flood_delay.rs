//! A client whose connection was ended for a flood waits before its next connection is served; other clients do not.

use testing::attack::connect_from;
use testing::http2::{ENHANCE_YOUR_CALM, Http2, PING, frame};
use testing::{Scripted, Server, eventually, secs};

const FLOODING: &str = "127.0.0.2";
const OTHER: &str = "127.0.0.3";

fn start(backend: &str, listener: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[admin]\nbind = \"127.0.0.1:0\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"{backend}\"]\n"
    ))
}

/// Floods until the connection is ended.
fn flood(server: &Server) {
    let mut client = Http2::over(connect_from(FLOODING, &server.address("web")).unwrap());
    client.send_raw(&frame(PING, 0, 0, &[0; 8]).repeat(5000));
    assert!(matches!(client.end(), Some(ENHANCE_YOUR_CALM) | None));
}

fn is_served(server: &Server, source: &str) {
    let mut client = Http2::over(connect_from(source, &server.address("web")).unwrap());
    client.get(1, "/");
    assert_eq!(client.response(1).0, Some(200), "{source}");
}

fn delayed(server: &Server) -> u64 {
    let text = server.metrics();
    let line = text.lines().find(|line| line.starts_with("penstock_listener_delayed_total")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_next_connections_of_an_address_that_flooded_wait_and_are_served_and_others_do_not_wait() {
    let backend = Scripted::answering("served");
    // So long that each connection of the address arrives within the time.
    let server = start(&backend.address, "http2 = { flood-delay = \"2s\" }");
    is_served(&server, FLOODING);
    assert_eq!(delayed(&server), 0);
    // The wait doubles with each flood: a slow machine only needs more floods for the first connection that waits.
    eventually("a connection waits", secs(30), || {
        flood(&server);
        (delayed(&server) > 0).then_some(())
    });
    let before = delayed(&server);
    is_served(&server, OTHER);
    assert_eq!(delayed(&server), before, "a client of another address waited");
    is_served(&server, FLOODING);
    assert_eq!(server.stdout.count("panicked"), 0);
}

#[test]
fn no_connection_waits_where_the_delay_is_zero() {
    let backend = Scripted::answering("served");
    let server = start(&backend.address, "http2 = { flood-delay = \"0s\" }");
    for _ in 0..20 {
        flood(&server);
    }
    is_served(&server, FLOODING);
    assert_eq!(delayed(&server), 0);
}
