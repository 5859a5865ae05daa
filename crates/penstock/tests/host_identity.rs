//! Who a host is, against real OpenSSH: our client and `ssh` with KnownHostsCommand come to the same verdict, and the wrong
//! host gets nothing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use logic::fleet::ending::{Failure, Reason};
use logic::identity::{Date, HostFile, Name, Pin, Proof};
use logic::ssh::key::PublicKey;
use ssh::identity::{Identities, Places, Store};
use ssh::{Client, Judge, Keys, Target};
use support::server::run_to_end;
use support::sshd::{Sshd, keygen, public_line};
use support::{secs, tools};

mod support;

/// A user with a home directory of their own.
struct User {
    home: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Store {
        let base = self.home.path();
        Store::new(Places { configuration: base.join("config/penstock"), state: base.join("state/penstock") })
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("USER", "tester")
            .env("XDG_CONFIG_HOME", self.home.path().join("config"))
            .env("XDG_STATE_HOME", self.home.path().join("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `penstock`.
    fn penstock(&self, arguments: &[&str]) -> Output {
        run_to_end(self.command(env!("CARGO_BIN_EXE_penstock")).args(arguments), secs(30))
    }

    /// Runs `penstock`, which must succeed, and gives what it printed.
    #[track_caller]
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.penstock(arguments);
        assert!(output.status.success(), "penstock {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `penstock`, which must fail, and gives what it complained of.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.penstock(arguments);
        assert!(!output.status.success(), "penstock {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Pins a key.
    fn pin(&self, name: &str, key: &str, address: Option<IpAddr>) {
        let id: Name = name.parse().unwrap();
        let key: PublicKey = key.parse().unwrap();
        let change = |host: Option<HostFile>| {
            let mut host = host.unwrap_or_else(|| HostFile::new(id.clone()));
            let date: Date = "2026-03-01".parse().unwrap();
            host.pin_key(Pin { key, proof: Proof::Console, date, by: None, absent: None });
            address.into_iter().for_each(|address| host.add_address(address));
            Ok(host)
        };
        self.store().change(&id, change).unwrap();
    }

    /// Writes `~/.ssh/config`.
    fn configure(&self, text: &str) {
        let directory = self.home.path().join(".ssh");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("config"), text).unwrap();
    }

    fn identities(&self) -> Arc<Identities> {
        Arc::new(Identities::load(self.store()).unwrap())
    }

    /// Runs `true` on a server that is asked for as `name`, with OpenSSH and our identities.
    fn ssh(&self, name: &str, sshd: &Sshd) -> Output {
        let asks = format!(
            "KnownHostsCommand={} known-hosts --port %p %k %H %I %t %K",
            env!("CARGO_BIN_EXE_penstock")
        );
        let mut command = self.command(tools::program("ssh"));
        for option in [
            asks.as_str(),
            "UserKnownHostsFile=none",
            "GlobalKnownHostsFile=none",
            "StrictHostKeyChecking=yes",
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            &format!("HostKeyAlias={name}"),
            &format!("Port={}", sshd.port),
            &format!("IdentityFile={}", sshd.client_key.display()),
        ] {
            command.args(["-o", option]);
        }
        command.args(["-F", "none", "-l", &sshd.user, &sshd.address.to_string(), "true"]);
        run_to_end(&mut command, secs(30))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.store().path(&name.parse().unwrap())
    }
}

fn ip(sshd: &Sshd) -> IpAddr {
    IpAddr::V4(sshd.address)
}

/// Another server with the same host key: the same machine at a new address.
fn moved(sshd: &Sshd) -> Sshd {
    let directory = tempfile::tempdir().unwrap();
    for file in ["host", "host.pub", "client", "client.pub"] {
        fs::copy(sshd.directory.path().join(file), directory.path().join(file)).unwrap();
    }
    Sshd::in_directory(directory, "")
}

/// Connects, notes what was negotiated, and waits until the judge was told of the server's other keys.
fn connect_and_hear(identities: &Arc<Identities>, name: &str, sshd: &Sshd, keys: usize) {
    struct Hears(Arc<Identities>, std::sync::mpsc::Sender<usize>);
    impl Judge for Hears {
        fn wanted(&self, name: &str) -> Vec<String> {
            self.0.wanted(name)
        }
        fn judge<'a>(
            &'a self,
            name: &'a str,
            at: &'a ssh::Place,
            offered: &'a ssh::Offered,
        ) -> ssh::BoxFuture<'a, ssh::Verdict> {
            self.0.judge(name, at, offered)
        }
        fn announced(&self, name: &str, keys: Vec<PublicKey>) {
            let count = keys.len();
            self.0.announced(name, keys);
            let _ = self.1.send(count);
        }
    }
    let (told, hears) = std::sync::mpsc::channel();
    let judge = Arc::new(Hears(Arc::clone(identities), told));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = Client::new(judge as Arc<dyn Judge>, Arc::new(Keys::new()));
    let target = target(name, sshd);
    let session = runtime.block_on(client.connect(&target, &|_| {})).unwrap();
    assert_eq!(hears.recv_timeout(secs(20)), Ok(keys));
    identities.learned(name, sshd.port, &session.facts());
    runtime.block_on(session.close());
}

fn target(name: &str, sshd: &Sshd) -> Target {
    let mut target = Target::new(name, &sshd.user);
    target.addresses.known = vec![ip(sshd)];
    target.port = sshd.port;
    target.keys = ssh::KeyPlan::of_file(sshd.client_key.clone());
    target
}

fn connect(identities: &Arc<Identities>, name: &str, sshd: &Sshd) -> Result<Option<String>, Failure> {
    let target = target(name, sshd);
    let client = Client::new(Arc::clone(identities) as Arc<dyn Judge>, Arc::new(Keys::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = client.connect(&target, &|_| {}).await?;
        let note = session.facts().note;
        session.close().await;
        Ok(note)
    })
}

/// Two hosts that are known, and an `ssh_config` that says where each is, for `ssh` as for `penstock run`.
struct Fleet {
    user: User,
    web2: Sshd,
    db1: Sshd,
}

impl Fleet {
    fn new() -> Self {
        let (user, web2, db1) = (User::new(), Sshd::start(), Sshd::start());
        user.pin("web2", &web2.host_key(), Some(ip(&web2)));
        user.pin("db1", &db1.host_key(), Some(ip(&db1)));
        Self { user, web2, db1 }
    }

    /// Writes where the hosts are, with our stanza below it.
    fn says(&self, places: &[(&str, &Sshd, &str)]) {
        let mut text = String::new();
        for (name, sshd, more) in places {
            text.push_str(&place(name, sshd));
            text.push_str(more);
        }
        self.user.configure(&(text + &self.user.said(&["known-hosts", "--stanza"])));
    }

    /// What `ssh` comes to.
    fn ssh(&self, arguments: &[&str]) -> Output {
        let config = self.user.home.path().join(".ssh/config");
        let mut ssh = self.user.command(tools::program("ssh"));
        ssh.arg("-F").arg(config).args(arguments).args(["echo", "here"]);
        run_to_end(&mut ssh, secs(20))
    }
}

/// A block of `ssh_config` for a server.
fn place(name: &str, sshd: &Sshd) -> String {
    format!(
        "Host {name}\n    HostName {}\n    Port {}\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n    BatchMode yes\n",
        sshd.address,
        sshd.port,
        sshd.user,
        sshd.client_key.display()
    )
}

/// Nobody tried to log in there.
#[track_caller]
fn nothing_was_sent(sshd: &Sshd) {
    let log = sshd.log();
    for word in ["Accepted", "Failed", "authenticating user", "Postponed", "userauth"] {
        assert!(!log.contains(word), "{word} in {log}");
    }
    assert!(log.contains("Connection from"), "nobody even connected: {log}");
}

#[test]
fn changed_address_connects_with_one_line_and_is_recorded_once() {
    let (user, web1) = (User::new(), Sshd::start());
    let old: IpAddr = "127.9.9.9".parse().unwrap();
    user.pin("web1", &web1.host_key(), Some(old));
    let identities = user.identities();
    let note = connect(&identities, "web1", &web1).unwrap();
    assert_eq!(note, Some(format!("web1 moved {old} -> {}, same key", web1.address)));
    let flushed = identities.flush();
    assert_eq!(flushed.written, ["web1".parse().unwrap()]);
    let text = fs::read_to_string(user.file("web1")).unwrap();
    assert!(text.contains(&format!("addr    {}\n", web1.address)), "{text}");
    assert!(text.contains(&format!("seen    {old} → {} ", web1.address)), "{text}");

    let before = fs::metadata(user.file("web1")).unwrap().ino();
    let seen = user.store().places().state.join("identity/seen");
    let seen_before = fs::metadata(&seen).unwrap().ino();
    let identities = user.identities();
    assert_eq!(connect(&identities, "web1", &web1).unwrap(), None);
    assert!(identities.flush().written.is_empty());
    let after = (fs::metadata(user.file("web1")).unwrap().ino(), fs::metadata(&seen).unwrap().ino());
    assert_eq!((before, seen_before), after, "an ordinary run writes nothing");

    let again = moved(&web1);
    assert!(user.ssh("web1", &again).status.success(), "plain ssh follows the name too");
}

#[test]
fn swapped_host_is_named_gets_nothing_and_the_others_go_on() {
    let (user, web1, db2, web3) = (User::new(), Sshd::start(), Sshd::start(), Sshd::start());
    user.pin("web1", &web1.host_key(), Some(ip(&web1)));
    user.pin("db2", &db2.host_key(), Some(ip(&db2)));
    user.pin("web3", &web3.host_key(), None);
    let identities = user.identities();
    let failure = connect(&identities, "web1", &db2).unwrap_err();
    assert_eq!(
        (failure.reason, failure.detail.as_str()),
        (Reason::Impostor, "answered as db2, not web1; nothing was sent")
    );
    let advice =
        format!("{} is db2 now: when you know where web1 is, penstock host move web1 ADDRESS", db2.address);
    assert_eq!(failure.advice, Some(advice.clone()));
    nothing_was_sent(&db2);
    assert_eq!(connect(&identities, "web3", &web3).unwrap(), None, "the others go on");

    let output = user.ssh("web1", &db2);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains("penstock: answered as db2, not web1; nothing was sent\n"), "{said}");
    nothing_was_sent(&db2);
    assert!(user.ssh("db2", &db2).status.success());
    assert!(db2.log().contains("Accepted publickey"), "the log would have shown it: {}", db2.log());
}

#[test]
fn replaced_key_is_refused_with_old_and_new_and_how_many_others_changed() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    let old = tempfile::tempdir().unwrap();
    for name in ["web1", "web2"] {
        keygen(&old.path().join(name), &["-t", "ed25519"]);
        user.pin(name, &public_line(&old.path().join(format!("{name}.pub"))), None);
    }
    let print = |key: &str| key.parse::<PublicKey>().unwrap().fingerprint().to_string();
    let expected = |name: &str, sshd: &Sshd, others: &str| {
        let was = print(&public_line(&old.path().join(format!("{name}.pub"))));
        let is = print(&sshd.host_key());
        format!(
            "{name} showed ssh-ed25519 {is}, but ssh-ed25519 {was} is pinned (from=console 2026-03-01, never seen since); \
             {others} in this run; nothing was sent"
        )
    };
    let identities = user.identities();
    let first = connect(&identities, "web1", &web1).unwrap_err();
    assert_eq!(
        (first.reason, first.detail),
        (Reason::KeyChanged, expected("web1", &web1, "no other host changed its key"))
    );
    let second = connect(&identities, "web2", &web2).unwrap_err();
    assert_eq!(second.detail, expected("web2", &web2, "1 other host changed its key"));
    assert_eq!(identities.changed(), 2);
    nothing_was_sent(&web1);
    let output = user.ssh("web1", &web1);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains(&expected("web1", &web1, "no other host changed its key")), "{said}");
    nothing_was_sent(&web1);
}

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
fn certificates_of_hosts_count_only_if_everything_about_them_is_right() {
    let user = User::new();
    let work = tempfile::tempdir().unwrap();
    keygen(&work.path().join("ca"), &["-t", "ed25519"]);
    let ca = public_line(&work.path().join("ca.pub"));
    let good = ["-h", "-n", "web1,web1.example.com"];
    let cases: [(&[&str], Option<&str>); 6] = [
        (&good, None),
        (&["-h", "-n", "db2"], Some("it is for db2, not for web1, web1.example.com")),
        (&["-n", "web1"], Some("it is for users, not for hosts")),
        (&["-h", "-n", "web1", "-V", "20200101:20200201"], Some("it expired on 2020-0")),
        (&["-h", "-n", "web1", "-O", "critical:strange"], Some("it has the critical option strange")),
        (&["-h"], Some("it names no host, and so none of them")),
    ];
    user.said(&["host", "add", "web1", "--ca", &ca, "--principals", "web1,web1.example.com"]);
    for (options, expected) in cases {
        let web1 = certified(work.path(), options);
        let result = connect(&user.identities(), "web1", &web1);
        match expected {
            None => assert_eq!(result.unwrap(), None, "{options:?}"),
            Some(fault) => {
                let failure = result.unwrap_err();
                assert_eq!(failure.reason, Reason::KeyRefused, "{options:?}: {failure:?}");
                assert!(failure.detail.contains(fault), "{options:?}: {failure:?}");
                nothing_was_sent(&web1);
            }
        }
    }
    let bare = Sshd::start();
    let failure = connect(&user.identities(), "web1", &bare).unwrap_err();
    assert!(failure.detail.contains("a certificate is required"), "{failure:?}");
    let web1 = certified(work.path(), &good);
    assert!(user.ssh("web1", &web1).status.success(), "ssh takes the authority too");
}

/// A server with a certificate that `ca` in `work` made with these options.
fn certified(work: &Path, options: &[&str]) -> Sshd {
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().join("host");
    keygen(&host, &["-t", "ed25519"]);
    let signed = Command::new(tools::program("ssh-keygen"))
        .args(["-q", "-s"])
        .arg(work.join("ca"))
        .args(["-I", "made by a test"])
        .args(options)
        .arg(directory.path().join("host.pub"))
        .output()
        .unwrap();
    assert!(signed.status.success(), "{signed:?}");
    let line = format!("HostCertificate {}-cert.pub", host.display());
    Sshd::in_directory(directory, &line)
}

#[test]
fn damaged_file_refuses_its_host_alone() {
    let (user, web1, web2) = (User::new(), Sshd::start(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    user.pin("web2", &web2.host_key(), None);
    let text = fs::read_to_string(user.file("web1")).unwrap();
    fs::write(user.file("web1"), &text[..60]).unwrap();
    let identities = user.identities();
    let failure = connect(&identities, "web1", &web1).unwrap_err();
    assert_eq!(failure.reason, Reason::Configuration);
    let path = user.file("web1").display().to_string();
    assert!(
        failure.detail.starts_with(&format!("the identity of web1 cannot be read: {path}: line 2: ")),
        "{failure:?}"
    );
    nothing_was_sent(&web1);
    assert_eq!(connect(&identities, "web2", &web2).unwrap(), None);
    assert_eq!(user.said(&["known-hosts", "web1"]), "");
    assert!(
        user.refused(&["host", "show", "web1"])
            .contains("is damaged, and web1 is refused until it is repaired")
    );
}

#[test]
fn names_change_without_losing_the_host_and_revoked_keys_are_nobodys() {
    let (user, web1) = (User::new(), Sshd::start());
    user.pin("web1", &web1.host_key(), None);
    user.said(&["host", "alias", "web1", "www"]);
    user.said(&["host", "rename", "web1", "front"]);
    for name in ["web1", "www", "front"] {
        assert_eq!(connect(&user.identities(), name, &web1).unwrap(), None, "{name}");
        assert!(user.ssh(name, &web1).status.success(), "{name}");
    }
    let why = user.said(&["host", "why", "www", "--key", &web1.host_key()]);
    assert!(
        why.starts_with("identity  front (www is another name or a hint of it)\n")
            && why.contains("verdict   accepted\n"),
        "{why}"
    );
    user.said(&["host", "retire", "front"]);
    assert!(
        connect(&user.identities(), "front", &web1).unwrap_err().detail.contains("front is retired since ")
    );
    user.said(&["host", "retire", "front", "--undo"]);
    let fingerprint = web1.host_key().parse::<PublicKey>().unwrap().fingerprint().to_string();
    user.said(&["host", "revoke", "front", &fingerprint]);
    let failure = connect(&user.identities(), "front", &web1).unwrap_err();
    assert!(failure.detail.starts_with("front showed the revoked key ssh-ed25519 "), "{failure:?}");
    assert!(connect(&user.identities(), "stranger", &web1).unwrap_err().detail.contains("the revoked key"));
    assert_eq!(user.ssh("front", &web1).status.code(), Some(255));
}

#[test]
fn new_key_that_the_host_proves_is_pinned_before_the_old_one_goes() {
    let user = User::new();
    let directory = tempfile::tempdir().unwrap();
    let next = directory.path().join("next");
    keygen(&next, &["-t", "ecdsa"]);
    let web1 = Sshd::in_directory(directory, &format!("HostKey {}", next.display()));
    user.pin("web1", &web1.host_key(), None);
    let identities = user.identities();
    connect_and_hear(&identities, "web1", &web1, 2);
    let flushed = identities.flush();
    assert!(flushed.failed.is_empty(), "{flushed:?}");
    let show = user.said(&["host", "show", "web1"]);
    let old = web1.host_key().parse::<PublicKey>().unwrap().fingerprint();
    let new = public_line(&next.with_extension("pub"));
    let line = show.lines().find(|line| line.contains(&new)).unwrap_or_else(|| panic!("{show}"));
    assert!(line.contains(&format!("from=rotation(proved by {old}) ")), "{line}");
    let seen = fs::read_to_string(user.store().places().state.join("identity/seen")).unwrap();
    assert!(seen.contains(" kex=") && seen.contains(" strict=yes"), "{seen}");
    // A server that has only the new key is the same host.
    let directory = tempfile::tempdir().unwrap();
    fs::copy(&next, directory.path().join("host")).unwrap();
    fs::copy(next.with_extension("pub"), directory.path().join("host.pub")).unwrap();
    let later = Sshd::in_directory(directory, "");
    connect(&user.identities(), "web1", &later).unwrap();
}

#[test]
fn processes_that_write_at_once_lose_nothing() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let names: Vec<String> = (0..12).map(|at| format!("alias{at}")).collect();
    let start = |name: &String| {
        let mut command = user.command(env!("CARGO_BIN_EXE_penstock"));
        command.args(["host", "alias", "web1", name]).stdout(Stdio::null()).spawn().unwrap()
    };
    let running: Vec<_> = names.iter().map(start).collect();
    for mut process in running {
        assert!(process.wait().unwrap().success());
    }
    let index = user.store().load().unwrap();
    for name in &names {
        assert!(matches!(index.find(name, 22), logic::identity::Found::Host(_)), "{name}");
    }
}

#[test]
fn writer_that_is_killed_leaves_every_file_whole() {
    let user = User::new();
    let file = user.home.path().join("known_hosts");
    let mut text = String::new();
    for at in 0..1000_u32 {
        let mut blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        blob.extend(at.to_be_bytes().into_iter().cycle().take(32));
        text.push_str(&format!("host{at} {}\n", PublicKey::from_blob(&blob).unwrap()));
    }
    fs::write(&file, text).unwrap();
    let hosts = user.store().places().hosts();
    let count = || fs::read_dir(&hosts).map_or(0, Iterator::count);
    for killed_at in [1, 40, 300, 999] {
        let mut import = user.command(env!("CARGO_BIN_EXE_penstock"));
        let mut import = import
            .args(["host", "import", &file.display().to_string()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        support::eventually("it writes", secs(20), || (count() > killed_at).then_some(()));
        let _ = import.kill();
        let _ = import.wait();
        let index = user.store().load().unwrap();
        assert!(index.damaged().is_empty(), "{:?}", index.damaged());
        assert!(index.hosts().iter().all(|host| host.pins().count() == 1));
    }
    let said = user.said(&["host", "import", &file.display().to_string()]);
    assert!(said.contains("0 lines not taken"), "{said}");
    assert_eq!(user.store().load().unwrap().hosts().len(), 1000);
    assert_eq!(count(), 1001, "nothing is left beside the files and the lock");
}

#[test]
fn disk_that_is_full_leaves_the_old_file_and_says_so() {
    let (user, key) = (User::new(), tempfile::tempdir().unwrap());
    keygen(&key.path().join("k"), &["-t", "ed25519"]);
    user.pin("web1", &public_line(&key.path().join("k.pub")), None);
    let before = fs::read(user.file("web1")).unwrap();
    // No byte can be written to any file, and the signal for that is ignored: as on a full disk, write fails.
    let script =
        format!("trap '' XFSZ; ulimit -f 0; exec {} host alias web1 www", env!("CARGO_BIN_EXE_penstock"));
    let output = run_to_end(user.command("sh").args(["-c", &script]), secs(20));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: cannot write ") && said.contains("web1.host"), "{said}");
    assert_eq!(fs::read(user.file("web1")).unwrap(), before);
    assert_eq!(fs::read_dir(user.store().places().hosts()).unwrap().count(), 2, "no half file is left");
}

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
fn ssh_that_ssh_config_leads_to_another_known_host_is_refused_as_run_is() {
    let fleet = Fleet::new();
    fleet.says(&[("web2", &fleet.db1, ""), ("db1", &fleet.db1, "")]);
    let output = fleet.ssh(&["web2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(255), &b""[..]), "{said}");
    assert!(said.contains("penstock: answered as db1, not web2; nothing was sent\n"), "{said}");
    nothing_was_sent(&fleet.db1);
    let run = fleet.user.penstock(&["run", "-w", "web2", "echo", "here"]);
    assert_eq!(run.status.code(), Some(4), "{run:?}");
    nothing_was_sent(&fleet.db1);
    assert!(fleet.ssh(&["db1"]).status.success(), "the same place under its own name is right");
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
    assert!(String::from_utf8_lossy(&output.stderr).contains("paste it anew"), "{output:?}");
}

/// What stands in `~/.ssh/known_hosts` of somebody who has used ssh so far, with hashed names if asked for.
fn write_known_hosts(user: &User, lines: &str, hash: &[&str]) {
    let file = user.home.path().join(".ssh/known_hosts");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, lines).unwrap();
    if !hash.is_empty() {
        let hashed = Command::new(tools::program("ssh-keygen")).args(hash).arg(&file).output().unwrap();
        assert!(hashed.status.success(), "{hashed:?}");
    }
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
        assert!(show.contains(&format!("[{}]:{}", web1.address, web1.port)), "{show}");
        assert!(user.said(&["host", "import"]).contains("took 0 hosts"), "a second time nothing is new");
    }
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
    let (address, port) = (web1.address.to_string(), web1.port.to_string());
    user.said(&["host", "add", "web1.invalid", "--address", "127.9.9.9", "--port", &port]);
    assert_eq!(
        user.said(&["host", "move", "web1.invalid", &address]),
        format!("web1.invalid is looked for at {address}\n")
    );
    assert!(user.said(&["run", "-w", "web1.invalid", "echo", "here"]).contains("here"));
    let explained = user.said(&["ssh", "explain", "web1.invalid"]);
    let connect = explained.lines().find(|line| line.starts_with("connect ")).unwrap();
    assert!(connect.contains(&format!("{address}:{port} in ")), "{explained}");
    assert!(explained.contains("asked what the server accepts: publickey"), "{explained}");
}

#[test]
fn where_ssh_config_names_the_place_move_and_the_advice_for_a_swap_say_its_line() {
    let fleet = Fleet::new();
    fleet.user.configure(&(place("web2", &fleet.db1) + &place("db1", &fleet.web2)));
    let line = format!("~/.ssh/config:2 says HostName {}: change it there", fleet.db1.address);
    let moved = fleet.user.said(&["host", "move", "web2", &fleet.web2.address.to_string()]);
    assert!(moved.contains(&line), "{moved}");
    let run = fleet.user.penstock(&["run", "-w", "web2", "true"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains(&line) && said.contains("answered as db1, not web2"), "{said}");
    nothing_was_sent(&fleet.db1);
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
fn ssh_config_says_nothing_wrong_of_our_own_stanza() {
    let user = User::new();
    user.configure(&user.said(&["known-hosts", "--stanza"]));
    let said = user.said(&["ssh", "config", "web1"]);
    assert!(!said.contains("not followed:") && !said.contains("import this file"), "{said}");
}
