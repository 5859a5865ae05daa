//! The list of what is to be undone, on disk: each line is written and synced before its step begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use logic::tunnel::undo::Record;

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

    /// Goes on with a list that was found.
    pub(crate) fn reopen(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().append(true).read(true).open(path)?;
        // A line that was being written when everything stopped is ended, so that the next one stands by itself.
        let mut found = Vec::new();
        Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut found)?;
        let length = file.metadata()?.len();
        let mut journal = Self { path: path.to_owned(), file, length };
        if found.last().is_some_and(|last| *last != b'\n') {
            journal.write("\n")?;
        }
        Ok(journal)
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
        let aside = self.path.with_extension("damaged");
        fs::rename(&self.path, &aside)?;
        sync_directory(&self.path)?;
        Ok(aside)
    }
}

/// What an earlier run left, if anything.
pub(crate) fn found(path: &Path) -> io::Result<Option<Record>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(LONGEST).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(Some(Record::parse(&bytes)))
}

/// A list is a few hundred bytes.
const LONGEST: u64 = 1 << 20;

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
