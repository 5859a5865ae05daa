//! A signed DNS zone on loopback: knot serves it, unbound forwards to knot without validation, so that a client must
//! validate the answers itself.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::eventually;
use crate::sshd::{free_address, program};

/// The zones `lan.` (signed; its key is the trust anchor), `fleet.lan.` (signed), `plain.lan.` (not signed) and
/// `bogus.lan.` (signed with another key than that in its parent). Dropping `Zones` ends both servers.
pub struct Zones {
    directory: TempDir,
    pub resolver: SocketAddr,
    knot: Child,
    unbound: Child,
}

impl Zones {
    /// Starts both servers. `records` are lines such as `web1 SSHFP 4 2 ...`, for `fleet.lan.`, `plain.lan.` and
    /// `bogus.lan.` alike.
    pub fn start(records: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["zones", "db"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        let (address, port) = free_address();
        let shown = path.display();
        let config = path.join("knot.conf");
        let zones: String =
            ["lan.", "fleet.lan.", "bogus.lan."].map(|zone| format!("  - domain: {zone}\n")).concat();
        let text = format!(
            "server:\n  rundir: {shown}\n  listen: {address}@{port}\ndatabase:\n  storage: {shown}/db\n\
             log:\n  - target: stderr\n    any: warning\n\
             policy:\n  - id: ours\n    manual: on\n    algorithm: ecdsap256sha256\n\
             template:\n  - id: default\n    storage: {shown}/zones\n    zonefile-sync: -1\n    journal-content: none\n    \
             dnssec-signing: on\n    dnssec-policy: ours\n\
             zone:\n{zones}  - domain: plain.lan.\n    dnssec-signing: off\n"
        );
        fs::write(&config, text).unwrap();
        for zone in ["lan.", "fleet.lan.", "bogus.lan."] {
            keymgr(&config, &[zone, "generate", "algorithm=ecdsap256sha256", "ksk=yes", "zsk=yes"]);
        }
        let ds = |zone: &str| {
            let lines = keymgr(&config, &[zone, "ds"]);
            lines.lines().find(|line| line.split_whitespace().nth(4) == Some("2")).unwrap().to_owned()
        };
        // The DS record in the parent is for a key that bogus.lan. does not have.
        let digest = "0123456789abcdef".repeat(4);
        let mut wrong: Vec<String> = ds("bogus.lan.").split_whitespace().map(str::to_owned).collect();
        *wrong.last_mut().unwrap() = digest;
        let head = |zone: &str| {
            format!("$ORIGIN {zone}\n$TTL 60\n@ SOA ns admin 1 60 60 60 60\n@ NS ns\nns A {address}\n")
        };
        let children: String = ["fleet", "plain", "bogus"].map(|child| format!("{child} NS ns\n")).concat();
        let parent = format!("{}{children}{}\n{}\n", head("lan."), ds("fleet.lan."), wrong.join(" "));
        fs::write(path.join("zones/lan.zone"), parent).unwrap();
        for child in ["fleet.lan", "plain.lan", "bogus.lan"] {
            fs::write(
                path.join(format!("zones/{child}.zone")),
                format!("{}{records}", head(&format!("{child}."))),
            )
            .unwrap();
        }
        let key = keymgr(&config, &["lan.", "dnskey"]);
        let words: Vec<&str> = key.split_whitespace().skip_while(|word| *word != "DNSKEY").collect();
        fs::write(path.join("anchor"), format!("lan. 60 IN {}\n", words.join(" "))).unwrap();

        let knot = quiet(Command::new(program("knotd")).arg("-c").arg(&config));
        let (mine, own_port) = free_address();
        let stubs: String = ["lan.", "fleet.lan.", "plain.lan.", "bogus.lan."]
            .map(|zone| format!("stub-zone:\n  name: \"{zone}\"\n  stub-addr: {address}@{port}\n"))
            .concat();
        let text = format!(
            "server:\n  interface: {mine}@{own_port}\n  chroot: \"\"\n  username: \"\"\n  directory: \"{shown}\"\n  pidfile: \"\"\n  \
             use-syslog: no\n  do-daemonize: no\n  do-not-query-localhost: no\n  module-config: \"iterator\"\n  \
             access-control: 127.0.0.0/8 allow\nremote-control:\n  control-enable: no\n{stubs}"
        );
        let config = path.join("unbound.conf");
        fs::write(&config, text).unwrap();
        let unbound = quiet(Command::new(program("unbound")).arg("-d").arg("-c").arg(&config));
        let zones = Self { resolver: SocketAddr::from((mine, own_port)), directory, knot, unbound };
        eventually("the zones are served", Duration::from_secs(20), || {
            let answers = |zone: &str| {
                zones.dig(&[zone, "SOA"]).contains("SOA") || zones.dig(&[zone, "SOA"]).contains("admin")
            };
            ["lan.", "fleet.lan.", "plain.lan.", "bogus.lan."].iter().all(|zone| answers(zone)).then_some(())
        });
        zones
    }

    pub fn anchor(&self) -> PathBuf {
        self.directory.path().join("anchor")
    }

    fn dig(&self, question: &[&str]) -> String {
        let output = Command::new(program("kdig"))
            .args([
                &format!("@{}", self.resolver.ip()),
                "-p",
                &self.resolver.port().to_string(),
                "+short",
                "+time=1",
                "+retry=0",
            ])
            .args(question)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Zones {
    fn drop(&mut self) {
        for child in [&mut self.knot, &mut self.unbound] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn keymgr(config: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program("keymgr")).arg("-c").arg(config).args(arguments).output().unwrap();
    assert!(output.status.success(), "keymgr {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
