//! Changes of a running server with `penstock ctl`: every key, transactions, undo, and the file.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Output;

use nix::sys::signal::Signal;
use testing::client::get;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, secs};

use crate::control_access::own_binary;

fn config(backend: &str) -> String {
    format!(
        "# The door of example.com.\n\n[control]\nsocket = \"@DIR@/control.sock\"\n\n[access-log]\ntarget = \"off\"\n\n\
         # Everything arrives here.\n[listener.web]\nbind = \"127.0.0.1:0\"   # any port\nprotocol = \"http\"\npool = \"app\"\n\n\
         [pool.app]\nbackends = [\n  \"{backend}\",  # rack 1\n]\n"
    )
}

fn file(server: &Server) -> String {
    fs::read_to_string(server.dir.path().join("penstock.toml")).unwrap()
}

fn body(server: &Server) -> String {
    get(&server.address("web"), "/").text()
}

#[test]
fn objects_and_policies_are_read_and_changed_while_it_serves() {
    let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
    let server = Server::start(&config(&one.address));
    assert_eq!(body(&server), "one");

    assert_eq!(server.said(&["show"]), file(&server));
    assert_eq!(server.said(&["show", "pool.app.balance"]), "balance = \"round-robin\"  # default\n");
    assert_eq!(server.ctl_json(&["show", "pool.app.backends"])["value"], serde_json::json!([one.address]));
    assert_eq!(server.ctl_json(&["show"])["configuration"]["listener"]["web"]["protocol"], "http");

    let text = server.said(&["add", "pool.app.backends", &two.address]);
    assert!(
        text.starts_with("change 1: add pool.app.backends\nserving generation 2: ")
            && text.contains("pool app: +1 backend"),
        "{text}"
    );
    server.said(&["remove", "pool.app.backends", &one.address]);
    assert_eq!(body(&server), "two");

    server.said(&["add", "pool.first", &format!("{{ backends = [\"{}\"] }}", one.address)]);
    server.said(&["add", "listener.web.route", "{ path = \"/first\", pool = \"first\" }"]);
    assert_eq!(get(&server.address("web"), "/first").text(), "one");
    server.said(&["set", "listener.web.route.1.path", "/second"]);
    assert_eq!(get(&server.address("web"), "/first").text(), "two");
    server.said(&["set", "pool.first.timeouts.connect", "1s"]);
    server.said(&["set", "pool.first.backends.1.weight", "3"]);
    assert_eq!(server.backend(&one.address)["weight"], 3);
    server.said(&["set", "listener.web.response-headers", "{ set = { X-Live = \"json\" } }"]);
    server.said(&["set", "access-log.format", "json"]);
    assert_eq!(get(&server.address("web"), "/").header("x-live"), Some("json"));

    let port = testing::port::free();
    server.said(&[
        "add",
        "listener.other",
        &format!("{{ bind = \"127.0.0.1:{port}\", protocol = \"http\", pool = \"first\" }}"),
    ]);
    assert_eq!(get(&format!("127.0.0.1:{port}"), "/").text(), "one");
    server.said(&["remove", "listener.other"]);
    assert!(testing::Client::try_connect(&format!("127.0.0.1:{port}")).is_err());

    let later = server.said(&["set", "process.workers", "1"]);
    assert!(later.contains("warning: process.workers changed: takes effect at the next start"), "{later}");
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["unsaved_changes"], 12);
    assert!(server.said(&["status"]).contains("12 unsaved changes"));
    let events = server.said(&["events"]);
    assert!(
        events.contains("control: change 1 by ") && events.contains("add pool.app.backends; serving"),
        "{events}"
    );
    assert!(!events.contains("X-Live"), "an event has no values: they may be secrets");
}

#[test]
fn wrong_commands_change_nothing_and_say_why() {
    let backend = Scripted::answering("one");
    let server = Server::start(&config(&backend.address));
    let before = server.said(&["show"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    let listener = format!("{{ bind = \"{bind}\", protocol = \"http\", pool = \"app\" }}");
    let cases: &[(&[&str], &str)] = &[
        (&["set"], "required arguments were not provided"),
        (&["set", "pool.app.balance"], "required arguments were not provided"),
        (&["set", "pool.app.balance", "hash", "more"], "unexpected argument"),
        (&["add", "pool.app.backends"], "required arguments were not provided"),
        (&["remove"], "required arguments were not provided"),
        (&["begin", "now"], "unexpected argument"),
        (&["undo", "x"], "it is not a whole number"),
        (&["undo"], "there is no change to undo"),
        (&["undo", "3"], "there is no change 3: the history is empty"),
        (&["history", "3"], "there is no change 3"),
        (&["commit"], "there is no transaction"),
        (&["commit", "--confirm", "0"], "must be greater than 0"),
        (&["commit", "--confirm", "soon"], "invalid value"),
        (&["confirm"], "there is nothing to confirm: no commit waits for a confirmation"),
        (&["abort"], "there is no transaction"),
        (&["show", "pool.ap"], "there is no \"ap\" in the configuration\n  hint: did you mean \"app\"?"),
        (&["show", "pool..app"], "is not the path of a value"),
        (&["show", "pool.app.backends.9"], "pool.app.backends has no entry \"9\""),
        (&["set", "pool.app.balance", "fastest"], "set pool.app.balance: refused, nothing changed"),
        (&["set", "pool.app.balanse", "hash"], "balanse"),
        (
            &["set", "pool.ap.balance", "hash"],
            "set pool.ap.balance: refused, nothing changed; there is no pool.ap: did you mean \"app\"?",
        ),
        (&["set", "listener.wb.bind", ":9"], "there is no listener.wb: did you mean \"web\"?"),
        (&["set", "pool.app.balance", "\"hash"], "is not a TOML value"),
        (&["set", "pool.app.balance", ""], "it must not be empty"),
        (&["set", "pool.app.balance", "a\nb"], "control characters"),
        (&["add", "pool.app.balance", "hash"], "is neither a list nor a new table"),
        (&["add", "pool.app", "{ backends = [\"h:1\"] }"], "pool.app exists already"),
        (&["add", "listener.late", &listener], "add listener.late: refused, nothing changed"),
        (&["remove", "pool.app.backends", "10.9.9.9:1"], "pool.app.backends has no entry \"10.9.9.9:1\""),
        (
            &["remove", "pool.app.backends", &backend.address],
            "remove pool.app.backends: refused, nothing changed",
        ),
        (&["remove", "pool.app"], "no pool named \"app\""),
        (&["remove", "listener.web"], "there is no listener"),
        (&["remove", "listener.web.tls"], "listener.web.tls is not in the configuration"),
        (&["save", "/none/x.toml"], "/none/x.toml cannot be written"),
        (&["save", "/usr"], "/usr is a directory\n  hint: name a file in it"),
        (&["save", "--force", "/usr"], "/usr is a directory"),
    ];
    for (command, message) in cases {
        let error = server.refused(command);
        assert!(error.contains(message), "ctl {command:?}: {error}");
        assert_eq!(server.said(&["show"]), before, "{command:?}");
    }
    let faults = server.refused(&["set", "pool.app.balance", "fastest"]);
    assert!(faults.contains("penstock.toml with this change:"), "it names the line and column: {faults}");
    assert_eq!(server.ctl_json(&["status"])["generation"], 1);
    assert_eq!(body(&server), "one");
}

#[test]
fn a_change_that_a_stopped_server_may_make_later_is_not_told_as_one_that_failed() {
    let backend = Scripted::answering("one");
    let server = Server::start(&config(&backend.address));
    server.signal(Signal::SIGSTOP);
    let output = server.ctl(&["--timeout", "300ms", "set", "pool.app.queue", "5"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    server.signal(Signal::SIGCONT);
    assert!(!output.status.success() && said.contains("no answer on "), "{said}");
    assert!(said.contains("a change may still be made: look before you ask for it again"), "{said}");
}

#[test]
fn a_transaction_is_served_at_once_or_not_at_all() {
    let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
    let server = Server::start(&config(&one.address));
    server.said(&["begin"]);
    assert!(server.refused(&["begin"]).contains("there is a transaction already"));
    let collected = server.said(&["set", "listener.web.pool", "new"]);
    assert!(collected.contains("it cannot be committed yet"), "{collected}");
    assert!(server.refused(&["commit"]).contains("the transaction stays open"));
    server.said(&["add", "pool.new", &format!("{{ backends = [\"{}\"] }}", two.address)]);
    server.said(&["remove", "pool.app"]);
    assert_eq!(body(&server), "one", "nothing is served before the commit");
    let diff = server.said(&["diff"]);
    assert!(
        diff.contains("\n-pool = \"app\"\n+pool = \"new\"\n")
            && diff.contains("+1 pool (new); -1 pool (app)"),
        "{diff}"
    );
    let json = server.ctl_json(&["diff"]);
    assert_eq!((&json["from"], &json["transaction"]["changes"]), (&"served".into(), &3.into()));
    assert!(server.refused(&["undo"]).contains("there is a transaction"));
    let text = server.said(&["commit"]);
    assert!(text.starts_with("change 1: commit"), "{text}");
    assert_eq!(body(&server), "two");

    // A listener that cannot be bound: nothing of the transaction is served.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    server.said(&["begin"]);
    server.said(&["set", "listener.web.pool", "new2"]);
    server.said(&["add", "pool.new2", &format!("{{ backends = [\"{}\"] }}", one.address)]);
    let bind = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    server.said(&[
        "add",
        "listener.late",
        &format!("{{ bind = \"{bind}\", protocol = \"http\", pool = \"new\" }}"),
    ]);
    let error = server.refused(&["commit"]);
    assert!(error.contains(&bind) && error.contains("the transaction stays open"), "{error}");
    assert_eq!(body(&server), "two");
    drop(taken);
    server.said(&["commit"]);
    assert_eq!((body(&server), get(&bind, "/").text()), ("one".to_owned(), "two".to_owned()));

    let history = server.ctl_json(&["history"]);
    assert_eq!(history[1]["change"], "set listener.web.pool; add pool.new2; add listener.late");
    assert_eq!(history[1]["uid"], nix::unistd::getuid().as_raw());
    assert!(history[1]["pid"].as_u64().is_some() && history[1]["at"].as_str().is_some(), "{history}");
    assert!(server.said(&["history", "2"]).contains("\n+[listener.late]\n"));
    let undo = server.said(&["undo"]);
    let undone = format!("; {}\n", history[1]["change"].as_str().unwrap().rsplit("; ").next().unwrap());
    assert!(undo.contains("\nundone: change 2 of ") && undo.contains(&undone), "{undo}");
    assert_eq!(body(&server), "two");
    server.said(&["undo"]);
    assert_eq!(body(&server), "one");
    assert_eq!(server.said(&["show"]), file(&server));
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 0);
    server.said(&["undo", "4"]);
    assert_eq!(body(&server), "two", "an undo can be undone");

    // Half a transaction is dropped, and one that a reload has overtaken is refused.
    server.said(&["begin"]);
    server.said(&["remove", "listener.web"]);
    assert!(server.said(&["abort"]).contains("1 change dropped"));
    server.said(&["begin"]);
    server.said(&["set", "pool.new.balance", "hash"]);
    server.said(&["reload"]);
    assert!(
        server.refused(&["commit"]).contains("the configuration was changed after this transaction began")
    );
    server.said(&["abort"]);
}

#[test]
fn a_commit_without_its_confirmation_is_undone() {
    let (one, two) = (Scripted::answering("one"), Scripted::answering("two"));
    let server = Server::start(&config(&one.address));
    let commit = |limit: &str, backend: &Scripted| {
        server.said(&["begin"]);
        server.said(&["set", "pool.app.backends", &format!("[\"{}\"]", backend.address)]);
        server.said(&["commit", "--confirm", limit])
    };
    let text = commit("1h", &two);
    assert!(text.contains("it is undone unless `penstock ctl confirm` comes within 3600 s"), "{text}");
    assert_eq!(body(&server), "two");
    for command in [&["set", "pool.app.balance", "hash"][..], &["save"]] {
        let other = server.refused(command);
        let left =
            other.split_once(" waits ").and_then(|(_, rest)| rest.split_once(" s for its confirmation"));
        let left: u32 = left.unwrap_or_else(|| panic!("{other}")).0.parse().unwrap();
        assert!(other.contains("change 1 by ") && (3000..=3600).contains(&left), "{other}");
    }
    server.said(&["undo"]);
    assert_eq!(body(&server), "one");
    commit("1s", &two);
    let history = eventually("the history has it", secs(20), || {
        let history = server.ctl_json(&["history"]);
        (history[3]["cause"] == "not-confirmed").then_some(history)
    });
    assert_eq!(body(&server), "one", "it is undone");
    assert_eq!((&history[2]["in_effect"], &history[3]["uid"]), (&false.into(), &serde_json::Value::Null));
    assert!(server.said(&["events"]).contains("not confirmed in time"));
    assert!(server.refused(&["confirm"]).contains("no commit waits"));

    commit("1h", &two);
    assert_eq!(server.said(&["confirm"]), "change 5 is confirmed\n");
    server.said(&["set", "pool.app.balance", "hash"]);
    assert_eq!(body(&server), "two");
    commit("1h", &one);
    server.said(&["undo"]);
    assert_eq!(server.ctl_json(&["show", "pool.app.balance"])["value"], "hash");
}

#[test]
fn save_writes_only_the_lines_that_changed_and_only_the_file_that_was_read() {
    let backend = Scripted::answering("one");
    let setup = Setup::new(&config(&backend.address));
    let path = setup.dir().join("penstock.toml");
    let server = setup.start();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let before = file(&server);
    assert!(server.said(&["save"]).contains("has the configuration that is served"));
    assert_eq!(file(&server), before);

    server.said(&["add", "pool.app.backends", "127.0.0.1:9"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    let diff = server.said(&["diff"]);
    assert!(diff.contains("not saved to the file:") && diff.contains("+  \"127.0.0.1:9\","), "{diff}");
    let saved = server.ctl_json(&["save"]);
    assert_eq!(saved["saved_changes"], 2);
    let expected =
        before.replace("  # rack 1\n]\n", "  # rack 1\n  \"127.0.0.1:9\",\n]\nbalance = \"hash\"\n");
    assert_eq!(file(&server), expected);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 0);
    assert!(server.said(&["reload"]).contains("nothing changed"));

    // Undo of what is saved is unsaved again.
    server.said(&["undo"]);
    assert_eq!(server.ctl_json(&["status"])["unsaved_changes"], 1);
    fs::write(&path, expected.replace("rack 1", "rack 2")).unwrap();
    let error = server.refused(&["save"]);
    assert!(error.contains("was changed since the server read it"), "{error}");
    assert!(file(&server).contains("rack 2"));

    // A reload drops what is not saved, says so, and undo brings it back.
    let reloaded = server.said(&["reload"]);
    assert!(reloaded.contains("warning: 1 change made live and not saved is dropped"), "{reloaded}");
    assert!(server.said(&["events"]).contains("made live and not saved is dropped"));
    server.said(&["undo"]);
    assert!(server.said(&["show"]).contains("rack 1"));
    // The file has a line of another hand, which the undo took back with the reload.
    assert!(reloaded.contains("it takes what the file brought with it"), "{reloaded}");
    let (colleagues, error) = (file(&server), server.refused(&["save"]));
    assert!(
        error.contains("that a reload brought, and that an undo took back") && error.contains("# rack 2"),
        "{error}"
    );
    assert_eq!(file(&server), colleagues);
    server.said(&["save", "--force"]);
    assert_eq!(file(&server), server.said(&["show"]));

    let copy = server.dir.path().join("copy.toml");
    server.said(&["save", copy.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&copy).unwrap(), file(&server));
    assert!(server.refused(&["save", copy.to_str().unwrap()]).contains("exists already"));
    let left: Vec<_> =
        fs::read_dir(server.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().ends_with(".new")), "{left:?}");
}

#[test]
fn a_server_without_a_file_saves_to_a_path() {
    let backend = Scripted::answering("one");
    let setup = Setup::new("");
    let dir = setup.dir().to_owned();
    let socket = dir.join("control.sock");
    let server = setup
        .arguments(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--backend",
            &format!("{},weight=2", backend.address),
            "--control",
            socket.to_str().unwrap(),
            "--access-log",
            "off",
        ])
        .start();
    server.said(&["set", "pool.main.balance", "hash"]);
    server.said(&["set", "pool.main.backends.1.weight", "7"]);
    assert_eq!(server.backend(&backend.address)["weight"], 7);
    let error = server.refused(&["save"]);
    assert!(
        error.contains("this server has no configuration file") && error.contains("save FILE"),
        "{error}"
    );
    let copy = dir.join("new.toml");
    server.said(&["save", copy.to_str().unwrap()]);
    let checked = testing::server::penstock(&["check", copy.to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
    let text = fs::read_to_string(&copy).unwrap();
    assert!(
        text.contains("[pool.main]\n")
            && text.contains("balance = \"hash\"\n")
            && text.contains("weight = 7"),
        "{text}"
    );
    assert!(server.said(&["reload"]).contains("dropped"));
    assert_eq!(server.backend(&backend.address)["weight"], 2);
}

#[test]
fn a_value_that_the_environment_decides_cannot_be_set() {
    let backend = Scripted::answering("one");
    let server =
        Setup::new(&config(&backend.address)).env("PENSTOCK_POOL_APP_BALANCE", "two-choices").start();
    for command in [
        &["set", "pool.app.balance", "hash"][..],
        &["set", "pool.app", "{ balance = \"hash\", backends = [\"h:1\"] }"],
    ] {
        let error = server.refused(command);
        assert!(
            error.contains("the environment variable PENSTOCK_POOL_APP_BALANCE decides this value"),
            "{error}"
        );
    }
    assert_eq!(
        server.said(&["show", "pool.app.balance"]),
        "balance = \"two-choices\"  # environment PENSTOCK_POOL_APP_BALANCE\n"
    );
    server.said(&["set", "pool.app.timeouts.connect", "1s"]);
    // Also in a transaction that is invalid so far.
    server.said(&["begin"]);
    assert!(server.said(&["set", "listener.web.pool", "later"]).contains("cannot be committed yet"));
    let error = server.refused(&["set", "pool.app.balance", "hash"]);
    assert!(
        error.contains("the environment variable PENSTOCK_POOL_APP_BALANCE decides this value"),
        "{error}"
    );
    assert!(server.said(&["abort"]).contains("1 change dropped"));
}

/// Runs ctl as another user, whom the server's own user is.
fn as_nobody(server: &Server, arguments: &[&str]) -> Output {
    let (own, socket) = (own_binary(server), server.control_socket());
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", own.to_str().unwrap()];
    let all = [&user[..], &["ctl", "--socket", socket.to_str().unwrap()], arguments].concat();
    tools::run("setpriv", &all, secs(20))
}

#[test]
fn a_second_operator_is_told_who_has_a_transaction_and_since_when() {
    if tools::root("becomes another user") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("one");
    let server = Server::start(&format!("[process]\nuser = \"nobody\"\n{}", config(&backend.address)));
    fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(server.control_socket(), fs::Permissions::from_mode(0o666)).unwrap();
    server.said(&["begin"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    let theirs = |arguments: &[&str]| {
        let output = as_nobody(&server, arguments);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned(), output)
    };
    for command in [&["begin"][..], &["set", "pool.app.balance", "hash"], &["commit"], &["abort"], &["undo"]]
    {
        let (done, error, output) = theirs(command);
        assert!(
            !done && error.contains("root (uid 0, pid ") && error.contains(" has a transaction since 20"),
            "{command:?}: {output:?}"
        );
    }
    let (done, _, output) = theirs(&["abort", "--force"]);
    assert!(done, "{output:?}");
    // What the owner means for the transaction is not served at once, and once he knows, it may be.
    let refused = server.refused(&["set", "pool.app.balance", "maglev"]);
    assert!(refused.contains("there is no transaction: nobody (uid 65534, pid "), "{refused}");
    assert!(refused.contains(") has aborted yours, so nothing was changed"), "{refused}");
    let refused = server.refused(&["commit"]);
    assert!(refused.contains("there is no transaction") && !refused.contains("aborted"), "{refused}");
    let (done, _, output) = theirs(&["set", "pool.app.balance", "hash"]);
    assert!(done, "{output:?}");
    assert!(server.said(&["history"]).contains("nobody (uid 65534, pid "));
    // The file belongs to root: the operator's own rights decide.
    let (done, error, output) = theirs(&["save"]);
    assert!(!done && error.contains("penstock.toml cannot be "), "{output:?}");
    server.said(&["save"]);
}

#[test]
fn a_mistyped_name_that_makes_a_new_section_is_told_with_the_one_that_was_meant() {
    let backend = Scripted::answering("one");
    let acl = "[acl.office]\nentries = [\"permit 127.0.0.1\"]\ndefault = \"deny\"\n";
    let server = Server::start(&format!("{}\n{acl}", config(&backend.address)));
    let served = server.said(&["show"]);
    let cases: [(&[&str], &str); 2] = [
        (&["add", "pool.ap.backends", "127.0.0.1:8"], "pool.ap is new: did you mean pool.app?"),
        (&["set", "acl.ofice.default", "permit"], "acl.ofice is new: did you mean acl.office?"),
    ];
    for (command, meant) in cases {
        let told = format!("{meant} `penstock ctl undo` takes it back");
        let text = server.said(command);
        assert!(text.contains(&format!("\nwarning: {told}")), "{command:?}: {text}");
        server.said(&["undo"]);
        assert_eq!(server.said(&["show"]), served);
        let json = server.ctl_json(command);
        assert!(json["warning"].as_str().unwrap_or_default().contains(&told), "{command:?}: {json:#}");
        server.said(&["undo"]);
        server.said(&["begin"]);
        let text = server.said(command);
        assert!(text.contains(&format!("{meant} `penstock ctl abort`")), "{command:?}: {text}");
        let json = server.ctl_json(command);
        server.said(&["abort"]);
        assert!(json["warning"].is_null(), "it is no new one any more: {json:#}");
    }
    let json = server.ctl_json(&["add", "pool.ap.backends", "127.0.0.1:8"]);
    assert!(json["warning"].as_str().unwrap().contains("pool.ap: no listener uses this pool"), "{json:#}");
    let json = server.ctl_json(&["add", "pool.apps", "{ backends = [\"127.0.0.1:8\"] }"]);
    assert!(!json["warning"].as_str().unwrap().contains("did you mean"), "it is named as a whole: {json:#}");
}

#[test]
fn a_diff_is_taken_by_patch() {
    let backend = Scripted::answering("one");
    let server = Server::start(&config(&backend.address));
    let patched = |diff: &str, from: &str| {
        let (old, patch) = (server.dir.path().join("old"), server.dir.path().join("diff"));
        fs::write(&old, from).unwrap();
        fs::write(&patch, diff).unwrap();
        let words = ["--batch", "--fuzz=0", "--input"];
        let words = [&words[..], &[patch.to_str().unwrap(), old.to_str().unwrap()]].concat();
        let output = tools::run("patch", &words, secs(20));
        assert!(output.status.success(), "{output:?}\n{diff}");
        fs::read_to_string(&old).unwrap()
    };
    let before = server.said(&["show"]);
    server.said(&["add", "pool.app.backends", "127.0.0.1:9"]);
    server.said(&["set", "listener.web.backlog", "7"]);
    server.said(&["set", "access-log.format", "json"]);
    server.said(&["set", "pool.app.balance", "hash"]);
    let diff = server.ctl_json(&["diff"])["diff"].as_str().unwrap().to_owned();
    assert_eq!(patched(&diff, &before), server.said(&["show"]));
    // Also as text, with what stands around it.
    assert_eq!(patched(&server.said(&["diff"]), &before), server.said(&["show"]));
    let lines = server.ctl_json(&["history", "4"])["diff"].as_str().unwrap().to_owned();
    let back = server.said(&["show"]);
    server.said(&["undo"]);
    assert_eq!(patched(&lines, &server.said(&["show"])), back);
}

#[test]
fn a_diff_names_the_open_transaction_and_its_owner() {
    let backend = Scripted::answering("one");
    let server = Server::start(&config(&backend.address));
    server.said(&["begin"]);
    for (change, count) in [(None, "0 changes"), (Some(["set", "pool.app.balance", "hash"]), "1 change")] {
        change.map(|change| server.said(&change));
        let by = server.ctl_json(&["diff"])["transaction"]["by"].as_str().unwrap().to_owned();
        let diff = server.said(&["diff"]);
        let first = diff.lines().next().unwrap();
        assert!(first.starts_with(&format!("transaction of {by} open since ")), "{diff}");
        assert!(first.contains(&format!("{count} not served before `penstock ctl commit`")), "{diff}");
    }
}
