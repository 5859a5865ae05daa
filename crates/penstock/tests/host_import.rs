//! `known_hosts` of OpenSSH taken over: by the names of ssh_config, plain or hashed, and what was not taken is told.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use support::server::run_to_end;
use support::sshd::{Sshd, keygen, public_line};
use support::user::{User, connect, place, write_known_hosts};
use support::{secs, tools};

mod support;

#[test]
fn known_hosts_of_openssh_is_taken_over_with_hashes_and_told_what_was_not() {
    let (user, web1) = (User::new(), Sshd::start());
    let file = user.home.path().join("known_hosts");
    let key = web1.host_key();
    let host = format!("[web1]:{}", web1.port);
    fs::write(&file, format!("{host},[{}]:{} {key}\n", web1.address, web1.port)).unwrap();
    let hashed = Command::new(tools::program("ssh-keygen")).arg("-Hf").arg(&file).output().unwrap();
    assert!(hashed.status.success(), "{hashed:?}");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "web9 ssh-ed25519\n").unwrap();
    let path = file.display().to_string();

    let said = user.said(&["host", "import", &path]);
    assert!(
        said.contains("took 0 hosts")
            && said.contains("line 1: the name is hashed and none of the given names fits"),
        "{said}"
    );
    assert!(said.contains("line 3: a public key has two words"), "{said}");
    let said = user.said(&["host", "import", &path, "--name", &host]);
    assert!(
        said.contains("took 1 host, 0 authorities, 0 revoked keys; 0 lines known already; 2 lines not taken"),
        "{said}"
    );
    assert_eq!(
        connect(&user.identities(), "web1", &web1).unwrap(),
        None,
        "asked with its port it is that host"
    );
    assert_eq!(user.said(&["known-hosts", &host]), format!("{host} {key}\n"));
    assert_eq!(user.said(&["known-hosts", "nobody"]), "");
}

#[test]
fn import_calls_hosts_by_what_ssh_config_calls_them_plain_or_hashed() {
    for hash in [&[][..], &["-Hf"][..]] {
        let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
        user.configure(&format!(
            "{}{}{}",
            place("web1", &web1),
            place("web2 front", &web2),
            place("www", &web1)
        ));
        let line = |sshd: &Sshd| format!("[{}]:{} {}\n", sshd.address, sshd.port, sshd.host_key());
        write_known_hosts(&user, &(line(&web1) + &line(&web2)), hash);
        let said = user.said(&["host", "import"]);
        assert!(said.contains("took 2 hosts"), "{hash:?} {said}");
        assert!(said.contains("  web1 is also www: one place in ssh_config, so one host\n"), "{said}");
        assert!(said.contains("  web2 is also front: "), "{said}");
        for name in ["web1", "web2", "www", "front"] {
            assert!(user.said(&["run", "-w", name, "echo", "here"]).contains("here"), "{hash:?} {name}");
        }
        let show = user.said(&["host", "show", "web1"]);
        assert!(show.contains(&format!("addr    {}  port={}\n", web1.address, web1.port)), "{show}");
        let placed = format!("[{}]:{}", web1.address, web1.port);
        assert!(!show.contains(&placed), "an address is a hint, which gives way when the host moves: {show}");
        assert_eq!(user.said(&["known-hosts", &placed]), format!("{placed} {}\n", web1.host_key()));
        assert!(user.said(&["host", "import"]).contains("took 0 hosts"), "a second time nothing is new");
    }
}

#[test]
fn import_names_the_host_whose_key_a_line_has_and_says_what_is_no_line() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    user.pin("web2", &web2.host_key(), None);
    let (one, two) = (web1.host_key(), web2.host_key());
    write_known_hosts(&user, &format!("web1 {two}\nweb9 {one}\ngarbage line here\n"), &[]);
    let said = user.said(&["host", "import"]);
    assert!(
        said.contains("  line 1: it gives web1 the key of web2, but web1 has another ssh-ed25519 pinned: the line is wrong")
            && !said.contains("--replace"),
        "{said}"
    );
    let alias = "  web9 has the key of web1: if they are one machine, penstock host remove web9, then \
                 penstock host alias web1 web9; else one was cloned";
    assert!(said.contains(alias), "{said}");
    assert!(said.contains("  line 3: no line of known_hosts: "), "{said}");
    assert!(!user.said(&["host", "import"]).contains("has the key of web1"), "it is told once");
    // What it advises works.
    user.said(&["host", "remove", "web9"]);
    user.said(&["host", "alias", "web1", "web9"]);
    assert!(user.said(&["host", "audit"]).ends_with(" 0 bad\n"));
}

#[test]
fn import_without_known_hosts_says_what_comes_next() {
    let said = User::new().said(&["host", "import"]);
    assert!(said.contains("nothing to take over") && said.contains("penstock host add NAME"), "{said}");
}

#[test]
fn advice_for_a_known_host_under_an_unknown_name_works_as_it_is() {
    let (user, web1) = (User::new(), Sshd::start());
    let id = format!("[{}]:{}", web1.address, web1.port);
    user.pin(&id, &web1.host_key(), None);
    user.configure(&place("web1", &web1));
    let run = user.penstock(&["run", "-w", "web1", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let command = format!("penstock host alias '{id}' web1");
    assert!(said.contains(&command), "{said}");
    let mut shell = user.command("sh");
    shell.args(["-c", &command.replace("penstock", env!("CARGO_BIN_EXE_penstock"))]);
    assert!(run_to_end(&mut shell, secs(20)).status.success());
    user.said(&["run", "-w", "web1", "true"]);
}

#[test]
fn import_after_one_host_was_enrolled_takes_the_others_at_the_same_address() {
    let (user, web1, db1) = (User::new(), Sshd::start(), Sshd::start());
    // One address, and two ports: what another port of it shows is another host.
    user.configure(&format!(
        "Host web1\n    HostName 10.9.9.9\n    Port {}\nHost db1\n    HostName 10.9.9.9\n    Port {}\n",
        web1.port, db1.port
    ));
    let address = "10.9.9.9".parse().unwrap();
    user.pin("web1", &web1.host_key(), Some(address));
    user.said(&["host", "add", "web1", "--port", &web1.port.to_string()]);
    let line = |sshd: &Sshd| format!("[10.9.9.9]:{} {}\n", sshd.port, sshd.host_key());
    write_known_hosts(&user, &(line(&web1) + &line(&db1)), &[]);
    let said = user.said(&["host", "import"]);
    assert!(
        said.contains("took 1 host, ") && said.contains("; 1 line known already; 0 lines not taken"),
        "{said}"
    );
    assert!(!said.contains("another name or place of it is noted"), "where web1 is was known: {said}");
    let known = user.said(&["known-hosts", "db1"]);
    assert!(known.contains(&db1.host_key()) && !known.contains(&web1.host_key()), "{known}");
    assert!(!user.said(&["host", "show", "web1"]).contains(&db1.host_key()));
    assert!(user.said(&["host", "export"]).contains(&format!("[10.9.9.9]:{} {}", db1.port, db1.host_key())));
}

/// Cloned machines, hosts behind one address: each name was compared with all before it. With a hundred thousand that took
/// minutes; now it takes two seconds where nothing is optimised. The bound is for a machine that does ten other things.
#[test]
fn many_names_for_one_key_do_not_take_the_square_of_the_time() {
    use std::fmt::Write as _;
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    let key = public_line(&key.path().join("k.pub"));
    let mut text = String::new();
    for number in 0..100_000 {
        writeln!(text, "host{number} {key}").unwrap();
    }
    for number in 0..20_000 {
        writeln!(text, "10.1.{}.{} {key}", number / 256, number % 256).unwrap();
    }
    let file = user.home.path().join("many");
    std::fs::write(&file, text).unwrap();
    let mut command = user.command(env!("CARGO_BIN_EXE_penstock"));
    command.args(["host", "import", "--dry-run"]).arg(&file).stdin(std::process::Stdio::null());
    let output = run_to_end(&mut command, secs(40));
    let said = String::from_utf8_lossy(&output.stdout);
    let first = said.lines().next().unwrap_or_default();
    assert!(first.contains("would take 100000 hosts") && first.contains("19001 lines not taken"), "{first}");
    assert!(said.contains("has 1000 names and addresses already"), "{:.2000}", said);
}
