//! Enrolment, against real OpenSSH: what proves a key, what does not, and what nobody proved stays marked.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use logic::fleet::ending::Reason;
use logic::ssh::key::PublicKey;
use support::sshd::{Sshd, keygen};
use support::tools;
use support::user::{User, connect, ip, nothing_was_sent, place, write_known_hosts};

mod support;

#[test]
fn unknown_host_waits_in_the_queue_and_is_enrolled_by_its_fingerprint() {
    let (user, web1) = (User::new(), Sshd::start());
    let identities = user.identities();
    let failure = connect(&identities, "web1", &web1).unwrap_err();
    assert_eq!(failure.reason, Reason::UnknownHost);
    drop(identities);
    nothing_was_sent(&web1);
    let fingerprint = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    let waiting = user.said(&["host", "pending"]);
    assert!(waiting.contains("web1") && waiting.contains(&fingerprint), "{waiting}");

    let wrong = user.refused(&[
        "host",
        "add",
        "web1",
        "--port",
        &web1.port.to_string(),
        "--address",
        &web1.address.to_string(),
        "--fingerprint",
        "AAAAAAAA",
    ]);
    assert!(
        wrong.contains("for which the fingerprint ending in AAAAAAAA does not speak: nothing was enrolled"),
        "{wrong}"
    );
    let end = &fingerprint[fingerprint.len() - 10..];
    let said = user.said(&["host", "add", "web1", "--fingerprint", end]);
    assert_eq!(said, format!("web1: pinned ssh-ed25519 {fingerprint}\n"));
    assert_eq!(user.said(&["host", "pending"]), "nobody waits for enrolment\n");
    assert_eq!(connect(&user.identities(), "web1", &web1).unwrap(), None);
    assert!(user.ssh("web1", &web1).status.success());
    let list = user.said(&["host", "list"]);
    assert!(list.lines().nth(1).unwrap().starts_with("web1  ed25519  fingerprint  127."), "{list}");
}

#[test]
fn console_proves_all_keys_of_a_host_and_first_use_is_marked() {
    let (user, web1) = (User::new(), Sshd::start());
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    let tofu =
        user.said(&["host", "add", "web1", "--address", &address, "--port", &port, "--trust-on-first-use"]);
    assert!(tofu.contains("marked so for ever"), "{tofu}");
    let audit = user.penstock(&["host", "audit"]);
    assert_eq!(audit.status.code(), Some(1));
    let audit = String::from_utf8(audit.stdout).unwrap();
    assert!(audit.contains("bad  web1  its keys were trusted on first use and never proved"), "{audit}");

    let list = Command::new(tools::program("ssh-keygen"))
        .arg("-lf")
        .arg(web1.directory.path().join("host.pub"))
        .output()
        .unwrap();
    let shown = String::from_utf8(list.stdout).unwrap();
    let console = user.home.path().join("console.log");
    let block = format!(
        "boot\n-----BEGIN SSH HOST KEY FINGERPRINTS-----\n{shown}-----END SSH HOST KEY FINGERPRINTS-----\nlogin:\n"
    );
    fs::write(&console, block).unwrap();
    user.said(&["host", "add", "web1", "--console", &console.display().to_string()]);
    let show = user.said(&["host", "show", "web1"]);
    assert!(show.contains("from=console"), "{show}");
    assert!(user.said(&["host", "audit"]).ends_with("1 hosts, 0 findings, 0 of them bad\n"));
}

#[test]
fn queue_forgets_hosts_that_were_enrolled_meanwhile() {
    let (user, web1) = (User::new(), Sshd::start());
    user.configure(&place("web1", &web1));
    assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4));
    assert!(user.said(&["host", "pending"]).contains("web1"));
    write_known_hosts(&user, &format!("[{}]:{} {}\n", web1.address, web1.port, web1.host_key()), &[]);
    user.said(&["host", "import"]);
    assert_eq!(user.said(&["host", "pending"]), "nobody waits for enrolment\n");
    user.said(&["host", "remove", "web1"]);
    assert_eq!(
        user.said(&["host", "pending"]),
        "nobody waits for enrolment\n",
        "it is out of the queue for good"
    );
}

#[test]
fn why_tells_what_is_known_of_a_host_that_does_not_answer() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), Some(ip(&web1)));
    let (port, address) = (web1.port.to_string(), web1.address.to_string());
    drop(web1);
    let output = user.penstock(&["host", "why", "web1", "--port", &port]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for known in ["identity  web1\n", "pin       ssh-ed25519 SHA256:", &format!("hints     {address}\n")] {
        assert!(said.contains(known), "{output:?}");
    }
    assert!(
        said.contains("asked     connect to web1 at ") && said.contains("verdict   none: "),
        "{output:?}"
    );
}
