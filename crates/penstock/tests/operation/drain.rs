//! Marks of operators on backends: who made them and when, and which backend is meant.

use testing::{Scripted, Server, eventually, secs};

fn config(backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n"
    )
}

#[test]
fn a_second_drain_keeps_who_and_when_and_unclear_names_are_listed() {
    let (one, two) = (Scripted::answering("x"), Scripted::answering("y"));
    let server =
        Server::start(&config(&one.address).replace(
            &format!("[\"{}\"]", one.address),
            &format!("[\"{}\", \"{}\"]", one.address, two.address),
        ));
    server.said(&["drain", &one.address]);
    let by = || {
        let url = format!("http://{}/", server.address("web"));
        let why = server.ctl_json(&["why", "--from", "127.0.0.1", &url]);
        let pool =
            why["steps"].as_array().unwrap().iter().find(|step| step["step"] == "pool").unwrap().clone();
        pool["backends"][0]["drained"].clone()
    };
    let first = by();
    assert!(first["by"].as_str().unwrap().contains(" (uid "), "{first}");
    let again = server.said(&["drain", &one.address]);
    assert!(
        again.contains("already drained by ") && again.contains(first["by"].as_str().unwrap()),
        "{again}"
    );
    let json = server.ctl_json(&["drain", &one.address]);
    assert_eq!(json["already_drained"]["at"], first["at"], "{json}");
    assert!(!again.contains("`ready`"), "no time was asked for: {again}");
    assert_eq!((&by()["by"], &by()["at"]), (&first["by"], &first["at"]));
    let unclear = server.refused(&["drain", "127.0.0.1"]);
    for part in [
        "\"127.0.0.1\" could be any of these:",
        &format!("app {}", two.address),
        "`drain POOL BACKEND [--for TIME]`",
    ] {
        assert!(unclear.contains(part), "no {part:?} in {unclear}");
    }
    let unknown = server.refused(&["weight", "nobody", "3"]);
    assert!(
        unknown.contains("the backends are:") && unknown.contains("`weight POOL BACKEND N|default`"),
        "{unknown}"
    );
    // An event and the history name the operator in the same form.
    server.said(&["set", "pool.app.balance", "hash"]);
    let events = eventually("the events", secs(5), || {
        let events = server.said(&["events"]);
        events.contains("set pool.app.balance").then_some(events)
    });
    let name = first["by"].as_str().unwrap().split(", pid").next().unwrap().to_owned();
    assert!(events.matches(&name).count() >= 2, "{name}: {events}");
}

#[test]
fn a_drain_for_a_time_is_shown_and_ends_by_itself() {
    let (one, two) = (Scripted::answering("x"), Scripted::answering("y"));
    let both = format!("[\"{}\", \"{}\"]", one.address, two.address);
    let server = Server::start(&config(&one.address).replace(&format!("[\"{}\"]", one.address), &both));
    let said = server.said(&["drain", &one.address, "--for", "1h"]);
    assert!(said.contains("drained for 1 h 0 min: no new sessions, none is open"), "{said}");
    let backend = server.backend(&one.address);
    assert_eq!(backend["admission"], "draining");
    assert!((3000..=3600).contains(&backend["drain_seconds_left"].as_u64().unwrap()), "{backend}");
    let text = server.said(&["backends"]);
    assert!(text.contains(", draining, ") && text.contains(" left"), "{text}");
    let url = format!("http://{}/", server.address("web"));
    let why = server.said(&["why", "--from", "127.0.0.1", &url]);
    assert!(why.contains("draining: by ") && why.contains(" more"), "{why}");
    for _ in 0..4 {
        assert_eq!(testing::client::get(&server.address("web"), "/").text(), "y");
    }
    server.said(&["ready", &one.address]);
    let began = std::time::Instant::now();
    server.said(&["drain", &one.address, "--for", "2s"]);
    eventually("it is ready again", secs(20), || {
        (server.backend(&one.address)["admission"] == "ready").then_some(())
    });
    assert!(began.elapsed() >= secs(2), "{:?}", began.elapsed());
    assert!(server.backend(&one.address)["drain_seconds_left"].is_null());
    eventually("the event", secs(10), || {
        server.said(&["events"]).contains("ready: the time of its drain by ").then_some(())
    });
    // Each worker has its own turn: one of them has several of so many clients.
    let answers: Vec<_> = (0..40).map(|_| testing::client::get(&server.address("web"), "/").text()).collect();
    assert!(answers.contains(&"x".to_owned()), "{answers:?}");
}

#[test]
fn a_drain_gets_longer_by_another_one_and_shorter_only_by_ready() {
    let one = Scripted::answering("x");
    let server = Server::start(&config(&one.address));
    let left = || server.backend(&one.address)["drain_seconds_left"].as_u64();
    let drain = |time: &str| server.ctl_json(&["drain", &one.address, "--for", time]);
    assert_eq!(drain("1h")["seconds_left"], 3600.0);
    let already = drain("30m");
    assert!(already["already_drained"]["seconds_left"].as_f64().unwrap() > 3500.0, "{already}");
    let again = server.said(&["drain", &one.address, "--for", "30m"]);
    assert!(
        again.contains("already drained by ") && again.contains(" min ") && again.contains(" more"),
        "{again}"
    );
    assert!(
        again.contains("; it does not end after 30 min 0 s: only `ready` ends a drain earlier"),
        "{again}"
    );
    assert!(left().unwrap() > 3500);
    assert_eq!(drain("2h")["seconds_left"], 7200.0);
    assert!(left().unwrap() > 7100);
    assert!(server.ctl_json(&["drain", &one.address])["seconds_left"].is_null());
    assert_eq!(left(), None);
    assert!(drain("2h")["already_drained"]["seconds_left"].is_null(), "it has no end");
    server.said(&["ready", &one.address]);
    assert_eq!(drain("1")["seconds_left"], 1.0, "a number alone is seconds");
    server.said(&["ready", &one.address]);
    assert_eq!(drain("1h")["seconds_left"], 3600.0);
    let without_end = server.said(&["drain", &one.address]);
    assert!(without_end.contains("; until `ready` now; it would have ended in "), "{without_end}");
    for wrong in ["0s", "31d", "soon", "-1s", ""] {
        let refused = server.refused(&["drain", &one.address, "--for", wrong]);
        assert!(!refused.is_empty(), "{wrong}");
    }
    assert!(server.refused(&["drain", &one.address, "--for", "31d"]).contains("lasts 30d at most"));
    // The end of the drain that `ready` ended does not come.
    let count = |word: &str| server.said(&["events"]).matches(word).count();
    server.said(&["ready", &one.address]);
    server.said(&["drain", &one.address, "--for", "1s"]);
    eventually("the last one ends", secs(10), || (count("the time of its drain") == 1).then_some(()));
}
