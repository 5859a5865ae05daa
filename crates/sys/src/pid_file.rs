//! The file with the number of the process, which also proves that the process lives: it holds a lock (flock(2)) of the
//! file. A file without a lock was left by a process that has ended, also if its number is in use again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::libc;

use crate::lock;

/// A file that this process has locked; removed when dropped.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    file: Flock<File>,
}

#[derive(Debug, thiserror::Error)]
pub enum PidFileError {
    #[error("{} cannot be used: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} belongs to another process that lives{}: this one does not start beside it", .path.display(), .holder.map_or(String::new(), |pid| format!(" (pid {pid})")))]
    Held { path: PathBuf, holder: Option<u32> },
    /// A link, or a file with a second name: writing into it could destroy another file.
    #[error("{} is not a plain file with one name: remove it", .path.display())]
    Strange { path: PathBuf },
}

impl PidFile {
    /// Takes the file, and makes it if necessary. It is empty until [`Self::write`].
    pub fn take(path: &Path) -> Result<Self, PidFileError> {
        let fault = |source| PidFileError::Io { path: path.to_owned(), source };
        // A process that ends removes the file: what was opened before that is not the file of this name any more.
        for _ in 0..ATTEMPTS {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(path);
            let file = match file {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                    return Err(PidFileError::Strange { path: path.to_owned() });
                }
                file => file.map_err(fault)?,
            };
            let kind = file.metadata().map_err(fault)?;
            if !kind.is_file() || kind.nlink() > 1 {
                return Err(PidFileError::Strange { path: path.to_owned() });
            }
            let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                    let holder = lock::holders(kind.ino()).into_iter().next();
                    return Err(PidFileError::Held { path: path.to_owned(), holder });
                }
                Err((_, error)) => return Err(fault(error.into())),
            };
            if is_named(path, &kind) {
                return Ok(Self { path: path.to_owned(), file });
            }
        }
        Err(fault(io::Error::other("it was replaced again and again")))
    }

    /// Takes the file over from a process that has passed on its descriptor, and with it the lock. `None` if another file has
    /// its name by now.
    pub fn passed_on(path: &Path, descriptor: OwnedFd) -> Option<Self> {
        let file = File::from(descriptor);
        if !is_named(path, &file.metadata().ok()?) {
            return None;
        }
        // The lock belongs to what both descriptors refer to, so it is there already.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
        Some(Self { path: path.to_owned(), file })
    }

    /// A descriptor for another process, with its path.
    pub fn share(&self) -> io::Result<(&Path, OwnedFd)> {
        Ok((&self.path, self.file.as_fd().try_clone_to_owned()?))
    }

    /// Leaves the file and its lock to the process that it was passed on to.
    pub fn leave(self) {
        // Dropping it would remove the file, and dropping its part would take the lock away from the other process as well.
        std::mem::forget(self);
    }

    /// Writes the number of this process.
    pub fn write(&mut self) -> Result<(), PidFileError> {
        let result = (|| {
            // The first line is a number at all times: a supervisor may read the file while an upgrade writes it.
            let line = format!("{}\n", std::process::id());
            self.file.rewind()?;
            self.file.write_all(line.as_bytes())?;
            self.file.set_len(line.len() as u64)
        })();
        result.map_err(|source| PidFileError::Io { path: self.path.clone(), source })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another process may have put a file of its own in its place.
        if !self.file.metadata().is_ok_and(|own| is_named(&self.path, &own)) {
            return;
        }
        // The user of the process may have changed since the file was made: then it stays, empty and without a lock.
        if fs::remove_file(&self.path).is_err() {
            let _ = self.file.set_len(0);
        }
    }
}

/// Whether `path` is the name of the file with this metadata.
fn is_named(path: &Path, file: &fs::Metadata) -> bool {
    fs::symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (file.dev(), file.ino()))
}

const ATTEMPTS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_once_and_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let mut file = PidFile::take(&path).unwrap();
        file.write().unwrap();
        let own = std::process::id();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{own}\n"));
        let error = PidFile::take(&path).unwrap_err();
        assert!(matches!(error, PidFileError::Held { holder: Some(pid), .. } if pid == own), "{error}");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_process_left_is_replaced_whatever_number_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        fs::write(&path, "1\nand a long rest of another program").unwrap();
        let mut file = PidFile::take(&path).unwrap();
        file.write().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_file_that_took_its_place_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        let file = PidFile::take(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
    }

    #[test]
    fn a_link_or_a_second_name_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("pid"), directory.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(matches!(PidFile::take(&path), Err(PidFileError::Strange { .. })));
        fs::remove_file(&path).unwrap();
        fs::hard_link(&victim, &path).unwrap();
        assert!(matches!(PidFile::take(&path), Err(PidFileError::Strange { .. })));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(matches!(PidFile::take(directory.path()), Err(PidFileError::Io { .. })));
    }
}
