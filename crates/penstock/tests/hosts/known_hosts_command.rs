//! OpenSSH with our KnownHostsCommand comes to the verdicts of `penstock run`.

use std::fs;

use hosts::ssh::key::PublicKey;
use testing::server::run_to_end;
use testing::sshd::Sshd;
use testing::user::{Fleet, User, nothing_was_sent, place, write_known_hosts};
use testing::{secs, tools};

#[test]
fn stanza_is_what_ssh_takes() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    let config = user.home.path().join("ssh_config");
    let stanza = user.said(&["known-hosts", "--stanza"]);
    let host = format!(
        "Host web1\n    HostName {}\n    Port {}\n    HostKeyAlias web1\n    IdentityFile {}\n    BatchMode yes\n",
        web1.address,
        web1.port,
        web1.client_key.display()
    );
    fs::write(&config, format!("{host}{stanza}")).unwrap();
    let login = |name: &str| {
        let mut ssh = user.command(tools::program("ssh"));
        run_to_end(ssh.arg("-F").arg(&config).args(["-l", &web1.user, name, "echo here"]), secs(20))
    };
    let output = login("web1");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n", "{output:?}");
    user.said(&["host", "retire", "web1"]);
    let output = login("web1");
    assert_eq!(output.status.code(), Some(255));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("penstock: web1 is retired since "),
        "{output:?}"
    );
}

#[test]
fn stanza_may_be_added_to_a_file_that_ends_within_a_line_and_twice() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    let stanza = user.said(&["known-hosts", "--stanza"]);
    assert!(stanza.starts_with("\n# penstock: ") && stanza.contains("# To undo it, delete "), "{stanza}");
    let config = user.home.path().join("ssh_config");
    let host = place("web1", &web1);
    for times in [1, 2] {
        fs::write(&config, format!("{}{}", host.trim_end(), stanza.repeat(times))).unwrap();
        let mut ssh = user.command(tools::program("ssh"));
        // Another name for the same place is unknown.
        for (name, code) in [("web1", 0), (&web1.address.to_string(), 255)] {
            let port = web1.port.to_string();
            ssh.arg("-F").arg(&config).args(["-o", "BatchMode=yes", "-p", &port, name, "true"]);
            let output = run_to_end(&mut ssh, secs(20));
            assert_eq!(output.status.code(), Some(code), "{times} {output:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(said.contains("is not enrolled, and showed the key of web1"), code != 0, "{said}");
            ssh = user.command(tools::program("ssh"));
        }
    }
}

#[test]
fn ssh_that_ssh_config_leads_to_another_known_host_is_refused_as_run_is() {
    let fleet = Fleet::new();
    fleet.says(&[("web2", &fleet.db1, ""), ("db1", &fleet.db1, "")]);
    let output = fleet.ssh(&["web2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(255), &b""[..]), "{said}");
    assert!(said.contains("penstock: it showed the key of db1, not of web2; nothing was sent\n"), "{said}");
    nothing_was_sent(&fleet.db1);
    // ssh takes the home directory from elsewhere.
    let config = fleet.user.home.path().join(".ssh/config").display().to_string();
    let run = |more: &[&str]| {
        let hosts = &["run", "--ssh-config", &config, "-w", "web2"][..];
        let run = fleet.user.penstock(&[hosts, more, &["echo", "here"]].concat());
        assert_eq!(run.status.code(), Some(4), "{run:?}");
        nothing_was_sent(&fleet.db1);
        (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap())
    };
    // Once, and as our own client tells it.
    let (out, told) = run(&["--engine", "openssh"]);
    let (own_out, own_told) = run(&[]);
    assert_eq!((&out, out.matches("it showed the key of db1, not of web2").count()), (&own_out, 1));
    // But for the time that it took, in the first line, and the name of the run, in the last.
    let rest = |told: &str| {
        let (_, rest) = told.split_once('\n')?;
        Some(rest.split_once(" --id ")?.0.to_owned())
    };
    assert!(rest(&told).is_some_and(|rest| rest.contains("wrong-host (1): web2")), "{told}");
    assert_eq!(rest(&told), rest(&own_told));
    let (json, _) = run(&["--engine", "openssh", "--json"]);
    assert!(
        json.contains("\"wrong-host\"")
            && json.contains("it showed the key of db1, not of web2; nothing was sent"),
        "{json}"
    );
    assert!(fleet.ssh(&["db1"]).status.success(), "the same place under its own name is right");
}

#[test]
fn host_that_is_out_of_service_is_refused_by_both_engines_for_the_same_reason() {
    let fleet = Fleet::new();
    fleet.says(&[("db1", &fleet.db1, "")]);
    fleet.user.said(&["host", "retire", "db1"]);
    let config = fleet.user.home.path().join(".ssh/config").display().to_string();
    let run = |engine| {
        let run = fleet
            .user
            .penstock(&["run", "--engine", engine, "--json", "-F", &config, "-w", "db1", "echo", "here"]);
        let text = String::from_utf8(run.stdout).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let end = lines.find(|line| line["event"] == "end").unwrap();
        nothing_was_sent(&fleet.db1);
        (run.status.code(), end["reason"].clone(), end["detail"].clone(), end["advice"].clone())
    };
    let own = run("native");
    assert!(own.2.as_str().unwrap().contains("retired"), "{own:?}");
    assert_eq!(run("openssh"), own);
}

#[test]
fn hosts_that_swapped_addresses_are_themselves_for_ssh_once_ssh_config_says_so() {
    let fleet = Fleet::new();
    // The hints are those of before the swap.
    for (name, other) in [("web2", &fleet.db1), ("db1", &fleet.web2)] {
        fleet.user.said(&["host", "move", name, &other.address.to_string()]);
    }
    fleet.says(&[("web2", &fleet.web2, ""), ("db1", &fleet.db1, "")]);
    for name in ["web2", "db1"] {
        let output = fleet.ssh(&[name]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n", "{output:?}");
        assert!(fleet.user.said(&["run", "-w", name, "echo", "here"]).contains("here"));
    }
}

#[test]
fn ssh_asks_by_alias_jump_proxy_command_and_address_as_by_name() {
    let fleet = Fleet::new();
    let proxy = format!("    ProxyCommand nc {} {}\n", fleet.web2.address, fleet.web2.port);
    fleet.says(&[
        ("web2", &fleet.web2, ""),
        ("known", &fleet.web2, "    HostKeyAlias web2\n"),
        ("liar", &fleet.web2, "    HostKeyAlias db1\n"),
        ("db1", &fleet.db1, "    ProxyJump web2\n"),
        ("crooked", &fleet.db1, "    HostKeyAlias web2\n    ProxyJump web2\n"),
        ("piped", &fleet.web2, &format!("    HostKeyAlias web2\n{proxy}")),
        ("127.*", &fleet.web2, "    HostName %h\n    CheckHostIP yes\n"),
        ("stranger", &fleet.web2, ""),
    ]);
    // HostName of the pattern for addresses would come first otherwise.
    let config = fleet.user.home.path().join(".ssh/config");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(&format!("Host 127.*\n    HostName {}\n", fleet.web2.address), "Host 127.*\n");
    fs::write(&config, text).unwrap();
    let address = fleet.web2.address.to_string();
    for (name, expected) in [
        ("known", true),
        ("liar", false),
        ("db1", true),
        ("crooked", false),
        ("piped", true),
        (address.as_str(), true),
        ("stranger", false),
    ] {
        let output = fleet.ssh(&[name]);
        assert_eq!(output.status.success(), expected, "{name}: {output:?}");
    }
    // scp and rsync run ssh themselves.
    let (here, config) = (fleet.user.home.path().join("got"), fleet.user.home.path().join(".ssh/config"));
    for (name, expected) in [("web2", true), ("liar", false)] {
        let mut scp = fleet.user.command(tools::program("scp"));
        scp.arg("-F").arg(&config).arg(format!("{name}:/etc/hostname")).arg(&here);
        assert_eq!(run_to_end(&mut scp, secs(20)).status.success(), expected, "{name}");
    }
}

#[test]
fn stanza_of_before_names_no_address_and_is_told_to_be_pasted_anew() {
    let fleet = Fleet::new();
    let address = fleet.db1.address.to_string();
    let output = fleet.user.penstock(&["known-hosts", &address, "ORDER", "NONE", "NONE"]);
    assert_eq!(output.stdout, b"", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("paste a new one"), "{output:?}");
}

#[test]
fn ssh_config_says_nothing_wrong_of_our_own_stanza() {
    let user = User::new();
    user.configure(&user.said(&["known-hosts", "--stanza"]));
    let said = user.said(&["ssh", "config", "web1"]);
    assert!(!said.contains("not followed:") && !said.contains("import this file"), "{said}");
}

#[test]
fn engine_openssh_of_run_obeys_the_same_identities() {
    let fleet = Fleet::new();
    let config = fleet.user.home.path().join(".ssh/config").display().to_string();
    let run = |name: &str| {
        fleet.user.penstock(&["run", "-F", &config, "--engine", "openssh", "-w", name, "echo came through"])
    };
    // ssh itself would believe the swap: its own file says so, and its configuration leads there.
    let lines = format!("[{}]:{} {}\n", fleet.db1.address, fleet.db1.port, fleet.db1.host_key());
    write_known_hosts(&fleet.user, &lines, &[]);
    let known = fleet.user.home.path().join(".ssh/known_hosts");
    let own = format!("    UserKnownHostsFile {}\n    GlobalKnownHostsFile none\n", known.display());
    fleet.user.configure(&(place("web2", &fleet.db1) + &own + &place("db1", &fleet.db1) + &own));
    let output = run("web2");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(!shown.contains("came through"), "{output:?}");
    let all = shown + &String::from_utf8_lossy(&output.stderr);
    assert!(all.contains("it showed the key of db1, not of web2; nothing was sent"), "{all}");
    nothing_was_sent(&fleet.db1);
    let right = run("db1");
    assert!(String::from_utf8_lossy(&right.stdout).contains("came through"), "{right:?}");
    // Where no host is enrolled, ssh knows hosts by its own files.
    fs::remove_dir_all(fleet.user.store().places().hosts()).unwrap();
    let output = run("web2");
    assert!(String::from_utf8_lossy(&output.stdout).contains("came through"), "{output:?}");
    // Not a host whose key is on the list of revoked ones.
    let list = fleet.user.store().places().hosts().with_file_name("revoked");
    fs::write(&list, format!("{}\n", fleet.db1.host_key())).unwrap();
    let output = run("db1");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("came through"), "{output:?}");
    let all = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(all.contains("showed the revoked key"), "{all}");
}

#[test]
fn what_stands_before_the_stanza_accepts_no_host_that_it_refuses() {
    let fleet = Fleet::new();
    let stanza = fleet.user.said(&["known-hosts", "--stanza"]);
    let known = fleet.user.home.path().join("known");
    fs::write(&known, format!("* {}\n", fleet.db1.host_key())).unwrap();
    let places = [("web2", &fleet.db1), ("stranger", &fleet.web2), ("db1", &fleet.db1), ("gone", &fleet.db1)];
    let places: String = places.map(|(name, sshd)| place(name, sshd)).concat();
    for before in [
        "StrictHostKeyChecking no".to_owned(),
        "StrictHostKeyChecking accept-new".to_owned(),
        "StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null".to_owned(),
        format!("UserKnownHostsFile {}", known.display()),
    ] {
        fleet.user.configure(&format!("Host *\n    {before}\n{places}{stanza}"));
        for (name, words) in [
            ("web2", "penstock: it showed the key of db1, not of web2; nothing was sent\n"),
            (
                "stranger",
                "penstock: stranger is not enrolled, and showed the key of web2; nothing was sent\n",
            ),
        ] {
            let output = fleet.ssh(&[name]);
            let said = String::from_utf8_lossy(&output.stderr);
            let ended = (output.status.code(), output.stdout.as_slice());
            assert_eq!(ended, (Some(255), &b""[..]), "{before}: {said}");
            assert!(said.contains(words), "{before}: {said}");
        }
        nothing_was_sent(&fleet.db1);
        nothing_was_sent(&fleet.web2);
    }
    assert!(fleet.ssh(&["db1"]).status.success());
}

#[test]
fn what_overrules_the_stanza_is_told_when_it_is_made_and_by_the_audit() {
    let fleet = Fleet::new();
    let stanza = |user: &User| {
        let output = user.penstock(&["known-hosts", "--stanza"]);
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (block, said) = stanza(&fleet.user);
    assert_eq!(said, "");
    let others = "Host web*\n    KnownHostsCommand none\nHost *\n    VerifyHostKeyDNS yes\n    \
                  NoHostAuthenticationForLocalhost yes\n    StrictHostKeyChecking no\n";
    fleet.user.configure(&format!("{others}{block}"));
    let (_, said) = stanza(&fleet.user);
    let audit = fleet.user.penstock(&["host", "audit"]);
    let audit = String::from_utf8(audit.stdout).unwrap();
    for line in ["config:2", "config:4", "config:5"] {
        assert!(said.contains(line) && audit.contains(line), "{line}: {said}{audit}");
    }
    assert!(said.contains("put the block at the top"), "{said}");
    // At the top it holds, and audit does not complain.
    fleet.user.configure(&format!("{block}{others}"));
    let (_, said) = stanza(&fleet.user);
    let audit = fleet.user.said(&["host", "audit"]);
    assert!(said.is_empty() && !audit.contains("config:"), "{said}{audit}");
}

/// What `ssh` hands over of a key.
fn words(key: &str) -> (&str, &str) {
    let mut words = key.split(' ');
    (words.next().unwrap(), words.next().unwrap())
}

#[test]
fn unknown_host_waits_for_enrolment_after_ssh_met_it() {
    let (user, web1) = (User::new(), Sshd::start());
    let stanza = user.said(&["known-hosts", "--stanza"]);
    user.configure(&(place("web1", &web1) + &stanza));
    let fleet = Fleet { user, web2: Sshd::start(), db1: web1 };
    let (user, web1) = (&fleet.user, &fleet.db1);
    let fingerprint = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    for _ in 0..2 {
        let output = fleet.ssh(&["web1"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(255), "{said}");
        assert!(said.contains(&format!("is not enrolled; it showed ssh-ed25519 {fingerprint}; ")), "{said}");
        assert!(
            said.contains(" SHA256:... (all hosts that wait for enrolment: penstock host pending)\n"),
            "{said}"
        );
        nothing_was_sent(web1);
        let waiting = user.said(&["host", "pending"]);
        let lines: Vec<&str> = waiting.lines().filter(|line| line.starts_with("web1 ")).collect();
        assert!(matches!(lines[..], [line] if line.ends_with(&fingerprint)), "{waiting}");
    }
    // What waits is the key of no host yet, and is enrolled as what `penstock run` met.
    assert!(!user.file("web1").exists());
    user.said(&["host", "add", "web1", "--fingerprint", &fingerprint[fingerprint.len() - 16..]]);
    assert!(user.said(&["host", "show", "web1"]).contains(&format!("port={}\n", web1.port)));
    assert_eq!(user.said(&["host", "pending"]), "no host waits for enrolment\n");
    assert!(fleet.ssh(&["web1"]).status.success());
}

#[test]
fn keys_without_end_of_one_host_push_no_other_host_out_of_the_queue() {
    let user = User::new();
    let meet = |name: &str, seed: u8| {
        let blob = [b"\0\0\0\x0bssh-ed25519\0\0\0\x20".as_slice(), &[seed; 32]].concat();
        let key = PublicKey::from_blob(&blob).unwrap();
        let line = key.to_string();
        let (kind, key_words) = words(&line);
        let output = user.penstock(&["known-hosts", name, name, "HOSTNAME", kind, key_words]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{output:?}");
        key.fingerprint().to_string()
    };
    let quiet = meet("quiet", 200);
    let keys: Vec<String> = (0..20).map(|seed| meet("hostile", seed)).collect();
    let waiting = user.said(&["host", "pending"]);
    assert!(waiting.contains(&quiet), "{waiting}");
    let kept = keys.iter().filter(|key| waiting.contains(*key)).count();
    assert!(kept == 8 && waiting.contains(&keys[19]) && waiting.contains(&keys[12]), "{kept}: {waiting}");
}

#[test]
fn queue_that_cannot_be_written_holds_no_ssh_and_is_not_named_as_if_it_could() {
    let (user, web1) = (User::new(), Sshd::start());
    let state = user.store().places().state.join("identity");
    fs::create_dir_all(&state).unwrap();
    let lock = fs::File::create(state.join(".lock")).unwrap();
    let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).map_err(|(_, errno)| errno);
    let output = user.ssh("web1", &web1);
    drop(lock.unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("penstock: web1 is not enrolled; it showed "), "{said}");
    assert!(said.contains("SHA256:... (not in penstock host pending: "), "{said}");
    // A writer is waited for five times as long by those who have the time.
    assert!(
        said.contains(" for 1 s, so nothing was changed") && !said.contains("all pending hosts"),
        "{said}"
    );
    nothing_was_sent(&web1);
    assert_eq!(user.said(&["host", "pending"]), "no host waits for enrolment\n");
}

/// A block that was written by hand may not hand over why ssh asks (%I): words on standard error are shown by ssh, and change nothing.
#[test]
fn person_is_told_why_a_host_has_no_lines_and_a_plain_ssh_goes_on() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web2", &web1.host_key(), None);
    user.said(&["host", "retire", "web2"]);
    for (name, why) in [
        (
            "web1",
            "web1 is not enrolled: ssh gets no key for it\n  next: penstock host add web1 --fingerprint",
        ),
        ("web2", "web2 has no trusted key\n  next: penstock host show web2"),
        ("no name", "penstock: "),
    ] {
        let output = user.penstock(&["known-hosts", name]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]), "{output:?}");
        assert!(said.contains(why), "{name}: {said}");
    }
    // For the question of ssh which types of keys to ask for, nothing is said: it asks again with the key.
    let output = user.penstock(&["known-hosts", "web1", "web1", "ORDER"]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{output:?}");

    let asks = format!("KnownHostsCommand={} known-hosts %k", testing::binary());
    let mut ssh = user.command(tools::program("ssh"));
    ssh.args([
        "-F",
        "none",
        "-o",
        &asks,
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "GlobalKnownHostsFile=none",
    ]);
    ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "-o", "HostKeyAlias=web1", "-i"]);
    ssh.arg(&web1.client_key).args(["-p", &web1.port.to_string(), "-l", &web1.user]);
    let output = run_to_end(ssh.args([&web1.address.to_string(), "echo here"]), secs(30));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n", "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("web1 is not enrolled"), "{output:?}");
}
