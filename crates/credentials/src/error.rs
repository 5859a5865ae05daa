//! Why a store cannot be used.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be used, or took no change.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no store at {}: make one with `penstock otp init`", .path.display())]
    Missing {
        /// Its directory.
        path: PathBuf,
    },
    #[error("there is a store at {} already", .path.display())]
    Exists {
        /// Its directory.
        path: PathBuf,
    },
    #[error("others may write to {} (mode {mode:03o}): they could put another journal there (chmod go-w {})", .path.display(), .path.display())]
    DirectoryOpen {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    #[error("others may read the key file {} (mode {mode:03o}): with it they can read all secrets (chmod 600 {})", .path.display(), .path.display())]
    KeyOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    #[error("the key file {0} belongs to user {owner}, not to {own} or root (chown {own} {0})", .path.display())]
    KeyOwner {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
    #[error("the key file {} is no key: 64 hexadecimal digits on one line", .path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
    },
    #[error("{} was sealed with key {theirs}, and {} has key {ours}", .journal.display(), .key_file.display())]
    OtherKey {
        /// The journal.
        journal: PathBuf,
        /// Id of the key that sealed it.
        theirs: String,
        /// The key file.
        key_file: PathBuf,
        /// Id of the key in it.
        ours: String,
    },
    #[error("{}: {why}; no OTP is accepted until it is repaired: restore it from a backup, or see docs/otp.md", .path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Where and what.
        why: String,
    },
    #[error("{} has lost its content, and with it the counters of OTPs that were used: no OTP is accepted. Stop the server and restore it from a backup; without one move it away, make a new one (penstock otp init) and enrol all tokens anew, with new secrets", .path.display())]
    Emptied {
        /// The journal.
        path: PathBuf,
    },
    #[error("another process has held the lock of {0} for {seconds} s: try again, or find it with `fuser -v {0}/lock`", .path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Time for which this process waited for the lock.
        seconds: u64,
    },
    #[error("the disk of {} is full: no OTP is accepted until there is room", .path.display())]
    DiskFull {
        /// The journal.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    #[error("there is no user {name:?}")]
    NoUser {
        /// What was given.
        name: String,
    },
    #[error("the store {} is not open yet: its disk is slow, or another process holds its lock", .path.display())]
    NotOpen {
        /// Its directory.
        path: PathBuf,
    },
    #[error("too many requests wait for the store")]
    Busy,
    #[error("the system gives no random numbers")]
    NoRandom,
}

impl StoreError {
    pub(crate) fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            _ => Self::Io { doing, path, source },
        }
    }
}
