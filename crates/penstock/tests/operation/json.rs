//! `--json`: every command of `ctl` answers with an object or a list for programs, with the fields of
//! docs/machine-readable.md.

use std::collections::BTreeSet;

use serde_json::Value;
use testing::server::penstock;
use testing::{Scripted, Server, pki};

/// Commands in the order in which they are run, each with a field of its answer; of a list, of its first entry.
const CALLS: &[(&[&str], &str)] = &[
    (&["status"], "generation"),
    (&["backends"], "name"),
    (&["certs"], "directory"),
    (&["clients"], "remembered"),
    (&["events"], "message"),
    (&["events", "-n", "1"], "subject"),
    (&["sessions"], "matched"),
    (&["kill", "--yes", "--listener", "raw"], "ended"),
    (&["top", "--once"], "sessions"),
    (&["why", "tcp://raw"], "result"),
    (&["dsr", "status"], "services"),
    (&["drain", "ADDRESS"], "admission"),
    (&["ready", "ADDRESS"], "admission"),
    (&["weight", "ADDRESS", "2"], "weight"),
    (&["weight", "ADDRESS", "default"], "weight"),
    (&["capture", "--listener", "web", "--to", "FILE", "--for", "100ms"], "end"),
    (&["health"], "healthy"),
    (&["log-level"], "level"),
    (&["show"], "configuration"),
    (&["show", "pool.app.balance"], "value"),
    (&["diff"], "from"),
    (&["set", "pool.app.retries", "2"], "number"),
    (&["add", "pool.more", "{ backends = [\"127.0.0.1:9\"] }"], "unsaved_changes"),
    (&["remove", "pool.more"], "served"),
    (&["undo"], "also_undone"),
    (&["begin"], "transaction"),
    (&["set", "pool.app.retries", "1"], "collected"),
    (&["add", "pool.app.backends", "127.0.0.1:9"], "change"),
    (&["remove", "pool.app.backends", "127.0.0.1:9"], "faults"),
    (&["diff"], "degraded"),
    (&["why", "--pending", "tcp://raw"], "configuration"),
    (&["abort"], "aborted"),
    (&["begin"], "transaction"),
    (&["set", "pool.app.retries", "1"], "collected"),
    (&["commit", "--confirm", "60s"], "confirm_within_seconds"),
    (&["confirm"], "confirmed"),
    (&["history"], "in_effect"),
    (&["history", "1"], "diff"),
    (&["save"], "saved_changes"),
    (&["reload"], "reload"),
    (&["upgrade", "--check"], "upgraded"),
    (&["stop"], "stop"),
];

/// The commands that `ctl --help` lists.
fn commands() -> BTreeSet<String> {
    let text = String::from_utf8(penstock(&["ctl", "--help"]).stdout).unwrap();
    let list = text.split_once("\nCommands:\n").unwrap().1.split("\n\n").next().unwrap();
    let lines = list.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    lines
        .filter_map(|line| line.split(' ').next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_of_ctl_answers_programs() {
    let called: BTreeSet<String> = CALLS.iter().map(|(words, _)| words[0].to_owned()).collect();
    assert_eq!(called, commands(), "CALLS has a line for each command");
    let directory = tempfile::tempdir().unwrap();
    pki::self_signed(directory.path(), "web", &["web.test"], pki::Time::Now);
    let backend = Scripted::answering("one");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ certificates = \"{}\" }}\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nbalance = \"sticky\"\nhealth = \"off\"\n",
        directory.path().display(),
        backend.address
    ));
    let mut client = server.client("raw");
    assert_eq!(client.get("/", &[]).status, 200, "a session is open");
    let file = server.dir.path().join("web.pcapng");
    for (words, field) in CALLS {
        let put =
            |word: &&str| word.replace("ADDRESS", &backend.address).replace("FILE", file.to_str().unwrap());
        let words: Vec<String> = words.iter().map(put).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = server.ctl_json(&words);
        let object = match &answer {
            Value::Array(list) => list.first().unwrap_or_else(|| panic!("{words:?}: an empty list")),
            other => other,
        };
        assert!(object.get(field).is_some(), "{words:?} has no {field}: {answer:#}");
    }
}
