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
    assert_eq!((&by()["by"], &by()["at"]), (&first["by"], &first["at"]));
    let unclear = server.refused(&["drain", "127.0.0.1"]);
    for part in
        ["\"127.0.0.1\" could be any of these:", &format!("app {}", two.address), "`drain POOL BACKEND`"]
    {
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
