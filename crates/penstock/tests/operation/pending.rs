//! What operators have begun and not ended is seen by all, an undo says what it takes with it, and what a reload dropped
//! is not called served.

use std::net::TcpListener;

use testing::client::get;
use testing::{Scripted, Server, eventually, secs};

fn config(backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n"
    )
}

#[test]
fn a_commit_that_waits_and_an_open_transaction_are_seen_by_everyone() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    let page = || testing::client::get(&server.admin(), "/status.html").text();
    let nothing = server.ctl_json(&["status"])["pending"].clone();
    assert!(nothing["unconfirmed"].is_null() && nothing["transaction"].is_null(), "{nothing}");

    server.said(&["begin"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    let status = server.ctl_json(&["status"])["pending"].clone();
    assert_eq!(status["transaction"]["changes"], 1, "{status}");
    assert!(
        status["transaction"]["since"].is_string() && status["transaction"]["by"].is_string(),
        "{status}"
    );
    for text in [server.said(&["status"]), server.said(&["history"]), server.said(&["top", "--once"]), page()]
    {
        assert!(text.contains("transaction of ") && text.contains(" open since 20"), "{text}");
    }

    server.said(&["commit", "--confirm", "1h"]);
    let status = server.ctl_json(&["status"])["pending"].clone();
    assert_eq!(
        (&status["unconfirmed"]["change"], &status["transaction"]),
        (&1.into(), &serde_json::Value::Null)
    );
    let left = status["unconfirmed"]["seconds_left"].as_u64().unwrap();
    assert!((3500..=3600).contains(&left), "{status}");
    for text in [server.said(&["status"]), server.said(&["diff"]), server.said(&["top", "--once"]), page()] {
        assert!(text.contains("change 1 of ") && text.contains(" unless confirmed"), "{text}");
    }
    let history = server.said(&["history"]);
    assert!(history.lines().next().unwrap().contains("is undone in "), "{history}");
    assert!(server.ctl_json(&["history"])[0]["undone_in_seconds"].as_u64().unwrap() > 3000);
    assert_eq!(server.ctl_json(&["diff"])["unconfirmed"], 1);
    let events = server.said(&["events"]);
    assert!(events.contains(": commit, undone in 1 h 0 min unless confirmed; serving "), "{events}");

    server.said(&["confirm"]);
    assert!(server.ctl_json(&["status"])["pending"]["unconfirmed"].is_null());
    assert!(!server.said(&["status"]).contains("unless confirmed"));
    assert!(server.said(&["events"]).contains("change 1 is confirmed by "));
}

#[test]
fn an_undo_names_what_goes_with_it_before_and_after() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    for number in ["3s", "4s", "5s"] {
        server.said(&["set", "pool.app.timeouts.connect", number]);
    }
    let value = || server.ctl_json(&["show", "pool.app.timeouts.connect"])["value"].clone();
    let why = server.refused(&["undo", "1"]);
    assert!(why.contains("undo 1 would undo changes 2 and 3 too, made after it"), "{why}");
    assert!(why.contains("--and-later"), "{why}");
    assert_eq!(value(), "5s");
    let text = server.said(&["undo", "1", "--and-later"]);
    assert!(text.starts_with("change 4: undo 1, and with it 2 and 3\n"), "{text}");
    assert_eq!(value(), "2s", "the default");
    assert!(server.said(&["history"]).contains("undo 1, and with it 2 and 3"));
    let back = server.ctl_json(&["undo", "4"]);
    assert_eq!((&back["also_undone"], value()), (&serde_json::json!([]), "5s".into()), "{back}");
    assert!(server.refused(&["undo", "--and-later"]).contains("required"));
}

#[test]
fn what_a_reload_dropped_is_a_warning_of_its_own_and_not_in_effect() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    server.said(&["set", "pool.app.timeouts.connect", "2s"]);
    server.said(&["save"]);
    server.said(&["set", "pool.app.timeouts.connect", "3s"]);
    server.said(&["reload"]);
    let events = server.ctl_json(&["events"]);
    let events = events.as_array().unwrap();
    let has = |level: &str, part: &str| {
        let is = |event: &serde_json::Value| {
            event["level"] == level && event["message"].to_string().contains(part)
        };
        events.iter().any(is)
    };
    assert!(has("warning", "1 change made live and not saved is dropped"), "{events:?}");
    assert!(!has("info", "not saved is dropped"), "{events:?}");
    let history = server.ctl_json(&["history"]);
    assert_eq!(
        (&history[0]["in_effect"], &history[1]["in_effect"]),
        (&true.into(), &false.into()),
        "{history}"
    );
    assert_eq!(history[1]["dropped_by"], 3);
    let text = server.said(&["history"]);
    assert!(text.lines().nth(1).unwrap().contains("dropped by the reload"), "{text}");
    server.said(&["undo"]);
    assert_eq!(server.ctl_json(&["history"])[1]["in_effect"], true, "the undo brings it back");
}

#[test]
fn an_empty_transaction_leaves_no_trace_and_nothing_is_confirmed() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    server.said(&["begin"]);
    let text = server.said(&["commit", "--confirm", "10s"]);
    assert!(text.contains("changed nothing"), "{text}");
    assert_eq!(server.said(&["history"]), "no change yet\n");
    assert!(server.refused(&["confirm"]).contains("there is nothing to confirm"));
    assert_eq!(server.ctl_json(&["status"])["generation"], 1);
    // Changes that cancel each other are none.
    server.said(&["begin"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    server.said(&["remove", "pool.app.balance"]);
    assert!(server.ctl_json(&["commit"])["number"].is_null());
    server.said(&["begin"]);
    server.said(&["abort"]);
}

#[test]
fn an_undo_that_fails_is_tried_until_it_is_served() {
    let backend = Scripted::answering("x");
    let port = testing::port::free();
    let (bind, other) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", testing::port::free()));
    let web = |bind: &str| format!("[listener.web]\nbind = \"{bind}\"");
    let server = Server::start(&config(&backend.address).replace(&web("127.0.0.1:0"), &web(&bind)));
    assert_eq!(get(&bind, "/").text(), "x");
    server.said(&["begin"]);
    server.said(&["set", "listener.web.bind", &other]);
    server.said(&["commit", "--confirm", "4s"]);
    assert_eq!(get(&other, "/").text(), "x");
    let taken = eventually("the address is free", secs(3), || TcpListener::bind(&bind).ok());
    let degraded = || server.ctl_json(&["status"])["degraded"].clone();
    let why = eventually("the undo has failed", secs(30), || {
        let all = degraded();
        (all[0]["subject"] == "live-changes").then(|| all[0]["reason"].to_string())
    });
    assert!(why.contains("cannot be undone yet") && why.contains(&bind), "{why}");
    for words in [&["status"][..], &["history"], &["diff"]] {
        let text = server.said(words);
        assert!(text.contains("was not confirmed in time and cannot be undone yet"), "{words:?}: {text}");
    }
    let refused = server.refused(&["set", "pool.app.balance", "hash"]);
    assert!(refused.contains("was not confirmed in time, and cannot be undone yet"), "{refused}");
    drop(taken);
    eventually("it is undone", secs(30), || {
        (server.ctl_json(&["history"])[1]["cause"] == "not-confirmed").then_some(())
    });
    assert_eq!((get(&bind, "/").text(), degraded()), ("x".to_owned(), serde_json::json!([])));
    let events = server.said(&["events"]);
    assert_eq!(events.matches("live-changes: degraded").count(), 1, "{events}");
}

#[test]
fn a_transaction_that_a_reload_has_overtaken_says_that_its_commit_would_be_refused() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address));
    server.said(&["begin"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    let text = server.said(&["diff"]);
    assert!(text.contains("commit would change: ") && !text.contains("refused"), "{text}");
    server.write_config(
        &config(&backend.address).replace("\"off\"\n[listener", "\"off\"\nformat = \"json\"\n[listener"),
    );
    server.said(&["reload"]);
    let overtaken = "the configuration was changed after this transaction began at 20";
    let text = server.said(&["diff"]);
    assert!(text.contains(&format!("commit would be refused: {overtaken}")), "{text}");
    assert!(!text.contains("commit would change") && text.contains("+balance = \"hash\""), "{text}");
    let json = server.ctl_json(&["diff"]);
    assert!(json["refused"].as_str().unwrap().contains(overtaken) && json["changes"].is_null(), "{json}");
    let url = format!("http://{}/", server.address("web"));
    let refused = server.refused(&["why", "--pending", &url]);
    assert!(refused.contains(overtaken), "{refused}");
    assert!(server.refused(&["commit"]).contains(overtaken));
}
