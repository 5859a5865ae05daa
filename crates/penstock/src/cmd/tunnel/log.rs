//! Log of a tunnel in the background: one file, and its predecessor after a rotation.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fleet::tunnel::Places;

/// Size in bytes for a rotation: years of a healthy tunnel, weeks of one whose host is unreachable.
const FULL: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub(super) struct Log {
    path: PathBuf,
}

impl Log {
    /// Makes the log of this tunnel without opening a file.
    pub(super) fn new(places: &Places, tunnel: &str) -> Self {
        Self { path: places.undo.join(format!("{tunnel}.log")) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Truncates the file and opens it for writing.
    pub(super) fn begin(&self) -> io::Result<File> {
        let file = append(&self.path)?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Rotates the log if it is standard error and full. The previous log is kept until the next rotation.
    pub(super) fn renew(&self) -> io::Result<()> {
        // Two parallel rotations would rename the new file away.
        let _alone = RENEWING.lock().unwrap_or_else(PoisonError::into_inner);
        let here = nix::sys::stat::fstat(io::stderr())?;
        let there = fs::symlink_metadata(&self.path)?;
        let is_ours = (here.st_dev, here.st_ino) == (there.dev(), there.ino());
        if !is_ours || there.len() < FULL {
            return Ok(());
        }
        // If the new file cannot be made, the old one stays in use.
        let next = self.path.with_extension("log.next");
        let file = append(&next)?;
        fs::rename(&self.path, self.path.with_extension("log.1"))?;
        fs::rename(&next, &self.path)?;
        nix::unistd::dup2_stderr(file)?;
        Ok(())
    }
}

/// Standard error is shared by the whole process.
static RENEWING: Mutex<()> = Mutex::new(());

/// Opens a file for appending, because several processes may write to it.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
