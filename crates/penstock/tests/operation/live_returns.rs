//! Backends that come back with a live change: their open sessions, and the marks of operators.

use serde_json::Value;
use testing::peers::{self, Process};
use testing::websocket::WebSocket;
use testing::{Client, Server, eventually, secs};

/// Clients have two sessions at the first backend, which takes no more; the second one is drained.
struct Busy {
    server: Server,
    first: Process,
    _second: Process,
    sessions: Vec<WebSocket>,
}

fn entry(backend: &Process) -> String {
    format!("{{ address = \"{}\", max-connections = 2 }}", backend.address)
}

fn busy(more: &str) -> Busy {
    let (first, second) = (peers::websocket_echo(), peers::websocket_echo());
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"ws\"\n\
         [pool.ws]\nbackends = [{}, \"{}\"]\n{more}\n",
        entry(&first),
        second.address
    ));
    server.said(&["drain", "ws", &second.address]);
    let sessions = (0..2).map(|_| WebSocket::open(&server.address("web"), "/")).collect();
    Busy { server, first, _second: second, sessions }
}

impl Busy {
    fn backend(&self) -> Value {
        self.server.backend(&self.first.address)
    }

    /// The backend has its sessions, and its limit holds.
    #[track_caller]
    fn knows_its_sessions(&mut self) {
        assert_eq!(self.backend()["in_flight"], 2, "{:#}", self.backend());
        assert_eq!(Client::connect(&self.server.address("web")).get("/", &[]).status, 503);
        let said = self.server.said(&["drain", "ws", &self.first.address]);
        assert!(said.contains("2 still open"), "{said}");
        let json = self.server.ctl_json(&["drain", "ws", &self.first.address]);
        assert_eq!((&json["admission"], &json["open"]), (&"draining".into(), &2.into()), "{json:#}");
        self.server.said(&["ready", "ws", &self.first.address]);
        self.sessions.iter_mut().for_each(|session| session.echo("still here"));
    }
}

#[test]
fn a_backend_that_comes_back_knows_the_sessions_that_stayed_open() {
    let mut busy = busy("timeouts.queue = \"100ms\"");
    let address = busy.first.address.clone();
    let remove = ["remove", "pool.ws.backends", address.as_str()];
    let counted = busy.backend()["sessions"].clone();
    let said = busy.server.said(&remove);
    let stays = format!("{address} of pool ws: 2 sessions stay open on it");
    assert!(said.contains(&stays), "{said}");
    busy.server.said(&["undo"]);
    busy.knows_its_sessions();
    assert_eq!(busy.backend()["sessions"], counted, "its counters go on");

    let json = busy.server.ctl_json(&remove);
    let open = serde_json::json!([{ "pool": "ws", "backend": address, "sessions": 2 }]);
    assert_eq!(json["still_open"], open, "{json:#}");
    let added = busy.server.ctl_json(&["add", "pool.ws.backends", &entry(&busy.first)]);
    assert_eq!(added["still_open"], serde_json::json!([]), "{added:#}");
    busy.knows_its_sessions();

    busy.server.said(&["begin"]);
    busy.server.said(&remove);
    busy.server.said(&["commit", "--confirm", "1s"]);
    eventually("the commit is undone", secs(20), || {
        let history = busy.server.ctl_json(&["history"]);
        let last = history.as_array().and_then(|all| all.last()).map(|last| last["cause"].clone());
        (last == Some("not-confirmed".into())).then_some(())
    });
    busy.knows_its_sessions();

    // With no session open it is a new one.
    busy.server.said(&remove);
    busy.sessions.clear();
    eventually("the sessions have ended", secs(10), || {
        (busy.server.ctl_json(&["sessions"])["matched"] == 0).then_some(())
    });
    busy.server.said(&["undo"]);
    assert_eq!(busy.backend()["in_flight"], 0);
    assert_eq!(busy.backend()["sessions"], 0);
}

#[test]
fn sessions_of_a_listener_that_was_removed_are_told_shown_and_ended() {
    let mut busy = busy("");
    let port = testing::port::free();
    let other = format!("{{ bind = \"127.0.0.1:{port}\", protocol = \"http\", pool = \"ws\" }}");
    busy.server.said(&["add", "listener.other", &other]);
    let remove = busy.server.said(&["remove", "listener.web"]);
    let told = "listener web: 2 connections stay open (penstock ctl sessions --listener web)";
    assert!(remove.contains(told), "{remove}");
    assert_eq!(busy.server.ctl_json(&["sessions", "--listener", "web"])["matched"], 2);
    busy.sessions.iter_mut().for_each(|session| session.echo("still here"));
    let counted = busy.server.refused(&["kill", "--listener", "web"]);
    assert!(counted.contains("2 sessions would be ended, none was"), "{counted}");
    busy.server.said(&["kill", "--listener", "web", "--yes"]);
    eventually("the sessions have ended", secs(10), || {
        (busy.server.ctl_json(&["sessions"])["matched"] == 0).then_some(())
    });
    for ask in [&["sessions", "--listener", "web"][..], &["kill", "--listener", "web", "--yes"]] {
        let refused = busy.server.refused(ask);
        assert!(refused.contains("no listener \"web\""), "{refused}");
    }
    let refused = busy.server.refused(&["sessions", "--backend", "127.0.0.9:9"]);
    assert!(refused.contains("no pool has a backend \"127.0.0.9:9\""), "{refused}");
}

#[test]
fn a_pool_that_comes_back_calls_who_waits_when_a_session_from_before_ends() {
    let mut busy = busy("timeouts.queue = \"20s\"");
    let other = busy.server.address("web");
    busy.server.said(&["begin"]);
    busy.server.said(&["add", "pool.other", "{ backends = [\"127.0.0.1:9\"] }"]);
    busy.server.said(&["set", "listener.web.pool", "other"]);
    busy.server.said(&["remove", "pool.ws"]);
    busy.server.said(&["commit"]);
    busy.server.said(&["undo"]);
    assert_eq!(busy.backend()["in_flight"], 2, "{:#}", busy.backend());
    std::thread::scope(|scope| {
        let third = scope.spawn(|| WebSocket::open(&other, "/"));
        eventually("the third waits", secs(10), || {
            let pools = busy.server.ctl_json(&["backends"]);
            (pools[0]["queue"]["waiting"] == 1).then_some(())
        });
        busy.sessions.pop();
        third.join().unwrap().echo("its turn");
    });
}

#[test]
fn an_undo_brings_back_the_marks_of_operators() {
    let server = Server::start(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"127.0.0.1:8\", \"127.0.0.1:9\"]\n",
    );
    let remove = ["remove", "pool.app.backends", "127.0.0.1:8"];
    let marks = || {
        let backend = server.backend("127.0.0.1:8");
        let drained = backend["drain_seconds_left"].is_number();
        (backend["admission"].clone(), drained, backend["weight_override"].clone())
    };
    let set = || {
        server.said(&["drain", "app", "127.0.0.1:8", "--for", "1h"]);
        server.said(&["weight", "app", "127.0.0.1:8", "5"]);
    };
    set();
    let with_marks = marks();
    assert_eq!(with_marks, ("draining".into(), true, 5.into()));
    server.said(&remove);
    server.said(&["undo"]);
    assert_eq!(marks(), with_marks);
    let events = server.said(&["events"]);
    assert!(events.contains("an undo has brought it back: drained, weight of an operator"), "{events}");

    server.said(&["begin"]);
    server.said(&remove);
    server.said(&["commit", "--confirm", "1s"]);
    eventually("the commit is undone", secs(20), || {
        let all = server.ctl_json(&["backends"]);
        (all[0]["backends"].as_array().unwrap().len() == 2).then_some(())
    });
    assert_eq!(marks(), with_marks);

    // What an operator adds is a new one.
    server.said(&remove);
    server.said(&["add", "pool.app.backends", "127.0.0.1:8"]);
    assert_eq!(marks(), ("ready".into(), false, Value::Null));
}
