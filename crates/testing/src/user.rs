//! A user with their own host identities, who runs `penstock`, `ssh` and our client.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use hosts::fleet::ending::Failure;
use hosts::identity::{Date, HostFile, Name, Pin, Proof};
use hosts::ssh::key::PublicKey;
use ssh::identity::{Identities, Places, Store};
use ssh::{Client, HostVerifier, Keys, Target};

use crate::server::run_to_end;
use crate::sshd::Sshd;
use crate::{eventually, secs, tools};

pub struct User {
    pub home: tempfile::TempDir,
}

impl User {
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    pub fn store(&self) -> Store {
        let base = self.home.path();
        Store::new(Places { configuration: base.join("config/penstock"), state: base.join("state/penstock") })
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
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

    pub fn penstock(&self, arguments: &[&str]) -> Output {
        // A limit for what hangs only: some commands sync the file system, on which others write.
        run_to_end(self.command(crate::binary()).args(arguments), secs(120))
    }

    /// Runs `penstock`, which must succeed. Returns its standard output.
    #[track_caller]
    pub fn said(&self, arguments: &[&str]) -> String {
        let output = self.penstock(arguments);
        assert!(output.status.success(), "penstock {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `penstock`, which must fail. Returns its error message.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.penstock(arguments);
        assert!(!output.status.success(), "penstock {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn pin(&self, name: &str, key: &str, address: Option<IpAddr>) {
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

    pub fn configure(&self, text: &str) {
        let directory = self.home.path().join(".ssh");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("config"), text).unwrap();
    }

    pub fn identities(&self) -> Arc<Identities> {
        Arc::new(Identities::load(self.store()).unwrap())
    }

    /// Runs `true` on a server by OpenSSH, with the host name `name` and our identities.
    pub fn ssh(&self, name: &str, sshd: &Sshd) -> Output {
        let asks = format!("KnownHostsCommand={} known-hosts --port %p %k %H %I %t %K", crate::binary());
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
        run_to_end(&mut command, secs(120))
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.store().path(&name.parse().unwrap())
    }
}

pub fn ip(sshd: &Sshd) -> IpAddr {
    IpAddr::V4(sshd.address)
}

/// Starts another server with the same host key: the same machine at a new address.
pub fn moved(sshd: &Sshd) -> Sshd {
    let directory = tempfile::tempdir().unwrap();
    for file in ["host", "host.pub", "client", "client.pub"] {
        fs::copy(sshd.directory.path().join(file), directory.path().join(file)).unwrap();
    }
    Sshd::in_directory(directory, "")
}

/// Connects, records the negotiated host key, and waits until `keys` other host keys of the server are known.
pub fn connect_and_hear(identities: &Arc<Identities>, name: &str, sshd: &Sshd, keys: usize) {
    struct Hears(Arc<Identities>, std::sync::mpsc::Sender<usize>);
    impl HostVerifier for Hears {
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
    let client = Client::new(judge as Arc<dyn HostVerifier>, Arc::new(Keys::new()));
    let target = target(name, sshd);
    let session = runtime.block_on(client.connect(&target, &|_| {})).unwrap();
    assert_eq!(hears.recv_timeout(secs(20)), Ok(keys));
    identities.learned(name, sshd.port, &session.facts());
    runtime.block_on(session.close());
}

pub fn target(name: &str, sshd: &Sshd) -> Target {
    let mut target = Target::new(name, &sshd.user);
    target.addresses.known = vec![ip(sshd)];
    target.port = sshd.port;
    target.keys = ssh::KeyPlan::of_file(sshd.client_key.clone());
    target
}

pub fn connect(identities: &Arc<Identities>, name: &str, sshd: &Sshd) -> Result<Option<String>, Failure> {
    let target = target(name, sshd);
    let client = Client::new(Arc::clone(identities) as Arc<dyn HostVerifier>, Arc::new(Keys::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = client.connect(&target, &|_| {}).await?;
        let note = session.facts().note;
        session.close().await;
        Ok(note)
    })
}

/// Two known hosts, and an `ssh_config` with their addresses, for `ssh` and for `penstock run`.
pub struct Fleet {
    pub user: User,
    pub web2: Sshd,
    pub db1: Sshd,
}

impl Fleet {
    pub fn new() -> Self {
        let (user, web2, db1) = (User::new(), Sshd::start(), Sshd::start());
        user.pin("web2", &web2.host_key(), Some(ip(&web2)));
        user.pin("db1", &db1.host_key(), Some(ip(&db1)));
        Self { user, web2, db1 }
    }

    /// Writes the addresses of the hosts to `ssh_config`, followed by penstock's own lines.
    pub fn says(&self, places: &[(&str, &Sshd, &str)]) {
        let mut text = String::new();
        for (name, sshd, more) in places {
            text.push_str(&place(name, sshd));
            text.push_str(more);
        }
        self.user.configure(&(text + &self.user.said(&["known-hosts", "--stanza"])));
    }

    pub fn ssh(&self, arguments: &[&str]) -> Output {
        let config = self.user.home.path().join(".ssh/config");
        let mut ssh = self.user.command(tools::program("ssh"));
        ssh.arg("-F").arg(config).args(arguments).args(["echo", "here"]);
        run_to_end(&mut ssh, secs(120))
    }
}

/// A block of `ssh_config` for a server.
pub fn place(name: &str, sshd: &Sshd) -> String {
    format!(
        "Host {name}\n    HostName {}\n    Port {}\n    User {}\n    IdentityFile {}\n    IdentitiesOnly yes\n    BatchMode yes\n",
        sshd.address,
        sshd.port,
        sshd.user,
        sshd.client_key.display()
    )
}

/// Asserts that no client has tried to log in.
#[track_caller]
pub fn nothing_was_sent(sshd: &Sshd) {
    // sshd may write its line about the end of the connection after the client has ended.
    let log = eventually("the connection has ended before a login", secs(20), || {
        Some(sshd.log()).filter(|log| log.contains("[preauth]"))
    });
    for word in ["Accepted", "Failed", "authenticating user", "Postponed", "userauth"] {
        assert!(!log.contains(word), "{word} in {log}");
    }
}

/// Writes `~/.ssh/known_hosts` as OpenSSH does, with hashed names if `hash` says so.
pub fn write_known_hosts(user: &User, lines: &str, hash: &[&str]) {
    let file = user.home.path().join(".ssh/known_hosts");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, lines).unwrap();
    if !hash.is_empty() {
        let hashed = Command::new(tools::program("ssh-keygen")).args(hash).arg(&file).output().unwrap();
        assert!(hashed.status.success(), "{hashed:?}");
    }
}
