//! The directories of tunnels: undo lists, locks and sockets.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hosts::tunnel::plan::is_name;
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User, geteuid};
use sys::directories::{self, NoDirectory};

#[derive(Debug, Clone)]
pub struct Places {
    /// Undo lists and locks: `$XDG_STATE_HOME/penstock/undo`.
    pub undo: PathBuf,
    /// Sockets: `$XDG_RUNTIME_DIR/penstock`. Removed at a reboot.
    pub runtime: PathBuf,
}

impl Places {
    /// The directories of the current user.
    ///
    /// # Errors
    /// No directory for undo lists is known.
    pub fn of_user() -> Result<Self, NoDirectory> {
        Ok(Self { undo: directories::state()?.join("undo"), runtime: directories::runtime() })
    }

    #[must_use]
    pub fn list(&self, tunnel: &str) -> PathBuf {
        self.undo.join(tunnel)
    }

    #[must_use]
    pub fn control(&self, tunnel: &str) -> PathBuf {
        self.runtime.join(format!("tunnel-{tunnel}.sock"))
    }

    /// Private directory of one run, for the sockets of its engine.
    #[must_use]
    pub fn own(&self, run: &str) -> PathBuf {
        self.runtime.join(run)
    }

    /// The names of tunnels that have a list or a control socket, sorted.
    ///
    /// # Errors
    /// One of the directories is not safe from other users, who may have put files there.
    pub fn known(&self) -> Result<Vec<String>, PlaceError> {
        let names = |directory: &Path| -> Result<Vec<String>, PlaceError> {
            look(directory)?;
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
        };
        let lists = names(&self.undo)?;
        let sockets = names(&self.runtime)?;
        let sockets = sockets.iter().filter_map(|name| name.strip_prefix("tunnel-")?.strip_suffix(".sock"));
        let mut all: Vec<_> = lists.iter().map(String::as_str).chain(sockets).collect();
        all.retain(|name| is_name(name));
        all.sort();
        all.dedup();
        Ok(all.into_iter().map(str::to_owned).collect())
    }

    /// Creates both directories with mode 0700.
    pub fn make(&self) -> Result<(), PlaceError> {
        for directory in [&self.undo, &self.runtime] {
            private_directory(directory)?;
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another process holds the lock.
    #[error("tunnel {tunnel} is already up, going down or being unwound, by {}; `penstock tunnel status {tunnel}` shows it", who(*.process))]
    Running {
        tunnel: String,
        /// Its process id, if known.
        process: Option<u32>,
    },
    #[error("invalid tunnel name {tunnel:?}; allowed: up to 64 of A-Z a-z 0-9 _ -")]
    Name { tunnel: String },
    /// Another user could put files there.
    #[error("{} {}: nothing in it is trusted; {}", .path.display(), .how, .how.advice())]
    Unsafe { path: PathBuf, how: Unsafe },
    #[error("cannot {doing} {}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

/// Reason why a directory is not safe from other users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsafe {
    /// It is a symbolic link or a file.
    NoDirectory,
    /// It belongs to another user, with this number.
    Owner(u32),
    /// Others may write to it; its permission bits.
    Mode(u32),
}

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDirectory => f.write_str("is not a directory"),
            Self::Owner(uid) => {
                write!(f, "belongs to {}, but penstock runs as {}", user(*uid), user(geteuid().as_raw()))
            }
            Self::Mode(mode) => write!(f, "can be written to by others (mode {mode:04o})"),
        }
    }
}

impl Unsafe {
    fn advice(&self) -> &'static str {
        match self {
            Self::NoDirectory | Self::Owner(_) => {
                "remove what is there (root can), or set a directory of your own in the environment: XDG_RUNTIME_DIR for control sockets, XDG_STATE_HOME for lists of tunnels"
            }
            Self::Mode(_) => "look at what is in it, then chmod 700 it",
        }
    }
}

/// Refuses invalid names of tunnels, since a name becomes a file name.
pub(crate) fn named(tunnel: &str) -> Result<(), PlaceError> {
    match is_name(tunnel) {
        true => Ok(()),
        false => Err(PlaceError::Name { tunnel: tunnel.to_owned() }),
    }
}

fn who(process: Option<u32>) -> String {
    process.map_or_else(|| "another process".to_owned(), |number| format!("process {number}"))
}

pub(crate) fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

/// Creates a directory with mode 0700, or verifies an existing one.
pub(crate) fn private_directory(path: &Path) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Io { doing: "make", path: path.to_owned(), source };
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        Err(_) | Ok(()) => {}
    }
    match look(path)? {
        Found::Ours => Ok(()),
        Found::Nothing => Err(failed(ErrorKind::NotFound.into())),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Ours,
}

/// Verifies that a directory, if it exists, belongs to this user and is closed to others. Any user can create one in
/// `/tmp`.
pub(crate) fn look(path: &Path) -> Result<Found, PlaceError> {
    // The opened directory is checked, so it cannot be exchanged meanwhile. O_PATH needs no permission to read it.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    let found =
        OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).and_then(|it| it.metadata());
    let found = match found {
        Ok(found) => found,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return Ok(Found::Nothing),
            // The path itself is no directory. Without this check a file in its parent path would give the same error.
            ErrorKind::NotADirectory if fs::symlink_metadata(path).is_ok() => {
                return Err(PlaceError::Unsafe { path: path.to_owned(), how: Unsafe::NoDirectory });
            }
            _ => return Err(PlaceError::Io { doing: "look at", path: path.to_owned(), source: error }),
        },
    };
    let how = match (found.uid(), found.mode() & 0o7777) {
        (owner, _) if owner != geteuid().as_raw() => Unsafe::Owner(owner),
        (_, mode) if mode & 0o022 != 0 => Unsafe::Mode(mode),
        _ => return Ok(Found::Ours),
    };
    Err(PlaceError::Unsafe { path: path.to_owned(), how })
}

/// Id of the current boot of the machine. `None` without `/proc`.
pub(crate) fn boot() -> Option<String> {
    let id = fs::read_to_string(BOOT_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Creates the name of a run: short, since the length of a socket's path is limited (unix(7)).
pub(crate) fn new_run() -> String {
    format!("t{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_others_can_write_to_is_none() {
        let home = tempfile::tempdir().unwrap();
        let places = Places { undo: home.path().join("a/undo"), runtime: home.path().join("b/run") };
        places.make().unwrap();
        for name in ["", ".", "..", "a/b", "../undo/nas", "/etc/passwd", "a.lock", "a\nb"] {
            assert!(matches!(places.lock(name), Err(PlaceError::Name { .. })), "{name:?}");
        }
        let open = home.path().join("open");
        DirBuilder::new().create(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let how = |path: &Path| match private_directory(path) {
            Err(PlaceError::Unsafe { how, .. }) => how,
            other => panic!("{other:?}"),
        };
        assert_eq!(how(&open), Unsafe::Mode(0o777));
        let link = home.path().join("link");
        std::os::unix::fs::symlink(places.undo, &link).unwrap();
        assert_eq!(how(&link), Unsafe::NoDirectory);
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(how(&file), Unsafe::NoDirectory);
        assert!(matches!(look(&file.join("in-it")), Err(PlaceError::Io { .. })));
        assert_eq!(look(&home.path().join("missing")).unwrap(), Found::Nothing);
    }

    #[test]
    fn a_directory_of_another_user_is_named_with_its_owner() {
        // Root can give a directory to another user; another user can use a directory of root.
        let home = tempfile::tempdir().unwrap();
        let theirs = match geteuid().is_root() {
            true => {
                let path = home.path().join("theirs");
                fs::create_dir(&path).unwrap();
                std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
                path
            }
            false => PathBuf::from("/etc"),
        };
        let said = look(&theirs).unwrap_err().to_string();
        let owner = user(fs::metadata(&theirs).unwrap().uid());
        assert!(said.contains(&format!("{} belongs to {owner}", theirs.display())), "{said}");
        assert!(said.contains("XDG_RUNTIME_DIR"), "{said}");
    }
}
