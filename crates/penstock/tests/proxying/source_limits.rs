//! What one source may do: connections at once, connections and requests a second.

use std::time::Instant;

use testing::client::{Stream, request};
use testing::{Client, Scripted, Server, attack, eventually, secs};

fn start(listener: &str) -> (Scripted, Server) {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    (backend, server)
}

fn client_from(source: &str, server: &Server) -> Client {
    Client::over(Stream::Tcp(attack::connect_from(source, &server.address("web")).unwrap()))
}

/// The status of an answer and its `Retry-After`.
fn ask(client: &mut Client, headers: &[(&str, &str)]) -> (u16, Option<u64>) {
    let _ = client.try_send(request("GET", "/", headers, b""));
    let answer = client.response();
    (answer.status, answer.header("retry-after").map(|seconds| seconds.parse().unwrap()))
}

fn ended(server: &Server, word: &str) -> u64 {
    server.ctl_json(&["status"])["listeners"][0]["endings"][word].as_u64().unwrap_or(0)
}

#[test]
fn a_source_that_connects_too_fast_gets_429_and_may_come_again_after_the_time_in_it() {
    let (_backend, server) = start("connection-rate = { burst = 3, per-second = 1 }");
    for _ in 0..3 {
        assert_eq!(ask(&mut client_from("127.0.0.2", &server), &[]).0, 200);
    }
    let began = Instant::now();
    let (status, wait) = ask(&mut client_from("127.0.0.2", &server), &[]);
    assert_eq!((status, wait), (429, Some(1)));
    assert_eq!(ask(&mut client_from("127.0.0.3", &server), &[]).0, 200, "another source is not concerned");
    assert_eq!(ended(&server, "connection-rate"), 1);
    let again = eventually("it may come again", secs(10), || {
        (ask(&mut client_from("127.0.0.2", &server), &[]).0 == 200).then(Instant::now)
    });
    assert!(again.duration_since(began) < secs(3));
}

#[test]
fn a_source_has_no_more_connections_than_its_limit_over_all_workers() {
    let (_backend, server) = start("connections-per-source = 3\nproxy-protocol-from = [\"127.0.0.9\"]");
    let mut open: Vec<_> = (0..3).map(|_| client_from("127.0.0.2", &server)).collect();
    assert!(open.iter_mut().all(|client| ask(client, &[]).0 == 200));
    assert_eq!(ask(&mut client_from("127.0.0.2", &server), &[]), (429, Some(5)));
    assert_eq!(ask(&mut client_from("127.0.0.3", &server), &[]).0, 200);
    assert_eq!(ended(&server, "source-full"), 1);
    // Behind a PROXY header the address in it counts.
    let behind = |address: &str| {
        let mut client = client_from("127.0.0.9", &server);
        client.send(format!("PROXY TCP4 {address} 127.0.0.1 4711 80\r\n"));
        (ask(&mut client, &[]).0, client)
    };
    assert_eq!(behind("127.0.0.2").0, 429);
    let kept: Vec<_> = (0..4).map(|_| behind("192.0.2.7")).collect();
    assert_eq!(kept.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 200, 429]);
    assert_eq!(behind("192.0.2.8").0, 200);
    open.pop();
    eventually("a place is free again", secs(10), || {
        (ask(&mut client_from("127.0.0.2", &server), &[]).0 == 200).then_some(())
    });
}

#[test]
fn requests_of_a_source_count_together_and_behind_a_trusted_proxy_each_client_has_its_own() {
    let (_backend, server) =
        start("request-rate = { burst = 4, per-second = 1 }\ntrusted-proxies = [\"127.0.0.9\"]");
    let mut clients = [client_from("127.0.0.2", &server), client_from("127.0.0.2", &server)];
    for at in 0..4 {
        assert_eq!(ask(&mut clients[at % 2], &[]).0, 200);
    }
    assert_eq!(ask(&mut clients[0], &[]), (429, Some(1)));
    assert_eq!(ended(&server, "request-rate"), 1);
    let mut proxy = client_from("127.0.0.9", &server);
    for client in ["192.0.2.1", "192.0.2.2"] {
        let told = [("X-Forwarded-For", client)];
        for _ in 0..4 {
            assert_eq!(ask(&mut proxy, &told).0, 200);
        }
        assert_eq!(ask(&mut proxy, &told).0, 429);
    }
    eventually("the connection goes on", secs(10), || (ask(&mut clients[0], &[]).0 == 200).then_some(()));
}
