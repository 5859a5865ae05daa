//! Sessions that wait in the queue of a pool: what operators see of them, and what a change of the pool means for them.

use testing::client::request;
use testing::{Client, Scripted, Server, eventually, secs};

fn config(workers: usize, backends: &str, queue: &str) -> String {
    format!(
        "[process]\nworkers = {workers}\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{backends}]\nhealth = \"off\"\ntimeouts = {{ queue = \"{queue}\" }}\n"
    )
}

fn limited(backend: &Scripted) -> String {
    format!("{{ address = \"{}\", max-connections = 1 }}", backend.address)
}

/// A session that holds the only permit of the backend.
fn busy(server: &Server) -> Client {
    let mut first = server.client("raw");
    assert_eq!(first.get("/", &[]).text(), "one");
    first
}

fn waiting(server: &Server, count: usize) -> Vec<Client> {
    waiting_at(&["raw", "web"], server, count)
}

fn waiting_at(listeners: &[&str], server: &Server, count: usize) -> Vec<Client> {
    let clients = (0..count).map(|at| {
        let mut client = server.client(listeners[at % listeners.len()]);
        client.send(request("GET", "/waiting", &[], b""));
        client
    });
    let clients: Vec<_> = clients.collect();
    eventually("all wait", secs(20), || (queue(server)["waiting"] == count).then_some(()));
    clients
}

fn queue(server: &Server) -> serde_json::Value {
    server.ctl_json(&["backends"])[0]["queue"].clone()
}

#[test]
fn those_that_wait_go_to_a_backend_that_is_added_and_to_one_that_is_ready_again() {
    for workers in [1, 2] {
        let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
        let server = Server::start(&config(workers, &limited(&one), "10m"));
        let mut first = busy(&server);
        let mut clients = waiting(&server, 12);
        server.said(&["add", "pool.app.backends", &two.address]);
        for client in &mut clients {
            assert_eq!(client.try_response(secs(20)).unwrap().text(), "two");
        }
        drop(clients);
        let line = server.stdout.wait_for("/waiting", secs(20));
        assert!(
            line.contains(&format!(" backend={} ", two.address)) && line.contains(" queue_ms="),
            "{line}"
        );
        server.said(&["drain", &two.address]);
        let mut clients = waiting(&server, 6);
        server.said(&["ready", &two.address]);
        for client in &mut clients {
            assert_eq!(client.try_response(secs(20)).unwrap().text(), "two");
        }
        drop(clients);
        // One that has the place of the first backend in the list serves those that wait for that one.
        let three = Scripted::answering("three");
        server.said(&["drain", &two.address]);
        let mut clients = waiting(&server, 6);
        server.write_config(&config(workers, &format!("\"{}\"", three.address), "10m"));
        server.said(&["reload"]);
        for client in &mut clients {
            assert_eq!(client.try_response(secs(20)).unwrap().text(), "three");
        }
        assert_eq!(first.get("/", &[]).text(), "one", "the session that is open goes on");
    }
}

#[test]
fn a_changed_time_limit_of_the_queue_is_that_of_those_that_wait() {
    let one = Scripted::answering("one");
    let server = Server::start(&config(1, &limited(&one), "10s"));
    let _first = busy(&server);
    let mut clients = waiting(&server, 2);
    server.write_config(&config(1, &limited(&one), "10m"));
    server.said(&["reload"]);
    eventually("their first limit is over", secs(20), || {
        (queue(&server)["longest_ms"].as_f64() > Some(11_000.0)).then_some(())
    });
    assert_eq!(queue(&server)["waiting"], 2, "they wait on");
    server.said(&["set", "pool.app.timeouts.queue", "5s"]);
    assert_eq!(clients[1].try_response(secs(20)).unwrap().status, 503);
    let line = server.stdout.wait_for("/waiting", secs(20));
    assert!(line.contains(" 503 queue-timeout "), "{line}");
    assert!(clients[0].try_response(secs(20)).is_err(), "the other one is closed");
}

#[test]
fn the_time_for_which_sessions_wait_is_told_now_and_for_a_minute() {
    let one = Scripted::answering("one");
    let server = Server::start(&config(1, &limited(&one), "10m"));
    assert!(!server.said(&["backends"]).contains("queue:"));
    assert_eq!(
        queue(&server),
        serde_json::json!({ "waiting": 0, "longest_ms": null,
            "last_minute": { "sessions": 0, "p50_ms": null, "p99_ms": null, "longest_ms": null } })
    );
    let first = busy(&server);
    let mut clients = waiting_at(&["web"], &server, 3);
    eventually("they have waited", secs(20), || {
        (queue(&server)["longest_ms"].as_f64() > Some(300.0)).then_some(())
    });
    let text = server.said(&["backends"]);
    assert!(text.contains("\n  queue: 3 sessions wait, the longest for "), "{text}");
    assert_eq!(queue(&server)["last_minute"]["sessions"], 0);
    drop(first);
    // The permit goes from one to the next.
    for client in &mut clients {
        assert_eq!(client.try_response(secs(20)).unwrap().text(), "one");
    }
    eventually("all were served", secs(20), || {
        (queue(&server)["last_minute"]["sessions"] == 3).then_some(())
    });
    let told = queue(&server);
    assert!(told["longest_ms"].is_null() && told["last_minute"]["p50_ms"].as_f64() > Some(200.0), "{told}");
    assert!(told["last_minute"]["longest_ms"].as_f64() >= told["last_minute"]["p99_ms"].as_f64(), "{told}");
    let text = server.said(&["backends"]);
    assert!(text.contains("\n  queue: in the last minute 3 waited: p50 "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
