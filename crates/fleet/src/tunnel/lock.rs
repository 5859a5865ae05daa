//! The lock of a tunnel: one process holds it at a time, until it ends. The file contains the process id, and is never
//! removed.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use hosts::tunnel::plan::is_name;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::place::{PlaceError, Places, named};

/// The lock of a tunnel, held while the tunnel runs or is unwound.
#[derive(Debug)]
pub struct Lock {
    _lock: Flock<File>,
}

impl Places {
    /// Takes the lock of a tunnel.
    ///
    /// # Errors
    /// Another process holds the lock, or a directory cannot be used.
    pub fn lock(&self, tunnel: &str) -> Result<Lock, PlaceError> {
        named(tunnel)?;
        self.make()?;
        let path = self.undo.join(format!("{tunnel}.lock"));
        let failed = |source| PlaceError::Io { doing: "open", path: path.clone(), source };
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).read(true).mode(0o600).open(&path);
        match Flock::lock(file.map_err(failed)?, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // The process id in the file is only a hint for the user, so an error, as on a full disk, is ignored.
                let _ = lock.set_len(0);
                let _ = lock.rewind().and_then(|()| writeln!(lock, "{}", std::process::id()));
                Ok(Lock { _lock: lock })
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                Err(PlaceError::Running { tunnel: tunnel.to_owned(), process: self.holder(tunnel) })
            }
            Err((_, errno)) => Err(PlaceError::Io { doing: "lock", path, source: errno.into() }),
        }
    }

    /// Whether a lock file exists: this user has run or unwound a tunnel of this name.
    #[must_use]
    pub fn has_run(&self, tunnel: &str) -> bool {
        is_name(tunnel) && fs::symlink_metadata(self.undo.join(format!("{tunnel}.lock"))).is_ok()
    }

    /// Id of the process that holds the lock, if one does. The check takes no lock, which could make another process
    /// fail.
    pub(crate) fn holder(&self, tunnel: &str) -> Option<u32> {
        let path = self.undo.join(format!("{tunnel}.lock"));
        let inode = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?.ino();
        let process = fs::read_to_string(&path).ok()?.trim().parse().ok()?;
        sys::lock::holders(inode).contains(&process).then_some(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_it_and_is_known_as_long() {
        let home = tempfile::tempdir().unwrap();
        let places = Places { undo: home.path().join("a/undo"), runtime: home.path().join("b/run") };
        assert_eq!(places.holder("nas"), None);
        let first = places.lock("nas").unwrap();
        let own = Some(std::process::id());
        assert!(matches!(places.lock("nas"), Err(PlaceError::Running { process, .. }) if process == own));
        assert_eq!((places.holder("nas"), places.holder("other")), (own, None));
        assert!(places.lock("other").is_ok());
        drop(first);
        assert_eq!(places.holder("nas"), None);
        assert!(places.lock("nas").is_ok());
    }
}
