//! `penstock ssh explain` against real OpenSSH servers: each way not to get in, and what is said about it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hosts::ssh::key::PublicKey;
use serde_json::Value;
use tempfile::TempDir;
use testing::agent::RunningAgent;
use testing::secs;
use testing::server::{binary, run_to_end};
use testing::sshd::{Sshd, keygen};

/// A user with a home of their own, who knows the server as web1.
struct Me {
    home: TempDir,
}

impl Me {
    fn knowing(sshd: &Sshd) -> Self {
        let home = tempfile::tempdir().unwrap();
        let hosts = home.path().join(".config/penstock/hosts");
        fs::create_dir_all(&hosts).unwrap();
        fs::create_dir(home.path().join(".ssh")).unwrap();
        let key: PublicKey = sshd.host_key().parse().unwrap();
        let pin = format!("id web1\npin {key} {} from=console 2026-03-01\n", key.fingerprint());
        fs::write(hosts.join("web1.host"), pin).unwrap();
        for directory in [".config", ".config/penstock", ".config/penstock/hosts", ".ssh"] {
            fs::set_permissions(home.path().join(directory), fs::Permissions::from_mode(0o700)).unwrap();
        }
        Self { home }
    }

    fn explain(&self, sshd: &Sshd, lines: &str, arguments: &[&str]) -> (Output, String) {
        let config = self.home.path().join("ssh_config");
        let text = format!(
            "Host web1\n HostName {}\n Port {}\n{lines}\nHost *\n User {}\n",
            sshd.address, sshd.port, sshd.user
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(binary());
        command.args(["ssh", "explain", "web1", "-F"]).arg(&config).args(arguments).stdin(Stdio::null());
        for variable in ["SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SSH_ASKPASS", "DISPLAY"] {
            command.env_remove(variable);
        }
        command.env("HOME", self.home.path());
        let output = run_to_end(&mut command, secs(30));
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output, said)
    }

    fn key(&self, name: &str) -> PathBuf {
        let path = self.home.path().join(name);
        keygen(&path, &["-t", "ed25519"]);
        path
    }
}

fn identity(path: &Path) -> String {
    format!(" IdentitiesOnly yes\n IdentityFile {}\n", path.display())
}

#[test]
fn a_log_in_is_told_from_the_configuration_to_the_key() {
    let sshd = Sshd::start();
    let me = Me::knowing(&sshd);
    let (output, said) = me.explain(&sshd, &identity(&sshd.client_key), &[]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for part in [
        "ssh_config:2)",
        "SSH-2.0-OpenSSH",
        "identity    web1 at ",
        "accepted",
        "cipher ",
        "done        logged in as",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.contains(sshd.client_key.to_str().unwrap()), "{said}");
    let (_, json) = me.explain(&sshd, &identity(&sshd.client_key), &["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["failure"].is_null() && json["steps"].as_array().unwrap().len() > 4, "{json:#}");
}

#[test]
fn a_key_that_the_server_does_not_know_is_named_with_what_to_do() {
    let sshd = Sshd::start();
    let me = Me::knowing(&sshd);
    let other = me.key("other");
    let (output, said) = me.explain(&sshd, &identity(&other), &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("other (ED25519") && said.contains("refused"), "{said}");
    assert!(said.contains("advice      ") && said.contains("ssh-copy-id"), "{said}");
}

#[test]
fn no_key_at_all_is_told_as_such() {
    let sshd = Sshd::start();
    let (output, said) = Me::knowing(&sshd).explain(&sshd, "", &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no key was offered") && said.contains("ssh-keygen"), "{said}");
    assert!(said.contains("no agent was asked"), "{said}");
}

#[test]
fn a_key_that_others_can_read_is_not_used() {
    let sshd = Sshd::start();
    let me = Me::knowing(&sshd);
    let open = me.key("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let (output, said) = me.explain(&sshd, &identity(&open), &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("chmod"), "{said}");
}

#[test]
fn a_server_that_hangs_up_after_too_many_keys_is_told_as_such() {
    let sshd = Sshd::with("MaxAuthTries 3");
    let me = Me::knowing(&sshd);
    let keys: String = (0..6).map(|at| identity(&me.key(&format!("key{at}")))).collect();
    let (output, said) = me.explain(&sshd, &format!("{keys}{}", identity(&sshd.client_key)), &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("counts each key as a try"), "{said}");
}

#[test]
fn a_server_that_wants_another_method_is_told_as_such() {
    let sshd = Sshd::with("PubkeyAuthentication no\nPasswordAuthentication yes");
    let (output, said) = Me::knowing(&sshd).explain(&sshd, &identity(&sshd.client_key), &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the server accepts only password"), "{said}");
}

#[test]
fn an_unknown_host_gets_no_key_shown() {
    let sshd = Sshd::start();
    let me = Me::knowing(&sshd);
    fs::remove_file(me.home.path().join(".config/penstock/hosts/web1.host")).unwrap();
    let (output, said) = me.explain(&sshd, &identity(&sshd.client_key), &[]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("refused: ") && !said.contains("log in "), "{said}");
}

/// An agent that passes everything on to a real one, and spoils every signature.
fn spoiled(real: PathBuf, socket: &Path) {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};
    let message = |from: &mut UnixStream| {
        let mut length = [0; 4];
        from.read_exact(&mut length).ok()?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        from.read_exact(&mut body).ok().map(|()| (length, body))
    };
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut real) = (client.unwrap(), UnixStream::connect(&real).unwrap());
            std::thread::spawn(move || {
                while let Some((length, body)) = message(&mut client) {
                    real.write_all(&[&length[..], &body].concat()).unwrap();
                    let (length, mut answer) = message(&mut real).unwrap();
                    if answer[0] == SIGN_RESPONSE {
                        *answer.last_mut().unwrap() ^= 1;
                    }
                    client.write_all(&[&length[..], &answer].concat()).unwrap();
                }
            });
        }
    });
}

/// draft-ietf-sshm-ssh-agent section 6.1.
const SIGN_RESPONSE: u8 = 14;

#[test]
fn agent_that_signs_wrongly_is_blamed_and_not_the_server() {
    let sshd = Sshd::start();
    let me = Me::knowing(&sshd);
    let real = RunningAgent::start();
    real.load(&sshd.client_key);
    let socket = me.home.path().join("spoiled");
    spoiled(real.socket(), &socket);
    let said = |socket: &Path| {
        let lines = format!(" IdentityAgent {}\n IdentityFile none\n", socket.display());
        me.explain(&sshd, &lines, &[])
    };
    let (output, told) = said(&real.socket());
    assert!(output.status.success(), "{told}");
    let (output, told) = said(&socket);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("the agent made a wrong signature with this key"), "{told}");
    assert!(told.contains("the fault is the agent's, not the server's"), "{told}");
    assert!(!told.contains("refused after we signed"), "{told}");
    assert_eq!(sshd.log().matches("Failed publickey").count(), 0, "{}", sshd.log());
}
