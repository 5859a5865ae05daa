//! A name server on loopback that takes signed updates (RFC 2136): knot with the zone `example.`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::sshd::{free_address, program};
use crate::{eventually, secs};

pub struct Updatable {
    directory: TempDir,
    pub address: SocketAddr,
    knot: Child,
}

impl Updatable {
    /// Starts it. `records` are lines of the zone `example.`. The key `penstock` may update it, the key `reader`
    /// may not.
    pub fn start(records: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let shown = path.display();
        fs::create_dir(path.join("db")).unwrap();
        let (address, port) = free_address();
        let mut keys = String::new();
        for name in ["penstock", "reader"] {
            let secret = random();
            keys.push_str(&format!("  - id: {name}\n    algorithm: hmac-sha256\n    secret: {secret}\n"));
            write_key(&path.join(format!("{name}.key")), name, &secret);
        }
        let text = format!(
            "server:\n  rundir: {shown}\n  listen: {address}@{port}\ndatabase:\n  storage: {shown}/db\n\
             log:\n  - target: stderr\n    any: warning\nkey:\n{keys}\
             acl:\n  - id: updates\n    key: penstock\n    action: update\n\
             template:\n  - id: default\n    storage: {shown}\n    zonefile-sync: -1\n    acl: updates\n\
             zone:\n  - domain: example.\n"
        );
        let zone = format!(
            "$ORIGIN example.\n$TTL 1\n@ SOA ns admin 1 60 60 60 1\n@ NS ns\nns A {address}\n* A 127.0.0.1\n{records}"
        );
        fs::write(path.join("example.zone"), zone).unwrap();
        let config = path.join("knot.conf");
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program("knotd"));
        command.arg("-c").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let knot = command.spawn().unwrap();
        let server = Self { directory, address: SocketAddr::from((address, port)), knot };
        eventually("the zones are served", secs(20), || {
            server.ask("example.", "SOA", 1).contains("admin").then_some(())
        });
        server
    }

    /// File with a key, as `tsig-keygen` writes it.
    pub fn key(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.key"))
    }

    /// Writes a file with a key that the server knows by this name, but with another secret.
    pub fn forged_key(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(format!("forged-{name}.key"));
        write_key(&path, name, &random());
        path
    }

    /// The records of a name, as `kdig +short` prints them.
    pub fn dig(&self, name: &str, kind: &str) -> String {
        self.ask(name, kind, 10)
    }

    /// Waits so many seconds for the answer, also while the server is not there yet.
    fn ask(&self, name: &str, kind: &str, seconds: u32) -> String {
        let (place, limit) = (format!("@{}", self.address.ip()), format!("+time={seconds}"));
        let mut command = Command::new(program("kdig"));
        command.args([
            &place,
            "-p",
            &self.address.port().to_string(),
            "+short",
            &limit,
            "+retry=0",
            name,
            kind,
        ]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
    }
}

impl Drop for Updatable {
    fn drop(&mut self) {
        let _ = self.knot.kill();
        let _ = self.knot.wait();
    }
}

fn random() -> String {
    let output = Command::new(program("openssl")).args(["rand", "-base64", "32"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn write_key(path: &Path, name: &str, secret: &str) {
    let text = format!("key \"{name}\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{secret}\";\n}};\n");
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}
