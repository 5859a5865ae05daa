//! Where a host is: hints lead where nothing else does, and a move is told once.

use std::fs;

use testing::sshd::Sshd;
use testing::user::{Fleet, User, ip, nothing_was_sent, place};

#[test]
fn hints_lead_run_and_explain_where_ssh_config_says_nothing() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1.invalid", &web1.host_key(), None);
    user.configure(&format!(
        "Host *\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n",
        web1.user,
        web1.client_key.display()
    ));
    let lost = user.penstock(&["run", "-w", "web1.invalid", "true"]);
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(said.contains("penstock host move web1.invalid ADDRESS"), "{said}");
    assert!(said.contains("look up web1.invalid: "), "{said}");
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    user.said(&["host", "add", "web1.invalid", "--address", "127.9.9.9", "--port", &port]);
    assert_eq!(
        user.said(&["host", "move", "web1.invalid", &address]),
        format!("the address of web1.invalid is now {address}\n")
    );
    assert!(user.said(&["run", "-w", "web1.invalid", "echo", "here"]).contains("here"));
    let explained = user.said(&["ssh", "explain", "web1.invalid"]);
    let connect = explained.lines().find(|line| line.starts_with("connect ")).unwrap();
    assert!(connect.contains(&format!("{address}:{port} in ")), "{explained}");
    assert!(explained.contains("asked what the server accepts: publickey"), "{explained}");
    assert!(explained.contains(" accepted: its key is pinned (from=console 2026-03-01)"), "{explained}");
}

#[test]
fn address_that_is_typed_is_tried_on_the_port_of_the_host_that_has_it_as_a_hint() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1.invalid", &web1.host_key(), Some(ip(&web1)));
    user.said(&["host", "add", "web1.invalid", "--port", &web1.port.to_string()]);
    let login = format!("User {}\n    IdentityFile {}\n", web1.user, web1.client_key.display());
    user.configure(&format!("Host *\n    {login}    IdentitiesOnly yes\n"));
    let address = web1.address.to_string();
    assert!(user.said(&["host", "why", &address]).contains("verdict   accepted"));
    assert!(user.said(&["run", "-w", &address, "echo", "here"]).contains("here"));
    // A port of the configuration has priority.
    user.configure(&format!("Host *\n    Port 1\n    {login}    IdentitiesOnly yes\n"));
    let output = user.penstock(&["run", "-w", &address, "true"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn where_ssh_config_names_the_place_move_and_the_advice_for_a_swap_say_its_line() {
    let fleet = Fleet::new();
    fleet.user.configure(&(place("web2", &fleet.db1) + &place("db1", &fleet.web2)));
    let line = format!("~/.ssh/config:2 says HostName {}", fleet.db1.address);
    let advice = format!(
        "{line}, and ~/.ssh/config:3 says Port {}: find the address of web2, and correct the wrong one there\n",
        fleet.db1.port
    );
    let moved = fleet.user.said(&["host", "move", "web2", &fleet.web2.address.to_string()]);
    assert!(moved.contains(&format!("{line}: change it there")), "{moved}");
    let run = fleet.user.penstock(&["run", "-w", "web2", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains(&advice) && said.contains("it showed the key of db1, not of web2"), "{said}");
    nothing_was_sent(&fleet.db1);
    // The same advice from each command: a move would do nothing.
    let why = fleet.user.penstock(&["host", "why", "web2"]);
    let explained = fleet.user.penstock(&["ssh", "explain", "web2"]);
    fleet.says(&[("web2", &fleet.db1, ""), ("db1", &fleet.web2, "")]);
    let ssh = fleet.ssh(&["web2"]);
    for output in [why, explained, ssh] {
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("it showed the key of db1, not of web2; nothing was sent\n"), "{said}");
        assert!(said.contains(&advice), "{said}");
        assert!(!said.contains("penstock host move"), "{said}");
    }
}

#[test]
fn swapped_hosts_and_one_machine_under_two_names_are_each_told_in_one_line() {
    let fleet = Fleet::new();
    fleet.user.configure(&(place("web2", &fleet.db1) + &place("db1", &fleet.web2)));
    let run = fleet.user.penstock(&["run", "-w", "web2,db1", "true"]);
    assert_eq!(run.status.code(), Some(4), "{run:?}");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    let swap = "db1 and web2 are swapped: each showed the key of the other; ";
    assert_eq!(said.matches(swap).count(), 1, "{said}");

    fleet.user.said(&["host", "alias", "web2", "www"]);
    fleet.user.configure(&place("web2 www", &fleet.web2));
    let run = fleet.user.penstock(&["run", "--json", "-w", "web2,www", "true"]);
    assert!(run.status.success(), "{run:?}");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let note = "\"text\":\"web2,www are one machine, or clones: all showed the host key ssh-ed25519 SHA256:";
    assert_eq!(said.matches(note).count(), 1, "{said}");
    let run = fleet.user.penstock(&["run", "-w", "web2", "true"]);
    assert!(!String::from_utf8_lossy(&run.stderr).contains("one machine"), "{run:?}");
}

#[test]
fn move_takes_a_port_in_every_way_it_is_written_and_refuses_what_is_no_place() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1.invalid", &web1.host_key(), Some("127.9.9.9".parse().unwrap()));
    user.configure(&format!(
        "Host *\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n",
        web1.user,
        web1.client_key.display()
    ));
    let shown = |user: &User| user.said(&["host", "show", "web1.invalid"]);
    let goes = ["run", "-w", "web1.invalid", "echo", "here"];
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    let whole = format!("{address}:{port}");
    for arguments in [&[whole.as_str()][..], &[&address, "--port", &port], &[&whole, "--port", &port]] {
        user.said(&["host", "move", "web1.invalid", "127.9.9.9:9"]);
        assert!(shown(&user).contains("addr    127.9.9.9  port=9\n"), "{}", shown(&user));
        let said = user.said(&[&["host", "move", "web1.invalid"][..], arguments].concat());
        assert_eq!(said, format!("the address of web1.invalid is now {whole}\n"));
        assert!(shown(&user).contains(&format!("addr    {address}  port={port}\n")), "{}", shown(&user));
        assert!(user.said(&goes).contains("here"));
    }
    assert!(
        user.said(&["host", "export"]).starts_with(&format!("[web1.invalid]:{port},[{address}]:{port} "))
    );
    // The address at which it was last is no longer where it is.
    user.said(&["host", "move", "web1.invalid", "[2001:db8::9]:2222"]);
    user.said(&["host", "move", "web1.invalid", "127.9.9.8"]);
    let show = shown(&user);
    assert!(show.contains("addr    2001:db8::9  127.9.9.8  port=2222\n"), "{show}");
    let list = user.said(&["host", "list"]);
    assert!(list.contains("  127.9.9.8  "), "{list}");

    let before = shown(&user);
    for bad in ["a:b", "127.9.9.9:0", "127.9.9.9:70000", "1:2:3", "127.9.9.300"] {
        let said = user.refused(&["host", "move", "web1.invalid", bad]);
        assert!(said.contains("is neither an address nor a name in the DNS"), "{said}");
        let said = user.refused(&["host", "add", "web1.invalid", "--address", bad]);
        assert!(said.contains("is neither an address nor a name in the DNS"), "{said}");
    }
    let said = user.refused(&["host", "move", "web1.invalid", "127.9.9.9:1", "--port", "2"]);
    assert!(said.contains("names another port than --port 2: give one"), "{said}");
    assert_eq!(shown(&user), before);
}

#[test]
fn host_that_moved_is_told_once_by_run_and_not_when_quiet() {
    for (flags, told) in [(&[][..], true), (&["--json"][..], true), (&["-q"][..], false)] {
        let (user, web1) = (User::new(), Sshd::start());
        user.pin("web1", &web1.host_key(), Some("127.9.9.9".parse().unwrap()));
        user.configure(&place("web1", &web1));
        let all = [&["run", "-w", "web1"][..], flags, &["true"][..]].concat();
        let output = user.penstock(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let note = format!("web1 moved 127.9.9.9 -> {}, same key", web1.address);
        let event = format!("{{\"event\":\"note\",\"host\":\"web1\",\"text\":\"{note}\"}}\n");
        match flags {
            ["--json"] => assert!(shown.contains(&event), "{output:?}"),
            _ => assert_eq!(said.contains(&format!("{note}\n")), told, "{output:?}"),
        }
        assert!(!user.penstock(&all).stderr.windows(5).any(|some| some == b"moved"), "it is recorded");
    }
}

/// A gate and a host behind it, by its identity file alone.
struct Behind {
    user: User,
    gate: Sshd,
    web1: Sshd,
}

impl Behind {
    fn new() -> Self {
        let (user, gate, web1) = (User::new(), Sshd::start(), Sshd::start());
        user.pin("gate", &gate.host_key(), None);
        user.pin("web1", &web1.host_key(), Some(ip(&web1)));
        let behind = Self { user, gate, web1 };
        behind.configure("");
        behind.hint("web1", &format!("{}  port={}  via=gate", behind.web1.address, behind.web1.port));
        behind
    }

    /// `ssh_config`: where the gate is, who we are on both, and `more` of web1.
    fn configure(&self, more: &str) {
        let login = format!(
            "Host web1\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n",
            self.web1.user,
            self.web1.client_key.display()
        );
        self.user.configure(&(place("gate", &self.gate) + &login + more));
    }

    /// Writes the hints of a host anew.
    fn hint(&self, name: &str, hints: &str) {
        let text = fs::read_to_string(self.user.file(name)).unwrap();
        let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("addr")).collect();
        fs::write(self.user.file(name), format!("{}\naddr {hints}\n", kept.join("\n"))).unwrap();
    }

    /// Numbers of log-ins at the gate and at web1; waits until the logs have as many as `expected`.
    fn logins(&self, expected: (usize, usize)) -> (usize, usize) {
        let count = |sshd: &Sshd, expected| sshd.logged("Accepted publickey", expected);
        (count(&self.gate, expected.0), count(&self.web1, expected.1))
    }
}

#[test]
fn via_in_the_file_of_a_host_leads_through_that_host_unless_ssh_config_says_the_way() {
    let behind = Behind::new();
    let run = ["run", "-w", "web1", "echo here"];
    assert!(behind.user.said(&run).contains("here"));
    assert_eq!(behind.logins((1, 1)), (1, 1));
    let explained = behind.user.said(&["ssh", "explain", "web1"]);
    assert!(
        explained.contains(&format!("{}:{} through gate", behind.web1.address, behind.web1.port)),
        "{explained}"
    );
    assert_eq!(behind.logins((2, 2)), (2, 2));

    // HostName says where it is, not how to get there: the gate looks it up.
    behind.configure(&format!("    HostName {}\n    Port {}\n", behind.web1.address, behind.web1.port));
    assert!(behind.user.said(&run).contains("here"));
    assert_eq!(behind.logins((3, 3)), (3, 3));

    // What ssh_config says of the way wins, be it that there is none.
    behind.configure("    ProxyJump none\n");
    assert!(behind.user.said(&run).contains("here"));
    assert_eq!(behind.logins((3, 4)), (3, 4));
    let overruled = "via=gate in the file of web1 is not used: ~/.ssh/config:";
    for asked in [["ssh", "explain", "web1"], ["host", "why", "web1"]] {
        let said = behind.user.said(&asked);
        assert!(
            said.lines().any(|line| line.contains(overruled) && line.ends_with("says ProxyJump none")),
            "{said}"
        );
        behind.configure(&format!(
            "    HostName {}\n    Port {}\n    ProxyJump gate\n",
            behind.web1.address, behind.web1.port
        ));
        let said = behind.user.said(&asked);
        assert!(!said.contains("is not used"), "it leads the same way: {said}");
        behind.configure("    ProxyJump none\n");
    }
    // `host why` logs in at the gate only.
    let before = (5, 6);
    assert_eq!(behind.logins(before), before);

    // The gate is judged by its own file, before anything goes there or beyond.
    behind.configure("");
    let text = fs::read_to_string(behind.user.file("gate")).unwrap();
    let (own, other) = (behind.gate.host_key(), Sshd::start().host_key());
    let print = |line: &str| line.parse::<hosts::ssh::key::PublicKey>().unwrap().fingerprint().to_string();
    fs::write(behind.user.file("gate"), text.replace(&own, &other).replace(&print(&own), &print(&other)))
        .unwrap();
    let output = behind.user.penstock(&run);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("jump host: gate showed "), "{said}");
    assert_eq!(behind.logins(before), before);
}

#[test]
fn gates_that_lead_to_each_other_are_told_and_not_followed() {
    let behind = Behind::new();
    behind.hint("gate", "via=web1");
    for (more, way) in [("", "web1 -> gate -> web1"), ("    ProxyJump gate\n", "web1 -> gate -> web1")] {
        behind.configure(more);
        let output = behind.user.penstock(&["run", "-w", "web1", "true"]);
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{output:?}");
        let expected = format!("web1: via= in the files of hosts goes through the same host again: {way}");
        assert!(said.contains(&expected), "{said}");
    }
    behind.configure("");
    behind.hint("gate", "via=gate");
    let said = behind.user.refused(&["ssh", "explain", "gate"]);
    assert!(said.contains("goes through the same host again: gate -> gate"), "{said}");
    assert_eq!(behind.logins((0, 0)), (0, 0));
}

#[test]
fn host_behind_a_gate_is_enrolled_with_its_own_key_and_never_with_that_of_the_gate() {
    let behind = Behind::new();
    let (address, port) = (behind.web1.address.to_string(), behind.web1.port.to_string());
    let jump = format!("Host new2\n    ProxyJump gate\n    HostName {address}\n    Port {port}\n");
    behind.configure(&jump);
    behind.user.said(&["host", "remove", "web1"]);
    let place = ["--address", &address, "--port", &port, "--via", "gate"];
    for (name, place) in [("new1", &place[..]), ("new2", &[])] {
        let add = [&["host", "add", name, "--trust-on-first-use"][..], place].concat();
        behind.user.said(&add);
        let show = behind.user.said(&["host", "show", name]);
        assert!(show.contains(&behind.web1.host_key()) && !show.contains(&behind.gate.host_key()), "{show}");
        let why = behind.user.said(&["host", "why", name]);
        assert!(why.contains("verdict   accepted"), "{why}");
        behind.user.said(&["host", "remove", name]);
    }
    assert_eq!(behind.logins((4, 0)), (4, 0), "the gate was asked, and no log-in went beyond it");
}

#[test]
fn hosts_that_answer_as_each_other_are_both_told_with_the_lines_that_lead_there() {
    let fleet = Fleet::new();
    fleet.user.configure(&(place("web2", &fleet.db1) + &place("db1", &fleet.web2)));
    let run = fleet.user.penstock(&["run", "-w", "web2,db1", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("    it showed the key of db1, not of web2; nothing was sent\n"), "{said}");
    assert!(said.contains("    it showed the key of web2, not of db1; nothing was sent\n"), "{said}");
    for (line, sshd) in [(3, &fleet.db1), (10, &fleet.web2)] {
        assert!(said.contains(&format!("~/.ssh/config:{line} says Port {}", sshd.port)), "{said}");
    }
}

#[test]
fn fault_in_the_usual_ssh_config_keeps_its_hosts_from_starting_and_stands_on_one_line() {
    let user = User::new();
    user.configure("Host *\n    NoSuchKeyword yes\n    Port many\n");
    let run = user.penstock(&["run", "-w", "h1,h2", "echo", "ran"]);
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(
        (run.status.code(), said.contains("bad-configuration (2): h[1-2]")),
        (Some(3), true),
        "{said}"
    );
    let faults = said.lines().find(|line| line.contains("the SSH configuration has faults: ")).unwrap();
    assert!(faults.contains("config:2: nosuchkeyword: no such keyword; hint: "), "{said}");
    assert!(faults.contains("; ") && faults.contains("config:3: "), "{said}");
    assert!(!said.contains('\u{240a}'), "{said}");
}

#[test]
fn unknown_key_on_another_port_of_a_host_is_told_with_its_own_port_and_who_says_the_other() {
    let (user, other) = (User::new(), Sshd::start());
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKRYUVfuEFUGyOJ4Ub4j8kXhVwPkN7SrvI9QeYwHyEq";
    user.pin("web1", key, Some(ip(&other)));
    user.said(&["host", "add", "web1", "--port", "2201"]);
    let stanza = user.said(&["known-hosts", "--stanza"]);
    user.configure(&(place("web1", &other) + &stanza));
    let port = other.port;
    let fingerprint =
        other.host_key().parse::<hosts::ssh::key::PublicKey>().unwrap().fingerprint().to_string();
    let line = format!(
        "~/.ssh/config:3 says Port {port}: change it there if web1 is still at port 2201; else read the fingerprint on its \
         console; if it is another server: penstock host add '[web1]:{port}' --fingerprint SHA256:...; if it is web1, moved \
         there with a new key: penstock host add web1 --port {port} --replace --fingerprint SHA256:..."
    );
    let config = user.home.path().join(".ssh/config");
    let mut ssh = user.command(testing::tools::program("ssh"));
    ssh.arg("-F").arg(&config).args(["web1", "true"]);
    let said = [
        user.penstock(&["run", "-w", "web1", "true"]),
        testing::server::run_to_end(&mut ssh, testing::secs(20)),
        user.penstock(&["host", "why", "web1"]),
    ]
    .map(|output| {
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    });
    for said in said {
        // ssh does not say at which address it was.
        assert!(said.contains("web1 is enrolled at port 2201; what answered at "), "{said}");
        assert!(said.contains(&format!("port {port}")) && said.contains(&fingerprint), "{said}");
        assert!(said.contains(&line), "{said}");
    }
    nothing_was_sent(&other);
    // Either of the two commands does what it is said to do.
    user.said(&["host", "add", &format!("[web1]:{port}"), "--fingerprint", &fingerprint]);
    assert!(user.said(&["run", "-w", "web1", "echo", "here"]).contains("here"));
    assert!(user.said(&["host", "show", "web1"]).contains(key));
    user.said(&["host", "remove", &format!("[web1]:{port}")]);
    let add =
        ["host", "add", "web1", "--port", &port.to_string(), "--replace", "--fingerprint", &fingerprint];
    user.said(&add);
    assert!(user.said(&["run", "-w", "web1", "echo", "here"]).contains("here"));
    assert!(user.said(&["host", "show", "web1"]).contains(&format!("retired {key}")));
}

#[test]
fn port_that_is_given_to_ssh_itself_is_not_blamed_on_ssh_config() {
    let fleet = Fleet::new();
    // A gate that leads several ports of one address to several servers: only the port is wrong.
    let (web2, db1) = (&fleet.web2, &fleet.db1);
    fleet.says(&[("web2", web2, "")]);
    let config = fs::read_to_string(fleet.user.home.path().join(".ssh/config")).unwrap();
    let config =
        config.replace(&format!("HostName {}\n", web2.address), &format!("HostName {}\n", db1.address));
    fleet.user.configure(&config);
    let output = fleet.ssh(&["-p", &db1.port.to_string(), "web2"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("penstock: it showed the key of db1, not of web2; nothing was sent\n"), "{said}");
    let advice = format!(
        "  ~/.ssh/config:2 says HostName {}, and port {} comes from another place, such as ssh -p: find the address of web2, \
         and correct the wrong one there\n",
        db1.address, db1.port
    );
    assert!(said.contains(&advice), "{said}");
    nothing_was_sent(db1);
}
