use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

use super::*;

/// Files in memory. Their permissions are safe by default.
#[derive(Default)]
struct Memory {
    files: HashMap<String, File>,
    addresses: Vec<IpAddr>,
    ran: RefCell<Vec<String>>,
}

impl Memory {
    fn of(text: &str) -> Self {
        Self::default().with("/home/me/.ssh/config", text)
    }

    fn with(mut self, path: &str, text: &str) -> Self {
        let file = File { text: text.to_owned(), owner: 1000, mode: 0o100_600, group: Group::Others };
        self.files.insert(path.to_owned(), file);
        self
    }

    fn mode(mut self, owner: u32, mode: u32, group: Group) -> Self {
        for file in self.files.values_mut() {
            (file.owner, file.mode, file.group) = (owner, mode, group);
        }
        self
    }

    fn resolve(&self, asked: &Asked) -> Result<Resolved, Faults> {
        let sources = Sources {
            user: Some(("/home/me/.ssh/config".to_owned(), Presence::Optional)),
            system: Some("/etc/ssh/ssh_config".to_owned()),
            home: "/home/me".to_owned(),
            uid: 1000,
        };
        let local = Local {
            user: "me".to_owned(),
            uid: 1000,
            home: "/home/me".to_owned(),
            hostname: "here.example.com".to_owned(),
        };
        Config::read(&sources, self, self, KnownAlgorithms::openssh()).resolve(asked, &local, self)
    }

    fn host(&self, host: &str) -> Result<Resolved, Faults> {
        self.resolve(&Asked::parse(host).unwrap())
    }
}

impl Files for Memory {
    fn read(&self, path: &str) -> Result<Option<File>, String> {
        Ok(self.files.get(path).cloned())
    }

    fn glob(&self, pattern: &str) -> Result<Vec<String>, String> {
        let mut paths: Vec<String> =
            self.files.keys().filter(|path| pattern::matches(path, pattern)).cloned().collect();
        paths.sort();
        Ok(paths)
    }
}

impl Machine for Memory {
    fn exec(&self, command: &str) -> Result<bool, String> {
        self.ran.borrow_mut().push(command.to_owned());
        if command == "hang" { Err("it ran for more than 30 s".to_owned()) } else { Ok(command == "true") }
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        Ok(self.addresses.clone())
    }

    fn variable(&self, name: &str) -> Option<String> {
        (name == "AGENT").then(|| "/run/agent".to_owned())
    }
}

#[test]
fn every_fault_of_every_file_is_told_at_once_with_its_place() {
    let memory = Memory::of("Prot 22\nHost other\n  Port x\n  Include more\n\nMatch exec hang\n")
        .with("/home/me/.ssh/more", "IdentitiesOnly maybe\n")
        .with("/etc/ssh/ssh_config", "User \"a\n");
    let faults = memory.host("web1").unwrap_err().to_string();
    assert_eq!(
        faults,
        "/home/me/.ssh/config:3: port: \"x\" is not a port\n  hint: a port is 1 to 65535\n\
         /home/me/.ssh/more:1: identitiesonly: \"maybe\" is neither yes nor no\n\
         /etc/ssh/ssh_config:1: user: a quote is not closed\n  hint: a quote inside an argument is written \\\" or \\'\n\
         /home/me/.ssh/config:1: prot: no such keyword\n  \
         hint: did you mean port?\n\
         /home/me/.ssh/config:6: match exec hang: it ran for more than 30 s"
    );
}

#[test]
fn a_misspelt_keyword_is_told_with_the_one_that_was_meant() {
    let faults = Memory::of("HostNmae x\n").host("web1").unwrap_err();
    assert_eq!(faults.0[0].hint.as_deref(), Some("did you mean hostname?"));
}

#[test]
fn files_that_others_can_write_are_not_trusted() {
    let of = |owner, mode, group| Memory::of("Port 2222\n").mode(owner, mode, group).host("web1");
    assert_eq!(of(1000, 0o644, Group::Others).unwrap().port, 2222);
    assert_eq!(of(0, 0o644, Group::Others).unwrap().port, 2222);
    assert_eq!(of(1000, 0o664, Group::OwnerOnly).unwrap().port, 2222);
    for (owner, mode, group) in
        [(1000, 0o664, Group::Others), (1000, 0o602, Group::OwnerOnly), (1001, 0o600, Group::OwnerOnly)]
    {
        let faults = of(owner, mode, group).unwrap_err();
        assert!(faults.to_string().contains("hint: `chown 1000 /home/me/.ssh/config"), "{faults}");
    }
}

#[test]
fn the_users_file_comes_before_the_systems_and_places_say_which() {
    let memory = Memory::of("Port 2222\n").with("/etc/ssh/ssh_config", "Port 1\nUser system\n");
    let resolved = memory.host("web1").unwrap();
    assert_eq!((resolved.port, resolved.user.as_str()), (2222, "system"));
    assert_eq!(resolved.place(Keyword::Port).unwrap().to_string(), "/home/me/.ssh/config:1");
    assert_eq!(resolved.place(Keyword::User).unwrap().to_string(), "/etc/ssh/ssh_config:2");
}

#[test]
fn a_file_of_the_system_includes_nothing_of_a_user() {
    let memory = Memory::of("").with("/etc/ssh/ssh_config", "Include ~/x\n");
    assert!(memory.host("web1").unwrap_err().to_string().contains("cannot include one of a user"));
}

#[test]
fn commands_of_match_exec_run_only_where_everything_before_them_holds() {
    let memory = Memory::of("Match host db1 exec true\nMatch user me exec true\n  Port 2222\n");
    assert_eq!(memory.host("web1").unwrap().port, 2222);
    assert_eq!(*memory.ran.borrow(), ["true"]);
    let memory = Memory::of("Host other\n  Include more\n").with("/home/me/.ssh/more", "Match exec true\n");
    memory.host("web1").unwrap();
    assert!(memory.ran.borrow().is_empty());
}

#[test]
fn conditions_of_newer_versions_hold() {
    let text = "Tag blue\nMatch tagged blue,green\n  Port 1\nMatch localnetwork 10.0.0.0/12,fd00::/8\n  User near\n\
                Match sessiontype exec command uptime\n  HostKeyAlias x\n";
    let mut memory = Memory::of(text);
    memory.addresses = vec!["127.0.0.1".parse().unwrap(), "10.1.2.3".parse().unwrap()];
    let asked = Asked { command: Some("uptime".to_owned()), ..Asked::parse("web1").unwrap() };
    let resolved = memory.resolve(&asked).unwrap();
    assert_eq!((resolved.port, resolved.user.as_str(), resolved.identity()), (1, "near", "x"));
    memory.addresses = vec!["10.16.0.1".parse().unwrap()];
    let resolved = memory.host("web1").unwrap();
    assert_eq!((resolved.user.as_str(), resolved.identity()), ("me", "web1"));
}

#[test]
fn what_cannot_be_decided_is_never_guessed() {
    let memory =
        Memory::of("Match host db1 version OpenSSH_1*\n  Port 1\nMatch host web1 version OpenSSH_1*\n");
    assert_eq!(memory.host("db2").unwrap().port, 22);
    let faults = memory.host("web1").unwrap_err();
    assert!(
        faults.to_string().contains("/home/me/.ssh/config:3: match version: cannot be decided"),
        "{faults}"
    );
}

#[test]
fn what_only_openssh_can_do_is_an_obstacle_and_the_rest_is_told() {
    let text = "PKCS11Provider /p11.so\nForwardAgent yes\nControlMaster auto\nLocalForward 1 a:2\nRSAAuthentication no\n";
    let resolved = Memory::of(text).host("web1").unwrap();
    let found: Vec<_> = resolved
        .notices
        .iter()
        .map(|notice| (notice.effect, notice.place.as_ref().map_or(0, |place| place.line)))
        .collect();
    assert_eq!(
        found,
        [
            (Effect::NeedsOpenSsh, 1),
            (Effect::Ignored, 2),
            (Effect::Ignored, 4),
            (Effect::Harmless, 3),
            (Effect::Harmless, 5),
        ]
    );
    assert_eq!(resolved.obstacles().count(), 1);
}

#[test]
fn what_is_the_same_with_and_without_openssh_is_not_told() {
    let text = "ForwardAgent no\nPKCS11Provider none\nStrictHostKeyChecking yes\nCanonicalizeHostname no\nTunnel no\n";
    assert_eq!(Memory::of(text).host("web1").unwrap().notices, []);
}

#[test]
fn paths_and_commands_are_expanded_with_what_holds_in_the_end() {
    let text = "HostName %h.example.com\nUser you\nPort 2222\nIdentityFile ~/.ssh/%n-%L-%%\nCertificateFile ${AGENT}/%r\n\
                IdentityAgent $AGENT\nProxyCommand nc %h %p %r\nHostKeyAlias WEB\n";
    let resolved = Memory::of(text).host("web1").unwrap();
    assert_eq!(resolved.identity_files[0].path, "/home/me/.ssh/web1-here-%");
    assert_eq!(resolved.certificate_files[0].path, "/run/agent/you");
    assert_eq!(resolved.agent, Agent::Socket("/run/agent".to_owned()));
    assert_eq!(resolved.proxy, Proxy::Command("nc web1.example.com 2222 you".to_owned()));
    assert_eq!(resolved.identity(), "web");
}

#[test]
fn names_that_a_shell_would_take_apart_are_refused() {
    assert!(Memory::of("HostName \"x;id\"\n").host("web1").is_err());
    assert!(Memory::of("User \"$(id)\"\n").host("web1").is_err());
    assert!(Memory::of("User ${HOME}\n").host("web1").is_err());
    for typed in ["-oProxyCommand=id", "web1;id", "$(id)", "", "a b", "@web1", "-l@web1"] {
        assert!(Asked::parse(typed).is_none(), "{typed}");
    }
    assert_eq!(Asked::parse("ssh://you@web1:2222").unwrap().port, Some(2222));
    for (typed, user, host, port) in [
        ("[::1]", None, "::1", None),
        ("me@[fe80::1%eth0]:2222", Some("me"), "fe80::1%eth0", Some(2222)),
        ("::1", None, "::1", None),
        // Names, as in ssh.
        ("[web1]", None, "[web1]", None),
        ("web1:22", None, "web1:22", None),
    ] {
        let asked = Asked::parse(typed).unwrap();
        assert_eq!((asked.user.as_deref(), &*asked.host, asked.port), (user, host, port), "{typed}");
    }
}

#[test]
fn no_command_is_run_with_a_name_that_a_shell_would_take_apart() {
    let hop = |user: Option<&str>, host: &str| {
        let hop = Hop { user: user.map(str::to_owned), host: host.to_owned(), port: None };
        Some(Jump::Through(vec![hop]))
    };
    let web1 = || Asked::parse("web1").unwrap();
    let user = |user: &str| Asked { user: Some(user.to_owned()), ..web1() };
    let host = |host: &str| Asked { host: host.to_owned(), ..web1() };
    // No command may run with an unsafe value, whichever token the command contains.
    for command in ["echo", "echo %h", "echo %k %n", "echo %r", "echo %j"] {
        let text = format!("Match exec \"{command}\"\n  Port 1\nMatch final exec \"{command}\"\n  Port 2\n");
        for asked in [
            user("$(id)"),
            user("`id`"),
            user("a;id"),
            user("-oX"),
            user("%h"),
            user(""),
            host("$(id)"),
            host("a;id"),
            host("-oX"),
            host("fe80::1%$(id)"),
            Asked { jump: hop(None, "$(id)"), ..web1() },
            Asked { jump: hop(Some("$(id)"), "gate"), ..web1() },
        ] {
            let memory = Memory::of(&text);
            let faults = memory.resolve(&asked).unwrap_err();
            assert_eq!(*memory.ran.borrow(), [""; 0], "{asked:?}");
            // The value came from the command line.
            assert!(faults.0.iter().all(|fault| fault.place.is_none()), "{faults}");
        }
    }
    // Unsafe values in the files, before and after the command.
    for text in [
        "User $(id)\nMatch exec \"echo %r\"\n  Port 1\n",
        "HostName $(id)\nMatch exec \"echo %h\"\n  Port 1\n",
        "Match final exec \"echo %h\"\n  Port 1\nHost *\n HostName a;id\n",
    ] {
        let memory = Memory::of(text);
        let faults = memory.host("web1").unwrap_err().to_string();
        assert_eq!(*memory.ran.borrow(), [""; 0], "{faults}");
        assert!(faults.contains("not run: "), "{faults}");
    }
    let memory = Memory::of("Match exec \"echo %n %h %k %r\"\n  Port 1\n");
    memory.resolve(&Asked::parse("me@[fe80::1%eth0]").unwrap()).unwrap();
    assert_eq!(*memory.ran.borrow(), ["echo fe80::1%eth0 fe80::1%eth0 fe80::1%eth0 me"]);
}

#[test]
fn files_that_include_each_other_without_end_are_refused_and_not_followed() {
    let mut memory = Memory::of("Include f0\n");
    for at in 0..30 {
        let next = format!("Include f{}\nInclude f{}\n", at + 1, at + 1);
        memory = memory.with(&format!("/home/me/.ssh/f{at}"), &next);
    }
    let faults = memory.host("web1").unwrap_err();
    assert!(faults.to_string().contains("more than 16 deep"), "{faults}");
    let circle = Memory::of("Include config\n").host("web1").unwrap_err();
    assert!(circle.to_string().contains("includes itself"), "{circle}");
}

#[test]
fn garbage_is_refused_without_a_panic() {
    for text in [
        "\0\0",
        "Port \0",
        "Host \u{fffd}\n=\n\"\n'",
        "Match\nMatch !\nMatch ! x",
        "ProxyJump ,",
        "SetEnv =",
        "Host [\\",
    ] {
        let _ = Memory::of(text).host("web1");
    }
}
