//! The undo list on disk: each line is written and synced before its step begins.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hosts::tunnel::undo::{LONGEST, Record, whole_lines};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::place::{Places, user};

pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Offset of the end of the last complete line.
    length: u64,
}

impl Journal {
    /// Creates a list. No list may exist: the caller works off the list of an earlier run first.
    pub(crate) fn begin(path: &Path, first_line: &str) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        let mut journal = Self { path: path.to_owned(), file, length: 0 };
        match journal.write(first_line).and_then(|()| sync_directory(path)) {
            Ok(()) => Ok(journal),
            Err(error) => {
                // No step has begun, so there is nothing to undo.
                let _ = fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Opens the list of an earlier run, if there is one, and parses it.
    pub(crate) fn found(path: &Path) -> Result<Option<(Self, Record)>, FoundError> {
        let Some((file, bytes)) = open(path, OpenOptions::new().append(true))? else { return Ok(None) };
        let record = Record::parse(&bytes);
        let mut length = file.metadata()?.len();
        let whole = whole_lines(&bytes);
        if record.damaged.is_empty() && whole < bytes.len() {
            // Removes an incomplete last line, which a crash left, so that the next line starts at a line start.
            // ftruncate(2) works on a full disk too.
            file.set_len(whole as u64)?;
            length = whole as u64;
        }
        Ok(Some((Self { path: path.to_owned(), file, length }, record)))
    }

    /// Writes lines, and returns when they are synced to the disk.
    pub(crate) fn write(&mut self, lines: &str) -> io::Result<()> {
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += lines.len() as u64,
            // Removes an incomplete line, which a full disk caused: it would corrupt the next line.
            Err(_) => drop(self.file.set_len(self.length)),
        }
        written
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        sync_directory(&self.path)
    }

    /// Renames a list that cannot be trusted, so that the operator can read it.
    pub(crate) fn set_aside(self) -> io::Result<PathBuf> {
        // A file that was renamed earlier is kept: the operator may not have read it yet.
        let names = (1..u32::MAX).map(|count| match count {
            1 => self.path.with_extension("damaged"),
            count => self.path.with_extension(format!("damaged-{count}")),
        });
        let mut free = names.filter(|name| fs::symlink_metadata(name).is_err());
        let aside = free.next().unwrap_or_else(|| self.path.with_extension("damaged"));
        fs::rename(&self.path, &aside)?;
        sync_directory(&self.path)?;
        Ok(aside)
    }
}

/// `usual` with the runtime directory of the run that wrote the list of `tunnel`, if the list can be trusted.
/// `XDG_RUNTIME_DIR` may differ between the two, as under cron. The run may be writing to the list meanwhile.
pub(crate) fn places_of_run(usual: &Places, tunnel: &str) -> Places {
    let bytes = open(&usual.list(tunnel), &mut OpenOptions::new()).ok().flatten().map(|(_, bytes)| bytes);
    let runtime = bytes.and_then(|bytes| Record::parse(&bytes).runtime);
    Places { runtime: runtime.unwrap_or_else(|| usual.runtime.clone()), undo: usual.undo.clone() }
}

/// Opens a list, if it exists and nobody else can have written it, and reads it up to the size limit of a list.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> Result<Option<(File, Vec<u8>)>, FoundError> {
    // O_NOFOLLOW refuses a symbolic link; O_NONBLOCK keeps a FIFO from blocking.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = match options.read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) => match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Ok(found) if !found.is_file() => return Err(FoundError::NotOurs(UntrustedFile::NoFile)),
            Ok(_) | Err(_) => return Err(FoundError::Io(error)),
        },
    };
    let found = file.metadata()?;
    let odd = match (found.is_file(), found.uid(), found.mode() & 0o7777) {
        (false, ..) => Some(UntrustedFile::NoFile),
        (_, owner, _) if owner != geteuid().as_raw() => Some(UntrustedFile::Owner(owner)),
        (_, _, mode) if mode & 0o022 != 0 => Some(UntrustedFile::Mode(mode)),
        _ => None,
    };
    if let Some(odd) = odd {
        return Err(FoundError::NotOurs(odd));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some((file, bytes)))
}

/// Reason why an existing list is not worked off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FoundError {
    /// Another user may have written the list.
    #[error("{0}")]
    NotOurs(UntrustedFile),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reason why a file is not trusted: the commands in it would be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrustedFile {
    /// A symbolic link, a directory or a FIFO.
    NoFile,
    /// It belongs to another user, with this number.
    Owner(u32),
    /// Others may write to it; its permission bits.
    Mode(u32),
}

impl fmt::Display for UntrustedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("is not a regular file"),
            Self::Owner(owner) => {
                write!(f, "belongs to {}, but penstock runs as {}", user(*owner), user(geteuid().as_raw()))
            }
            Self::Mode(mode) => write!(f, "can be written to by others (mode {mode:04o})"),
        }
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
