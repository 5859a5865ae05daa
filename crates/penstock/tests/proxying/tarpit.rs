//! Denied clients that are held: for their time, in a bounded number, and only while no other client needs the room.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testing::server::Setup;
use testing::{Client, Scripted, Server, eventually, secs, tools};

/// Denies 127.0.0.2; `tests` come from 127.0.0.1.
fn start(backend: &Scripted, process: &str, tarpit: &str, more: &str) -> Server {
    Setup::new(&format!(
        "[process]\nworkers = 1\n{process}\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"@DIR@/access.log\"\n[acl.abuse]\nentries = [\"deny 127.0.0.2\", \"deny 192.0.2.1\"]\n\
         default = \"permit\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"abuse\"\ntarpit = {{ {tarpit} }}\n{more}\n\
         pool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ))
    .start()
}

/// A client of 127.0.0.2.
struct Denied(Child);

impl Denied {
    fn connect(server: &Server) -> Self {
        let url = format!("http://{}/", server.address("web"));
        let mut command = Command::new(tools::program("curl"));
        command.args(["-sS", "--interface", "127.0.0.2", "--max-time", "60", &url]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Whether it was closed without a byte.
    fn ended_empty(&mut self) -> bool {
        // 52: empty reply, 56: reset while reading.
        self.0.wait().unwrap().code().is_some_and(|code| code == 52 || code == 56)
    }
}

impl Drop for Denied {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn held(server: &Server) -> String {
    let metrics = server.metrics();
    let line = metrics.lines().find(|line| line.starts_with("penstock_listener_tarpit{")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

fn wait_for_held(server: &Server, count: usize) {
    eventually("the number of held clients", secs(10), || (held(server) == count.to_string()).then_some(()));
}

/// Waits until so many sessions have ended in each way.
#[track_caller]
fn wait_for_endings(server: &Server, endings: serde_json::Value) {
    eventually(&format!("the endings {endings}"), secs(10), || {
        (server.ctl_json(&["status"])["listeners"][0]["endings"] == endings).then_some(())
    });
}

#[test]
fn a_denied_client_is_held_for_its_time_without_a_byte_and_others_are_served() {
    let backend = Scripted::answering("one");
    let server = start(&backend, "", "time = \"5s\"", "proxy-protocol-from = [\"127.0.0.1\"]");
    let began = Instant::now();
    let mut denied = Denied::connect(&server);
    // Its PROXY header names a client that the list denies.
    let mut behind = server.client("web");
    behind.send("PROXY TCP4 192.0.2.1 192.0.2.9 1 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_for_held(&server, 2);
    let mut permitted = server.client("web");
    permitted.send("PROXY TCP4 192.0.2.7 192.0.2.9 1 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(permitted.response().text(), "one");
    assert!(denied.ended_empty());
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert_eq!(behind.read_to_end().0, b"");
    wait_for_held(&server, 0);
    wait_for_endings(&server, serde_json::json!({ "tarpit": 2 }));
    let log = server.dir.path().join("access.log");
    eventually("the lines of the log", secs(10), || {
        let lines = std::fs::read_to_string(&log).unwrap_or_default();
        let of = |client: &str| lines.lines().any(|line| line.contains(client) && line.contains(" tarpit "));
        (of(" 127.0.0.2:") && of(" 192.0.2.1:")).then_some(())
    });
    assert_eq!(server.backend(&backend.address)["sessions"], 1, "a held client costs no backend");
}

#[test]
fn no_more_clients_are_held_than_configured_and_one_that_leaves_makes_room() {
    let backend = Scripted::answering("one");
    let server = start(&backend, "", "time = \"60s\", clients = 2", "");
    let first = Denied::connect(&server);
    let _second = Denied::connect(&server);
    wait_for_held(&server, 2);
    assert!(Denied::connect(&server).ended_empty());
    wait_for_endings(&server, serde_json::json!({ "denied": 1 }));
    drop(first);
    wait_for_held(&server, 1);
    let _third = Denied::connect(&server);
    wait_for_held(&server, 2);
    wait_for_endings(&server, serde_json::json!({ "denied": 1, "tarpit": 1 }));
}

#[test]
fn held_clients_give_way_before_idle_ones_when_connections_run_out() {
    let backend = Scripted::answering("one");
    let server = start(&backend, "max-connections = 3", "time = \"60s\"", "");
    let mut first = server.client("web");
    assert_eq!(first.get("/", &[]).text(), "one");
    let (mut one, mut two) = (Denied::connect(&server), Denied::connect(&server));
    wait_for_held(&server, 2);
    // The first client is idle and was here before.
    let mut others: Vec<Client> = (0..2).map(|_| server.client("web")).collect();
    for other in &mut others {
        assert_eq!(other.get("/", &[]).text(), "one");
    }
    assert!(one.ended_empty() && two.ended_empty());
    assert_eq!(first.get("/", &[]).text(), "one", "on the connection that it has");
    assert!(Denied::connect(&server).ended_empty(), "without room a denied client is closed at once");
    wait_for_endings(&server, serde_json::json!({ "denied": 1, "tarpit": 2 }));
}

#[test]
fn the_end_of_the_process_does_not_wait_for_held_clients() {
    let backend = Scripted::answering("one");
    let mut server = start(&backend, "drain-timeout = \"50s\"", "time = \"60s\"", "");
    let mut denied = Denied::connect(&server);
    wait_for_held(&server, 1);
    server.signal(nix::sys::signal::Signal::SIGTERM);
    server.wait_end(secs(20));
    assert!(denied.ended_empty());
}
