//! The directory of one run of the demo or the lab: everything it writes is in there, nobody else can look into it,
//! and it is gone when the run ends.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes a new one, mode 0700, under the directory for temporary files; its name says what it is for.
    pub fn create(kind: &str) -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir(), kind)
    }

    fn create_in(parent: &Path, kind: &str) -> io::Result<Self> {
        // A name that exists, whoever made it, is never used: `create` refuses it.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing can be done about a directory that cannot be removed; it is in the directory for temporary files.
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
        fs::write(directory.join("file"), "x").unwrap();
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }
}
