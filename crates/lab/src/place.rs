//! Writes files below the directory of a lab, only where no other user can create a link or a file, and never through a
//! link. Used by `lab/files.rs` and for the programs of `penstock lab`. Never reads a file.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, geteuid};

use crate::error::LabError;

/// Verifies that the directory of a lab, and each directory in it, is safe from other users. `directory` is canonical.
pub(crate) fn look(directory: &Path) -> Result<(), LabError> {
    for above in directory.ancestors().skip(1) {
        let mode = fs::symlink_metadata(above).map_err(failed("look at", above))?.mode();
        // In a directory with the sticky bit, such as /tmp, other users can create files, but not replace ours.
        if mode & 0o1002 == 0o002 {
            return Err(open(above, mode));
        }
    }
    for path in std::iter::once(directory.to_owned()).chain(DIRECTORIES.map(|name| directory.join(name))) {
        match fs::symlink_metadata(&path) {
            Ok(found) => ours(&path, &found)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at", &path)(error)),
        }
    }
    Ok(())
}

/// Creates a directory below that of a lab, and its parents, with mode 0700.
pub(crate) fn make(directory: &Path, name: &str) -> Result<PathBuf, LabError> {
    let mut path = directory.to_owned();
    for part in Path::new(name) {
        path.push(part);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(failed("make", &path)(error));
            }
            Err(_) | Ok(()) => {}
        }
        ours(&path, &fs::symlink_metadata(&path).map_err(failed("look at", &path))?)?;
    }
    Ok(path)
}

/// Replaces a file by a rename: a client that reads it during a restart sees the old file or the new one.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), LabError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let write = || -> io::Result<()> {
        // A temporary file of a killed lab, or a link, is removed and never written to.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        // The umask may have removed bits of `mode` when the file was created.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        fs::rename(&new, path)
    };
    write().map_err(failed("write", path))
}

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.display().to_string();
    move |source| LabError::File { doing, path, source }
}

/// Verifies that the path is a directory, not a link to one, that it belongs to this user, and that others cannot write
/// to it.
fn ours(path: &Path, found: &fs::Metadata) -> Result<(), LabError> {
    let (how, hint) = match found.uid() {
        _ if !found.is_dir() => ("is not a directory".to_owned(), "remove it".to_owned()),
        owner if owner != geteuid().as_raw() => (
            format!("belongs to {}", user(owner)),
            "name a directory of your own, or one that is not there yet".to_owned(),
        ),
        _ if found.mode() & 0o022 != 0 => return Err(open(path, found.mode())),
        _ => return Ok(()),
    };
    Err(LabError::Unsafe { path: path.display().to_string(), how, hint })
}

fn open(path: &Path, mode: u32) -> LabError {
    let path = path.display().to_string();
    let hint = format!("chmod go-w '{path}', or name another directory");
    LabError::Unsafe { path, how: format!("others can write to (mode {:04o})", mode & 0o7777), hint }
}

fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

/// Directories in which a lab writes, and their parents.
const DIRECTORIES: [&str; 10] = [
    "bin",
    "clustershell",
    "clustershell/groups.d",
    "config",
    "config/penstock",
    "config/penstock/hosts",
    "files",
    "home",
    "home/.ssh",
    "state",
];
