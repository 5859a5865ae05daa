//! Priorities of backends, and the limit for clients that a backend has not served before.

use testing::client::{Stream, get, request};
use testing::{Client, Scripted, Server, attack, eventually, millis, secs};

fn start(balance: &str, backends: &str, listeners: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\n\
         {listeners}\n[pool.app]\nbalance = \"{balance}\"\nbackends = [{backends}]\ntimeouts = {{ queue = \"60s\" }}\n"
    ))
}

const HTTP: &str = "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n";
const TCP: &str = "[listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n";

#[test]
fn backends_of_a_higher_number_serve_only_while_no_lower_one_does() {
    let backends: Vec<_> = ["a", "b", "c", "d"].map(Scripted::answering).into();
    let list: Vec<_> = backends
        .iter()
        .zip([0, 0, 1, 2])
        .map(|(backend, priority)| format!("{{ address = \"{}\", priority = {priority} }}", backend.address))
        .collect();
    for balance in ["round-robin", "least-connections", "two-choices", "hash", "maglev"] {
        let server = start(balance, &list.join(", "), HTTP);
        let seen = || {
            let mut seen: Vec<_> = (0..20).map(|_| get(&server.address("web"), "/").text()).collect();
            seen.sort();
            seen.dedup();
            seen.concat()
        };
        let drain =
            |at: usize| assert!(server.ctl(&["drain", "app", &backends[at].address]).status.success());
        let first = seen();
        assert!(["ab", "a", "b"].contains(&&*first), "{balance}: {first}");
        drain(0);
        assert_eq!(seen(), "b", "{balance}");
        drain(1);
        assert_eq!(seen(), "c", "{balance}");
        drain(2);
        assert_eq!(seen(), "d", "{balance}");
        assert!(server.ctl(&["ready", "app", &backends[0].address]).status.success());
        assert_eq!(seen(), "a", "{balance}");
    }
}

#[test]
fn a_full_backend_of_the_first_number_makes_the_next_one_serve() {
    let backends: Vec<_> = ["a", "b"].map(Scripted::answering).into();
    let list = format!(
        "{{ address = \"{}\", max-connections = 2 }}, {{ address = \"{}\", priority = 1 }}",
        backends[0].address, backends[1].address
    );
    let server = start("round-robin", &list, TCP);
    let mut open: Vec<Client> = Vec::new();
    let mut next = || {
        let mut client = server.client("tcp");
        let name = client.get("/", &[]).text();
        open.push(client);
        (name, open.len())
    };
    let names: Vec<_> = (0..4).map(|_| next().0).collect();
    assert_eq!(names, ["a", "a", "b", "b"]);
    open.remove(0);
    eventually("it has room", secs(10), || {
        (server.backend(&backends[0].address)["in_flight"] == 1).then_some(())
    });
    assert_eq!(server.client("tcp").get("/", &[]).text(), "a");
}

fn client_from(source: &str, address: &str) -> Client {
    Client::over(Stream::Tcp(attack::connect_from(source, address).unwrap()))
}

#[test]
fn at_the_soft_limit_only_known_clients_come_in_and_they_do_not_wait() {
    let backend = Scripted::answering("app");
    let list =
        format!("{{ address = \"{}\", soft-max-connections = 1, max-connections = 2 }}", backend.address);
    let server = start("sticky", &list, &format!("{TCP}{HTTP}"));
    let address = server.address("tcp");
    let mut first = client_from("127.0.0.2", &address);
    assert_eq!(first.get("/", &[]).text(), "app");
    // A stranger waits in the queue.
    let mut stranger = client_from("127.0.0.3", &address);
    stranger.send(request("GET", "/", &[], b""));
    eventually("it waits", secs(10), || {
        (server.ctl_json(&["status"])["pools"][0]["queued"] == 1).then_some(())
    });
    let mut second = client_from("127.0.0.2", &address);
    assert_eq!(second.get("/", &[]).text(), "app", "a known client passes it");
    // At the hard limit known clients wait as well.
    let mut third = client_from("127.0.0.2", &address);
    third.send(request("GET", "/", &[], b""));
    assert!(third.try_response(millis(300)).is_err());
    let shown = server.ctl_json(&["clients", "app"]);
    assert_eq!(
        (&shown[0]["remembered"], &shown[0]["clients"][0]["client"]),
        (&1.into(), &"127.0.0.2".into())
    );
    assert_eq!(shown[0]["clients"][0]["backend"], backend.address.as_str(), "{shown:#}");
    let table = String::from_utf8(server.ctl(&["clients"]).stdout).unwrap();
    assert!(table.contains("POOL app: 1 client remembered") && table.contains("127.0.0.2"), "{table}");
    drop((first, second, third));
    assert_eq!(stranger.response().text(), "app");
}
