//! Writing below the directory of a lab: only where no other user can put a link or a file, and through no link.
//! Called by `lab/files.rs` and for the programs of `penstock lab`; never looks into a file.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, geteuid};

use super::LabError;

/// Sees that the directory of a lab, and each that a lab makes in it, is ours alone. `directory` is canonical.
pub(super) fn look(directory: &Path) -> Result<(), LabError> {
    for above in directory.ancestors().skip(1) {
        let mode = fs::symlink_metadata(above).map_err(failed("look at", above))?.mode();
        // In a sticky directory such as /tmp others can add files, but not replace ours.
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

/// Makes a directory below that of a lab, for its owner only, and those on the way to it.
pub(super) fn make(directory: &Path, name: &str) -> Result<PathBuf, LabError> {
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

/// Whole or not at all: a client that reads while a lab starts again sees the old file or the new one.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), LabError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let write = || -> io::Result<()> {
        // One of a lab that was killed, or a link: neither is written to.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        // The umask has taken bits of `mode` away when the file was created.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        fs::rename(&new, path)
    };
    write().map_err(failed("write", path))
}

pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.display().to_string();
    move |source| LabError::File { doing, path, source }
}

/// Whether it is a directory, no link to one, that belongs to us and that others cannot write to.
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

/// Those in which a lab writes, and those on the way to them.
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
