//! `known_hosts` of OpenSSH taken over: by the names of ssh_config, plain or hashed, and what was not taken is told.

use std::fs;
use std::process::Command;

use testing::server::run_to_end;
use testing::sshd::{Sshd, keygen, public_line};
use testing::user::{User, connect, place, write_known_hosts};
use testing::{secs, tools};

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
        assert!(
            said.contains("  web1 is also www: the same address in ssh_config, so the same host\n"),
            "{said}"
        );
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
    let alias = "  web9 has the key of web1: if they are the same machine, penstock host remove web9, then \
                 penstock host alias web1 web9; otherwise one is a clone";
    assert!(said.contains(alias), "{said}");
    assert!(said.contains("  line 3: not a line of known_hosts: "), "{said}");
    assert!(!user.said(&["host", "import"]).contains("has the key of web1"), "it is told once");
    // What it advises works.
    user.said(&["host", "remove", "web9"]);
    user.said(&["host", "alias", "web1", "web9"]);
    assert!(user.said(&["host", "audit"]).ends_with(" 0 bad\n"));
}

#[test]
fn host_of_a_line_with_a_port_has_the_name_without_it_and_is_reached_there() {
    for name in [None, Some("web1")] {
        let (user, web1) = (User::new(), Sshd::start());
        let address = web1.address.to_string();
        let mut configuration = format!(
            "Host *\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n",
            web1.user,
            web1.client_key.display()
        );
        if let Some(name) = name {
            // The port is only in known_hosts.
            configuration = format!("Host {name}\n    HostKeyAlias {name}\n{configuration}");
        }
        user.configure(&configuration);
        let shown = name.unwrap_or(&address);
        write_known_hosts(&user, &format!("[{shown}]:{} {}\n", web1.port, web1.host_key()), &[]);
        let said = user.said(&["host", "import"]);
        assert!(said.contains("took 1 host, "), "{said}");
        let show = user.said(&["host", "show", shown]);
        assert!(show.contains(&format!("\nid      {shown}\naddr    port={}\n", web1.port)), "{show}");
        assert!(user.said(&["host", "import"]).contains("took 0 hosts"), "a second time nothing is new");
        if name.is_none() {
            assert!(user.said(&["run", "-w", shown, "echo", "here"]).contains("here"));
        }
    }
}

#[test]
fn import_without_known_hosts_says_what_comes_next() {
    let said = User::new().said(&["host", "import"]);
    assert!(said.contains("nothing to import") && said.contains("penstock host add NAME"), "{said}");
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
    shell.args(["-c", &command.replace("penstock", testing::binary())]);
    assert!(run_to_end(&mut shell, secs(20)).status.success());
    user.said(&["run", "-w", "web1", "true"]);
}

#[test]
fn unknown_host_with_a_key_in_known_hosts_is_told_to_import_it() {
    for hash in [&[][..], &["-Hf"][..]] {
        let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
        user.configure(&(place("web1", &web1) + &place("web2", &web2)));
        let line = |at: &Sshd, key: &Sshd| format!("[{}]:{} {}\n", at.address, at.port, key.host_key());
        // The line of web2 has another key: it is no reason to trust this one.
        write_known_hosts(&user, &(line(&web1, &web1) + &line(&web2, &web1)), hash);
        let said = |host: &str| {
            let run = user.penstock(&["run", "-w", host, "true"]);
            assert_eq!(run.status.code(), Some(4), "{run:?}");
            String::from_utf8(run.stderr).unwrap()
        };
        let option = match hash {
            [] => String::new(),
            _ => format!(" --name '[{}]:{}'", web1.address, web1.port),
        };
        let advice = format!(
            "~/.ssh/known_hosts has this key for it in line 1; to trust that: penstock host import{option}; else read the"
        );
        assert!(said("web1").contains(&advice), "{}", said("web1"));
        assert!(!said("web2").contains("penstock host import"), "{}", said("web2"));
        let shell = format!("{} host import{option}", testing::binary());
        assert!(run_to_end(user.command("sh").args(["-c", &shell]), secs(20)).status.success());
        assert!(user.said(&["run", "-w", "web1", "echo", "here"]).contains("here"));
    }
}

#[test]
fn file_without_a_line_of_known_hosts_is_an_error_of_one_line() {
    let user = User::new();
    let output = user.penstock(&["host", "import", "/bin/true"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{output:?}");
    assert!(said.starts_with("/bin/true: not known_hosts: none of its "), "{said}");
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
    assert!(!said.contains("another name or address of it was added"), "where web1 is was known: {said}");
    let known = user.said(&["known-hosts", "db1"]);
    assert!(known.contains(&db1.host_key()) && !known.contains(&web1.host_key()), "{known}");
    assert!(!user.said(&["host", "show", "web1"]).contains(&db1.host_key()));
    assert!(user.said(&["host", "export"]).contains(&format!("[10.9.9.9]:{} {}", db1.port, db1.host_key())));
}

/// Cloned machines, hosts behind one address: each name was compared with all before it. With a hundred thousand that took
/// minutes; now it takes two seconds of CPU where nothing is optimised. More than 30 end it with a signal.
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
    let mut command = user.command("prlimit");
    command
        .args(["--cpu=30", testing::binary(), "host", "import", "--dry-run"])
        .arg(&file)
        .stdin(std::process::Stdio::null());
    let output = run_to_end(&mut command, secs(300));
    let said = String::from_utf8_lossy(&output.stdout);
    let first = said.lines().next().unwrap_or_default();
    assert!(first.contains("would take 100000 hosts") && first.contains("19001 lines not taken"), "{first}");
    assert!(said.contains("has 1000 names and addresses already"), "{:.2000}", said);
}
