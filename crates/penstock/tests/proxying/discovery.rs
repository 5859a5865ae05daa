//! Names in the DNS that stand for several backends (`dns:`, `srv:`), against a real name server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::Value;
use testing::client::get;
use testing::name_server::NameServer;
use testing::peers::Latch;
use testing::server::Setup;
use testing::sshd::free_address;
use testing::tools::{self, Root};
use testing::{BackendConnection, Scripted, Server, eventually, secs};

mod state;

/// So many addresses with the same port, at which no server listens.
fn addresses(count: usize) -> Vec<SocketAddr> {
    let (_, port) = free_address();
    let mut found = BTreeSet::new();
    while found.len() < count {
        found.insert(SocketAddr::from((free_address().0, port)));
    }
    found.into_iter().collect()
}

/// Answers with its name. `/half` gets half of a body, and the rest when the gate is opened.
fn backend(at: SocketAddr, name: &'static str, gate: &Latch) -> Scripted {
    let gate = gate.clone();
    Scripted::start_at(at, move |talk: &mut BackendConnection| {
        while let Some(request) = talk.request() {
            if request.target != "/half" {
                if talk.answer(200, &[], name.as_bytes()).is_err() {
                    return;
                }
                continue;
            }
            talk.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst");
            gate.wait();
            talk.send(" half");
        }
    })
}

fn config(pool: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [process]\nworkers = 1\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nresolve-interval = \"100ms\"\n{pool}\n"
    )
}

/// Starts the front door in a mount namespace in which `names` is the name server.
fn start(names: &NameServer, pool: &str) -> Server {
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let resolv = names.resolv_conf();
    let wrapper = ["unshare", "--mount", "sh", "-c", script, resolv.to_str().unwrap()];
    Setup::new(&config(pool)).through(wrapper).start()
}

fn root() -> Root {
    tools::root("mounts a resolv.conf of its own")
}

/// The backends of the pool, by name.
fn backends(server: &Server) -> BTreeMap<String, Value> {
    let pools = server.ctl_json(&["backends"]);
    let list = pools[0]["backends"].as_array().unwrap().clone();
    list.into_iter().map(|backend| (backend["name"].as_str().unwrap().to_owned(), backend)).collect()
}

fn names(server: &Server) -> Vec<String> {
    backends(server).into_keys().collect()
}

/// Answers to so many requests, with the number of each.
fn answers(server: &Server, requests: usize) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for _ in 0..requests {
        *seen.entry(get(&server.address("web"), "/").text()).or_insert(0) += 1;
    }
    seen
}

fn who(server: &Server) -> Vec<String> {
    answers(server, 12).into_keys().collect()
}

fn degraded(server: &Server) -> String {
    server.ctl_json(&["status"])["degraded"].to_string()
}

/// Names of the backends of `app.test` at these addresses, as [`names`] has them.
fn apps<const N: usize>(addresses: [SocketAddr; N]) -> Vec<String> {
    let mut all: Vec<_> = addresses.iter().map(app).collect();
    all.sort();
    all
}

fn app(address: &SocketAddr) -> String {
    format!("app.test@{address}")
}

#[test]
fn each_address_of_a_name_is_a_backend_and_changes_are_followed_without_cutting_a_download() {
    if root() == Root::LeftOut {
        return;
    }
    let at = addresses(3);
    let gate = Latch::default();
    let _backends = [(0, "a"), (1, "b"), (2, "c")].map(|(number, name)| backend(at[number], name, &gate));
    let dns = NameServer::start(&format!("app A {}\napp A {}\n", at[0].ip(), at[1].ip()));
    let pool = format!(
        "health = \"tcp\"\nbackends = [{{ address = \"dns:app.test:{}\", max-connections = 7 }}]",
        at[0].port()
    );
    let server = start(&dns, &pool);
    assert_eq!(names(&server), apps([at[0], at[1]]));
    assert_eq!(server.backend(&app(&at[1]))["max_connections"], 7);
    assert_eq!(who(&server), ["a", "b"]);
    let why = String::from_utf8(server.ctl(&["why", "http://x/"]).stdout).unwrap();
    assert!(why.contains(&app(&at[0])), "{why}");

    // A download from the one that goes, through which the test comes as soon as its turn is there.
    assert!(server.ctl(&["drain", &app(&at[0])]).status.success());
    let mut download = server.client("web");
    download.send("GET /half HTTP/1.1\r\nHost: x\r\n\r\n");
    download.read_until(b"first");
    assert!(server.ctl(&["ready", &app(&at[0])]).status.success());
    dns.update(&[&format!("del app.test. A {}", at[1].ip()), &format!("add app.test. 1 A {}", at[2].ip())]);
    eventually("the change is followed", secs(20), || {
        let all = backends(&server);
        (all.len() == 3 && all[&app(&at[1])]["admission"] == "draining").then_some(())
    });
    assert_eq!(who(&server), ["a", "c"]);
    let refused = server.ctl(&["ready", &app(&at[1])]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("DNS"),
        "{refused:?}"
    );
    gate.open();
    assert_eq!(download.read_exactly(5), b" half");
    eventually("the one that is gone is forgotten", secs(20), || {
        (names(&server) == apps([at[0], at[2]])).then_some(())
    });
    assert!(server.metrics().contains(&app(&at[2])) && !server.metrics().contains(&app(&at[1])));
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    for part in ["added: ", "gets no new sessions", "removed: "] {
        assert!(events.contains(part), "{part}: {events}");
    }

    // The configuration of the operator knows only the name, and a reload keeps the backends with their counts.
    let before = server.backend(&app(&at[0]))["sessions"].as_u64().unwrap();
    assert!(before > 0 && server.ctl(&["reload"]).status.success());
    assert!(server.backend(&app(&at[0]))["sessions"].as_u64().unwrap() >= before);
    let shown = String::from_utf8(server.ctl(&["show", "pool.app.backends"]).stdout).unwrap();
    assert!(shown.contains("dns:app.test:") && !shown.contains('@'), "{shown}");
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 0);
}

#[test]
fn wrong_answers_and_no_answers_keep_the_last_backends_and_say_so() {
    if root() == Root::LeftOut {
        return;
    }
    let at = addresses(2);
    let gate = Latch::default();
    let _backends = [(0, "a"), (1, "b")].map(|(number, name)| backend(at[number], name, &gate));
    let mut dns = NameServer::start(&format!("app A {}\napp A {}\n", at[0].ip(), at[1].ip()));
    let server = start(&dns, &format!("backends = [\"dns:app.test:{}\"]", at[0].port()));
    // `recovers` waits until nothing is wrong, so each reason is that of its own step.
    let keeps = |server: &Server, why: &str| {
        let expected = format!("name does not resolve any more: {why}");
        let said = eventually(why, secs(20), || {
            let degraded = degraded(server);
            degraded.contains(&expected).then_some(degraded)
        });
        assert!(said.contains("keeping the last 2 backends"), "{said}");
        assert_eq!(who(server), ["a", "b"]);
    };
    let good = [at[0].ip(), at[1].ip()].map(|ip| format!("add app.test. 1 A {ip}"));
    let recovers = |dns: &NameServer, delete: &str| {
        dns.update(&[delete, &good[0], &good[1]]);
        eventually("it is well again", secs(20), || (degraded(&server) == "[]").then_some(()));
    };
    let look_up = "failed to lookup address information: ";
    dns.update(&["del app.test. A"]);
    keeps(&server, &format!("{look_up}Name or service not known"));
    recovers(&dns, "del app.test. A");
    dns.update(&["del app.test. A", "add app.test. 1 A 0.0.0.0"]);
    keeps(&server, "no server can be at 0.0.0.0");
    recovers(&dns, "del app.test. A");
    dns.update(&["del app.test. A", "add app.test. 1 CNAME more.test.", "add more.test. 1 CNAME app.test."]);
    keeps(&server, &format!("{look_up}Name or service not known"));
    recovers(&dns, "del app.test. CNAME");
    dns.stop();
    keeps(&server, &format!("{look_up}Temporary failure in name resolution"));
    dns.start_again();
    recovers(&dns, "del app.test. CNAME");
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert!(events.contains("keeping the last 2 backends") && events.contains("works again"), "{events}");
}

#[test]
fn an_answer_with_too_many_addresses_is_cut() {
    if root() == Root::LeftOut {
        return;
    }
    let records: String =
        (0..300).map(|number| format!("app A 127.200.{}.{}\n", number / 200, number % 200)).collect();
    let dns = NameServer::start(&records);
    let server = start(&dns, "backends = [\"dns:app.test:1\"]");
    assert_eq!(names(&server).len(), 256);
    let degraded = degraded(&server);
    assert!(degraded.contains("44 addresses more") && degraded.contains("at most 256"), "{degraded}");
}

#[test]
fn a_name_that_does_not_resolve_at_the_start_serves_as_soon_as_it_does() {
    if root() == Root::LeftOut {
        return;
    }
    let at = addresses(2);
    let gate = Latch::default();
    let _backends = [(0, "a"), (1, "b")].map(|(number, name)| backend(at[number], name, &gate));
    let dns = NameServer::start(&format!("other A {}\n", at[1].ip()));
    let name = format!("dns:app.test:{}", at[0].port());
    let server = start(&dns, &format!("backends = [\"{name}\"]"));
    assert_eq!(server.health(&name), "down");
    assert_eq!(get(&server.address("web"), "/").status, 503);
    assert!(degraded(&server).contains("name does not resolve"), "{}", degraded(&server));
    dns.update(&[&format!("add app.test. 1 A {}", at[0].ip())]);
    eventually("it resolves", secs(20), || (names(&server) == [app(&at[0])]).then_some(()));
    assert_eq!(who(&server), ["a"]);

    // A live change adds a name, whose backends are there when it has been answered, and `undo` removes them.
    let other = format!("dns:other.test:{}", at[0].port());
    let added = server.ctl(&["add", "pool.app.backends", &other]);
    assert!(added.status.success(), "{added:?}");
    assert_eq!(who(&server), ["a", "b"]);
    assert!(server.ctl(&["undo"]).status.success());
    assert_eq!(names(&server), [app(&at[0])]);
}

#[test]
fn srv_records_give_ports_weights_and_priorities() {
    if root() == Root::LeftOut {
        return;
    }
    let (at, gate) = (addresses(4), Latch::default());
    let at = [at[0], at[1], SocketAddr::new(at[2].ip(), free_address().1), at[3]];
    let list = [(0, "a"), (1, "b"), (2, "c"), (3, "d")];
    let _backends = list.map(|(number, name)| backend(at[number], name, &gate));
    let hosts: String = (0..4).map(|number| format!("host{number} A {}\n", at[number].ip())).collect();
    let record = |number: usize, priority: u16, weight: u16| {
        format!("_http._tcp.app SRV {priority} {weight} {} host{number}\n", at[number].port())
    };
    let records = format!("{hosts}{}{}{}", record(0, 10, 3), record(1, 10, 1), record(2, 20, 0));
    let dns = NameServer::start(&records);
    let server = start(&dns, "backends = [\"srv:_http._tcp.app.test\"]");
    let name = |number: usize| format!("_http._tcp.app.test@{}", at[number]);
    let ranks = |number: usize| {
        let backend = server.backend(&name(number));
        (backend["weight"].as_u64().unwrap(), backend["priority"].as_u64().unwrap())
    };
    assert_eq!([ranks(0), ranks(1), ranks(2)], [(3, 0), (1, 0), (1, 1)]);
    assert_eq!(answers(&server, 40), BTreeMap::from([("a".to_owned(), 30), ("b".to_owned(), 10)]));

    // A target that does not resolve any more keeps its backend, and is named.
    dns.update(&["del host1.test. A"]);
    eventually("it is said", secs(20), || degraded(&server).contains("host1.test.").then_some(()));
    assert_eq!(who(&server), ["a", "b"]);
    // Without records of the first priority those of the second serve.
    dns.update(&[
        &format!("del _http._tcp.app.test. SRV 10 3 {} host0.test.", at[0].port()),
        &format!("del _http._tcp.app.test. SRV 10 1 {} host1.test.", at[1].port()),
    ]);
    eventually("they are gone", secs(20), || (names(&server) == [name(2)]).then_some(()));
    assert_eq!((who(&server), ranks(2)), (vec!["c".to_owned()], (1, 0)));
    dns.update(&["del _http._tcp.app.test. SRV", "add _http._tcp.app.test. 1 SRV 0 0 0 ."]);
    eventually("the service is not offered", secs(20), || {
        degraded(&server).contains("says that there is none").then_some(())
    });
    assert_eq!(who(&server), ["c"]);
    dns.update(&["del _http._tcp.app.test. SRV"]);
    eventually("it has no records", secs(20), || degraded(&server).contains("no SRV record").then_some(()));
    dns.update(&[&format!("add _http._tcp.app.test. 1 SRV 5 9 {} host3.test.", at[3].port())]);
    eventually("it moves", secs(20), || (names(&server) == [name(3)]).then_some(()));
    assert_eq!(who(&server), ["d"]);
}
