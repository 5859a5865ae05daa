//! What a restart and a crash keep: sticky clients, counters, health, marks of operators, the history of changes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use nix::sys::signal::Signal;
use testing::client::get;
use testing::server::Setup;
use testing::tools::{self, Root};
use testing::{Scripted, Server, eventually, port, secs};

fn said(server: &Server, arguments: &[&str]) -> String {
    let output = server.ctl(arguments);
    assert!(output.status.success(), "ctl {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The text of a state file; empty if there is none.
fn kept(state: &Path, file: &str) -> String {
    fs::read_to_string(state.join(file)).unwrap_or_default()
}

/// Waits for a store that began after now: an answer waits a second for one at most, which a slow disk may take.
#[track_caller]
fn wait_for_store(state: &Path) {
    let millis = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let now = millis(SystemTime::now());
    eventually("a store after now", secs(20), || {
        let traffic = kept(state, "traffic.state");
        let (_, rest) = traffic.split_once("\"at\":")?;
        let at: u128 = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        (at > now).then_some(())
    });
}

/// Gives a command. Returns whether it says, as it may on a slow machine, that a restart now would not have it.
fn is_late(server: &Server, arguments: &[&str]) -> bool {
    said(server, arguments).contains("warning: not stored yet")
}

fn small(state: &Path, backend: &str) -> String {
    format!(
        "[process]\nstate-directory = \"{}\"\nstate-interval = \"300ms\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [access-log]\ntarget = \"off\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\n",
        state.display()
    )
}

struct Farm {
    state: tempfile::TempDir,
    app: Vec<Scripted>,
    side: Vec<Scripted>,
    dead: String,
}

impl Farm {
    fn new() -> Self {
        Self {
            state: tempfile::tempdir().unwrap(),
            app: ["one", "two", "three"].map(Scripted::answering).into(),
            side: ["four", "five"].map(Scripted::answering).into(),
            dead: format!("127.0.0.1:{}", port::free()),
        }
    }

    fn start(&self) -> Server {
        let list = |backends: &[Scripted]| {
            let quoted = backends.iter().map(|backend| format!("\"{}\"", backend.address));
            quoted.collect::<Vec<_>>().join(", ")
        };
        Server::start(&format!(
            "[process]\nstate-directory = \"{}\"\nstate-interval = \"300ms\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [admin]\nbind = \"127.0.0.1:0\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\n\
             [[listener.web.route]]\npath = \"/side\"\npool = \"side\"\n\
             [[listener.web.route]]\npath = \"/dead\"\npool = \"dead\"\n\
             [[listener.web.route]]\npool = \"app\"\n\
             [pool.app]\nbalance = \"sticky\"\nbackends = [{}]\n[pool.side]\nbackends = [{}]\n\
             [pool.dead]\nbackends = [\"{}\", \"{}\"]\npassive = {{ failures = 1, ejection = \"10m\" }}\n",
            self.state.path().display(),
            list(&self.app),
            list(&self.side),
            self.dead,
            self.app[0].address
        ))
    }
}

/// What clients at six addresses are answered.
fn answers(server: &Server) -> Vec<String> {
    let url = format!("http://{}/", server.address("web"));
    (11..17).map(|host| tools::curl_text(&["-sS", "--interface", &format!("127.0.0.{host}"), &url])).collect()
}

fn counter(server: &Server, name: &str) -> u64 {
    let metrics = server.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

const SESSIONS: &str = "penstock_listener_sessions_total{listener=\"web\"}";

#[test]
fn a_restart_and_a_crash_keep_clients_marks_ejection_and_counters() {
    let farm = Farm::new();
    let mut server = farm.start();
    let before = answers(&server);
    assert!(before.iter().any(|answer| *answer != before[0]), "{before:?}");
    said(&server, &["drain", &farm.side[0].address]);
    said(&server, &["weight", &farm.side[1].address, "7"]);
    let ejected = |server: &Server| server.health(&farm.dead) == "ejected";
    eventually("the dead backend is ejected", secs(10), || {
        get(&server.address("web"), "/dead");
        ejected(&server).then_some(())
    });

    for (number, signal) in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL].into_iter().enumerate() {
        let seen = counter(&server, SESSIONS);
        assert!(seen >= 7, "{seen}");
        if signal == Signal::SIGKILL {
            let all = || {
                let clients = kept(farm.state.path(), "clients.state");
                (11..17).all(|host| clients.contains(&format!("\"127.0.0.{host}\""))).then_some(())
            };
            eventually("the clients are stored", secs(10), all);
            let marks = || {
                let traffic = kept(farm.state.path(), "traffic.state");
                (traffic.contains("\"drain\":{") && traffic.contains("\"ejected\"")).then_some(())
            };
            eventually("the marks are stored", secs(10), marks);
            wait_for_store(farm.state.path());
        }
        server.signal(signal);
        server.wait_end(secs(20));
        drop(server);

        server = farm.start();
        let now = counter(&server, SESSIONS);
        assert!(now >= seen, "restart {number}: a counter went from {seen} to {now}");
        assert!(ejected(&server), "restart {number}");
        assert!(server.backend(&farm.dead).to_string().contains("refused"), "the reason is kept");
        assert_eq!(answers(&server), before, "restart {number}");
        let [four, five] = [0, 1].map(|at| server.backend(&farm.side[at].address));
        assert_eq!((&four["admission"], &five["weight_override"]), (&"draining".into(), &7.into()));
        assert_eq!(get(&server.address("web"), "/side").text(), "five");
        let events = said(&server, &["events"]);
        assert!(
            events.contains("stored-state: taken over as of ")
                && events.contains("counters, 6 sticky clients, 1 drained backend"),
            "{events}"
        );
        let status = eventually("a store of this process", secs(10), || {
            let status = server.ctl_json(&["status"])["stored"].clone();
            status["at"].is_string().then_some(status)
        });
        assert_eq!(status["directory"], farm.state.path().to_str().unwrap());
        assert!(status["restored_from"].is_string() && status["bytes"].as_u64().unwrap() > 500, "{status}");
        let line = said(&server, &["status"]);
        assert!(line.contains(&format!("state in {}: stored ", farm.state.path().display())), "{line}");
    }
    said(&server, &["ready", &farm.side[0].address]);
    said(&server, &["weight", &farm.side[1].address, "default"]);
    server.signal(Signal::SIGTERM);
    server.wait_end(secs(20));
    server = farm.start();
    assert_eq!(server.backend(&farm.side[0].address)["admission"], "ready");
    assert!(server.backend(&farm.side[1].address)["weight_override"].is_null());
}

#[test]
fn a_drain_for_a_time_goes_on_after_a_crash_and_ends_when_it_would_have() {
    let (state, one) = (tempfile::tempdir().unwrap(), Scripted::answering("one"));
    let config = small(state.path(), &one.address);
    let mut server = Server::start(&config);
    said(&server, &["drain", &one.address, "--for", "1h"]);
    wait_for_store(state.path());
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(20));
    drop(server);
    let mut server = Server::start(&config);
    let backend = server.backend(&one.address);
    let left = backend["drain_seconds_left"].as_u64().unwrap();
    assert!((3500..=3600).contains(&left) && backend["admission"] == "draining", "{backend}");
    said(&server, &["ready", &one.address]);
    said(&server, &["drain", &one.address, "--for", "3s"]);
    wait_for_store(state.path());
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(20));
    drop(server);
    let server = Server::start(&config);
    eventually("it is ready again", secs(10), || {
        (server.backend(&one.address)["admission"] == "ready").then_some(())
    });
}

#[test]
fn a_change_that_was_not_saved_is_said_at_the_start_and_one_undo_away() {
    let (state, one, two) =
        (tempfile::tempdir().unwrap(), Scripted::answering("one"), Scripted::answering("two"));
    // Both processes have the same text: the place of their sockets comes from the environment.
    let config = small(state.path(), &one.address).replace("@DIR@", "/run/penstock");
    let start = || {
        let setup = Setup::new(&config);
        let socket = setup.dir().join("control.sock");
        setup.env("PENSTOCK_CONTROL_SOCKET", socket.to_str().unwrap()).start()
    };
    let mut server = start();
    said(&server, &["set", "pool.app.backends", &format!("[\"{}\"]", two.address)]);
    assert_eq!(get(&server.address("web"), "/").text(), "two");
    eventually("the change is stored", secs(10), || {
        kept(state.path(), "changes.state").contains("set pool.app.backends").then_some(())
    });
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(20));

    let mut server = start();
    assert_eq!(get(&server.address("web"), "/").text(), "one", "the file decides");
    server.stderr.wait_for("1 live change not saved when the process ended is not served", secs(5));
    let history = said(&server, &["history"]);
    assert!(
        history.contains("set pool.app.backends") && history.contains("start: 1 unsaved not served"),
        "{history}"
    );
    assert_eq!(server.ctl_json(&["history"])[1]["cause"], "start");
    let undone = server.ctl(&["undo"]);
    assert!(undone.status.success(), "{undone:?}");
    assert_eq!(get(&server.address("web"), "/").text(), "two");
    server.signal(Signal::SIGTERM);
    server.wait_end(secs(20));
}

#[test]
fn what_a_command_has_answered_is_on_the_disk() {
    // In memory: on a slow disk the answer would come before the store, with a warning. On a busy machine it may all the same.
    let (state, one) = (testing::memory::directory(), Scripted::answering("one"));
    let config = small(state.path(), &one.address).replace("300ms", "1h");
    let mut server = Server::start(&config);
    // Read at once after the answer: nothing is waited for.
    let mut proved = [0; 3];
    for number in 0.. {
        if !is_late(&server, &["drain", &one.address]) {
            assert!(kept(state.path(), "traffic.state").contains("\"drain\":{"), "{number}");
            proved[0] += 1;
        }
        if !is_late(&server, &["ready", &one.address]) {
            assert!(!kept(state.path(), "traffic.state").contains("\"drain\":{"), "{number}");
            proved[1] += 1;
        }
        if !is_late(&server, &["set", "pool.app.timeouts.connect", &format!("{}s", number % 100 + 2)]) {
            let history = format!("\"number\":{}", number + 1);
            assert!(kept(state.path(), "changes.state").contains(&history), "{number}");
            proved[2] += 1;
        }
        if proved.iter().all(|count| *count >= 5) {
            break;
        }
        assert!(number < 500, "answers come before the store: {proved:?}");
    }
    while is_late(&server, &["weight", &one.address, "7"]) {}
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(20));
    let server = Server::start(&config);
    assert_eq!(server.backend(&one.address)["weight_override"], 7);
}

#[test]
fn lost_marks_of_operators_are_degraded_until_one_is_set_again() {
    let (state, one) = (tempfile::tempdir().unwrap(), Scripted::answering("one"));
    let config = small(state.path(), &one.address);
    let mut server = Server::start(&config);
    said(&server, &["drain", &one.address]);
    server.signal(Signal::SIGTERM);
    server.wait_end(secs(20));
    let file = state.path().join("traffic.state");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    // It is no reason not to start.
    let server = Server::start(&config);
    let degraded = || server.ctl_json(&["status"])["degraded"].to_string();
    assert!(degraded().contains("stored-state.marks") && degraded().contains("is damaged"), "{}", degraded());
    let status = said(&server, &["status"]);
    assert!(status.contains("DEGRADED") && status.contains("penstock ctl drain"), "{status}");
    said(&server, &["ready", &one.address]);
    assert!(!degraded().contains("stored-state.marks"), "{}", degraded());
}

#[test]
fn an_unusable_file_is_ignored_kept_aside_once_and_said() {
    let (state, one) = (tempfile::tempdir().unwrap(), Scripted::answering("one"));
    let config = small(state.path(), &one.address);
    let mut whole = String::new();
    for (name, damage) in [
        (
            "is damaged: a part is missing",
            (|text: &str| text[..text.len() - 9].to_owned()) as fn(&str) -> String,
        ),
        ("is damaged: its checksum is wrong", |text| text.replace("\"at\":1", "\"at\":2")),
        ("is of a newer version of Penstock", |text| text.replace("state 1 traffic", "state 7 traffic")),
        ("is no state file of Penstock", |_| "hello".to_owned()),
    ] {
        let file = state.path().join("traffic.state");
        if !whole.is_empty() {
            fs::write(&file, damage(&whole)).unwrap();
            let _ = fs::remove_file(state.path().join("traffic.state.damaged"));
        }
        let mut server = Server::start(&config);
        if !whole.is_empty() {
            let line = server.stderr.wait_for(name, secs(5));
            assert!(line.contains("it is ignored, and kept as "), "{line}");
            assert_eq!(kept(state.path(), "traffic.state.damaged"), damage(&whole));
        }
        assert_eq!(get(&server.address("web"), "/").text(), "one");
        server.signal(Signal::SIGTERM);
        server.wait_end(secs(20));
        whole = kept(state.path(), "traffic.state");
        assert!(whole.starts_with("penstock-state 1 traffic "), "{whole}");
    }
}

#[test]
fn a_second_process_with_the_directory_is_told_and_takes_over_when_the_first_has_ended() {
    let (state, one) = (tempfile::tempdir().unwrap(), Scripted::answering("one"));
    let config = small(state.path(), &one.address);
    let mut first = Server::start(&config);
    said(&first, &["drain", &one.address]);
    let second = Server::start(&config);
    let status = said(&second, &["status"]);
    assert!(status.contains("another process stores its state in "), "{status}");
    second.stderr.wait_for("stored-state", secs(5));
    assert_eq!(second.backend(&one.address)["admission"], "ready", "it has nothing of the other one");
    first.signal(Signal::SIGTERM);
    first.wait_end(secs(20));
    eventually("the second one stores", secs(10), || {
        second.ctl_json(&["status"])["stored"]["at"].is_string().then_some(())
    });
    assert_eq!(second.ctl_json(&["status"])["not_stored"], serde_json::Value::Null);
}

#[test]
fn a_full_disk_and_a_read_only_one_are_degraded_and_the_old_file_stays_whole() {
    let Root::Here = tools::root("mounts a small file system of its own") else { return };
    let (state, one) = (tempfile::tempdir().unwrap(), Scripted::answering("one"));
    let path = state.path().to_str().unwrap();
    let script = format!("mount -t tmpfs -o size=64k,mode=700 none {path} && exec \"$@\"");
    let server = Setup::new(&small(state.path(), &one.address))
        .through(["unshare", "--mount", "sh", "-c", &script, "sh"])
        .start();
    let inside = |script: &str| {
        let pid = server.pid().to_string();
        let output = Command::new("nsenter")
            .args(["--mount", "--target", &pid, "sh", "-c", script])
            .current_dir("/")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let degraded = |word: &str| {
        eventually(word, secs(10), || {
            server.ctl_json(&["status"])["degraded"].to_string().contains(word).then_some(())
        });
    };
    let works = || {
        eventually("it works again", secs(10), || {
            let degraded = server.ctl_json(&["status"])["degraded"].to_string();
            (!degraded.contains("stored-state")).then_some(())
        });
    };
    let file = format!("{path}/traffic.state");
    eventually("a first store", secs(10), || (!inside(&format!("cat {file}")).is_empty()).then_some(()));

    inside(&format!("cat /dev/zero > {path}/fill"));
    degraded("No space left on device");
    let warned = said(&server, &["drain", &one.address]);
    assert!(warned.contains("warning: not stored yet"), "{warned}");
    let text = inside(&format!("cat {file}"));
    let length: usize = text.split(' ').nth(3).unwrap().parse().unwrap();
    assert_eq!(text.split_once('\n').unwrap().1.len(), length, "the old file is whole: {text}");
    // The next attempt may have one for a moment.
    eventually("no part of a file is left", secs(10), || {
        (!inside(&format!("ls -A {path}")).contains(".new")).then_some(())
    });
    inside(&format!("rm {path}/fill"));
    works();
    assert!(inside(&format!("cat {file}")).contains("\"drain\":{"), "the mark is stored now");

    // The kernel refuses it while a store has a file open.
    eventually("it is read-only", secs(10), || {
        (inside(&format!("mount -o remount,ro {path} && echo done")) == "done\n").then_some(())
    });
    degraded("Read-only file system");
    inside(&format!("mount -o remount,rw {path}"));
    works();
    let status = server.ctl_json(&["status"])["stored"].clone();
    assert!(status["failures"].as_u64().unwrap() >= 2, "{status}");
}
