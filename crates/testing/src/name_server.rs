//! A name server on loopback whose records a test changes: knot, at port 53 of an address of its own, so that programs
//! with a resolv.conf of their own find it.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::sshd::{free_address, program};
use crate::{eventually, secs};

/// The zone `test.` Dropping it ends the server.
pub struct NameServer {
    directory: TempDir,
    address: Ipv4Addr,
    knot: Option<Child>,
}

impl NameServer {
    /// Starts it. `records` are lines of the zone, such as `app A 127.0.0.2`.
    pub fn start(records: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let shown = path.display();
        fs::create_dir(path.join("db")).unwrap();
        let (address, _) = free_address();
        let text = format!(
            "server:\n  rundir: {shown}\n  listen: {address}@53\ndatabase:\n  storage: {shown}/db\n\
             log:\n  - target: stderr\n    any: warning\n\
             acl:\n  - id: updates\n    address: 127.0.0.0/8\n    action: update\n\
             template:\n  - id: default\n    storage: {shown}\n    zonefile-sync: -1\n    acl: updates\n\
             zone:\n  - domain: test.\n"
        );
        let zone = format!(
            "$ORIGIN test.\n$TTL 1\n@ SOA ns admin 1 60 60 60 1\n@ NS ns\nns A {address}\n{records}\n"
        );
        fs::write(path.join("test.zone"), zone).unwrap();
        fs::write(path.join("knot.conf"), text).unwrap();
        // A busy machine may keep it from its turn for a second. Penstock waits for five.
        let resolv = format!("nameserver {address}\noptions timeout:4 attempts:1\n");
        fs::write(path.join("resolv.conf"), resolv).unwrap();
        let mut server = Self { directory, address, knot: None };
        server.start_again();
        server
    }

    /// A resolv.conf(5) that leads to this server alone.
    pub fn resolv_conf(&self) -> PathBuf {
        self.directory.path().join("resolv.conf")
    }

    /// Starts the server after [`Self::stop`].
    pub fn start_again(&mut self) {
        let mut command = Command::new(program("knotd"));
        command.arg("-c").arg(self.directory.path().join("knot.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.knot = Some(command.spawn().unwrap());
        eventually("the zone is served", secs(20), || {
            self.dig("test.", "SOA").contains("admin").then_some(())
        });
    }

    pub fn stop(&mut self) {
        if let Some(mut knot) = self.knot.take() {
            let _ = knot.kill();
            let _ = knot.wait();
        }
    }

    /// Changes records, in one step: lines such as `add app.test. 1 A 127.0.0.2` and `del app.test. A`.
    #[track_caller]
    pub fn update(&self, lines: &[&str]) {
        let mut command = Command::new(program("knsupdate"));
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let text = format!("server {} 53\nzone test.\n{}\nsend\nquit\n", self.address, lines.join("\n"));
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{text}: {output:?}");
    }

    /// The records of a name, as `kdig +short` prints them.
    pub fn dig(&self, name: &str, kind: &str) -> String {
        let place = format!("@{}", self.address);
        let mut command = Command::new(program("kdig"));
        command.args([&place, "+short", "+time=4", "+retry=0", name, kind]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop();
    }
}
