//! What each host received and did, one line per event, in one file: to prove that nothing was sent to the wrong host.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::LabError;

/// The file `journal`: `HOST CONNECTION EVENT`.
///
/// An event is in the file before the client can have seen its consequences.
#[derive(Debug)]
pub(super) struct Journal(File);

impl Journal {
    pub(super) fn create(directory: &Path) -> Result<Self, LabError> {
        let path = path(directory);
        // Appending, so that lines of several threads do not meet.
        let _ = fs::remove_file(&path);
        let file = File::options().append(true).create_new(true).open(&path);
        file.map(Self).map_err(|source| LabError::File {
            doing: "write",
            path: path.display().to_string(),
            source,
        })
    }

    pub(super) fn note(&self, host: &str, connection: u64, event: fmt::Arguments<'_>) {
        // One write is one line. A full disk ends no host: the file is short then, and whoever reads it sees that.
        let _ = (&self.0).write_all(format!("{host} {connection} {event}\n").as_bytes());
    }
}

/// The lines of one host, without its name.
pub(super) fn lines(directory: &Path, host: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(path(directory))?;
    let own = text.lines().filter_map(|line| line.strip_prefix(host)?.strip_prefix(' '));
    Ok(own.map(str::to_owned).collect())
}

fn path(directory: &Path) -> PathBuf {
    directory.join("journal")
}
