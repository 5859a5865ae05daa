//! Entries of access lists and limits, changed while it serves: the next client already meets them.

use testing::client::{Stream, request};
use testing::{Client, Scripted, Server, attack, eventually, millis, secs};

fn start(backend: &Scripted) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [acl.guests]\nentries = [\"permit 127.0.0.1\"]\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"guests\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\ntimeouts = {{ queue = \"10m\" }}\n",
        backend.address
    ))
}

fn from(source: &str, server: &Server, listener: &str) -> Client {
    Client::over(Stream::Tcp(attack::connect_from(source, &server.address(listener)).unwrap()))
}

/// Whether a client is served; one that is denied is closed without a word.
fn is_served(source: &str, server: &Server) -> bool {
    let mut client = from(source, server, "web");
    let _ = client.try_send(request("GET", "/", &[], b""));
    client.try_response(secs(10)).is_ok_and(|answer| answer.status == 200)
}

#[test]
fn entry_of_an_access_list_is_added_and_removed_for_the_next_client() {
    let backend = Scripted::answering("app");
    let server = start(&backend);
    let mut open = from("127.0.0.2", &server, "web");
    assert_eq!(open.get("/", &[]).text(), "app");
    server.said(&["add", "acl.guests.entries", "deny 127.0.0.2"]);
    assert!(!is_served("127.0.0.2", &server), "its client is closed");
    assert!(is_served("127.0.0.3", &server));
    assert_eq!(open.get("/", &[]).text(), "app", "a connection that is open goes on");
    // The first entry that matches decides.
    server.said(&["set", "acl.guests.entries.2", "deny 127.0.0.0/8"]);
    assert!(!is_served("127.0.0.3", &server) && is_served("127.0.0.1", &server));
    server.said(&["remove", "acl.guests.entries", "deny 127.0.0.0/8"]);
    assert!(is_served("127.0.0.2", &server) && is_served("127.0.0.3", &server));
    server.said(&["set", "acl.guests.default", "deny"]);
    assert!(!is_served("127.0.0.2", &server) && is_served("127.0.0.1", &server));
    server.said(&["undo"]);
    assert!(is_served("127.0.0.2", &server));
    let refused = server.refused(&["add", "acl.guests.entries", "refuse 127.0.0.2"]);
    assert!(refused.contains("acl.guests.entries") && refused.contains("nothing changed"), "{refused}");
    assert!(is_served("127.0.0.2", &server));
}

#[test]
fn limit_of_a_backend_makes_the_next_session_wait() {
    let backend = Scripted::answering("app");
    let server = start(&backend);
    let mut first = from("127.0.0.1", &server, "raw");
    assert_eq!(first.get("/", &[]).text(), "app");
    server.said(&["set", "pool.app.backends.1.max-connections", "1"]);
    assert_eq!(server.backend(&backend.address)["max_connections"], 1);
    let mut second = from("127.0.0.1", &server, "raw");
    second.send(request("GET", "/", &[], b""));
    eventually("it waits", secs(10), || {
        (server.ctl_json(&["status"])["pools"][0]["queued"] == 1).then_some(())
    });
    assert!(second.try_response(millis(300)).is_err(), "the backend has its most sessions");
    assert_eq!(first.get("/", &[]).text(), "app", "the session that is open goes on");
    drop(first);
    assert_eq!(second.response().text(), "app", "its turn has come");
    server.said(&["set", "pool.app.backends.1.max-connections", "2"]);
    let mut third = from("127.0.0.1", &server, "raw");
    assert_eq!(third.get("/", &[]).text(), "app", "there is room for two");
    server.said(&["set", "pool.app.backends.1.max-connections", "1"]);
    server.said(&["remove", "pool.app.backends.1.max-connections"]);
    let mut fourth = from("127.0.0.1", &server, "raw");
    assert_eq!(fourth.get("/", &[]).text(), "app", "without a limit");
}

#[test]
fn those_that_wait_come_in_when_the_limit_of_a_backend_is_raised() {
    for workers in [1, 2] {
        let backend = Scripted::answering("app");
        let config = |most: u32| {
            format!(
                "[process]\nworkers = {workers}\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
                 [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
                 [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
                 [pool.app]\nbackends = [{{ address = \"{}\", max-connections = {most} }}]\nhealth = \"off\"\n\
                 timeouts = {{ queue = \"10m\" }}\n",
                backend.address
            )
        };
        let server = Server::start(&config(1));
        let mut first = from("127.0.0.1", &server, "raw");
        assert_eq!(first.get("/", &[]).text(), "app");
        for by_reload in [false, true] {
            let mut waiting: Vec<_> = (0..20)
                .map(|at| {
                    let mut client = from("127.0.0.1", &server, if at % 2 == 0 { "raw" } else { "web" });
                    client.send(request("GET", "/", &[], b""));
                    client
                })
                .collect();
            eventually("all wait", secs(10), || {
                (server.ctl_json(&["status"])["pools"][0]["queued"] == 20).then_some(())
            });
            if by_reload {
                server.write_config(&config(40));
                server.said(&["reload"]);
            } else {
                server.said(&["set", "pool.app.backends.1.max-connections", "30"]);
            }
            for client in &mut waiting {
                assert_eq!(client.response().text(), "app");
            }
            // The session that has the permit from before the change goes on.
            assert_eq!(first.get("/", &[]).text(), "app");
            drop(waiting);
            eventually("the others have ended", secs(10), || {
                (server.backend(&backend.address)["in_flight"] == 1).then_some(())
            });
            server.said(&["set", "pool.app.backends.1.max-connections", "1"]);
        }
    }
}

#[test]
fn limit_of_a_listener_is_changed_for_the_next_client() {
    let backend = Scripted::answering("app");
    let server = start(&backend);
    let mut first = from("127.0.0.1", &server, "raw");
    assert_eq!(first.get("/", &[]).text(), "app");
    server.said(&["set", "listener.raw.max-connections", "1"]);
    let mut second = from("127.0.0.1", &server, "raw");
    let _ = second.try_send(request("GET", "/", &[], b""));
    assert!(second.try_response(millis(300)).is_err(), "the listener has its most connections");
    assert_eq!(first.get("/", &[]).text(), "app");
    server.said(&["remove", "listener.raw.max-connections"]);
    let mut third = from("127.0.0.1", &server, "raw");
    assert_eq!(third.get("/", &[]).text(), "app");
}
