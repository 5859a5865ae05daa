//! The mount point: guarded while nothing is mounted, and looked at only through the kernel's list once something may be, as
//! a file system whose server is gone hangs whoever touches it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logic::tunnel::mounts::{Claim, Found, MountEntry, mounted_at};
use logic::tunnel::sequence::Manner;
use sys::immutable::Immutability;

use super::awake::within;

/// What is mounted there now, on top of whatever else is.
pub(crate) fn mounted(point: &Path) -> Result<Option<MountEntry>, String> {
    Ok(all_mounted(point)?.pop())
}

/// What is there of a run that mounted.
pub(crate) enum Remains {
    /// Nothing.
    Nothing,
    /// Something else, which stays. For people.
    Other(String),
    /// What the run has mounted. For people.
    Ours(String),
    /// Something that is not unmounted, as it may be of others. Why.
    Left(String),
}

/// Looks at what is mounted there, on behalf of a run.
pub(crate) fn remains(point: &Path, claim: Claim<'_>) -> Result<Remains, String> {
    let shown = point.display();
    let named = |it: &MountEntry| format!("{} of {}", it.kind, it.source);
    Ok(match (claim.look(&all_mounted(point)?), claim) {
        (Found::Nothing, _) => Remains::Nothing,
        (Found::Ours(now), _) => Remains::Ours(format!("{shown} is still mounted ({})", named(now))),
        (Found::Covered(now), _) => Remains::Left(format!(
            "{shown} has something else mounted over what this run mounted ({}): unmount that, and unwind again",
            named(now)
        )),
        (Found::Other(now), Claim::Seen(_)) => Remains::Other(format!(
            "{shown} has something else mounted now ({}): it is not ours, so it stays",
            named(now)
        )),
        (Found::Other(now), Claim::Command(_)) => Remains::Left(format!(
            "{shown} has something mounted ({}), and nothing proves that this run mounted it: the run ended before it saw its mount, \
             and its mount command does not name {}. It stays; unmount it yourself if it is not wanted, and unwind again",
            named(now),
            now.source
        )),
    })
}

/// An error unless what a run has mounted is on top: only that is unmounted.
pub(crate) fn is_ours(point: &Path, claim: Claim<'_>) -> Result<(), String> {
    match remains(point, claim)? {
        Remains::Ours(_) => Ok(()),
        Remains::Nothing => Err(format!("nothing is mounted on {}", point.display())),
        Remains::Other(why) | Remains::Left(why) => Err(why),
    }
}

/// How to unmount: lazily only what was seen to be ours, as that takes it from programs that use it.
pub(crate) fn manner(claim: Claim<'_>, wanted: Manner) -> Manner {
    match claim {
        Claim::Seen(_) => wanted,
        Claim::Command(_) => Manner::Proper,
    }
}

/// Everything that is mounted there now; the last one is on top.
fn all_mounted(point: &Path) -> Result<Vec<MountEntry>, String> {
    let list = fs::read("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read the list of mounts: {error}"))?;
    Ok(mounted_at(&list, &real(point)))
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
