//! `penstock run` with a home of its own, against a real sshd that stands for several hosts, or against the lab.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::secs;
use super::server::{BINARY, clear_environment, run_to_end};
use super::sshd::{Sshd, public_line};

/// A home directory, and the `ssh_config` that leads to the hosts.
pub struct Fleet {
    /// Where state and files go.
    pub home: TempDir,
    config: PathBuf,
}

/// A server, and how to log in to it.
pub struct Destination<'a> {
    pub address: Ipv4Addr,
    pub port: u16,
    pub user: &'a str,
    /// Its public key file.
    pub host_key: PathBuf,
    pub client_key: &'a Path,
}

/// How a run ended.
#[derive(Debug)]
pub struct Told {
    /// Its exit status.
    pub code: Option<i32>,
    /// What hosts said.
    pub stdout: String,
    /// What was said of the run.
    pub stderr: String,
}

impl Fleet {
    /// `h1` to `h9` are one sshd; `away` refuses connections.
    pub fn of(sshd: &Sshd) -> Self {
        Self::of_each(&[sshd; 9])
    }

    /// `h1` is the first of these, `h2` the second and so on; `away` refuses connections.
    pub fn of_each(sshds: &[&Sshd]) -> Self {
        let places: Vec<_> = sshds
            .iter()
            .map(|sshd| Destination {
                address: sshd.address,
                port: sshd.port,
                user: &sshd.user,
                host_key: sshd.directory.path().join("host.pub"),
                client_key: &sshd.client_key,
            })
            .collect();
        Self::of_places(&places)
    }

    /// The same, of servers of any kind.
    pub fn of_places(places: &[Destination]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("ssh_config");
        let known = home.path().join("known_hosts");
        let pins = home.path().join("config/penstock/hosts");
        fs::create_dir_all(&pins).unwrap();
        let (mut text, mut keys) = (String::new(), String::new());
        for (at, place) in places.iter().enumerate() {
            let Destination { address, port, user, host_key, client_key } = place;
            let (host, key) = (format!("h{}", at + 1), public_line(host_key));
            keys.push_str(&format!("{host},[{address}]:{port} {key}\n"));
            let pin = format!("id {host}\npin {key} {} from=console 2026-03-01\n", fingerprint(host_key));
            fs::write(pins.join(format!("{host}.host")), pin).unwrap();
            let client_key = client_key.display();
            text.push_str(&format!(
                "Host {host}\n  HostName {address}\n  Port {port}\n  User {user}\n  IdentityFile {client_key}\n"
            ));
        }
        text.push_str(&format!(
            "Host away\n  HostName 127.0.0.1\n  Port 1\nHost h* away\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\n  \
             UserKnownHostsFile {}\n  GlobalKnownHostsFile none\n",
            known.display()
        ));
        fs::write(&known, keys).unwrap();
        fs::write(&config, text).unwrap();
        // For what takes the user's own.
        fs::create_dir(home.path().join(".ssh")).unwrap();
        std::os::unix::fs::symlink(&config, home.path().join(".ssh/config")).unwrap();
        Self { home, config }
    }

    /// Hosts of a lab, by its own `ssh_config`.
    pub fn of_lab(config: &Path) -> Self {
        Self { home: tempfile::tempdir().unwrap(), config: config.to_owned() }
    }

    /// Lines of `ssh_config` for all hosts. They come first, so they win.
    pub fn configure(&self, lines: &str) {
        let text = fs::read_to_string(&self.config).unwrap();
        fs::write(&self.config, format!("Host *\n{lines}\n{text}")).unwrap();
    }

    /// The `ssh` of this machine, with the same configuration.
    pub fn ssh(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(super::sshd::program("ssh"));
        command.arg("-F").arg(&self.config).args(arguments).stdin(Stdio::null());
        command
    }

    /// `penstock run`, ready to start.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.penstock("run", arguments)
    }

    /// A command that takes hosts as `run` does, ready to start.
    pub fn penstock(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        clear_environment(&mut command);
        command.arg(name);
        if name != "tunnel"
            && !arguments.iter().any(|argument| ["--again", "--last", "-F"].contains(argument))
        {
            command.arg("-F").arg(&self.config);
        }
        command.args(arguments).stdin(Stdio::null());
        for (name, place) in [("HOME", ""), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config")] {
            command.env(name, self.home.path().join(place));
        }
        command
    }

    /// `penstock run` to its end. The limit is for what hangs: a busy machine may take long.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Told {
        told(run_to_end(&mut self.command(arguments), secs(300)))
    }

    /// What the record of the last run has of a host, and as `run` whether that run goes on; null before it begins.
    #[track_caller]
    pub fn recorded(&self, host: usize) -> Value {
        let told = self.run(&["--last", "--json"]);
        let Ok(mut record) = serde_json::from_str::<Value>(&told.stdout) else { return Value::Null };
        let mut found = record["hosts"][host].take();
        found["run"] = record["state"].take();
        found
    }

    /// Its journals.
    pub fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.path().join("state/penstock/runs"));
        entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

fn fingerprint(file: &Path) -> String {
    let output = Command::new(super::sshd::program("ssh-keygen")).arg("-lf").arg(file).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

/// An output as text.
pub fn told(output: Output) -> Told {
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Told { code: output.status.code(), stdout, stderr }
}

/// Lines in an order of their own: hosts come as they come.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}
