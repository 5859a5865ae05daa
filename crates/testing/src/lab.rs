//! `penstock lab` as a process: SSH hosts with chosen faults, and a journal of what each host received.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::server::{Lines, binary, clear_environment, run_to_end};
use crate::{eventually, secs, tools};

/// A running lab. Dropping it ends the lab and removes its directory.
pub struct Lab {
    child: Child,
    pub stdout: Lines,
    pub stderr: Lines,
    directory: PathBuf,
    own: Option<TempDir>,
}

impl Lab {
    /// Starts `hosts` hosts in a new directory, with more arguments (`--fault`, ...). Returns when all hosts listen.
    #[track_caller]
    pub fn start(hosts: usize, arguments: &[&str]) -> Self {
        let own = tempfile::Builder::new().prefix("lab").tempdir().unwrap();
        let directory = own.path().join("lab");
        let mut lab = Self::start_in(&directory, hosts, arguments);
        lab.own = Some(own);
        lab
    }

    /// [`Self::start`] in a given directory, which is not removed.
    #[track_caller]
    pub fn start_in(directory: &Path, hosts: usize, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.args(["lab", &hosts.to_string(), "--dir", directory.to_str().unwrap()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        clear_environment(&mut command);
        let mut child = command.spawn().unwrap();
        let stdout = Lines::follow(child.stdout.take().unwrap());
        let stderr = Lines::follow(child.stderr.take().unwrap());
        let deadline = Instant::now() + secs(60);
        while stdout.count("ready: ") == 0 {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the lab ended at once: {ended:?} {:#?}", stderr.tail(20));
            assert!(Instant::now() < deadline, "the lab is not ready: {:#?}", stdout.tail(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, stdout, stderr, directory: directory.to_owned(), own: None }
    }

    /// Path of a file of the lab: `hosts`, `ssh_config`, `known_hosts`, `client_key`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// [`Self::file`] as text, for command lines.
    pub fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    /// The journal of a host.
    #[track_caller]
    pub fn journal(&self, host: &str) -> Vec<String> {
        let text = fs::read_to_string(self.file("journal")).unwrap();
        let own = text.lines().filter_map(|line| line.strip_prefix(host)?.strip_prefix(' '));
        own.map(str::to_owned).collect()
    }

    /// Waits for a line of a host's journal that contains `part`, and returns the line.
    #[track_caller]
    pub fn wait_for(&self, host: &str, part: &str) -> String {
        eventually(&format!("{part:?} in the journal of {host}: {:#?}", self.journal(host)), secs(60), || {
            self.journal(host).into_iter().find(|line| line.contains(part))
        })
    }

    #[track_caller]
    pub fn address(&self, host: &str) -> String {
        let known = fs::read_to_string(self.file("known_hosts")).unwrap();
        let line = known.lines().find_map(|line| line.strip_prefix(host)?.strip_prefix(",["));
        let line = line.unwrap_or_else(|| panic!("no {host} in {known}"));
        line.split_whitespace().next().unwrap().replace(']', "")
    }

    /// Runs OpenSSH's client to its end.
    #[track_caller]
    pub fn ssh(&self, options: &[&str], host: &str, command: &str) -> Output {
        let mut ssh = Command::new(tools::program("ssh"));
        clear_environment(&mut ssh);
        ssh.arg("-F").arg(self.file("ssh_config")).args(options).args([host, command]).stdin(Stdio::null());
        run_to_end(&mut ssh, secs(60))
    }

    /// Ends the lab by SIGTERM. Returns its exit status.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        eventually("the end of the lab", secs(60), || self.child.try_wait().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
