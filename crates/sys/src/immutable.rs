//! The file attribute by which no process may change a file or directory (`chattr +i`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Immutability {
    /// The file cannot be changed, even by root.
    Immutable,
    /// The file can be changed by the users whom its permissions allow.
    Changeable,
}

mod request {
    nix::ioctl_read!(get_flags, b'f', 1, nix::libc::c_long);
}

/// Reads the attribute from the file system (FS_IOC_GETFLAGS, ioctl_iflags(2)). An error on file systems without
/// attributes.
pub fn look(path: &Path) -> io::Result<Immutability> {
    const FS_IMMUTABLE_FL: nix::libc::c_long = 0x10;
    let file = File::open(path)?;
    let mut flags: nix::libc::c_long = 0;
    // SAFETY: the descriptor is open as long as `file` lives, and the kernel writes at most the size that the request
    // names, which is the size of `flags`.
    unsafe { request::get_flags(file.as_raw_fd(), &raw mut flags) }?;
    Ok(if flags & FS_IMMUTABLE_FL == 0 { Immutability::Changeable } else { Immutability::Immutable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_can_be_changed_or_its_file_system_does_not_say() {
        let found = look(&std::env::temp_dir());
        assert!(!matches!(found, Ok(Immutability::Immutable)), "{found:?}");
    }
}
