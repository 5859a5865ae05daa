//! The mount point: guarded while nothing is mounted. Once a file system may be mounted, only the kernel's list of
//! mounts is read, since a file system without its server blocks each process that touches it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hosts::tunnel::mounts::{Claim, Found, MountEntry, mounted_at};
use hosts::tunnel::sequence::UnmountMode;
use sys::immutable::Immutability;

use super::awake::within;

/// The topmost mount on `point`.
pub(crate) fn mounted(point: &Path) -> Result<Option<MountEntry>, String> {
    Ok(all_mounted(point)?.pop())
}

/// State of the mount point of a run.
pub(crate) enum MountState {
    Nothing,
    /// Another file system, which is not unmounted. Text for the user.
    Other(String),
    /// The file system that the run has mounted. Text for the user.
    Ours(String),
    /// A file system that may belong to others, so that it is not unmounted. The reason.
    Left(String),
}

/// Compares the mount point with the run's `claim`.
pub(crate) fn remains(point: &Path, claim: Claim<'_>) -> Result<MountState, String> {
    let shown = point.display();
    let named = |it: &MountEntry| format!("{} of {}", it.kind, it.source);
    Ok(match (claim.look(&all_mounted(point)?), claim) {
        (Found::Nothing, _) => MountState::Nothing,
        (Found::Ours(now), _) => MountState::Ours(format!("{shown} is still mounted ({})", named(now))),
        (Found::Covered(now), _) => MountState::Left(format!(
            "{shown} has something else mounted over what this run mounted ({}): unmount that, and unwind again",
            named(now)
        )),
        (Found::Other(now), Claim::Seen(_)) => MountState::Other(format!(
            "{shown} has something else mounted now ({}): not mounted by this tunnel, so it stays",
            named(now)
        )),
        (Found::Other(now), Claim::Command(_)) => MountState::Left(format!(
            "{shown} has something mounted ({}), and it is not proved that this run mounted it: the run ended before it saw its mount, and its mount command does not name {}. It stays; unmount it yourself if it is not needed, and unwind again",
            named(now),
            now.source
        )),
    })
}

/// Fails unless the run's own file system is the topmost mount: only that is unmounted.
pub(crate) fn is_ours(point: &Path, claim: Claim<'_>) -> Result<(), String> {
    match remains(point, claim)? {
        MountState::Ours(_) => Ok(()),
        MountState::Nothing => Err(format!("nothing is mounted on {}", point.display())),
        MountState::Other(why) | MountState::Left(why) => Err(why),
    }
}

/// Mode of unmounting. A lazy unmount, which removes the file system from programs that use it, only for a proved
/// mount.
pub(crate) fn manner(claim: Claim<'_>, wanted: UnmountMode) -> UnmountMode {
    match claim {
        Claim::Seen(_) => wanted,
        Claim::Command(_) => UnmountMode::Proper,
    }
}

/// All mounts on `point`; the last one is the topmost.
fn all_mounted(point: &Path) -> Result<Vec<MountEntry>, String> {
    let list = fs::read("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read the list of mounts: {error}"))?;
    Ok(mounted_at(&list, &real(point)))
}

/// Verifies that `point` is an empty directory without a mount. Returns advice, if the directory could be safer.
pub(crate) fn guard(point: &Path) -> Result<Option<String>, String> {
    if let Some(found) = mounted(point)? {
        return Err(format!(
            "{} has something mounted already ({} of {}): not mounted by this tunnel, so it stays",
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
            "{shown} is not empty (there is {}): files were written there while nothing was mounted; look at them, and move them away",
            first.file_name().display()
        ));
    }
    Ok(match sys::immutable::look(point) {
        Ok(Immutability::Changeable) => Some(format!(
            "{shown} could be written to while nothing is mounted: `chattr +i {shown}` keeps it empty"
        )),
        // Some file systems do not support the flag.
        Ok(Immutability::Immutable) | Err(_) => None,
    })
}

/// Flushes the data of the mounted file system (syncfs(2)).
pub(crate) async fn sync(point: &Path, limit: Duration) -> Result<(), String> {
    let path = point.to_owned();
    let synced = tokio::task::spawn_blocking(move || -> io::Result<()> {
        let directory = fs::File::open(path)?;
        Ok(nix::unistd::syncfs(&directory)?)
    });
    match within(limit, synced).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(error))) => Err(format!("{}: data may not have been written: {error}", point.display())),
        Ok(Err(_)) | Err(_) => {
            Err(format!("{}: writing cached data took longer than {} s", point.display(), limit.as_secs()))
        }
    }
}

/// The path without symbolic links in its parent directories. The mount point itself is not touched.
fn real(point: &Path) -> PathBuf {
    match (point.parent().and_then(|parent| fs::canonicalize(parent).ok()), point.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => point.to_owned(),
    }
}
