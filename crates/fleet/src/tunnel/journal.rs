//! The list of what is to be undone, on disk: each line is written and synced before its step begins.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use logic::tunnel::undo::{LONGEST, Record, whole_lines};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::place::user;

/// An open list. Dropping it leaves the file; [`Journal::finish`] removes it.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Where its whole lines end.
    length: u64,
}

impl Journal {
    /// Begins a list. There must be none: what an earlier run left is undone first.
    pub(crate) fn begin(path: &Path, first_line: &str) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
        let mut journal = Self { path: path.to_owned(), file, length: 0 };
        match journal.write(first_line).and_then(|()| sync_directory(path)) {
            Ok(()) => Ok(journal),
            Err(error) => {
                // Nothing has begun, so nothing is left to be undone.
                let _ = fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// What an earlier run left, if anything: the list, to go on with, and what is in it.
    pub(crate) fn found(path: &Path) -> Result<Option<(Self, Record)>, FoundError> {
        let Some((file, bytes)) = open(path, OpenOptions::new().append(true))? else { return Ok(None) };
        let record = Record::parse(&bytes);
        let mut length = file.metadata()?.len();
        let whole = whole_lines(&bytes);
        if record.damaged.is_empty() && whole < bytes.len() {
            // A line that was being written when everything stopped is taken away, for which there is room on a full disk, too:
            // the next one stands by itself.
            file.set_len(whole as u64)?;
            length = whole as u64;
        }
        Ok(Some((Self { path: path.to_owned(), file, length }, record)))
    }

    /// Writes lines, and returns when they are on the disk.
    pub(crate) fn write(&mut self, lines: &str) -> io::Result<()> {
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += lines.len() as u64,
            // Half a line, of a disk that is full, would damage the one that comes next.
            Err(_) => drop(self.file.set_len(self.length)),
        }
        written
    }

    /// Everything is undone.
    pub(crate) fn finish(self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        sync_directory(&self.path)
    }

    /// It cannot be believed: kept aside for whoever wants to look.
    pub(crate) fn set_aside(self) -> io::Result<PathBuf> {
        // An earlier one stays: nobody has looked at it yet.
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

/// The directory of the sockets of whoever wrote this list, if it can be believed. It may be written to meanwhile.
pub(crate) fn runtime(path: &Path) -> Option<PathBuf> {
    let (_, bytes) = open(path, &mut OpenOptions::new()).ok()??;
    Record::parse(&bytes).runtime
}

/// A list that is there, and as much of it as a list can have, if it is what we write.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> Result<Option<(File, Vec<u8>)>, FoundError> {
    // A link is not followed, and what is no file makes nobody wait.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = match options.read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) => match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Ok(found) if !found.is_file() => return Err(FoundError::NotOurs(Odd::NoFile)),
            Ok(_) | Err(_) => return Err(FoundError::Io(error)),
        },
    };
    let found = file.metadata()?;
    let odd = match (found.is_file(), found.uid(), found.mode() & 0o7777) {
        (false, ..) => Some(Odd::NoFile),
        (_, owner, _) if owner != geteuid().as_raw() => Some(Odd::Owner(owner)),
        (_, _, mode) if mode & 0o022 != 0 => Some(Odd::Mode(mode)),
        _ => None,
    };
    if let Some(odd) = odd {
        return Err(FoundError::NotOurs(odd));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some((file, bytes)))
}

/// Why a list that is there is not worked off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FoundError {
    /// It is not what we write.
    #[error("{0}")]
    NotOurs(Odd),
    /// The kernel says no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How something differs from what we write, whose commands we would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Odd {
    /// A link, a directory, a pipe.
    NoFile,
    /// It is this user's.
    Owner(u32),
    /// Others may write to it. Its permissions.
    Mode(u32),
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("is a link or a directory or the like, and no file"),
            Self::Owner(owner) => {
                write!(f, "belongs to {}, and we are {}", user(*owner), user(geteuid().as_raw()))
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
