//! The pool for sessions of a pool without an available backend.

use testing::client::get;
use testing::server::penstock;
use testing::{Client, Scripted, Server, eventually, port, secs};

fn config(lines: &str) -> String {
    format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"@DIR@/access.log\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n{lines}\n"
    )
}

fn both(server: &Server) -> [String; 2] {
    ["web", "tcp"].map(|listener| {
        let mut client = server.client(listener);
        client.send(testing::client::request("GET", "/", &[], b""));
        client.try_response(secs(20)).map_or_else(|why| why, |answer| answer.text())
    })
}

/// An address at which nothing listens.
fn closed() -> String {
    format!("127.0.0.1:{}", port::free())
}

#[test]
fn a_fallback_serves_while_no_backend_is_available_and_events_say_so() {
    let (app, sorry) = (Scripted::answering("app"), Scripted::answering("sorry"));
    let server = Server::start(&config(&format!(
        "[pool.app]\nbackends = [\"{}\"]\nfallback = \"sorry\"\n[pool.sorry]\nbackends = [\"{}\"]\n",
        app.address, sorry.address
    )));
    assert_eq!(both(&server), ["app", "app"]);
    assert!(server.ctl(&["drain", "app", &app.address]).status.success());
    for _ in 0..3 {
        assert_eq!(both(&server), ["sorry", "sorry"]);
    }
    let events = || String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert_eq!(events().matches("sessions go to pool sorry").count(), 1, "{}", events());
    assert!(!events().contains("do not go to the fallback"), "{}", events());
    assert!(server.ctl(&["ready", "app", &app.address]).status.success());
    assert_eq!(both(&server), ["app", "app"]);
    assert_eq!(events().matches("do not go to the fallback any more").count(), 1, "{}", events());
    let metric = "penstock_pool_fallback_sessions_total{pool=\"app\"} 6\n";
    assert!(server.metrics().contains(metric), "{}", server.metrics());
    let shown = String::from_utf8(server.ctl(&["backends"]).stdout).unwrap();
    assert!(shown.contains("6 sessions to fallback sorry"), "{shown}");
}

#[test]
fn a_session_whose_backends_refuse_connections_falls_back_at_once_and_the_last_one_is_ejected() {
    let (closed, sorry) = (closed(), Scripted::answering("sorry"));
    let server = Server::start(&config(&format!(
        "[pool.app]\nbackends = [\"{closed}\"]\nfallback = \"middle\"\npassive = {{ failures = 4, ejection = \"1h\" }}\n\
         [pool.middle]\nbackends = [\"{closed}\"]\nfallback = \"sorry\"\nhealth = {{ tcp = true, fall = 1 }}\n\
         [pool.sorry]\nbackends = [\"{}\"]\n",
        sorry.address
    )));
    for round in 0..5 {
        assert_eq!(both(&server), ["sorry", "sorry"], "round {round}");
    }
    eventually("it is ejected", secs(10), || (server.health(&closed) == "ejected").then_some(()));
    assert_eq!(both(&server), ["sorry", "sorry"]);
    // A request with a body has not been sent yet, so it may go there as well.
    let mut client = Client::connect(&server.address("web"));
    assert_eq!(client.request("POST", "/", &[], b"body").text(), "sorry");
}

#[test]
fn without_an_available_fallback_the_answer_is_that_of_the_pool() {
    let closed = closed();
    let server = Server::start(&config(&format!(
        "[pool.app]\nbackends = [\"{closed}\"]\nfallback = \"sorry\"\n[pool.sorry]\nbackends = [\"{closed}\"]\n"
    )));
    assert!(matches!(get(&server.address("web"), "/").status, 502 | 503));
    let (bytes, _) = server.client("tcp").read_to_end();
    assert!(bytes.is_empty());
}

#[test]
fn fallbacks_in_a_circle_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("penstock.toml");
    let text = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"a\"\n\
                [pool.a]\nbackends = [\"127.0.0.1:1\"]\nfallback = \"b\"\n\
                [pool.b]\nbackends = [\"127.0.0.1:2\"]\nfallback = \"a\"\n";
    std::fs::write(&file, text).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("sessions would go in a circle"), "{text}");
}
