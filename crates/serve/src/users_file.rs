//! The file of users, read again when it has changed. Reading it may take long: it can have many users.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use access::users::Users;
use state::lock::lock;

/// Largest size of the file.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Permission bits of other users than the owner.
const OF_OTHERS: u32 = 0o077;

/// A file of users that was read before, perhaps.
#[derive(Debug, Default)]
pub(crate) struct UsersFile(Mutex<Option<Read>>);

/// The file as it was read.
#[derive(Debug)]
struct Read {
    path: PathBuf,
    stamp: Option<Stamp>,
    users: Result<Arc<Users>, String>,
}

/// Changes with the content of a file.
type Stamp = (u64, u64, u64, i64, i64, u32);

impl UsersFile {
    /// Returns the users of a file, or why there are none: then no operator logs in with a password.
    pub(crate) fn users(&self, path: &Path) -> Result<Arc<Users>, String> {
        let stamp = stamp(path);
        let mut read = lock(&self.0);
        if let Some(read) = &*read
            && (&*read.path, read.stamp) == (path, stamp)
            && stamp.is_some()
        {
            return read.users.clone();
        }
        let users = read_users(path).map_err(|why| format!("the file of users cannot be used: {why}"));
        *read = Some(Read { path: path.to_owned(), stamp, users: users.clone() });
        users
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.len(), file.ctime(), file.ctime_nsec(), file.mode()))
}

fn read_users(path: &Path) -> Result<Arc<Users>, String> {
    let shown = path.display();
    let mode = std::fs::metadata(path).map_err(|error| format!("{shown}: {error}"))?.mode();
    if mode & OF_OTHERS != 0 {
        return Err(format!(
            "{shown} has mode {:04o}: others than its owner can use it; chmod 600 {shown}",
            mode & 0o7777
        ));
    }
    let bytes = sys::file::read(path, LARGEST).map_err(|error| format!("{shown}: {error}"))?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("{shown} is larger than 64 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8 text"))?;
    Users::parse(&text).map(Arc::new).map_err(|error| format!("{shown}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_read_once_for_all_log_ins_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        write("ann role=view\n");
        let file = UsersFile::default();
        let first = file.users(&path).unwrap();
        assert!(Arc::ptr_eq(&first, &file.users(&path).unwrap()), "it was parsed again");
        write("ann role=view\nbob\n");
        let second = file.users(&path).unwrap();
        assert!(second.find("bob").is_some() && first.find("bob").is_none());
        assert!(Arc::ptr_eq(&second, &file.users(&path).unwrap()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(file.users(&path).unwrap_err().contains("chmod 600"));
    }
}
