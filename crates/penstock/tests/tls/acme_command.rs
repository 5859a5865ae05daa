//! Certificates proved in the DNS by a command, with Pebble and knot: what the command gets, and what of it is said.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testing::dns_updates::Updatable;
use testing::pebble::{Pebble, PebbleSetup};
use testing::server::{Setup, penstock};
use testing::sshd::descendants;
use testing::witness::served;
use testing::{Server, eventually, secs};

use crate::acme_dns::order;

fn config(pebble: &Pebble, dns: &str) -> String {
    format!(
        "[process]\nstate-directory = \"@DIR@/state\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\ntls = {{ acme = \"test\" }}\n\
         [[listener.secure.route]]\nredirect = \"https://elsewhere.example/\"\n\
         [acme.test]\ndirectory = \"{}\"\nca = \"{}\"\nterms-agreed = true\nnames = [\"*.a.example\"]\n\
         challenge = \"dns-01\"\ndns = {{ {dns}, wait = \"0s\" }}\n",
        pebble.directory,
        pebble.ca.display(),
    )
}

fn pebble(names: &Updatable) -> Pebble {
    Pebble::start(PebbleSetup { name_server: Some(names.address), ..PebbleSetup::default() })
}

/// A script; `$D` in it is its directory.
fn script(path: &Path, text: &str) -> String {
    let text = format!("#!/bin/sh\nD={}\n{text}\n", path.parent().unwrap().display());
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

fn status(process: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap().to_owned()
}

/// A command that gives records to the name server. `begin` comes before, with the arguments of the command; behind it they are
/// `present` or `cleanup`, the name, and the value.
fn hook(directory: &Path, names: &Updatable, begin: &str) -> String {
    script(
        &directory.join("hook"),
        &format!(
            "{begin}\n\
             case $1 in present) what=\"add $2 60 TXT $3\" ;; *) what=\"delete $2 TXT $3\" ;; esac\n\
             printf 'server {} {}\\n%s\\nsend\\n' \"$what\" | nsupdate -k {}",
            names.address.ip(),
            names.address.port(),
            names.key("penstock").display()
        ),
    )
}

#[test]
fn a_command_adds_and_removes_the_record_outside_the_sandbox() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let directory = tempfile::tempdir().unwrap();
    let begin = "echo \"$*\" >>$D/calls; cat /proc/self/status >$D/status; env >$D/environment; shift";
    let hook = hook(directory.path(), &names, begin);
    let text = config(&pebble, &format!("command = [\"{hook}\", \"first word\"]"));
    let server = Setup::new(&text).env("SECRET_OF_SERVE", "x").start();
    eventually("a certificate", secs(40), || served(&server, "any.a.example"));
    let file = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let calls = file("calls");
    let calls: Vec<Vec<&str>> = calls.lines().map(|line| line.split(' ').collect()).collect();
    let ["first", "word", "present", "_acme-challenge.a.example.", value] = calls[0][..] else {
        panic!("{calls:?}");
    };
    assert_eq!(calls[1..], [["first", "word", "cleanup", "_acme-challenge.a.example.", value]]);
    assert_eq!(names.dig("_acme-challenge.a.example.", "TXT"), "", "the record is removed");
    // Its rights: those of the front door without the sandbox, and nothing of its environment.
    let rights = file("status");
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t0"] {
        assert!(rights.contains(line), "{line}: {rights}");
    }
    assert!(!file("environment").contains("SECRET_OF_SERVE"));
    let serve = server.pid().as_raw().cast_unsigned();
    assert_eq!(status(serve, "Seccomp"), "2");
    // Beside it the process that would start the next version.
    let (guardians, helpers): (Vec<u32>, Vec<u32>) = descendants(serve).into_iter().partition(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        line.split(|byte| *byte == 0).any(|word| word == b"upgrade-guardian")
    });
    assert!(guardians.len() <= 1 && helpers.len() == 1, "the helper alone: {guardians:?} {helpers:?}");
    assert_eq!(status(helpers[0], "Seccomp"), "0");
    drop(server);
    eventually("the helper ends with the front door", secs(20), || {
        // That of a process whose parent has not waited for it is empty.
        let line = fs::read(format!("/proc/{}/cmdline", helpers[0])).unwrap_or_default();
        line.is_empty().then_some(())
    });
}

#[test]
fn a_command_that_fails_is_told_with_what_it_said_and_one_that_hangs_is_ended() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let directory = tempfile::tempdir().unwrap();
    let failing = script(&directory.path().join("failing"), "echo \"no token for $2\"; exit 7");
    let hanging = script(&directory.path().join("hanging"), "echo thinking; exec sleep 600");
    let missing = directory.path().join("missing").display().to_string();
    for (dns, words) in [
        (
            format!("command = [\"{failing}\"]"),
            "exit status: 7; it said: no token for _acme-challenge.a.example.",
        ),
        (
            format!("command = [\"{hanging}\"], time-limit = \"3s\""),
            "did not end within 3 s; it said: thinking",
        ),
        (format!("command = [\"{missing}\"]"), "cannot be started: No such file"),
    ] {
        let server = Server::start(&config(&pebble, &dns));
        let reason = eventually(words, secs(40), || {
            let reason = order(&server)["reason"].as_str()?.to_owned();
            reason.contains(words).then_some(reason)
        });
        assert!(reason.contains("does not add the record: "), "{reason}");
        eventually("it is in the log", secs(20), || (server.stderr.count(words) > 0).then_some(()));
    }
}

#[test]
fn a_reload_cannot_bring_a_command_and_privileges_name_it() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let directory = tempfile::tempdir().unwrap();
    let hook = script(&directory.path().join("hook"), "exit 1");
    let text = config(&pebble, &format!("command = [\"{hook}\"]"));
    let server = Server::start(&text);
    server.write_config(&text.replace(&hook, "/usr/bin/env"));
    let refused = server.refused(&["reload"]);
    let words = "the command /usr/bin/env is not among those that this process may run since its start";
    assert!(refused.contains(words) && refused.contains("hint: restart penstock"), "{refused}");
    // Its time limit may change.
    server.write_config(&text.replace("wait =", "time-limit = \"5s\", wait ="));
    server.said(&["reload"]);
    let file = directory.path().join("penstock.toml");
    fs::write(&file, text.replace("@DIR@", &directory.path().display().to_string())).unwrap();
    let output = penstock(&["check", "--privileges", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.lines().any(|line| line.contains(&format!("run {hook}")) && line.contains("without sandbox")),
        "{told}"
    );
}

#[test]
fn an_order_that_a_reload_aborts_leaves_no_record_of_a_command() {
    let names = Updatable::start("");
    let pebble = pebble(&names);
    let directory = tempfile::tempdir().unwrap();
    // The first command waits, and the reload comes meanwhile.
    let begin = "echo \"$1 $3\" >>$D/calls\n\
         if [ $1 = present ] && mkdir $D/first 2>/dev/null; then until [ -e $D/go ]; do sleep 0.02; done; fi";
    let hook = hook(directory.path(), &names, begin);
    let text = config(&pebble, &format!("command = [\"{hook}\"]"));
    let server = Server::start(&text);
    let calls = || fs::read_to_string(directory.path().join("calls")).unwrap_or_default();
    let first = eventually("the first command", secs(40), || {
        calls().lines().next().and_then(|line| line.strip_prefix("present ").map(str::to_owned))
    });
    server.write_config(&text.replace("wait =", "time-limit = \"50s\", wait ="));
    server.said(&["reload"]);
    fs::write(directory.path().join("go"), "").unwrap();
    eventually("the removal of the first record", secs(40), || {
        calls().lines().any(|line| line == format!("cleanup {first}")).then_some(())
    });
    eventually("a certificate by the second order", secs(60), || served(&server, "any.a.example"));
    eventually("no record is left", secs(20), || {
        names.dig("_acme-challenge.a.example.", "TXT").is_empty().then_some(())
    });
    assert_eq!(calls().matches("present ").count(), calls().matches("cleanup ").count(), "{}", calls());
}
