//! Enrolment by witnesses, each a real sshd: all must see the same key, each must be proved itself, and none can hold us up.

use std::fs;
use std::process::Output;
use std::time::Instant;

use hosts::ssh::key::PublicKey;
use testing::secs;
use testing::sshd::{Sshd, keygen, public_line};
use testing::user::{User, ip, nothing_was_sent, place};

/// A user who knows witnesses, and a new host.
struct Scene {
    user: User,
    web1: Sshd,
}

impl Scene {
    fn new(witnesses: &[(&str, &Sshd)]) -> Self {
        let user = User::new();
        for (name, sshd) in witnesses {
            user.pin(name, &sshd.host_key(), Some(ip(sshd)));
        }
        let places: Vec<String> = witnesses.iter().map(|(name, sshd)| place(name, sshd)).collect();
        user.configure(&places.concat());
        Self { user, web1: Sshd::start() }
    }

    /// Has the host enrolled on the word of `witnesses`.
    fn add(&self, witnesses: &str) -> Output {
        let (address, port) = (self.web1.address.to_string(), self.web1.port.to_string());
        let place = ["--address", &address, "--port", &port];
        self.user.penstock(&[&["host", "add", "web1", "--witness", witnesses][..], &place].concat())
    }

    /// No host was enrolled, and this was said.
    #[track_caller]
    fn refuses(&self, witnesses: &str, expected: &[&str]) {
        let output = self.add(witnesses);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{witnesses}: {output:?}");
        for expected in expected {
            assert!(said.contains(expected), "{witnesses}: {said}");
        }
        assert!(said.len() < 2000 && !said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
        assert!(!self.user.file("web1").exists(), "{witnesses}: {said}");
    }
}

fn fingerprint(line: &str) -> String {
    line.parse::<PublicKey>().unwrap().fingerprint().to_string()
}

/// A server on which every command is this one.
fn answers(command: &str) -> Sshd {
    Sshd::with(&format!("ForceCommand {command}"))
}

#[test]
fn witnesses_that_see_the_same_key_enrol_a_host_with_one_look_each() {
    let (gate, db2) = (Sshd::start(), Sshd::start());
    let scene = Scene::new(&[("gate", &gate), ("db2", &db2)]);
    let output = scene.add("gate,db2");
    let key = fingerprint(&scene.web1.host_key());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("web1: pinned ssh-ed25519 {key}\n"),
        "{output:?}"
    );
    let show = scene.user.said(&["host", "show", "web1"]);
    assert!(show.contains(" from=witness(db2,gate) "), "{show}");
    // Servers punish clients that hang up before logging in: each witness does so once, and we not at all.
    nothing_was_sent(&scene.web1);
    let looks = |expected| scene.web1.logged("Connection from", expected);
    assert_eq!(looks(2), 2, "{}", scene.web1.log());
    // It proves what was trusted on first use, too.
    let text = fs::read_to_string(scene.user.file("web1")).unwrap();
    fs::write(scene.user.file("web1"), text.replace("witness(db2,gate)", "first-use")).unwrap();
    let output = scene.add("gate,db2");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, format!("web1: proved ssh-ed25519 {key}, which was trusted on first use so far\n"));
}

#[test]
fn witness_that_sees_another_key_is_named_and_nothing_is_enrolled() {
    let other = tempfile::tempdir().unwrap();
    keygen(&other.path().join("k"), &["-t", "ed25519"]);
    let line = public_line(&other.path().join("k.pub"));
    fs::write(other.path().join("seen"), format!("web1 {line}\n")).unwrap();
    let (gate, db2) = (Sshd::start(), Sshd::start());
    let liar = answers(&format!("cat {}", other.path().join("seen").display()));
    let scene = Scene::new(&[("gate", &gate), ("db2", &db2), ("liar", &liar)]);
    let key = fingerprint(&scene.web1.host_key());
    let odd = format!("but liar saw ssh-ed25519 {}; nothing was enrolled", fingerprint(&line));
    scene.refuses("gate,liar,db2", &[&format!("db2 and gate saw ssh-ed25519 {key}"), &odd]);
    scene.refuses("gate,liar", &[&format!("gate saw ssh-ed25519 {key}"), "liar saw ssh-ed25519"]);
}

#[test]
fn fewer_than_two_hosts_are_no_witnesses_under_any_name() {
    let gate = Sshd::start();
    let scene = Scene::new(&[("gate", &gate)]);
    scene.user.said(&["host", "alias", "gate", "door"]);
    for witnesses in ["gate", "gate,gate", "gate,door"] {
        scene.refuses(witnesses, &["a single witness sees only one network: name at least 2 hosts"]);
    }
    scene.refuses("gate,stranger", &["no host is called stranger"]);
    scene.refuses("gate,web1", &["no host is called web1"]);
    assert!(!scene.web1.log().contains("Connection from"), "{}", scene.web1.log());
    assert!(!gate.log().contains("Connection from"), "{}", gate.log());
}

#[test]
fn witness_that_is_away_or_not_proved_itself_is_named() {
    let (gate, db2, away) = (Sshd::start(), Sshd::start(), Sshd::start());
    let scene = Scene::new(&[("gate", &gate), ("db2", &db2), ("away", &away)]);
    drop(away);
    scene.refuses("gate,away", &["the witness away: connect to away", "nothing was enrolled"]);

    // Another key than the pinned one, and one that is not proved.
    let pinned = fs::read_to_string(scene.user.file("db2")).unwrap();
    let stranger = pinned.replace(&db2.host_key(), &scene.web1.host_key());
    let stranger = stranger.replace(&fingerprint(&db2.host_key()), &fingerprint(&scene.web1.host_key()));
    fs::write(scene.user.file("db2"), stranger).unwrap();
    scene.refuses("gate,db2", &["the witness db2: db2 showed ssh-ed25519", "nothing was sent"]);
    nothing_was_sent(&db2);
    fs::write(scene.user.file("db2"), pinned.replace("from=console", "from=first-use")).unwrap();
    scene.refuses("gate,db2", &["the witness db2: its own key is not proved, it was trusted on first use"]);
}

#[test]
fn witness_that_prints_nonsense_without_end_or_hangs_is_named_in_time() {
    let gate = Sshd::start();
    for (command, expected) in [
        ("head -c 60000 /dev/urandom", "ssh-keyscan there saw no key"),
        ("head -c 1000000000 /dev/zero", "ssh-keyscan there printed too much"),
        ("yes >&2", "ssh-keyscan there printed too much"),
        ("printf '\\033[2Jno\\n' >&2", "ssh-keyscan there saw no key"),
        ("true", "ssh-keyscan there saw no key: it says nothing"),
        ("sleep 600", "ssh-keyscan there did not end within 10 s"),
    ] {
        let odd = answers(command);
        let scene = Scene::new(&[("gate", &gate), ("odd", &odd)]);
        let begun = Instant::now();
        scene.refuses("gate,odd", &[&format!("the witness odd: {expected}"), "nothing was enrolled"]);
        assert!(begun.elapsed() < secs(100), "{command}: {:?}", begun.elapsed());
    }
}
