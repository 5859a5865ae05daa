//! The user's and the system's `ssh_config`: reads the files, and answers the questions of `hosts::ssh::config` about
//! this machine. The result is a [`Target`] (`ssh/src/target/configured.rs`).
//!
//! # The path of a host's SSH configuration
//!
//! 1. `crates/ssh/src/config.rs` reads the files that `crates/hosts/src/ssh/config/load.rs` asks for, and runs the
//!    commands of `Match exec`.
//! 2. `crates/hosts/src/ssh/config/source.rs` parses each file once: `crates/hosts/src/ssh/config/words.rs` splits
//!    lines, `crates/hosts/src/ssh/config/keyword.rs` has the keywords, `crates/hosts/src/ssh/config/setting.rs` their
//!    arguments.
//! 3. For each host, `crates/hosts/src/ssh/config/evaluate.rs` goes through the lines (conditions:
//!    `crates/hosts/src/ssh/config/criteria.rs`); the result is in `crates/hosts/src/ssh/config/resolved.rs`.
//!    `crates/hosts/src/ssh/config/notice.rs` reports settings that penstock does not follow.
//! 4. `crates/ssh/src/target/configured.rs` makes a target for the host and for every jump host, each from its own
//!    configuration.
//! 5. `crates/ssh/tests/ssh/ssh_config.rs` compares the results with `ssh -G`.
//! 6. `crates/ssh/src/explain.rs` records one connection up to the end of the log-in; `penstock ssh explain` prints it.

use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hosts::ssh::config::{
    Asked, Config, Faults, File, Files, Group, KnownAlgorithms, Local, Machine, Presence, Resolved, Sources,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{self, Gid, Uid, User};

use crate::guardian;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFiles {
    Usual,
    /// Only this file, as with `ssh -F`. It may be a pipe, which can be read only once.
    Only(PathBuf),
    /// No file, as with `ssh -F none`.
    None,
}

/// The parsed `ssh_config` of one user on this machine, for any number of hosts. [`Self::resolve`] may run commands
/// (`Match exec`), so it must not run on a thread that must not block.
#[derive(Debug)]
pub struct SshConfig {
    config: Config,
    local: Local,
}

impl SshConfig {
    /// Reads the files. [`Self::resolve`] reports faults in them.
    ///
    /// # Errors
    /// The home directory of the user is unknown.
    pub fn read(files: &ConfigFiles) -> Result<Self, NoUserEntry> {
        Ok(Self::of(files, Self::current_user()?, KnownAlgorithms::openssh()))
    }

    /// Reads the files for another user, or for another version of OpenSSH with other algorithms.
    #[must_use]
    pub fn of(files: &ConfigFiles, local: Local, known: KnownAlgorithms) -> Self {
        let user = match files {
            ConfigFiles::Usual => Some((format!("{}/.ssh/config", local.home), Presence::Optional)),
            ConfigFiles::Only(path) => Some((path.to_string_lossy().into_owned(), Presence::Required)),
            ConfigFiles::None => None,
        };
        let system = matches!(files, ConfigFiles::Usual).then(|| "/etc/ssh/ssh_config".to_owned());
        let sources = Sources { user, system, home: local.home.clone(), uid: local.uid };
        let given = match files {
            ConfigFiles::Only(path) => Some(path.to_string_lossy().into_owned()),
            ConfigFiles::Usual | ConfigFiles::None => None,
        };
        let config = Config::read(&sources, &Disk { given }, &LocalMachine, known);
        Self { config, local }
    }

    /// Returns the user who runs this program. The home directory is HOME, else the entry in the user database; OpenSSH
    /// uses only the user database.
    ///
    /// # Errors
    /// The home directory is unknown.
    pub fn current_user() -> Result<Local, NoUserEntry> {
        let uid = Uid::effective();
        let entry = User::from_uid(uid).ok().flatten();
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let home = variable("HOME").or_else(|| Some(entry.as_ref()?.dir.to_string_lossy().into_owned()));
        let user = entry.map(|entry| entry.name).or_else(|| variable("USER"));
        let hostname =
            unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (home, user) = home.zip(user).ok_or(NoUserEntry(uid.as_raw()))?;
        Ok(Local { user, uid: uid.as_raw(), home, hostname })
    }

    /// Returns the settings for one host.
    ///
    /// # Errors
    /// All faults in the files.
    pub fn resolve(&self, asked: &Asked) -> Result<Resolved, Faults> {
        self.config.resolve(asked, &self.local, &LocalMachine)
    }

    /// Returns every name without a pattern in the `Host` lines, in the order of the files.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        self.config.hosts()
    }

    #[must_use]
    pub fn local(&self) -> &Local {
        &self.local
    }
}

/// The user has no entry in the user database and no HOME.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the home directory of user {0} is unknown: set HOME and USER")]
pub struct NoUserEntry(u32);

struct Disk {
    /// The file that the user named: only this file may be a pipe or a device.
    given: Option<String>,
}

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Option<File>, String> {
        // Without O_NONBLOCK, open(2) of a pipe without a writer blocks for ever.
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let about = file.metadata().map_err(|error| error.to_string())?;
        let is_nothing = || fs::metadata("/dev/null").is_ok_and(|nothing| nothing.rdev() == about.rdev());
        let mut bytes = Vec::new();
        // A directory counts as an empty file, as in OpenSSH.
        if about.is_file() || about.file_type().is_char_device() && is_nothing() {
            file.take(LARGEST).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        } else if !about.is_dir() {
            if self.given.as_deref() != Some(path) {
                return Err("it is not a regular file".to_owned());
            }
            bytes = to_the_end(file, PATIENCE)?;
        }
        Ok(Some(File {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            owner: about.uid(),
            mode: about.mode(),
            group: group(about.uid(), about.gid()),
        }))
    }

    /// Expands a pattern like glob(3) in ssh: directories that cannot be read have no files, and `**` means `*`.
    fn glob(&self, pattern: &str) -> Result<Vec<String>, String> {
        if !pattern.contains(['*', '?', '[']) {
            let is_there = fs::symlink_metadata(pattern).is_ok();
            return Ok(if is_there { vec![pattern.to_owned()] } else { Vec::new() });
        }
        let options = glob::MatchOptions {
            require_literal_separator: true,
            require_literal_leading_dot: true,
            ..Default::default()
        };
        let mut stars = pattern.chars().collect::<Vec<_>>();
        stars.dedup_by(|next, star| *next == '*' && *star == '*');
        let paths = glob::glob_with(&String::from_iter(stars), options).map_err(|error| error.to_string())?;
        Ok(paths.flatten().map(|path| path.to_string_lossy().into_owned()).collect())
    }
}

/// Reads a pipe, a terminal or a device to its end: `/dev/stdin`, or the file of a shell's `<(command)`.
fn to_the_end(mut file: fs::File, limit: Duration) -> Result<Vec<u8>, String> {
    let until = Instant::now() + limit;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    while bytes.len() as u64 <= LARGEST {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // Before its first writer, a pipe reads as ended; poll(2) waits for the writer.
        let ready = poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], wait);
        if left.is_zero() || ready == Ok(0) {
            return Err(format!("it is a pipe or a device that had no end within {} s", limit.as_secs_f32()));
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(bytes)
}

/// Finds out if other users are in a group. Systems give every user a group of the same name; other users are in this
/// group only if an administrator added them.
fn group(owner: u32, group: u32) -> Group {
    let name = User::from_uid(Uid::from_raw(owner)).ok().flatten().map(|user| user.name);
    let entry = unistd::Group::from_gid(Gid::from_raw(group)).ok().flatten();
    match (name, entry) {
        (Some(name), Some(entry)) if entry.name == name && entry.mem.iter().all(|member| *member == name) => {
            Group::OwnerOnly
        }
        _ => Group::Others,
    }
}

struct LocalMachine;

impl Machine for LocalMachine {
    fn exec(&self, command: &str) -> Result<bool, String> {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into());
        let mut run = Command::new(&shell);
        run.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The command runs in its own session, so that a timeout can end all its processes. The guard ends them if
        // penstock ends first.
        let (mut child, guard) =
            guardian::spawn(&mut run).map_err(|error| format!("{}: {error}", Path::new(&shell).display()))?;
        let (done, ended) = mpsc::channel();
        let reap = move || _ = done.send(child.wait());
        if let Err(error) = std::thread::Builder::new().spawn(reap) {
            guard.signal(Signal::SIGKILL);
            return Err(format!("no thread to wait for it: {error}"));
        }
        match ended.recv_timeout(PATIENCE) {
            Ok(Ok(status)) => match status.code() {
                Some(code) => Ok(code == 0),
                None => Err(format!("it was ended by a signal: {status}")),
            },
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                // The thread waits for the ended command.
                guard.signal(Signal::SIGKILL);
                Err(format!("it ran for more than {} s", PATIENCE.as_secs()))
            }
        }
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let interfaces = nix::ifaddrs::getifaddrs().map_err(|error| error.to_string())?;
        let address = |interface: nix::ifaddrs::InterfaceAddress| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        };
        Ok(interfaces.filter_map(address).collect())
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// Maximum number of bytes read from one file: one more than the limit that `hosts` reports.
const LARGEST: u64 = (16 << 20) + 1;
/// Timeout of a command of `Match exec`, and of the writer of a pipe that the user named.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
