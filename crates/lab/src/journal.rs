//! Journal of what each host received and did, one line per event, in one file: it proves that nothing was sent to a
//! wrong host.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::error::LabError;

/// The file `journal`: `HOST CONNECTION EVENT`.
///
/// An event is in the file before the client can see an effect of the event.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(directory: &Path) -> Result<Self, LabError> {
        let path = path(directory);
        // O_APPEND keeps lines of several threads apart.
        let _ = fs::remove_file(&path);
        let file = File::options().append(true).create_new(true).open(&path);
        file.map(Self).map_err(|source| LabError::File {
            doing: "write",
            path: path.display().to_string(),
            source,
        })
    }

    pub(crate) fn note(&self, host: &str, connection: u64, event: fmt::Arguments<'_>) {
        // One write for each line. An error, as on a full disk, is ignored: the reader sees that the file is too short.
        let _ = (&self.0).write_all(format!("{host} {connection} {event}\n").as_bytes());
    }
}

/// Lines of one host, without its name.
pub(crate) fn lines(directory: &Path, host: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(path(directory))?;
    let own = text.lines().filter_map(|line| line.strip_prefix(host)?.strip_prefix(' '));
    Ok(own.map(str::to_owned).collect())
}

fn path(directory: &Path) -> PathBuf {
    directory.join("journal")
}
