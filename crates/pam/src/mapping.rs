//! The authfile of pam_yubico: lines `user:key:key...`, where a key is the public name of a YubiKey.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Longest file that is read.
const LONGEST: u64 = 16 << 20;

/// Most keys of one user that are read.
const MOST: usize = 64;

/// Keys of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The file names none.
    None,
    These(Vec<String>),
}

/// Reads the keys of a user.
pub(crate) fn read(path: &Path, user: &str) -> io::Result<Keys> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    // A user behind the end that is read would count as one without keys.
    if file.metadata()?.len() > LONGEST {
        return Err(io::Error::other(format!("it has more than {LONGEST} bytes")));
    }
    of(BufReader::new(file.take(LONGEST)), user)
}

fn of(lines: impl BufRead, user: &str) -> io::Result<Keys> {
    let mut keys = Vec::new();
    for line in lines.lines() {
        let line = line?;
        let mut words = line.trim().split(':');
        if line.trim_start().starts_with('#') || words.next() != Some(user) {
            continue;
        }
        keys.extend(words.map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
        keys.truncate(MOST);
    }
    Ok(if keys.is_empty() { Keys::None } else { Keys::These(keys) })
}
