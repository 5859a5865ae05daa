//! The mount point: guarded while nothing is mounted, and looked at only through the kernel's list once something may be, as
//! a file system whose server is gone hangs whoever touches it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::tunnel::mounts::{MountEntry, mounted_at};
use sys::immutable::Immutability;

use super::awake::within;

/// What is mounted there now, on top of whatever else is.
pub(crate) fn mounted(point: &Path) -> Result<Option<MountEntry>, String> {
    Ok(all_mounted(point)?.pop())
}

/// Everything that is mounted there now; the last one is on top.
pub(crate) fn all_mounted(point: &Path) -> Result<Vec<MountEntry>, String> {
    let list = fs::read("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read the list of mounts: {error}"))?;
    Ok(mounted_at(&list, &real(point)))
}

/// An error while something is mounted there.
pub(crate) fn still(point: &Path) -> Result<(), String> {
    match mounted(point)? {
        None => Ok(()),
        Some(found) => {
            Err(format!("{} is still mounted ({} of {})", point.display(), found.kind, found.source))
        }
    }
}

/// An empty directory, on which nothing is mounted. Says what could be better.
pub(crate) fn guard(point: &Path) -> Result<Option<String>, String> {
    if let Some(found) = mounted(point)? {
        return Err(format!(
            "{} has something mounted already ({} of {}): it is not ours, so it stays",
            point.display(),
            found.kind,
            found.source
        ));
    }
    let shown = point.display();
    let found = fs::symlink_metadata(point).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no directory {shown}: make it, and `chattr +i` it"),
        _ => format!("cannot look at {shown}: {error}"),
    })?;
    if !found.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    let mut entries = fs::read_dir(point).map_err(|error| format!("cannot look into {shown}: {error}"))?;
    if let Some(Ok(first)) = entries.next() {
        return Err(format!(
            "{shown} is not empty (there is {}): somebody wrote there while nothing was mounted; look at it, and move it away",
            first.file_name().display()
        ));
    }
    Ok(match sys::immutable::look(point) {
        Ok(Immutability::Changeable) => Some(format!(
            "{shown} could be written to while nothing is mounted: `chattr +i {shown}` keeps it empty"
        )),
        // Not every file system has the flag.
        Ok(Immutability::Immutable) | Err(_) => None,
    })
}

/// Writes to the file system behind the mount what is still in memory.
pub(crate) async fn sync(point: &Path, limit: Duration) -> Result<(), String> {
    let path = point.to_owned();
    let synced = tokio::task::spawn_blocking(move || -> io::Result<()> {
        let directory = fs::File::open(path)?;
        Ok(nix::unistd::syncfs(&directory)?)
    });
    match within(limit, synced).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(format!("{}: what was written may not be there: {error}", point.display())),
        Ok(Err(_)) | Err(_) => {
            Err(format!("{}: writing the rest took longer than {} s", point.display(), limit.as_secs()))
        }
    }
}

/// The path as the kernel has it: links in the way to it are followed, what may be mounted on it is not touched.
fn real(point: &Path) -> PathBuf {
    match (point.parent().and_then(|parent| fs::canonicalize(parent).ok()), point.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => point.to_owned(),
    }
}
