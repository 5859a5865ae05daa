//! Reads whole files: the configuration, certificates, keys.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Reads a regular file, at most one byte more than `limit`: the caller can see that the file is too large, and refuse
/// it. A pipe or a device is an error, because its reader could wait for ever.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
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
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
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
    fn what_could_make_its_reader_wait_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), directory.path()] {
            assert!(read(path, 10).is_err(), "{}", path.display());
        }
    }
}
