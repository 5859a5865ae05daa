//! Files to and from a host (SFTP version 3, draft-ietf-secsh-filexfer-02), many requests in flight.

mod get;
mod put;
mod requests;
mod tree;

use std::path::Path;
use std::sync::Arc;

pub use get::{Allowance, Directory, Links, make_directory};
pub use put::{Change, Put};
pub use tree::{Tree, TreeError};

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, Packet, StatusCode};
use thiserror::Error;

use self::requests::{FLOODED, Requests, Watched};
use crate::session::Session;
use crate::target::Purpose;
use crate::trouble::{failure, harmless};

/// A channel for files.
pub struct Sftp {
    raw: Arc<Requests>,
    /// Requests that may wait for an answer at once.
    in_flight: usize,
    /// Bytes of a file in one request.
    chunk: Chunk,
    /// Whether the server tells how much room is left on its disks.
    tells_room: bool,
    /// Whether the server can rename over a file that exists.
    replaces: Replaces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunk {
    read: u32,
    write: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaces {
    Atomically,
    No,
}

/// What was moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Files, not counting directories and symbolic links.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why a file could not be moved. What was moved before stays.
#[derive(Debug, Error)]
pub enum TransferError {
    /// On this machine.
    #[error("{doing} {path}: {source}")]
    Here {
        /// Such as `read` or `write`.
        doing: &'static str,
        /// The file, harmless on a terminal.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of ours is not any more what it was when the copying began.
    #[error("{path} was changed while it was copied")]
    Moving {
        /// Which, harmless on a terminal.
        path: String,
    },
    /// On the host.
    #[error("{doing} {path} there: {said}")]
    There {
        /// Such as `open` or `write`.
        doing: &'static str,
        /// The file, harmless on a terminal.
        path: String,
        /// What the server said, harmless on a terminal.
        said: String,
    },
    /// Neither a file, a directory nor a symbolic link.
    #[error("{path} is no file, directory or symbolic link: such things cannot be copied")]
    Special {
        /// Which, harmless on a terminal.
        path: String,
    },
    /// It ended before the size that the server had told.
    #[error(
        "{path} ended there after {got} of {size} bytes: it was made shorter while it was copied, or cannot be read to its end"
    )]
    Short {
        /// Which, harmless on a terminal.
        path: String,
        /// Bytes that came.
        got: u64,
        /// Bytes that it was said to have.
        size: u64,
    },
    /// A directory about which a server talks without end.
    #[error("what the server lists in {path} is longer than any list: {bytes} bytes for {names} names")]
    Talkative {
        /// Which, harmless on a terminal.
        path: String,
        /// Of names and what is told of them.
        bytes: u64,
        /// How many there were so far.
        names: u64,
    },
    /// A name that could leave the directory it is in, or that no file has here.
    #[error("the server lists a file with the name {name}, which is none")]
    Name {
        /// As it was sent, harmless on a terminal.
        name: String,
    },
    /// A symbolic link that leads out of what is copied.
    #[error("the link {path} leads out of what is copied, to {to}")]
    Outside {
        /// Which, harmless on a terminal.
        path: String,
        /// Where to, harmless on a terminal.
        to: String,
    },
    /// A name that came with U+FFFD in it: the library puts that for what is not UTF-8, so the name may lead to another file.
    #[error(
        "in {directory} there the name {name} is not in UTF-8, and could be taken for another one: rename it there"
    )]
    Lossy {
        /// What is left of it, harmless on a terminal.
        name: String,
        /// Where it stands, harmless on a terminal.
        directory: String,
    },
    /// A tree deeper than any real one: perhaps a loop.
    #[error("{path} is more than {DEEPEST} directories deep")]
    Deep {
        /// Where it was given up, harmless on a terminal.
        path: String,
    },
    /// More bytes than are wanted.
    #[error("it is more than {most} bytes with {path}")]
    Large {
        /// The limit.
        most: u64,
        /// Where it was given up, harmless on a terminal.
        path: String,
    },
    /// More files and directories than are wanted.
    #[error("there are more than {most} files and directories, with those in {path}")]
    Many {
        /// The limit.
        most: u64,
        /// Where it was given up, harmless on a terminal.
        path: String,
    },
    /// What is there to be copied into is no directory.
    #[error("{path} is no directory there, and more than one thing is to go into it")]
    NoDirectory {
        /// Which, harmless on a terminal.
        path: String,
    },
    /// A fault of this program.
    #[error("internal error: a task broke: {0}; please report this")]
    Broken(String),
}

impl Session {
    /// Opens a channel for files.
    ///
    /// # Errors
    /// The server has no SFTP, or refused the channel.
    pub async fn sftp(&self) -> Result<Sftp, Failure> {
        let stream = self.subsystem("sftp").await?;
        let (stream, seen) = Watched::new(stream);
        let mut raw = RawSftpSession::new(stream);
        raw.set_timeout(REQUEST_SECONDS);
        let broken = |fault: Error| {
            let detail = format!("{} does not speak SFTP: {}", self.name(), said(&fault));
            Failure { remote: Remote::NeverStarted, ..failure(Phase::Start, Reason::Protocol, detail) }
        };
        let version = raw.init().await.map_err(broken)?;
        let has = |extension: &str| version.extensions.contains_key(extension);
        let replaces = if has(POSIX_RENAME) { Replaces::Atomically } else { Replaces::No };
        let mut chunk = Chunk { read: CHUNK, write: CHUNK };
        if has(russh_sftp::extensions::LIMITS)
            && let Ok(limits) = raw.limits().await
        {
            let limits: russh_sftp::client::rawsession::Limits = limits.into();
            // A write has its handle, at most 256 bytes, and five numbers around its bytes.
            let packet = limits.packet_len.map_or(u64::MAX, |packet| packet.saturating_sub(512));
            let within = |limit: Option<u64>| {
                let least = limit.unwrap_or(u64::MAX).min(packet).clamp(1, u64::from(CHUNK));
                u32::try_from(least).unwrap_or(CHUNK)
            };
            chunk = Chunk { read: within(limits.read_len), write: within(limits.write_len) };
            raw.set_limits(limits);
        }
        let in_flight = match self.purpose() {
            Purpose::Commands => 16,
            Purpose::Bulk => 128,
        };
        let tells_room = has(russh_sftp::extensions::STATVFS);
        Ok(Sftp { raw: Arc::new(Requests::new(raw, seen)), in_flight, chunk, tells_room, replaces })
    }
}

impl Sftp {
    /// At most so many requests of 32 KiB wait for an answer at once: what a copy takes of this machine's memory.
    #[must_use]
    pub fn at_most(mut self, in_flight: usize) -> Self {
        self.in_flight = in_flight.clamp(1, self.in_flight);
        self
    }

    /// Renames over what is there, in one step.
    async fn replace(&self, from: &str, to: &str) -> Result<(), Error> {
        let mut names = Vec::new();
        for name in [from, to] {
            let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
            names.extend_from_slice(&length.to_be_bytes());
            names.extend_from_slice(name.as_bytes());
        }
        match self.raw.extended(POSIX_RENAME, names).await? {
            Packet::Status(status) if status.status_code == StatusCode::Ok => Ok(()),
            Packet::Status(status) => Err(Error::Status(status)),
            _ => Err(Error::UnexpectedPacket),
        }
    }

    async fn is_directory(&self, path: &str) -> bool {
        let found = self.raw.stat(path).await;
        found.is_ok_and(|found| found.attrs.permissions.is_some_and(|mode| kind(mode) == Kind::Directory))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Link,
    Special,
}

/// What a mode of Unix says.
fn kind(mode: u32) -> Kind {
    match mode & 0o170_000 {
        0o100_000 => Kind::File,
        0o040_000 => Kind::Directory,
        0o120_000 => Kind::Link,
        _ => Kind::Special,
    }
}

fn mode_only(mode: u32) -> FileAttributes {
    FileAttributes { permissions: Some(mode), ..FileAttributes::empty() }
}

fn here(doing: &'static str, path: &Path, source: std::io::Error) -> TransferError {
    TransferError::Here { doing, path: shown(path), source }
}

/// A path of this machine, harmless on a terminal.
fn shown(path: &Path) -> String {
    harmless(&path.to_string_lossy())
}

fn there(doing: &'static str, path: &str, fault: &Error) -> TransferError {
    TransferError::There { doing, path: harmless(path), said: said(fault) }
}

fn said(fault: &Error) -> String {
    match fault {
        Error::Status(status) => match status.status_code {
            StatusCode::NoSuchFile => "no such file or directory".to_owned(),
            StatusCode::PermissionDenied => "permission denied".to_owned(),
            StatusCode::OpUnsupported => "the server cannot do that".to_owned(),
            _ => harmless(&status.error_message),
        },
        Error::Timeout => format!("no answer within {REQUEST_SECONDS} s"),
        Error::Limited(_) => "it is over a limit of the server".to_owned(),
        Error::UnexpectedPacket => "it answered something else".to_owned(),
        Error::UnexpectedBehavior(why) if why == FLOODED => FLOODED.to_owned(),
        Error::IO(_) | Error::UnexpectedBehavior(_) => {
            "the channel is closed: the server ended it, or sent what is not SFTP".to_owned()
        }
    }
}

/// A path there as SFTP takes it: it begins where we are logged in, and no shell reads `~`.
fn path_there(path: &str) -> &str {
    match path.strip_prefix('~') {
        Some("") => ".",
        Some(rest) if rest.starts_with('/') => match rest.trim_start_matches('/') {
            "" => ".",
            rest => rest,
        },
        _ => path,
    }
}

/// Work on files, where it delays nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| Err(std::io::Error::other(fault)))
}

/// A name beside `path` that nobody else uses, on the way to it.
fn beside(path: &str) -> String {
    let (directory, name) = path.rsplit_once('/').map_or(("", path), |(directory, name)| (directory, name));
    let slash = if path.contains('/') { "/" } else { "" };
    // With four bytes a character it is still a name: 255 bytes are.
    let short: String = name.chars().take(50).collect();
    format!("{directory}{slash}.{short}.{:08x}", fastrand::u32(..))
}

/// Servers need not take more in one request (draft section 3), and OpenSSH's packets are no larger.
const CHUNK: u32 = 32 * 1024;

/// A request may wait behind all others on a slow line.
const REQUEST_SECONDS: u64 = 300;

/// Trees are followed so far.
const DEEPEST: usize = 128;

const POSIX_RENAME: &str = "posix-rename@openssh.com";
