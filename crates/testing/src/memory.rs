//! Directories in memory, for files whose writing a slow disk would delay.

use std::path::Path;

use tempfile::TempDir;

/// A new directory in memory, or in the usual place where the machine has none (a container may lack /dev/shm).
pub fn directory() -> TempDir {
    let shared = Path::new("/dev/shm");
    let made = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    made.or_else(|_| tempfile::tempdir()).unwrap()
}
