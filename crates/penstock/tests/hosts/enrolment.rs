//! Enrolment, against real OpenSSH: what proves a key, what does not, and what is not proved stays marked.

use std::fs;
use std::process::Command;

use hosts::fleet::ending::Reason;
use hosts::ssh::key::PublicKey;
use testing::server::run_to_end;
use testing::sshd::{Sshd, keygen, public_line};
use testing::user::{User, connect, connect_and_hear, ip, moved, nothing_was_sent, place, write_known_hosts};
use testing::{secs, tools};

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
        "AAAAAAAAAAAAAAAA",
    ]);
    assert!(
        wrong.contains(
            "which is not proved by the fingerprint ending in AAAAAAAAAAAAAAAA: nothing was enrolled"
        ),
        "{wrong}"
    );
    let end = &fingerprint[fingerprint.len() - 16..];
    let short = user.refused(&["host", "add", "web1", "--fingerprint", &end[1..]]);
    assert!(
        short.contains("15 characters of a fingerprint (it begins with SHA256:) prove nothing"),
        "{short}"
    );
    let said = user.said(&["host", "add", "web1", "--fingerprint", end]);
    assert_eq!(said, format!("web1: pinned ssh-ed25519 {fingerprint}\n"));
    assert_eq!(user.said(&["host", "pending"]), "no host waits for enrolment\n");
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
    assert!(tofu.contains("marked so until it is"), "{tofu}");
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
    assert!(user.said(&["host", "audit"]).ends_with("1 host, 0 findings, 0 bad\n"));
}

/// What a console prints of these public keys.
fn console(user: &User, keys: &[PublicKey]) -> String {
    let lines: String = keys.iter().map(|key| format!("256 {} root@web1\n", key.fingerprint())).collect();
    let file = user.home.path().join("console.log");
    let (begin, end) =
        ("-----BEGIN SSH HOST KEY FINGERPRINTS-----\n", "-----END SSH HOST KEY FINGERPRINTS-----\n");
    fs::write(&file, format!("{begin}{lines}{end}")).unwrap();
    file.display().to_string()
}

#[test]
fn console_pins_every_key_it_names_also_where_one_of_them_waits_in_the_queue() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let next = directory.path().join("next");
    keygen(&next, &["-t", "rsa", "-b", "3072"]);
    let web1 = Sshd::in_directory(directory, &format!("HostKey {}", next.display()));
    let keys: Vec<PublicKey> = [web1.host_key(), public_line(&next.with_extension("pub"))]
        .iter()
        .map(|line| line.parse().unwrap())
        .collect();
    user.configure(&place("web1", &web1));
    assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4));
    let said = user.said(&["host", "add", "web1", "--console", &console(&user, &keys)]);
    let pinned = |key: &PublicKey| format!("web1: pinned {} {}\n", key.algorithm(), key.fingerprint());
    assert_eq!(said, pinned(&keys[0]) + &pinned(&keys[1]));
    // A host that is away, and whose other key was never seen, keeps what is proved.
    user.said(&["host", "remove", "web1"]);
    assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4));
    drop(web1);
    let said = user.said(&["host", "add", "web1", "--console", &console(&user, &keys)]);
    assert_eq!(said, pinned(&keys[0]));
}

#[test]
fn port_that_was_used_is_kept_with_the_identity_and_given_in_advice_and_export() {
    let (user, web1) = (User::new(), Sshd::start());
    user.configure(&place("web1", &web1));
    let fingerprint = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    let hints = format!("addr    {}  port={}\n", web1.address, web1.port);
    // Asked by the command itself.
    user.said(&["host", "add", "web1", "--fingerprint", &fingerprint]);
    assert!(user.said(&["host", "show", "web1"]).contains(&hints));
    user.said(&["host", "remove", "web1"]);
    // From the queue.
    assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4));
    let advice = format!("penstock host add web1 --port {} --fingerprint SHA256:...\n", web1.port);
    let waiting = user.said(&["host", "pending"]);
    assert!(waiting.ends_with(&advice), "{waiting}");
    user.configure("");
    user.said(&["host", "add", "web1", "--fingerprint", &fingerprint]);
    assert!(user.said(&["host", "show", "web1"]).contains(&hints));
    let export = user.said(&["host", "export"]);
    let names = format!("[web1]:{0},[{1}]:{0} ssh-ed25519 ", web1.port, web1.address);
    assert!(export.starts_with(&names), "{export}");
    // ssh_config wins over the hint, for `host why` as for `run`.
    let other = moved(&web1);
    user.configure(&place("web1", &other));
    let why = user.said(&["host", "why", "web1"]);
    assert!(why.contains(&format!(" at {}\n", other.address)), "{why}");
}

#[test]
fn hints_without_a_proof_say_what_was_noted_and_what_becomes_of_the_keys() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    let port = ["host", "add", "web1", "--port", "2222"];
    assert_eq!(user.said(&port), "web1: port 2222 noted; its key stays pinned\n");
    assert_eq!(user.said(&port), "web1: port 2222 known already; its key stays pinned\n");
    let nothing = user.refused(&["host", "add", "web1"]);
    assert!(nothing.contains("nothing was changed; its key stays pinned"), "{nothing}");
    let advice = "no key is pinned, and the host is refused until one is: penstock host add web9 --fingerprint SHA256:...";
    let refused = user.refused(&["host", "add", "web9"]);
    assert!(refused.contains("web9: neither a proof nor a hint") && refused.contains(advice), "{refused}");
    assert!(!user.file("web9").exists());
    let said = user.said(&["host", "add", "web9", "--address", "127.9.9.9:2222"]);
    assert!(
        said.starts_with("web9: address 127.9.9.9, port 2222 noted; ") && said.contains(advice),
        "{said}"
    );
}

#[test]
fn proof_of_another_host_is_named_with_the_next_step() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    user.pin("web2", &web2.host_key(), None);
    user.configure(&place("web1", &web1));
    let print = |sshd: &Sshd| sshd.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    let said = user.refused(&["host", "add", "web1", "--fingerprint", &print(&web2)]);
    let expected = format!(
        "error: web1 showed ssh-ed25519 {}, which is not proved by the fingerprint {}: nothing was enrolled (that is the key \
         of web2); read that of web1 on its own console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n",
        print(&web1),
        print(&web2)
    );
    assert_eq!(said, expected);
}

#[test]
fn queue_forgets_hosts_that_were_enrolled_meanwhile() {
    let (user, web1) = (User::new(), Sshd::start());
    user.configure(&place("web1", &web1));
    assert_eq!(user.penstock(&["run", "-w", "web1", "true"]).status.code(), Some(4));
    assert!(user.said(&["host", "pending"]).contains("web1"));
    write_known_hosts(&user, &format!("[{}]:{} {}\n", web1.address, web1.port, web1.host_key()), &[]);
    user.said(&["host", "import"]);
    assert_eq!(user.said(&["host", "pending"]), "no host waits for enrolment\n");
    user.said(&["host", "remove", "web1"]);
    assert_eq!(
        user.said(&["host", "pending"]),
        "no host waits for enrolment\n",
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

#[test]
fn what_hangs_on_first_use_shows_it_until_that_very_key_is_proved() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let next = directory.path().join("next");
    keygen(&next, &["-t", "ecdsa"]);
    let web1 = Sshd::in_directory(directory, &format!("HostKey {}", next.display()));
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    user.said(&["host", "add", "web1", "--address", &address, "--port", &port, "--trust-on-first-use"]);
    // The server announces its other key, and proves that it holds it.
    let identities = user.identities();
    connect_and_hear(&identities, "web1", &web1, 2);
    assert!(identities.flush().failed.is_empty());
    let print = |line: String| line.parse::<PublicKey>().unwrap().fingerprint().to_string();
    let (first, second) = (print(web1.host_key()), print(public_line(&next.with_extension("pub"))));

    let list = user.said(&["host", "list"]);
    assert!(list.contains("first-use, rotation (first-use)"), "{list}");
    let why = user.said(&["host", "why", "web1", "--key", &public_line(&next.with_extension("pub"))]);
    assert!(why.contains(&format!("{second} from=rotation(proved by {first}, first use) ")), "{why}");
    assert!(why.contains("proof     none: that key was trusted on first use, and is not proved\n"), "{why}");
    let bad = |expected: &[&str]| {
        let audit = String::from_utf8(user.penstock(&["host", "audit"]).stdout).unwrap();
        let found: Vec<&str> = audit.lines().filter(|line| line.starts_with("bad")).collect();
        assert_eq!(found.len(), expected.len(), "{audit}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{audit}");
        }
    };
    bad(&["its keys were trusted on first use and never proved"]);

    // Neither the same again, nor known_hosts, which holds what ssh took on first use, is a proof.
    let again = user.said(&["host", "add", "web1", "--port", &port, "--trust-on-first-use"]);
    assert!(again.contains("marked so until it is"), "{again}");
    let line = |key: &str| format!("[web1]:{port} {key}\n");
    let lines = line(&web1.host_key()) + &line(&public_line(&next.with_extension("pub")));
    write_known_hosts(&user, &lines, &[]);
    user.said(&["host", "import"]);
    bad(&["its keys were trusted on first use and never proved"]);

    // A proof of one key says nothing for the other, even when the host announces both over it.
    let said = user.said(&["host", "add", "web1", "--fingerprint", &first]);
    assert!(
        said.contains(&format!("web1: proved ssh-ed25519 {first}, which was trusted on first use so far\n"))
            && said.contains(&format!(
                "ecdsa-sha2-nistp256 {second} is not proved: it is marked so until it is"
            )),
        "{said}"
    );
    let identities = user.identities();
    connect_and_hear(&identities, "web1", &web1, 2);
    assert!(identities.flush().failed.is_empty());
    bad(&[&format!("ecdsa-sha2-nistp256 {second} was trusted on first use and never proved")]);
    let list = user.said(&["host", "list"]);
    assert!(list.contains("fingerprint, rotation (first-use)"), "{list}");

    let file = next.with_extension("pub").display().to_string();
    let said = user.said(&["host", "add", "web1", "--key", &file]);
    let proved =
        format!("web1: proved ecdsa-sha2-nistp256 {second}, which was trusted on first use so far\n");
    assert_eq!(said, proved);
    bad(&[]);
}

#[test]
fn ssh_that_asks_for_an_unknown_host_enrols_no_host() {
    let (user, web1) = (User::new(), Sshd::start());
    let output = user.ssh("web1", &web1);
    assert_eq!(output.status.code(), Some(255), "{output:?}");
    nothing_was_sent(&web1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("penstock: web1 at ") || said.contains("penstock: web1 is not enrolled"), "{said}");
    let mut command = user.command(testing::binary());
    let (kind, key) = (web1.host_key(), web1.host_key());
    let (kind, key) = (kind.split(' ').next().unwrap(), key.split(' ').nth(1).unwrap());
    command.args(["known-hosts", "web1", "web1", "HOSTNAME", kind, key]);
    let output = run_to_end(&mut command, secs(20));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{output:?}");
    assert!(!user.file("web1").exists());
    assert!(user.said(&["host", "list"]).starts_with("no hosts yet"));
}

#[test]
fn retired_host_is_in_service_again_only_if_that_is_said() {
    let (user, web1) = (User::new(), Sshd::start());
    let key = web1.directory.path().join("host.pub").display().to_string();
    user.said(&["host", "add", "web1", "--key", &key]);
    user.said(&["host", "retire", "web1"]);
    let before = fs::read_to_string(user.file("web1")).unwrap();
    let add = ["host", "add", "web1", "--key", &key];
    let said = user.refused(&add);
    assert!(said.starts_with("error: web1 is retired since ") && said.contains("add --revive"), "{said}");
    assert!(said.contains("penstock host retire web1 --undo"), "{said}");
    assert_eq!(fs::read_to_string(user.file("web1")).unwrap(), before);
    // Nor does its key make another host of it.
    let said = user.refused(&["host", "add", "web9", "--key", &key]);
    assert!(said.contains(" is the key of web1, which is retired since "), "{said}");
    assert!(
        said.contains("(penstock host retire web1 --undo, then penstock host alias web1 web9)"),
        "{said}"
    );
    let said = user.said(&["host", "add", "web1", "--key", &key, "--revive"]);
    assert!(said.starts_with("web1 is in service again: it was retired since "), "{said}");
    assert!(!user.said(&["host", "list"]).contains("retired"));
    assert_eq!(user.said(&add), "nothing to change\n");
}

#[test]
fn retired_key_is_pinned_again_only_if_that_is_said() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let next = directory.path().join("next");
    keygen(&next, &["-t", "ecdsa"]);
    let web1 = Sshd::in_directory(directory, &format!("HostKey {}", next.display()));
    let (kept, old) = (web1.host_key(), public_line(&next.with_extension("pub")));
    user.pin("web1", &kept, Some(ip(&web1)));
    user.pin("web1", &old, None);
    let fingerprint = old.parse::<PublicKey>().unwrap().fingerprint().to_string();
    user.said(&["host", "retire", "web1", "--key", &fingerprint]);
    let before = user.said(&["host", "show", "web1"]);
    assert!(before.contains(&format!("retired {old} ")), "{before}");
    user.said(&["host", "add", "web1", "--port", &web1.port.to_string()]);
    let before = user.said(&["host", "show", "web1"]);
    // The server still has it, announces it, and proves that it holds it.
    let identities = user.identities();
    connect_and_hear(&identities, "web1", &web1, 2);
    assert!(identities.flush().failed.is_empty());
    assert_eq!(user.said(&["host", "show", "web1"]), before);
    // A thief of the host's key holds it as well: what proves the key proves nothing of that.
    let file = next.with_extension("pub").display().to_string();
    for proof in [&["--fingerprint", &fingerprint][..], &["--key", &file], &["--key", &file, "--replace"]] {
        let said = user.refused(&[&["host", "add", "web1"], proof].concat());
        let expected = format!("error: {fingerprint} is a key of web1 that is retired since ");
        assert!(
            said.starts_with(&expected) && said.ends_with("if web1 has it again, add --revive\n"),
            "{said}"
        );
        assert_eq!(user.said(&["host", "show", "web1"]), before);
    }
    let said = user.refused(&["host", "add", "web9", "--key", &file]);
    assert!(
        said.contains(&format!("{fingerprint} was the key of web1, where it is retired since ")),
        "{said}"
    );
    let said = user.said(&["host", "add", "web1", "--key", &file, "--revive"]);
    assert_eq!(said, format!("web1: pinned ecdsa-sha2-nistp256 {fingerprint}\n"));
    let show = user.said(&["host", "show", "web1"]);
    assert!(
        show.contains(&format!("pin     {old} ")) && show.contains(&format!("pin     {kept} ")),
        "{show}"
    );
}

#[test]
fn mistyped_name_and_fingerprint_are_told_with_what_helps() {
    let user = User::new();
    let said = user.refused(&["host", "add", "wbe1.invalid", "--fingerprint", "abcdefghabcdefgh"]);
    assert!(said.contains("look up wbe1.invalid: ") && said.contains("\n  "), "{said}");
    let said = user.refused(&["host", "add", "web1", "--fingerprint", "SHA256:!"]);
    assert!(said.contains("SHA256: and 43 characters, or the last 16 or more of them"), "{said}");
}

#[test]
fn names_of_a_host_that_is_renamed_and_back_and_a_damaged_one_stay_short() {
    let user = User::new();
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";
    user.pin("web1", key, None);
    user.said(&["host", "rename", "web1", "web2"]);
    user.said(&["host", "rename", "web2", "web1"]);
    let show = user.said(&["host", "show", "web1"]);
    assert!(show.contains("alias   web2\n") && !show.contains("alias   web1"), "{show}");
    user.pin("web3", key, None);
    fs::write(user.file("web3"), format!("id web3\npin {key} SHA256:wrong from=console 2026-01-01\n"))
        .unwrap();
    let list = user.said(&["host", "list"]);
    let table = list.lines().take(3).map(|line| line.chars().count()).max();
    assert!(table.is_some_and(|wide| wide < 80), "{list}");
    assert!(list.contains("web3  DAMAGED\n") && list.contains("\nweb3 is damaged: "), "{list}");
}
