//! `penstock ctl` of a server that was told to stop and waits for its sessions: it tells what is left, and ends it.

use nix::sys::signal::Signal;
use testing::{Client, Scripted, Server, eventually, secs};

fn start(workers: usize) -> (Scripted, Server) {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[process]\nworkers = {workers}\ndrain-timeout = \"10m\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        backend.address
    ));
    (backend, server)
}

/// Sessions that are open. With one session, all workers but one have none.
fn open(server: &Server, count: usize) -> Vec<Client> {
    let mut clients: Vec<_> = (0..count).map(|_| server.client("raw")).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/", &[]).text(), "app"));
    clients
}

fn is_draining(server: &Server) -> bool {
    server.ctl_json(&["status"])["phase"] == "draining"
}

#[test]
fn a_server_that_drains_tells_what_is_left_and_ends_what_an_operator_names() {
    for (workers, count) in [(1, 3), (2, 3), (4, 1)] {
        let (_backend, mut server) = start(workers);
        assert!(server.ctl_json(&["status"])["stopping"].is_null());
        let mut clients = open(&server, count);
        server.said(&["set", "pool.app.retries", "1"]);
        server.signal(Signal::SIGTERM);
        eventually("it drains", secs(20), || is_draining(&server).then_some(()));
        let stopping = server.ctl_json(&["status"])["stopping"].clone();
        assert_eq!(stopping["connections_left"], count, "{stopping}");
        assert!((580..=600).contains(&stopping["seconds_left"].as_u64().unwrap()), "{stopping}");
        assert!(
            stopping["since"].as_str().unwrap().ends_with('Z') && stopping["seconds"].is_u64(),
            "{stopping}"
        );
        let text = server.said(&["status"]);
        let left =
            if count == 1 { "1 connection left".to_owned() } else { format!("{count} connections left") };
        assert!(
            text.contains("\nDRAINING since ") && text.contains(&format!(", {left}, cut off in ")),
            "{text}"
        );
        // Workers without a session have ended.
        let sessions = eventually("the others have ended", secs(20), || {
            let sessions = server.ctl_json(&["sessions"]);
            (sessions["matched"] == count).then_some(sessions)
        });
        assert!(server.said(&["events"]).contains("stopping: no new connections"));
        assert_eq!(server.said(&["backends"]).matches("127.0.0.1:").count(), 1);
        assert!(server.said(&["show"]).contains("retries = 1"), "what is served can still be read");
        assert_eq!(server.ctl_json(&["history"])[0]["change"], "set pool.app.retries");
        let unsaved =
            "1 unsaved change: `penstock ctl show` has what is served; the next process begins with the file";
        assert!(text.contains(unsaved), "what it names works: {text}");
        for change in [&["reload"][..], &["set", "pool.app.retries", "1"], &["save"]] {
            let refused = server.refused(change);
            assert!(refused.contains("is stopping"), "{change:?}: {refused}");
        }
        assert_eq!(clients[0].get("/", &[]).text(), "app", "open sessions go on");
        let id = sessions["sessions"][0]["id"].to_string();
        let ended = server.ctl_json(&["kill", &id]);
        assert_eq!(ended["ended"].as_array().unwrap().len(), 1, "{ended}");
        if count > 1 {
            eventually("one is left less", secs(20), || {
                let status = server.ctl_json(&["status"]);
                (status["stopping"]["connections_left"] == count - 1).then_some(())
            });
            server.said(&["kill", "--listener", "raw", "--yes"]);
        }
        assert!(server.wait_end(secs(20)).success());
    }
}

#[test]
fn a_server_without_sessions_ends_while_an_operator_asks() {
    let (_backend, mut server) = start(2);
    server.said(&["stop"]);
    assert!(server.wait_end(secs(20)).success());
}
