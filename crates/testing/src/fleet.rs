//! `penstock run` with its own home directory, against a real sshd that stands for several hosts, or against the lab.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::secs;
use crate::server::{binary, clear_environment, run_to_end};
use crate::sshd::{Sshd, public_line};

/// A home directory, and an `ssh_config` with the hosts.
pub struct Fleet {
    /// Directory for state and files.
    pub home: TempDir,
    config: PathBuf,
}

/// A server, and the keys for a log-in.
pub struct Destination<'a> {
    pub address: Ipv4Addr,
    pub port: u16,
    pub user: &'a str,
    pub host_key: PathBuf,
    pub client_key: &'a Path,
}

#[derive(Debug)]
pub struct RunResult {
    pub code: Option<i32>,
    pub stdout: String,
    /// Standard error of the run.
    pub stderr: String,
}

impl Fleet {
    /// Creates a fleet whose hosts `h1` to `h9` are one sshd; `away` refuses connections.
    pub fn of(sshd: &Sshd) -> Self {
        Self::of_each(&[sshd; 9])
    }

    /// Creates a fleet whose hosts `h1`, `h2` and so on are `sshds`, in this order; `away` refuses connections.
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

    /// [`Self::of_each`] for servers of any kind.
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
        // `~/.ssh/config`, for programs that read only that file.
        fs::create_dir(home.path().join(".ssh")).unwrap();
        std::os::unix::fs::symlink(&config, home.path().join(".ssh/config")).unwrap();
        Self { home, config }
    }

    /// Creates a fleet with the hosts of a lab; `config` is the `ssh_config` of the lab.
    pub fn of_lab(config: &Path) -> Self {
        Self { home: tempfile::tempdir().unwrap(), config: config.to_owned() }
    }

    /// Adds lines of `ssh_config` for all hosts, before the others, so that they take precedence.
    pub fn configure(&self, lines: &str) {
        let text = fs::read_to_string(&self.config).unwrap();
        fs::write(&self.config, format!("Host *\n{lines}\n{text}")).unwrap();
    }

    /// OpenSSH's client with the same configuration.
    pub fn ssh(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::sshd::program("ssh"));
        command.arg("-F").arg(&self.config).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        self.penstock("run", arguments)
    }

    /// The subcommand `name`, which takes hosts as `run` does.
    pub fn penstock(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
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

    /// Runs `penstock run` to its end. The time limit only detects a process that hangs: a busy machine may take long.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> RunResult {
        told(run_to_end(&mut self.command(arguments), secs(300)))
    }

    /// The record of the last run for a host, plus `run`: whether the run still runs. Null before the run begins.
    #[track_caller]
    pub fn recorded(&self, host: usize) -> Value {
        let told = self.run(&["--last", "--json"]);
        let Ok(mut record) = serde_json::from_str::<Value>(&told.stdout) else { return Value::Null };
        let mut found = record["hosts"][host].take();
        found["run"] = record["state"].take();
        found
    }

    pub fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.path().join("state/penstock/runs"));
        entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

fn fingerprint(file: &Path) -> String {
    let output = Command::new(crate::sshd::program("ssh-keygen")).arg("-lf").arg(file).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned()
}

pub fn told(output: Output) -> RunResult {
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    RunResult { code: output.status.code(), stdout, stderr }
}

/// Sorted lines: the order of hosts varies.
pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}
