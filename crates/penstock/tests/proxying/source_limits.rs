//! What one source may do: connections at once, connections and requests a second.

use std::time::{Duration, Instant};

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

/// Waits until so many sessions have ended in this way: they are counted after their answer.
#[track_caller]
fn wait_for_ended(server: &Server, word: &str, count: u64) {
    eventually(&format!("{count} {word}"), secs(10), || {
        let endings = &server.ctl_json(&["status"])["listeners"][0]["endings"];
        (endings[word].as_u64().unwrap_or(0) == count).then_some(())
    });
}

/// In a second comes another place.
const IN_TIME: Duration = Duration::from_millis(900);

#[test]
fn a_source_that_connects_too_fast_gets_429_and_may_come_again_after_the_time_in_it() {
    // A place comes back after a second: on a machine that was slower than that, nothing is proved.
    let (_backend, server) = eventually("it is asked for within a second", secs(60), || {
        let (backend, server) = start("connection-rate = { burst = 3, per-second = 1 }");
        let began = Instant::now();
        let first: Vec<_> = (0..3).map(|_| ask(&mut client_from("127.0.0.2", &server), &[]).0).collect();
        let (status, wait) = ask(&mut client_from("127.0.0.2", &server), &[]);
        if began.elapsed() > IN_TIME {
            return None;
        }
        assert_eq!((first, status, wait), (vec![200; 3], 429, Some(1)));
        Some((backend, server))
    });
    assert_eq!(ask(&mut client_from("127.0.0.3", &server), &[]).0, 200, "another source is not concerned");
    wait_for_ended(&server, "connection-rate", 1);
    eventually("it may come again", secs(10), || {
        (ask(&mut client_from("127.0.0.2", &server), &[]).0 == 200).then_some(())
    });
}

#[test]
fn a_source_has_no_more_connections_than_its_limit_over_all_workers() {
    let (_backend, server) = start("connections-per-source = 3\nproxy-protocol-from = [\"127.0.0.9\"]");
    let mut open: Vec<_> = (0..3).map(|_| client_from("127.0.0.2", &server)).collect();
    assert!(open.iter_mut().all(|client| ask(client, &[]).0 == 200));
    assert_eq!(ask(&mut client_from("127.0.0.2", &server), &[]), (429, Some(5)));
    assert_eq!(ask(&mut client_from("127.0.0.3", &server), &[]).0, 200);
    wait_for_ended(&server, "source-full", 1);
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
    // A place comes back after a second: on a machine that was slower than that, nothing is proved.
    let (_backend, server, mut clients) = eventually("they are asked for within a second", secs(60), || {
        let (backend, server) =
            start("request-rate = { burst = 4, per-second = 1 }\ntrusted-proxies = [\"127.0.0.9\"]");
        let mut clients = [client_from("127.0.0.2", &server), client_from("127.0.0.2", &server)];
        let mut proxy = client_from("127.0.0.9", &server);
        let began = Instant::now();
        let together: Vec<_> = (0..5).map(|at| ask(&mut clients[at % 2], &[])).collect();
        let behind = ["192.0.2.1", "192.0.2.2"].map(|client| {
            let told = [("X-Forwarded-For", client)];
            [0; 5].map(|_| ask(&mut proxy, &told).0)
        });
        if began.elapsed() > IN_TIME {
            return None;
        }
        assert_eq!(together, [(200, None), (200, None), (200, None), (200, None), (429, Some(1))]);
        assert_eq!(behind, [[200, 200, 200, 200, 429]; 2]);
        Some((backend, server, clients))
    });
    wait_for_ended(&server, "request-rate", 3);
    eventually("the connection goes on", secs(10), || (ask(&mut clients[0], &[]).0 == 200).then_some(()));
}

/// A server whose sources are networks of these prefixes, behind a load balancer at 127.0.0.9.
fn start_with_networks(limits: &str) -> (Scripted, Server) {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[process]\nworkers = 2\nshares = {{ ipv4-prefix = 24, ipv6-prefix = 64 }}\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nproxy-protocol-from = [\"127.0.0.9\"]\n{limits}\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    (backend, server)
}

/// A client that a load balancer names by a PROXY header.
fn named(address: &str, server: &Server) -> Client {
    let mut client = client_from("127.0.0.9", server);
    let (family, ours) = if address.contains(':') { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
    client.send(format!("PROXY {family} {address} {ours} 4711 80\r\n"));
    client
}

#[test]
fn addresses_of_a_network_have_its_connections_together() {
    let (_backend, server) = start_with_networks("connections-per-source = 2");
    let mut open = ["127.0.2.1", "127.0.2.9"].map(|address| client_from(address, &server));
    assert!(open.iter_mut().all(|client| ask(client, &[]).0 == 200));
    for address in ["127.0.2.1", "127.0.2.200"] {
        assert_eq!(ask(&mut client_from(address, &server), &[]), (429, Some(5)), "{address}");
    }
    assert_eq!(ask(&mut client_from("127.0.3.1", &server), &[]).0, 200, "another network");
    let mut kept = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"].map(|address| named(address, &server));
    assert!(kept.iter_mut().all(|client| ask(client, &[]).0 == 200));
    assert_eq!(ask(&mut named("2001:db8:0:1::3", &server), &[]).0, 429);
    assert_eq!(ask(&mut named("2001:db8:0:2::1", &server), &[]).0, 200, "another /64");
    wait_for_ended(&server, "source-full", 3);
    drop(open);
    eventually("a place is free again", secs(10), || {
        (ask(&mut client_from("127.0.2.77", &server), &[]).0 == 200).then_some(())
    });
}

#[test]
fn addresses_of_a_network_have_its_rates_together() {
    // A place comes back after a second: on a machine that was slower than that, nothing is proved.
    eventually("the rates are asked for within a second", secs(60), rates_of_networks);
}

fn rates_of_networks() -> Option<()> {
    let (_backend, server) = start_with_networks(
        "connection-rate = { burst = 2, per-second = 1 }\nrequest-rate = { burst = 3, per-second = 1 }",
    );
    let began = Instant::now();
    let mut first = client_from("127.0.2.1", &server);
    let one = ask(&mut first, &[]).0;
    let mut second = client_from("127.0.2.9", &server);
    let two = ask(&mut second, &[]).0;
    let third = ask(&mut client_from("127.0.2.17", &server), &[]).0;
    let (three, four) = (ask(&mut first, &[]).0, ask(&mut second, &[]).0);
    let other = ask(&mut client_from("127.0.3.1", &server), &[]).0;
    let v6 = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:1::3", "2001:db8:0:2::1"]
        .map(|address| ask(&mut named(address, &server), &[]).0);
    if began.elapsed() > IN_TIME {
        return None;
    }
    assert_eq!([one, two, third], [200, 200, 429], "the third connection of the /24");
    assert_eq!([three, four], [200, 429], "the fourth request of the /24");
    assert_eq!(other, 200, "another network");
    assert_eq!(v6, [200, 200, 429, 200], "the third connection of the /64");
    wait_for_ended(&server, "connection-rate", 2);
    wait_for_ended(&server, "request-rate", 1);
    Some(())
}

#[test]
fn without_a_prefix_each_ipv4_address_has_its_own() {
    let (_backend, server) = start("connections-per-source = 1");
    let mut open = ["127.0.2.1", "127.0.2.9"].map(|address| client_from(address, &server));
    assert!(open.iter_mut().all(|client| ask(client, &[]).0 == 200));
    assert_eq!(ask(&mut client_from("127.0.2.1", &server), &[]).0, 429);
}
