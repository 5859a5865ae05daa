//! What a tunnel in the background says, and the one before: a file and, once that is full, its predecessor.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fleet::tunnel::Places;

/// Bytes after which a file is full: years of a tunnel that is well, weeks of one whose host is away.
const FULL: u64 = 1 << 20;

/// The log of one tunnel.
#[derive(Debug, Clone)]
pub struct Log {
    path: PathBuf,
}

impl Log {
    /// That of this tunnel. Nothing is opened yet.
    pub fn new(places: &Places, tunnel: &str) -> Self {
        Self { path: places.undo.join(format!("{tunnel}.log")) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins it anew, to be written to.
    pub fn begin(&self) -> io::Result<File> {
        let file = append(&self.path)?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Goes on in a new file if standard error is this log, and full. What is full is kept until the next one is.
    pub fn renew(&self) -> io::Result<()> {
        // Two that do this at once would rename the new file away.
        let _alone = RENEWING.lock().unwrap_or_else(PoisonError::into_inner);
        let here = nix::sys::stat::fstat(io::stderr())?;
        let there = fs::symlink_metadata(&self.path)?;
        let is_ours = (here.st_dev, here.st_ino) == (there.dev(), there.ino());
        if !is_ours || there.len() < FULL {
            return Ok(());
        }
        // If there is no room for another one, this one goes on.
        let next = self.path.with_extension("log.next");
        let file = append(&next)?;
        fs::rename(&self.path, self.path.with_extension("log.1"))?;
        fs::rename(&next, &self.path)?;
        nix::unistd::dup2_stderr(file)?;
        Ok(())
    }
}

/// There is one standard error.
static RENEWING: Mutex<()> = Mutex::new(());

/// For one who writes behind what others wrote.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
