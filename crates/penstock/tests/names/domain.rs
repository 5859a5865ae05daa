//! The zone `example.test.` (or another one), signed, at several knot servers, each at port 53 of an address of its own, with a validating
//! resolver before them (unbound). The first server is the primary, and takes updates signed with the key `penstock`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;
use testing::server::{clear_environment, run_to_end};
use testing::sshd::{free_address, program};
use testing::{eventually, secs};

pub(crate) struct Domain {
    directory: TempDir,
    /// Name of the zone, with its final dot.
    zone: String,
    pub(crate) servers: Vec<Ipv4Addr>,
    pub(crate) resolver: Ipv4Addr,
    processes: Vec<Option<Child>>,
}

/// Settings of a zone.
pub(crate) struct Settings<'a> {
    /// Name of the zone, without its final dot.
    pub(crate) zone: &'a str,
    pub(crate) servers: usize,
    pub(crate) records: &'a str,
    /// Lines of the DNSSEC policy, such as `rrsig-lifetime: 1d`.
    pub(crate) policy: &'a str,
    pub(crate) signing: bool,
    /// TTL of the zone.
    pub(crate) ttl: u32,
    /// Words before the command of the primary server.
    pub(crate) before: &'a [&'a str],
    /// `iterator`, or `validator iterator`.
    pub(crate) modules: &'a str,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self {
            zone: "example.test",
            servers: 1,
            records: "",
            policy: "",
            signing: true,
            ttl: 60,
            before: &[],
            modules: "validator iterator",
        }
    }
}

impl Domain {
    pub(crate) fn start() -> Self {
        Self::with(&Settings::default())
    }

    pub(crate) fn with(settings: &Settings<'_>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let servers: Vec<Ipv4Addr> = (0..settings.servers).map(|_| free_address().0).collect();
        let zone = format!("{}.", settings.zone);
        let resolver = free_address().0;
        let mut domain = Self { directory, zone, servers, resolver, processes: Vec::new() };
        let keys: String = ["penstock", "reader", "transfer"].map(|name| domain.make_key(name)).concat();
        for at in 0..settings.servers {
            domain.configure(at, &keys, settings);
        }
        let config = domain.file("knot0.conf");
        if settings.signing {
            keymgr(&config, &[&domain.zone, "generate", "algorithm=ecdsap256sha256", "ksk=yes", "zsk=yes"]);
            let key = keymgr(&config, &[&domain.zone, "dnskey"]);
            let words: Vec<&str> = key.split_whitespace().skip_while(|word| *word != "DNSKEY").collect();
            fs::write(domain.file("anchor"), format!("{} 60 IN {}\n", domain.zone, words.join(" "))).unwrap();
        }
        for at in 0..settings.servers {
            domain.processes.push(None);
            domain.start_server(at, if at == 0 { settings.before } else { &[] });
        }
        domain.start_resolver(settings);
        domain
    }

    fn make_key(&self, name: &str) -> String {
        let output = Command::new(program("openssl")).args(["rand", "-base64", "32"]).output().unwrap();
        let secret = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let text = format!("key \"{name}\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{secret}\";\n}};\n");
        self.write_key(name, &text);
        format!("  - id: {name}\n    algorithm: hmac-sha256\n    secret: {secret}\n")
    }

    /// Writes a file with a key, which other users cannot read.
    pub(crate) fn write_key(&self, name: &str, text: &str) {
        fs::write(self.key(name), text).unwrap();
        fs::set_permissions(self.key(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn configure(&self, at: usize, keys: &str, settings: &Settings<'_>) {
        let path = self.file(&format!("server{at}"));
        fs::create_dir_all(path.join("db")).unwrap();
        let (shown, address, primary) = (path.display(), self.servers[at], self.servers[0]);
        let others: String = self
            .servers
            .iter()
            .skip(1)
            .map(|other| format!("  - id: s{other}\n    address: {other}@53\n    key: transfer\n"))
            .collect();
        let notify: Vec<String> = self.servers.iter().skip(1).map(|other| format!("s{other}")).collect();
        let (remotes, zone) = match at {
            0 => (
                others,
                format!(
                    "    zonefile-load: whole\n    zonefile-sync: -1\n    acl: [updates, transfers]\n    notify: [{}]\n    dnssec-signing: {}\n    \
                     dnssec-policy: ours\n",
                    notify.join(", "),
                    if settings.signing { "on" } else { "off" }
                ),
            ),
            _ => (
                format!("  - id: primary\n    address: {primary}@53\n    key: transfer\n"),
                "    master: primary\n    acl: transfers\n".to_owned(),
            ),
        };
        let remotes = if remotes.is_empty() { String::new() } else { format!("remote:\n{remotes}") };
        let zone = zone.replace("    notify: []\n", "");
        let text = format!(
            "server:\n  rundir: {shown}\n  listen: {address}@53\ndatabase:\n  storage: {shown}/db\n\
             log:\n  - target: stderr\n    any: warning\nkey:\n{keys}{remotes}\
             acl:\n  - id: updates\n    key: penstock\n    action: update\n  - id: transfers\n    key: transfer\n    action: [transfer, notify]\n\
             policy:\n  - id: ours\n    manual: on\n    algorithm: ecdsap256sha256\n{}\
             template:\n  - id: default\n    storage: {shown}\n\
             zone:\n  - domain: {}\n{zone}",
            settings.policy, self.zone
        );
        fs::write(self.file(&format!("knot{at}.conf")), text).unwrap();
        if at == 0 {
            let names: String = self
                .servers
                .iter()
                .enumerate()
                .map(|(at, other)| format!("@ NS ns{at}\nns{at} A {other}\n"))
                .collect();
            let (ttl, records) = (settings.ttl, settings.records);
            let zone = format!(
                "$ORIGIN {}\n$TTL {ttl}\n@ SOA ns0 admin 1 2 2 60 {ttl}\n{names}{records}\n",
                self.zone
            );
            fs::write(path.join(format!("{}zone", self.zone)), zone).unwrap();
        }
    }

    /// Starts a server (again).
    pub(crate) fn start_server(&mut self, at: usize, before: &[&str]) {
        let knot = program("knotd").display().to_string();
        let config = self.file(&format!("knot{at}.conf")).display().to_string();
        let words = [before, &[&knot, "-c", &config]].concat();
        let mut command = Command::new(program(words[0]));
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes[at] = Some(command.spawn().unwrap());
        let address = self.servers[at];
        eventually("the zone is served", secs(20), || {
            dig(address, &self.zone, "SOA", 1).contains("admin").then_some(())
        });
    }

    pub(crate) fn stop_server(&mut self, at: usize) {
        if let Some(mut process) = self.processes[at].take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn start_resolver(&mut self, settings: &Settings<'_>) {
        let (path, mine, primary) =
            (self.directory.path().display().to_string(), self.resolver, self.servers[0]);
        let anchor = match settings.signing {
            true => format!("  trust-anchor-file: \"{path}/anchor\"\n"),
            false => String::new(),
        };
        let text = format!(
            "server:\n  interface: {mine}@53\n  chroot: \"\"\n  username: \"\"\n  directory: \"{path}\"\n  pidfile: \"\"\n  \
             use-syslog: no\n  do-daemonize: no\n  do-not-query-localhost: no\n  module-config: \"{}\"\n  cache-max-negative-ttl: 1\n  \
             access-control: 127.0.0.0/8 allow\n  local-zone: \"test.\" nodefault\n{anchor}\
             remote-control:\n  control-enable: no\nstub-zone:\n  name: \"{}\"\n  stub-addr: {primary}@53\n",
            settings.modules, self.zone
        );
        let config = self.file("unbound.conf");
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program("unbound"));
        command.arg("-d").arg("-c").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.processes.push(Some(command.spawn().unwrap()));
        let resolv = format!("nameserver {mine}\noptions trust-ad timeout:2 attempts:2\n");
        fs::write(self.file("resolv.conf"), resolv).unwrap();
        eventually("the resolver answers", secs(20), || {
            dig(mine, &self.zone, "SOA", 1).contains("admin").then_some(())
        });
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// File with a key for updates.
    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.key"))
    }

    /// DNSKEY records of the zone.
    pub(crate) fn anchor(&self) -> String {
        self.file("anchor").display().to_string()
    }

    /// What a server says, as `kdig +short` prints it.
    pub(crate) fn dig(&self, server: usize, name: &str, kind: &str) -> String {
        dig(self.servers[server], name, kind, 10)
    }

    /// Arguments of `penstock dns push` for the primary server.
    pub(crate) fn primary(&self) -> Vec<String> {
        let key = self.key("penstock").display().to_string();
        vec!["--server".into(), self.servers[0].to_string(), "--tsig".into(), key]
    }

    /// Arguments of `penstock dns check`.
    pub(crate) fn path(&self) -> Vec<String> {
        vec![
            "--anchor".into(),
            self.anchor(),
            "--dns-server".into(),
            SocketAddr::from((self.resolver, 53)).to_string(),
        ]
    }

    /// A command with this resolver as that of the system.
    pub(crate) fn resolving(&self, words: &[&str]) -> Command {
        self.within("mount --bind \"$0/resolv.conf\" /etc/resolv.conf && exec \"$@\"", words)
    }

    /// The same, with the keys of this zone in place of those of the root, for programs that validate themselves.
    pub(crate) fn validating(&self, words: &[&str]) -> Command {
        let script = "mount --bind \"$0/resolv.conf\" /etc/resolv.conf && \
                      mount --bind \"$0/anchor\" /usr/share/dns/root.key && exec \"$@\"";
        self.within(script, words)
    }

    fn within(&self, script: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program("unshare"));
        command.args(["-m", "sh", "-c", script]).arg(self.directory.path()).args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Waits so many seconds for the answer, also where no server is yet.
fn dig(server: Ipv4Addr, name: &str, kind: &str, seconds: u32) -> String {
    let (place, limit) = (format!("@{server}"), format!("+time={seconds}"));
    let mut command = Command::new(program("kdig"));
    command.args([&place, "+short", &limit, "+retry=0", name, kind]);
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}

fn keymgr(config: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program("keymgr")).arg("-c").arg(config).args(arguments).output().unwrap();
    assert!(output.status.success(), "keymgr {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A home directory with what the tests publish.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    pub(crate) fn penstock<S: AsRef<str>>(&self, arguments: &[S]) -> Output {
        let mut command = Command::new(testing::binary());
        clear_environment(&mut command);
        command.args(arguments.iter().map(AsRef::as_ref)).stdin(Stdio::null());
        self.settle(&mut command);
        run_to_end(&mut command, secs(90))
    }

    /// Makes it the home of a command.
    pub(crate) fn settle(&self, command: &mut Command) {
        command.env("HOME", self.path()).env("GNUPGHOME", self.path().join("gnupg"));
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
    }

    /// Runs it with success and returns what it prints.
    #[track_caller]
    pub(crate) fn said<S: AsRef<str>>(&self, arguments: &[S]) -> String {
        let output = self.penstock(arguments);
        assert!(
            output.status.success(),
            "{:?}: {output:?}",
            arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it and returns its complaint; it must end with this code.
    #[track_caller]
    pub(crate) fn refused<S: AsRef<str>>(&self, arguments: &[S], code: i32) -> String {
        let output = self.penstock(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs a program to its end, with success.
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(program(words[0]));
        command.args(&words[1..]).stdin(Stdio::null());
        self.settle(&mut command);
        let output = run_to_end(&mut command, secs(60));
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes an OpenPGP key with these user IDs and returns the file with its public part.
    pub(crate) fn openpgp(&self, users: &[&str]) -> String {
        let gnupg = self.path().join("gnupg");
        fs::create_dir_all(&gnupg).unwrap();
        fs::set_permissions(&gnupg, fs::Permissions::from_mode(0o700)).unwrap();
        let gpg = ["gpg", "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"];
        self.run(&[&gpg[..], &["--quick-gen-key", users[0], "ed25519", "sign", "never"]].concat());
        let listed = self.run(&["gpg", "--batch", "--with-colons", "--list-keys", users[0]]);
        let fingerprint = listed.lines().find_map(|line| line.strip_prefix("fpr:::::::::")).unwrap();
        let fingerprint = fingerprint.trim_end_matches(':').to_owned();
        self.run(&[&gpg[..], &["--quick-add-key", &fingerprint, "cv25519", "encr", "never"]].concat());
        for user in &users[1..] {
            self.run(&[&gpg[..], &["--quick-add-uid", &fingerprint, user]].concat());
        }
        let file = self.file("key.pub");
        self.run(&["gpg", "--batch", "--yes", "--output", &file, "--export", &fingerprint]);
        file
    }
}

/// gpg starts an agent that would outlive the test.
impl Drop for Home {
    fn drop(&mut self) {
        if self.path().join("gnupg").exists() {
            let mut command = Command::new(program("gpgconf"));
            command.args(["--kill", "all"]).stdin(Stdio::null());
            self.settle(&mut command);
            let _ = command.output();
        }
    }
}
