//! Private directory of one run of the demo or the lab: it contains all files of the run, no other user can read it,
//! and it is removed when the run ends.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that is removed with its contents on drop.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Makes a directory with mode 0700 among the temporary files. Its name contains `kind`.
    pub(crate) fn create(kind: &str) -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir(), kind)
    }

    fn create_in(parent: &Path, kind: &str) -> io::Result<Self> {
        // `create` fails for an existing name: try others.
        for _ in 0..64 {
            let random = RandomState::new().hash_one(std::process::id());
            let path = parent.join(format!("penstock-{kind}-{:08x}", random as u32));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Directory(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "no free name for a directory"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // An error is ignored: the directory is among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directory_is_private_and_gone_with_its_files_after_the_run() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::create_in(parent.path(), "test").unwrap();
        assert_eq!(directory.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(directory.path().join("file"), "x").unwrap();
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
