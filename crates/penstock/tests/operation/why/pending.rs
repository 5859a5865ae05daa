//! Questions about the configuration of an open transaction: what `commit` would make of it, before it is served.

use serde_json::Value;
use testing::client::get;
use testing::server::Setup;
use testing::{Scripted, Server};

use super::{START, asked, named, reasons, said, url};

fn start(backends: &[Scripted]) -> Server {
    Server::start(&format!(
        "{START}[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n[pool.other]\nbackends = [\"{}\"]\n",
        backends[0].address, backends[1].address
    ))
}

/// What an operator sees of the server, without what changes by itself.
fn seen(server: &Server) -> (Value, Value) {
    let status = server.ctl_json(&["status"]);
    (status["generation"].clone(), status["degraded"].clone())
}

#[test]
fn why_is_asked_of_a_transaction_that_is_not_served_and_changes_nothing() {
    let backends = named(3);
    let server = start(&backends);
    let page = url(&server, "/new");
    let refused = server.refused(&["why", "--pending", &page]);
    assert!(refused.contains("there is no transaction\n  hint: `begin` starts one"), "{refused}");

    server.said(&["begin"]);
    server.said(&["add", "pool.new", &format!("{{ backends = [\"{}\"] }}", backends[2].address)]);
    server.said(&["add", "listener.web.route", "{ path = \"/new\", pool = \"new\" }"]);
    server.said(&["set", "listener.web.pool", "other"]);
    let port = testing::port::free();
    server.said(&["add", "listener.late", &format!("{{ bind = \"127.0.0.1:{port}\", pool = \"new\" }}")]);
    let before = seen(&server);
    let late = format!("http://127.0.0.1:{port}/");
    let ask = |url: &str| (asked(&server, &[url]), asked(&server, &["--pending", url]));

    let (now, then) = ask(&page);
    assert_eq!((&now["configuration"], &then["configuration"]), (&"served".into(), &"pending".into()));
    assert_eq!(now["result"]["backend"], backends[0].address.as_str(), "{now:#}");
    assert_eq!(then["result"]["backend"], backends[2].address.as_str(), "{then:#}");
    assert_eq!(reasons(&then, &backends[2].address), ["chosen"]);
    assert_eq!(then, asked(&server, &["--pending", &page]), "a question changes nothing");
    let (_, rest) = ask(&url(&server, "/"));
    assert_eq!(rest["result"]["backend"], backends[1].address.as_str(), "{rest:#}");
    // A listener that is not open yet is found by its port.
    let (_, other) = ask(&late);
    assert_eq!(other["steps"][0]["name"], "late", "{other:#}");
    let text = said(&server, &["--pending", &page]);
    assert!(text.starts_with("pending   with the changes of the open transaction"), "{text}");

    assert_eq!(seen(&server), before);
    assert!(testing::Client::try_connect(&format!("127.0.0.1:{port}")).is_err(), "nothing is opened");
    let pools = server.ctl_json(&["backends"]);
    assert_eq!(pools.as_array().unwrap().len(), 2, "{pools:#}");
    assert_eq!(get(&server.address("web"), "/new").text(), "0");

    server.said(&["commit"]);
    for (path, body) in [("/new", "2"), ("/", "1")] {
        let answer = asked(&server, &[&url(&server, path)]);
        let backend = &backends[body.parse::<usize>().unwrap()].address;
        assert_eq!(answer["result"]["backend"], backend.as_str(), "{answer:#}");
        assert_eq!(get(&server.address("web"), path).text(), body);
    }
}

#[test]
fn transaction_that_cannot_be_committed_has_no_answer_but_its_faults() {
    let backends = named(2);
    let server = start(&backends);
    server.said(&["begin"]);
    server.said(&["set", "listener.web.pool", "nowhere"]);
    let refused = server.refused(&["why", "--pending", &url(&server, "/")]);
    assert!(
        refused.contains("the transaction cannot be committed yet") && refused.contains("nowhere"),
        "{refused}"
    );
    let refused = server.refused(&["why", "--pending", "--session", "a"]);
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn diff_says_what_would_be_degraded_and_serves_nothing_of_it() {
    let backends = named(2);
    let server = start(&backends);
    let before = seen(&server);
    let missing = server.dir.path().join("missing.pem");
    server.said(&["begin"]);
    assert_eq!(server.ctl_json(&["diff"])["degraded"], Value::Null, "there is no change yet");
    server.said(&["set", "pool.other.tls", &format!("{{ ca = \"{}\" }}", missing.display())]);
    let text = server.said(&["diff"]);
    for part in [
        "commit would change: ",
        "warning: pool.other.tls would be degraded: ",
        "missing.pem",
        "no listener uses this pool",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let json = server.ctl_json(&["diff"]);
    assert_eq!(json["degraded"][0]["subject"], "pool.other.tls", "{json:#}");
    assert_eq!(json["refused"], Value::Null);
    assert!(json["warnings"].as_str().unwrap().contains("pool.other"), "{json:#}");
    assert_eq!(seen(&server), before);
    let committed = server.said(&["commit"]);
    let reason = json["degraded"][0]["reason"].as_str().unwrap();
    assert!(committed.contains(&format!("pool.other.tls is degraded: {reason}")), "{committed}");
}

#[test]
fn diff_says_what_this_process_would_refuse() {
    let backends = named(1);
    let config = format!(
        "{START}[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backends[0].address
    );
    let server = Setup::new(&config).through(["prlimit", "--nofile=200:200"]).start();
    server.said(&["begin"]);
    let binds: Vec<String> = (1..=150).map(|last| format!("\"127.0.0.{last}:0\"")).collect();
    let listener = format!("{{ bind = [{}], pool = \"app\" }}", binds.join(", "));
    server.said(&["add", "listener.many", &listener]);
    let refused = server.ctl_json(&["diff"])["refused"].as_str().expect("too few descriptors").to_owned();
    let text = server.said(&["diff"]);
    assert!(text.contains(&format!("commit would be refused:\n{refused}")), "{text}");
    let said = server.refused(&["commit"]);
    assert!(said.contains(&refused), "{said} without {refused}");
}
