//! Reads and replaces whole files: the configuration, certificates, keys. Makes files in memory.

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Reads a regular file, at most one byte more than `limit`: the caller can see that the file is too large, and refuse
/// it. A pipe or a device is an error, because its reader could wait for ever.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    read_to_end(file, limit)
}

/// Reads a file like [`read`]. Also returns whose it is and who may use it: of the very file that was read, which may not be the
/// one that has the path a moment later.
pub fn read_owned(path: &Path, limit: u64) -> io::Result<(Metadata, Vec<u8>)> {
    let file = open(path)?;
    Ok((file.metadata()?, read_to_end(file, limit)?))
}

/// Reads a file with a secret like [`read`], and refuses one that other users than its owner and group can read or write: they
/// have the secret too. The error is told by [`Exposed`] then.
pub fn read_secret(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    if mode & 0o007 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, Exposed(mode)));
    }
    read_to_end(file, limit)
}

fn read_to_end(file: File, limit: u64) -> io::Result<Vec<u8>> {
    // With room for all: a vector that moves while it grows leaves copies of a secret behind.
    let length = file.metadata()?.len().min(limit).saturating_add(1);
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Mode of a file with a secret that other users can read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed(pub u32);

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.0;
        write!(
            f,
            "other users can use the secret in it (mode {mode:04o}); it is refused until `chmod o=` of it"
        )
    }
}

impl std::error::Error for Exposed {}

fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, open(2) of a named pipe waits until a writer opens the pipe.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Owner and mode of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Mode 0600, of the user of this process.
    Own,
    /// Those of the file that is replaced, without the bits of other users, so that a server which may read the old one may
    /// read the new one; where there is none, as `Own`.
    AsBefore,
    /// As `AsBefore`, also with the bits of other users: the file has no secret. Where there is none, mode 0644.
    Public,
}

/// Writes a file atomically: after a crash it has its old content or all of `bytes`, and so has who reads it.
pub fn replace(path: &Path, bytes: &[u8], access: Access) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut beside = name.to_owned();
    beside.push(".new");
    let beside = directory.join(beside);
    // Left by a crash, or a link that another user has placed.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let before = match access {
        Access::Own => None,
        Access::AsBefore | Access::Public => path.metadata().ok(),
    };
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        if let Some(before) = &before {
            let own = file.metadata()?;
            if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
        }
        let mode = match (access, &before) {
            (Access::Own, _) | (Access::AsBefore, None) => 0o600,
            (Access::AsBefore, Some(before)) => before.mode() & 0o770 | 0o600,
            (Access::Public, None) => 0o644,
            (Access::Public, Some(before)) => before.mode() & 0o777 | 0o600,
        };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // Only the first error is returned.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Returns the names in a directory, without those that are not UTF-8. More than `MOST_NAMES` are an error.
pub fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
        if names.len() > MOST_NAMES {
            return Err(io::Error::other(format!("it has more than {MOST_NAMES} files")));
        }
    }
    Ok(names)
}

/// Largest number of names in a directory of configuration files.
const MOST_NAMES: usize = 10_000;

/// A file in memory that has no name, with these bytes (memfd_create(2)): for another process that gets its descriptor.
pub fn in_memory(name: &CStr, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_read_up_to_one_byte_beyond_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 3).unwrap(), b"1234");
    }

    #[test]
    fn secret_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "secret").unwrap();
        for (mode, is_refused) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = read_secret(&path, 10).map_err(|error| error.to_string());
            match is_refused {
                false => assert_eq!(read, Ok(b"secret".to_vec()), "{mode:o}"),
                true => assert!(read.unwrap_err().contains(&format!("mode {mode:04o}"))),
            }
        }
    }

    #[test]
    fn file_keeps_its_owner_and_mode_when_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let mode = || path.metadata().unwrap().mode() & 0o777;
        replace(&path, b"first", Access::AsBefore).unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"second", Access::Public).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap()), (0o644, b"second".to_vec()));
        replace(&path, b"third", Access::AsBefore).unwrap();
        assert_eq!(mode(), 0o640);
        replace(&path, b"fourth", Access::Own).unwrap();
        assert_eq!((mode(), fs::read(&path).unwrap()), (0o600, b"fourth".to_vec()));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
            replace(&path, b"fifth", Access::AsBefore).unwrap();
            assert_eq!(path.metadata().unwrap().uid(), 65_534);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_could_make_its_reader_wait_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), directory.path()] {
            assert!(read(path, 10).is_err(), "{}", path.display());
        }
    }
}
