//! The hand-over is cut at each of its steps: one process serves, and it has lost nothing.

use std::fs;
use std::time::Instant;

use testing::client::get;
use testing::load::{Connections, Load};
use testing::server::binary;
use testing::{Scripted, eventually, secs};

use crate::front::{Front, config, is_running};

const PEER: &str = include_str!("peer.py");
const BETWEEN: &str = include_str!("between.py");

fn script(front: &Front, name: &str, constants: &str, text: &str) -> String {
    let text = format!("#!/usr/bin/env python3\n{constants}\n{text}");
    front.program(name, text.as_bytes()).to_str().unwrap().to_owned()
}

#[track_caller]
fn serves_on(front: &Front) {
    assert_eq!(front.serving(), front.server.pid().as_raw());
    let status = front.server.ctl_json(&["status"]);
    assert_eq!((&status["phase"], &status["degraded"]), (&"serving".into(), &serde_json::json!([])));
    assert_eq!(get(&front.server.address("web"), "/").text(), "x");
}

#[test]
fn a_new_process_that_stops_speaking_at_any_step_leaves_the_old_one_serving() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    let load = Load::start(&front.server.address("web"), "/", Connections::New, 2, Some(100));
    let before = fs::read_dir(format!("/proc/{}/fd", front.pid())).unwrap().count();
    for (number, (point, how, expected)) in [
        ("start", "exit", "it did not say hello: it has closed the connection (it ended with exit status 7)"),
        ("start", "garbage", "it does not speak the protocol of an upgrade"),
        ("start", "long", "a message is longer than"),
        ("hello", "foreign", "it is no Penstock"),
        ("hello", "newer", "version 99.0.0 speaks protocol 90 to 99"),
        ("hello", "exit", "it did not become ready"),
        ("hello", "die", "it was ended by signal 9"),
        ("offered", "exit", "it did not become ready: it has closed the connection"),
        ("offered", "garbage", "it does not speak the protocol"),
        ("ready", "exit", "it did not take the state over"),
        ("ready", "die", "it was ended by signal 9"),
        ("state", "exit", "it did not take the state over: it has closed the connection"),
        ("prepared", "exit", "it did not serve"),
        ("prepared", "die", "it did not serve"),
        ("go", "die", "it did not serve: it has closed the connection"),
        ("go", "long", "a message is longer than"),
    ]
    .into_iter()
    .enumerate()
    {
        let constants = format!("POINT, HOW = {point:?}, {how:?}");
        let program = script(&front, &format!("peer{number}"), &constants, PEER);
        let said = front.refused(&[&program]);
        assert!(said.contains(expected), "{point}, {how}: {said}");
        serves_on(&front);
    }
    // Marks can be set again, and the state is stored again.
    front.server.said(&["weight", &backend.address, "3"]);
    load.stop().assert_clean();
    let after = fs::read_dir(format!("/proc/{}/fd", front.pid())).unwrap().count();
    assert!(after <= before + 8, "{before} descriptors, then {after}");
}

#[test]
fn a_new_process_that_hangs_is_ended_after_half_a_minute_and_a_second_upgrade_waits_for_none() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    let program = script(&front, "frozen", "POINT, HOW = \"hello\", \"stop\"", PEER);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            // The limit of `Server::ctl` is about the same.
            let mut command = std::process::Command::new(binary());
            command.args(["ctl", "--socket"]).arg(front.server.control_socket()).args(["upgrade", &program]);
            testing::server::run_to_end(&mut command, secs(60))
        });
        eventually("it runs", secs(10), || front.server.said(&["events"]).contains("started ").then_some(()));
        assert!(front.refused(&[]).contains("another upgrade is running"));
        serves_on(&front);
        let output = first.join().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("it did not become ready within 30 s of its start (it was ended)"), "{said}");
    });
    assert!((30..45).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    serves_on(&front);
}

#[test]
fn a_real_new_process_that_is_ended_at_any_message_leaves_the_old_one_serving() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let mut load = Some(Load::start(&front.server.address("web"), "/", Connections::New, 2, Some(100)));
    let messages = ["hello", "welcome", "offer", "offered", "ready", "state", "prepared", "go", "serving"];
    for message in messages {
        for when in ["before", "after"] {
            if (message, when) == ("serving", "after") {
                // The old one has handed over by then.
                continue;
            }
            if (message, when) == ("go", "after") {
                // From here on the new process accepts clients, which end with it.
                load.take().unwrap().stop().assert_clean();
            }
            let constants =
                format!("BINARY, MESSAGE, WHEN, VICTIM = {:?}, {message:?}, {when:?}, \"new\"", binary());
            let program = script(&front, &format!("between-{message}-{when}"), &constants, BETWEEN);
            let said = front.refused(&[&program]);
            assert!(said.contains("this process serves on"), "{message}, {when}: {said}");
            serves_on(&front);
        }
    }
    assert!(load.is_none());
    // Nothing is left that would keep the next one from it.
    front.upgrade(&[]);
    assert_eq!(get(&front.server.address("web"), "/").text(), "x");
}

#[test]
fn an_old_process_that_is_ended_at_the_last_word_leaves_the_new_one_serving() {
    let backend = Scripted::answering("x");
    for when in ["before", "after"] {
        let mut front = Front::start(&config("", &backend.address));
        let address = front.server.address("web");
        let old = front.pid();
        let constants = format!("BINARY, MESSAGE, WHEN, VICTIM = {:?}, \"go\", {when:?}, {old}", binary());
        let program = script(&front, "between", &constants, BETWEEN);
        let said = front.refused(&[&program]);
        assert!(!said.is_empty());
        front.wait_gone(old);
        assert_eq!(get(&address, "/").text(), "x", "{when}");
        let new = eventually("the new one answers", secs(10), || {
            let output = front.server.ctl(&["status", "--json"]);
            let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            i32::try_from(status["pid"].as_i64()?).ok()
        });
        front.follow(new);
        assert!(is_running(new) && new != old);
        // It can be upgraded itself.
        front.upgrade(&[binary()]);
        assert_eq!(get(&address, "/").text(), "x", "{when}");
    }
}
