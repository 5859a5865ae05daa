//! The file with the key that seals secrets: only its owner may read it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use access::otp::seal::{KEY_BYTES, Key};
use nix::unistd::geteuid;
use zeroize::Zeroizing;

use crate::error::StoreError;

/// Longest key file that is read.
const LONGEST: u64 = 1024;

/// Reads a key file that only its owner may read.
pub fn read_key(path: &Path) -> Result<Key, StoreError> {
    let io = |doing| StoreError::io(doing, path);
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io("open the key file"))?;
    let facts = file.metadata().map_err(io("look at the key file"))?;
    let (mode, owner, own) = (facts.mode() & 0o777, facts.uid(), geteuid().as_raw());
    if !facts.is_file() {
        return Err(StoreError::NotAKey { path: path.to_owned() });
    }
    if mode & 0o077 != 0 {
        return Err(StoreError::KeyOpen { path: path.to_owned(), mode });
    }
    // Root may use the key of the user that its server runs as.
    if owner != own && owner != 0 && own != 0 {
        return Err(StoreError::KeyOwner { path: path.to_owned(), owner, own });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(LONGEST).read_to_string(&mut text).map_err(io("read the key file"))?;
    read_text(path, &text)
}

/// Makes a key file with a new key, mode 0600. It must not exist. `owner` is the user and group that it is given to.
pub fn write_key(path: &Path, owner: Option<(u32, u32)>) -> Result<Key, StoreError> {
    let io = |doing| StoreError::io(doing, path);
    let text = Key::text(&random::<KEY_BYTES>()?);
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file: File = made.map_err(io("make the key file"))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io("write the key file"))?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::fchown(&file, Some(user), Some(group)).map_err(io("give away the key file"))?;
    }
    read_text(path, &text)
}

fn read_text(path: &Path, text: &str) -> Result<Key, StoreError> {
    Key::read(text).map_err(|_| StoreError::NotAKey { path: path.to_owned() })
}

/// Random bytes for keys, nonces and secrets.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| StoreError::NoRandom)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let id = write_key(&path, None).unwrap().id().to_owned();
        assert_eq!(read_key(&path).unwrap().id(), id);
        assert!(matches!(write_key(&path, None), Err(StoreError::Io { .. })), "one that is there stays");
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = read_key(&path).unwrap_err().to_string();
            assert!(said.contains(&format!("(mode {mode:03o})")) && said.contains("chmod 600"), "{said}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "secret").unwrap();
        assert!(matches!(read_key(&path), Err(StoreError::NotAKey { .. })));
    }
}
