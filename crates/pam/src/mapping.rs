//! The authfile of pam_yubico: lines `user:key:key...`, where a key is the public name of a YubiKey. The operator has one for all
//! users, or each user one of their own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::ffi::{self, Account};

/// Longest file that is read.
const LONGEST: u64 = 16 << 20;

/// Longest file of a user.
const LONGEST_OWN: u64 = 64 << 10;

/// Below the home directory.
const OWN: &str = ".yubico/authorized_yubikeys";

/// O_NONBLOCK, O_NOCTTY and O_CLOEXEC: the user may have put a pipe or a terminal there.
const CAREFUL: i32 = 0o4000 | 0o400 | 0o2_000_000;

/// Permission bits of others than the owner that let them write.
const WRITE_OF_OTHERS: u32 = 0o022;

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

/// Reads the keys that a user has chosen, with the rights of that user: what the user may not read is not told. No other user may
/// be able to change the file.
pub(crate) fn read_own(account: &Account, user: &str) -> io::Result<Keys> {
    ffi::as_user(account, || {
        let path = account.home.join(OWN);
        let file = match OpenOptions::new().read(true).custom_flags(CAREFUL).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Keys::None),
            file => file?,
        };
        let facts = file.metadata()?;
        if !facts.is_file() || facts.len() > LONGEST_OWN {
            return Err(io::Error::other(format!("it is no regular file of at most {LONGEST_OWN} bytes")));
        }
        let above =
            path.ancestors().skip(1).take(2).map(|above| Ok((above.to_owned(), fs::metadata(above)?)));
        let all = above.chain([Ok((path.clone(), facts))]).collect::<io::Result<Vec<_>>>()?;
        for (path, facts) in all {
            let is_own = facts.uid() == account.user || facts.uid() == 0;
            if !is_own || facts.mode() & WRITE_OF_OTHERS != 0 {
                let path = path.display();
                let why = format!(
                    "others than {user} may write to {path} (chown {user} {path}; chmod go-w {path})"
                );
                return Err(io::Error::other(why));
            }
        }
        of(BufReader::new(file.take(LONGEST_OWN)), user)
    })?
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
