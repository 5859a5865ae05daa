//! Where tunnels keep what they need: the lists of what is to be undone, locks, sockets.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use logic::tunnel::plan::is_name;
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User, geteuid};

/// The directories of one user.
#[derive(Debug, Clone)]
pub struct Places {
    /// Lists and locks: `$XDG_STATE_HOME/penstock/undo`.
    pub undo: PathBuf,
    /// Sockets, gone after a reboot: `$XDG_RUNTIME_DIR/penstock`.
    pub runtime: PathBuf,
}

impl Places {
    /// As the XDG base directory specification has them. Without `XDG_RUNTIME_DIR` sockets are in `/run/penstock` for
    /// root, and in `/tmp/penstock-UID` for others. Without `HOME`, as for a service of the system, it is that of the user.
    #[must_use]
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let uid = geteuid();
        let home = || {
            let of_user = || User::from_uid(uid).ok().flatten().map(|user| user.dir);
            absolute("HOME").or_else(|| of_user().filter(|home| home.is_absolute() && home.is_dir()))
        };
        let state = absolute("XDG_STATE_HOME")
            .or_else(|| home().map(|home| home.join(".local/state")))
            .unwrap_or_else(|| PathBuf::from("/var/lib"));
        let runtime = absolute("XDG_RUNTIME_DIR").map(|runtime| runtime.join("penstock"));
        let runtime = runtime.unwrap_or_else(|| match uid.is_root() {
            true => PathBuf::from("/run/penstock"),
            false => PathBuf::from(format!("/tmp/penstock-{uid}")),
        });
        Self { undo: state.join("penstock/undo"), runtime }
    }

    /// The list of a tunnel.
    #[must_use]
    pub fn list(&self, tunnel: &str) -> PathBuf {
        self.undo.join(tunnel)
    }

    /// The socket on which a running tunnel is asked.
    #[must_use]
    pub fn control(&self, tunnel: &str) -> PathBuf {
        self.runtime.join(format!("tunnel-{tunnel}.sock"))
    }

    /// The same, with the runtime directory of the run whose list is there: it may have been started where `XDG_RUNTIME_DIR` is
    /// another one, or none, as by cron.
    pub(crate) fn of(&self, tunnel: &str) -> Self {
        let runtime = super::journal::runtime(&self.list(tunnel));
        Self { runtime: runtime.unwrap_or_else(|| self.runtime.clone()), undo: self.undo.clone() }
    }

    /// The directory of one run, for the sockets of its engine.
    #[must_use]
    pub fn own(&self, run: &str) -> PathBuf {
        self.runtime.join(run)
    }

    /// The names of tunnels that have a list or a control socket, sorted.
    ///
    /// # Errors
    /// One of the directories is not ours alone: what is in it may be anybody's.
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

    /// Makes both directories, for their owner only.
    pub fn make(&self) -> Result<(), PlaceError> {
        for directory in [&self.undo, &self.runtime] {
            private_directory(directory)?;
        }
        Ok(())
    }
}

/// Why there is no place to work in.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another process has the lock.
    #[error("tunnel {tunnel} is up, on its way down, or being unwound already, by {}; `penstock tunnel status {tunnel}` shows it", who(*.process))]
    Running {
        /// Its name.
        tunnel: String,
        /// Which, as far as is known.
        process: Option<u32>,
    },
    /// A path, perhaps.
    #[error("{tunnel:?} is no name of a tunnel: up to 64 of A-Z a-z 0-9 _ -")]
    Name {
        /// What was given.
        tunnel: String,
    },
    /// Somebody else could put things there.
    #[error("{} {}: nothing in it can be trusted; {}", .path.display(), .how, .how.advice())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        how: Unsafe,
    },
    /// The kernel says no.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// What.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a directory is not ours alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsafe {
    /// A link, or a file: whoever made it says where it leads.
    NoDirectory,
    /// It is this user's.
    Owner(u32),
    /// Others may write to it. Its permissions.
    Mode(u32),
}

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDirectory => f.write_str("is a link or a file, and no directory"),
            Self::Owner(uid) => {
                write!(f, "belongs to {}, and we are {}", user(*uid), user(geteuid().as_raw()))
            }
            Self::Mode(mode) => write!(f, "can be written to by others (mode {mode:04o})"),
        }
    }
}

impl Unsafe {
    /// What to do about it.
    fn advice(&self) -> &'static str {
        match self {
            Self::NoDirectory | Self::Owner(_) => {
                "remove it (root can), or name a directory of your own: XDG_RUNTIME_DIR for sockets, XDG_STATE_HOME for lists"
            }
            Self::Mode(_) => "look at what is in it, then chmod 700 it",
        }
    }
}

/// Refuses what is no name of a tunnel, as names become names of files.
pub(crate) fn named(tunnel: &str) -> Result<(), PlaceError> {
    match is_name(tunnel) {
        true => Ok(()),
        false => Err(PlaceError::Name { tunnel: tunnel.to_owned() }),
    }
}

fn who(process: Option<u32>) -> String {
    process.map_or_else(|| "another process".to_owned(), |number| format!("process {number}"))
}

/// A user by name and number.
pub(crate) fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

/// Makes a directory for its owner only, or sees that it is one.
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

/// Whether there is a directory of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Ours,
}

/// Sees that a directory, if there is one, is ours and closed to others. Anybody can make a directory in `/tmp`.
pub(crate) fn look(path: &Path) -> Result<Found, PlaceError> {
    // What was opened is looked at, and no link is followed to it. O_PATH needs no right to read it.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    let found =
        OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).and_then(|it| it.metadata());
    let found = match found {
        Ok(found) => found,
        Err(error) => match error.kind() {
            ErrorKind::NotFound => return Ok(Found::Nothing),
            // Of the path itself: a file in the way to it would be one, too.
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

/// What names this boot of the machine; `None` without `/proc`.
pub(crate) fn boot() -> Option<String> {
    let id = fs::read_to_string(BOOT_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Where the kernel says it.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A name for a run: short, as paths of sockets are.
pub(crate) fn new_run() -> String {
    format!("t{:08x}", fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_follow_the_environment_and_ignore_relative_paths() {
        let places = Places::from_environment(|name| match name {
            "XDG_STATE_HOME" => Some("/s".into()),
            "XDG_RUNTIME_DIR" => Some("/r".into()),
            _ => None,
        });
        assert_eq!((places.undo, places.runtime), ("/s/penstock/undo".into(), "/r/penstock".into()));
        let places = Places::from_environment(|name| match name {
            "XDG_STATE_HOME" => Some("s".into()),
            "HOME" => Some("/h".into()),
            _ => None,
        });
        assert_eq!(places.undo, PathBuf::from("/h/.local/state/penstock/undo"));
    }

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
        // Root can give a directory away; anybody else finds one of root's.
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
