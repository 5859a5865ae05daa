//! An environment for tunnels: a home and a state directory, an `ssh` that knows one sshd, and the real binary.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::server::binary;
use crate::shown::show;
use crate::sshd::{Sshd, program};
use crate::{eventually, secs, tools};

/// One sshd with the name `far`, and the files that `penstock tunnel` needs.
pub struct Place {
    pub sshd: Sshd,
    pub directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self::with(Sshd::start())
    }

    pub fn with(sshd: Sshd) -> Self {
        let place = Self { sshd, directory: tempfile::tempdir().unwrap() };
        for name in ["bin", "home", "state", "run"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        let sshd = &place.sshd;
        let known = format!("[{}]:{} {}\n", sshd.address, sshd.port, sshd.host_key());
        fs::write(place.path("known_hosts"), known).unwrap();
        let config = format!(
            "Host far\n HostName {}\n Port {}\n User {}\n IdentityFile {}\n IdentitiesOnly yes\n UserKnownHostsFile {}\n \
             StrictHostKeyChecking yes\n",
            sshd.address,
            sshd.port,
            sshd.user,
            sshd.client_key.display(),
            place.path("known_hosts").display()
        );
        fs::write(place.path("ssh_config"), &config).unwrap();
        // The same host for our own client, which verifies hosts by pins.
        fs::create_dir_all(place.path("home/.ssh")).unwrap();
        std::os::unix::fs::symlink(place.path("ssh_config"), place.path("home/.ssh/config")).unwrap();
        place.pin(&place.sshd.host_key());
        // This `ssh` hangs while the file `hang-ssh` exists.
        place.script(
            "bin/ssh",
            &format!(
                "while [ -e {0}/hang-ssh ]; do sleep 0.02; done\nexec {1} -F {0}/ssh_config \"$@\"",
                place.directory.path().display(),
                program("ssh").display()
            ),
        );
        place
    }

    /// Sets the only pin of `far`.
    pub fn pin(&self, key: &str) {
        let key = key.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let directory = self.path("home/.config/penstock/hosts");
        fs::create_dir_all(&directory).unwrap();
        let public = self.path("pinned.pub");
        fs::write(&public, format!("{key}\n")).unwrap();
        let told = Command::new(program("ssh-keygen")).arg("-lf").arg(&public).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let fingerprint = told.split_whitespace().nth(1).unwrap();
        let text = format!("id far\npin {key} {fingerprint} from=console 2026-03-01\n");
        // A run that has read the file before, to add the address that it used, would write the old pin again.
        let lock = fs::File::create(directory.join(".lock")).unwrap();
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        fs::write(directory.join("far.host"), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Writes a shell script; `$D` in it is the directory of the environment.
    pub fn script(&self, name: &str, text: &str) -> String {
        let directory = self.directory.path().display();
        tools::executable(&self.path(name), &format!("#!/bin/sh\nD={directory}\n{text}\n"));
        self.shown(name)
    }

    /// Writes the configuration; `$D` in it is the directory of the environment.
    pub fn configure(&self, text: &str) {
        self.write("penstock.toml", &text.replace("$D", &self.directory.path().display().to_string()));
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg("tunnel").args(arguments).env_clear();
        command
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.shown("bin")))
            .env("HOME", self.path("home"));
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env("PENSTOCK_CONFIG", self.path("penstock.toml"));
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.start(arguments).finish()
    }

    /// Starts `penstock tunnel`. Its output goes to files, so that all of it can be read after its end.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let turn = fs::read_dir(self.directory.path()).unwrap().count();
        let (out, err) = (self.path(&format!("out.{turn}")), self.path(&format!("err.{turn}")));
        let file = |path: &Path| fs::File::create(path).unwrap();
        let begun = Instant::now();
        let child = self.command(arguments).stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
        Running { child, begun, out, err }
    }

    /// Kills the host's process of every connection.
    pub fn break_connections(&self) {
        for session in crate::sshd::children_of(self.sshd.pid()) {
            // One that ends by itself meanwhile is as good as broken.
            let _ = kill(Pid::from_raw(session.cast_signed()), Signal::SIGKILL);
        }
    }

    /// Asserts that no trace of a run is left.
    #[track_caller]
    pub fn is_clean(&self) {
        eventually("no process of a run", secs(10), || self.processes().is_empty().then_some(()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&self.shown("")), "{mounts}");
        let left: Vec<_> = fs::read_dir(self.path("state/penstock/undo"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.contains('.'))
            .collect();
        assert!(left.is_empty(), "lists of what to undo: {left:?}");
        let sockets: Vec<_> = fs::read_dir(self.path("run/penstock")).unwrap().collect();
        assert!(sockets.is_empty(), "{sockets:?}");
    }

    /// Processes of runs, found by their environment.
    pub fn processes(&self) -> Vec<i32> {
        let mark = format!("XDG_RUNTIME_DIR={}", self.shown("run"));
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes())
            })
            .collect()
    }

    /// The undo list of a tunnel so far.
    pub fn list(&self, tunnel: &str) -> String {
        let bytes = fs::read(self.path("state/penstock/undo").join(tunnel)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What runs have noted of their processes so far: a job that is not noted cannot be proved to be one.
    pub fn noted(&self) -> String {
        let entries = fs::read_dir(self.path("run/penstock")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_to_string(entry.path().join("processes")).ok()).collect()
    }

    pub fn is_mounted(&self, point: &Path) -> bool {
        let point = format!(
            " {} ",
            fs::canonicalize(point.parent().unwrap()).unwrap().join(point.file_name().unwrap()).display()
        );
        fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&point)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for process in self.processes() {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in mounts.lines() {
            let point = line.split(' ').nth(4).unwrap_or_default();
            if point.starts_with(&self.shown("")) {
                let _ = Command::new("umount").args(["-l", point]).output();
            }
        }
    }
}

pub struct Running {
    pub child: Child,
    /// Time just before the start.
    pub begun: Instant,
    out: PathBuf,
    err: PathBuf,
}

pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits until standard error contains `part`.
    #[track_caller]
    pub fn wait_for(&self, part: &str) -> String {
        let said = || fs::read_to_string(&self.err).unwrap();
        let mut last = String::new();
        for _ in 0..12_000 {
            last = said();
            if let Some(line) = last.lines().find(|line| line.contains(part)) {
                return line.to_owned();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no {part:?} in:\n{last}");
    }

    #[track_caller]
    pub fn finish(mut self) -> Ran {
        let status = eventually("its end", secs(90), || self.child.try_wait().unwrap());
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        Ran { status, out: read(&self.out), err: read(&self.err) }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show("penstock tunnel", &fs::read_to_string(&self.err).unwrap_or_default());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ran {
    #[track_caller]
    pub fn code(&self, wanted: i32) -> &Self {
        assert_eq!(self.status.code(), Some(wanted), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn says(&self, part: &str) -> &Self {
        assert!(
            self.err.contains(part) || self.out.contains(part),
            "no {part:?} in:\n{}\n{}",
            self.out,
            self.err
        );
        self
    }
}

pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}
