//! The user's and the system's `ssh_config`: reads the files and asks this machine what `logic::ssh::config` wants to
//! know. What comes out is a [`Target`] (`ssh/src/target/configured.rs`).
//!
//! # The path of a host's SSH configuration
//!
//! 1. `crates/ssh/src/config.rs` reads the files that `crates/logic/src/ssh/config/load.rs` asks for, and runs what `Match exec` says.
//! 2. `crates/logic/src/ssh/config/source.rs` reads a file once: `crates/logic/src/ssh/config/words.rs` splits lines,
//!    `crates/logic/src/ssh/config/keyword.rs` knows the keywords, `crates/logic/src/ssh/config/setting.rs` their arguments.
//! 3. For each host, `crates/logic/src/ssh/config/evaluate.rs` goes through the lines (conditions:
//!    `crates/logic/src/ssh/config/criteria.rs`), and `crates/logic/src/ssh/config/resolved.rs` is what holds in the end.
//!    `crates/logic/src/ssh/config/notice.rs` says what we do not follow.
//! 4. `crates/ssh/src/target/configured.rs` makes a target of it, and of every host on the way, each by its own configuration.
//! 5. `crates/ssh/tests/ssh_config.rs` compares all of it with `ssh -G`.
//! 6. `crates/ssh/src/explain.rs` watches one connection from there to the end of the log-in; `penstock ssh explain` tells it.

use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use logic::ssh::config::{
    Asked, Catalogue, Config, Faults, File, Files, Group, Local, Machine, Presence, Resolved, Sources,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{self, Gid, Uid, User};

use crate::guardian;

/// Which files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFiles {
    /// `~/.ssh/config`, then `/etc/ssh/ssh_config`.
    Usual,
    /// This one alone, as with `ssh -F`. It may be a pipe: then it can be read once.
    Only(PathBuf),
    /// None, as with `ssh -F none`.
    None,
}

/// `ssh_config` of this user on this machine: read once, asked for as many hosts as there are.
///
/// Asking may run commands (`Match exec`): not on a thread that must not wait.
#[derive(Debug)]
pub struct SshConfig {
    config: Config,
    local: Local,
}

impl SshConfig {
    /// Reads the files. What is wrong in them comes out with the first host.
    ///
    /// # Errors
    /// Nobody knows who runs this: no home directory.
    pub fn read(files: &ConfigFiles) -> Result<Self, WhoAmI> {
        Ok(Self::of(files, Self::current_user()?, Catalogue::openssh()))
    }

    /// The same for another user, and another version of OpenSSH, which knows other algorithms.
    #[must_use]
    pub fn of(files: &ConfigFiles, local: Local, known: Catalogue) -> Self {
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
        let config = Config::read(&sources, &Disk { given }, &Here, known);
        Self { config, local }
    }

    /// Who runs this. The home directory is HOME, else what the system knows; OpenSSH looks at the second only.
    ///
    /// # Errors
    /// Nobody knows the home directory.
    pub fn current_user() -> Result<Local, WhoAmI> {
        let uid = Uid::effective();
        let entry = User::from_uid(uid).ok().flatten();
        let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let home = variable("HOME").or_else(|| Some(entry.as_ref()?.dir.to_string_lossy().into_owned()));
        let user = entry.map(|entry| entry.name).or_else(|| variable("USER"));
        let hostname =
            unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (home, user) = home.zip(user).ok_or(WhoAmI(uid.as_raw()))?;
        Ok(Local { user, uid: uid.as_raw(), home, hostname })
    }

    /// What holds for a host.
    ///
    /// # Errors
    /// Everything that is wrong in the files.
    pub fn resolve(&self, asked: &Asked) -> Result<Resolved, Faults> {
        self.config.resolve(asked, &self.local, &Here)
    }

    /// Every name that a `Host` line says as it is, in the order of the files.
    #[must_use]
    pub fn hosts(&self) -> Vec<&str> {
        self.config.hosts()
    }

    /// Who asks, and from where.
    #[must_use]
    pub fn local(&self) -> &Local {
        &self.local
    }
}

/// The user has no entry and no HOME.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody knows the home directory of user {0}: set HOME and USER")]
pub struct WhoAmI(u32);

/// Files of this machine.
struct Disk {
    /// The one that somebody named: only that may be a pipe or a device.
    given: Option<String>,
}

impl Files for Disk {
    fn read(&self, path: &str) -> Result<Option<File>, String> {
        // Opening a pipe that nobody writes to would wait for ever.
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let about = file.metadata().map_err(|error| error.to_string())?;
        let is_nothing = || fs::metadata("/dev/null").is_ok_and(|nothing| nothing.rdev() == about.rdev());
        let mut bytes = Vec::new();
        // A directory has no lines, as for OpenSSH.
        if about.is_file() || about.file_type().is_char_device() && is_nothing() {
            file.take(LARGEST).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        } else if !about.is_dir() {
            if self.given.as_deref() != Some(path) {
                return Err("it is no regular file".to_owned());
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

    /// As glob(3) does for ssh: what cannot be looked into has no files, and `**` is `*`.
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

/// All that comes from a pipe, a terminal or a device, such as `/dev/stdin`, or what a shell has for `<(command)`.
fn to_the_end(mut file: fs::File, limit: Duration) -> Result<Vec<u8>, String> {
    let until = Instant::now() + limit;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    while bytes.len() as u64 <= LARGEST {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // Before the first writer a pipe seems to be at its end: only this waits for one.
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

/// Where every user has a group of the same name, nobody else is in it unless somebody put them there.
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

/// This machine.
struct Here;

impl Machine for Here {
    fn exec(&self, command: &str) -> Result<bool, String> {
        let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or("/bin/sh".into());
        let mut run = Command::new(&shell);
        run.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // In a session of its own: so all of it ends when its time is over. The guard ends it if we end before.
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
                // The thread reaps it.
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

/// Bytes read of one file; the limit is `logic`'s to complain about.
const LARGEST: u64 = (16 << 20) + 1;
/// How long a command of `Match exec` may take, and whoever writes to a pipe that was given as the file.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
