//! What makes an upgrade fail: the server serves on, and says why.

use std::fs;

use testing::client::get;
use testing::server::Setup;
use testing::{Scripted, Server};

use crate::front::{Front, config};

#[track_caller]
fn serves_on(front: &Front) {
    assert_eq!(front.serving(), front.server.pid().as_raw());
    assert_eq!(get(&front.server.address("web"), "/").text(), "x");
}

#[test]
fn what_is_no_penstock_is_refused_with_the_reason() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    let elf = fs::read("/bin/true").unwrap();
    // e_machine of another processor.
    let mut foreign = elf.clone();
    foreign[18] ^= 0x55;
    for (name, text, expected) in [
        ("text", &b"no program\n"[..], "cannot be run: Exec format error"),
        ("foreign", &foreign, "is it for another kind of processor?"),
        ("true", &elf, "it is no Penstock"),
        ("fails", b"#!/bin/sh\nexit 3\n", "it ended with exit status 3"),
        ("killed", b"#!/bin/sh\nkill -9 $$\n", "it was ended by signal 9"),
        ("lost", b"#!/no/such/interpreter\n", "is its loader or interpreter missing?"),
        ("speaks", b"#!/bin/sh\necho hello >&0\n", "it does not speak the protocol of an upgrade"),
    ] {
        let path = front.program(name, text);
        let said = front.refused(&[path.to_str().unwrap()]);
        assert!(said.contains("this process serves on: ") && said.contains(expected), "{name}: {said}");
        serves_on(&front);
    }
    let said = front.refused(&["/bin/true"]);
    assert!(said.contains("/bin/true is not among the programs that may be run: "), "{said}");
    assert!(said.contains("--allow-upgrade"), "{said}");
    serves_on(&front);
}

#[test]
fn a_configuration_that_the_next_process_refuses_is_told_with_its_line() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    front.server.write_config(&config("nonsense = 1\n", &backend.address));
    let said = front.refused(&[]);
    assert!(said.contains("penstock.toml:") && said.contains("nonsense"), "{said}");
    assert!(!said.contains(": error: "), "{said}");
    serves_on(&front);
}

#[test]
fn changes_that_the_file_lacks_must_be_saved_first() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    front.server.said(&["set", "pool.app.balance", "hash"]);
    let said = front.refused(&[]);
    assert!(said.contains("the file lacks 1 live change") && said.contains("ctl save"), "{said}");
    front.server.said(&["undo"]);
    front.server.said(&["begin"]);
    assert!(front.refused(&[]).contains("an operator has begun changes"));
    serves_on(&front);
}

#[test]
fn a_server_that_was_started_without_upgrades_says_so() {
    let backend = Scripted::answering("x");
    let setup = Setup::new(&config("", &backend.address));
    let file = setup.dir().join("penstock.toml").to_str().unwrap().to_owned();
    let server: Server = setup.arguments(&["serve", "--config", &file, "--no-upgrade"]).start();
    assert!(server.refused(&["upgrade"]).contains("was started with --no-upgrade"));
}
