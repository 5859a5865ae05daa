//! Copies files to and from a host (SFTP version 3, draft-ietf-secsh-filexfer-02), with many requests in flight.

mod channel;
mod get;
mod packets;
mod put;
mod requests;
mod tree;

use std::path::Path;

pub use get::{Allowance, Directory, Links, make_directory};
pub use put::{Change, Put};
pub use tree::{Tree, TreeError};

use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, Packet, StatusCode};
use thiserror::Error;

use self::channel::Copies;
use self::requests::{FLOODED, Requests};
use crate::session::Session;
use crate::target::Purpose;
use crate::trouble::{failure, quoted};

/// An SFTP channel.
pub struct Sftp {
    raw: Requests,
    copies: Copies,
    /// Maximum number of requests that wait for an answer.
    in_flight: usize,
    /// Maximum number of file bytes in one request.
    chunk: Chunk,
    /// True if the server can report the free space of its disks.
    tells_room: bool,
    /// Support of a rename that replaces an existing file.
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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of files, without directories and symbolic links.
    pub files: u64,
    pub bytes: u64,
}

/// Reason why a file could not be copied. Files that were copied before stay. All strings are safe to print on a
/// terminal.
#[derive(Debug, Error)]
pub enum TransferError {
    #[error("{doing} {path}: {source}")]
    Here {
        /// Failed operation, such as `read` or `write`.
        doing: &'static str,
        path: String,
        source: std::io::Error,
    },
    /// A local file has changed since the copy began.
    #[error("{path} was changed while it was copied")]
    Moving { path: String },
    #[error("{doing} {path} there: {said}")]
    There {
        /// Failed operation, such as `open` or `write`.
        doing: &'static str,
        path: String,
        /// Message of the server.
        said: String,
    },
    /// The path is neither a file, a directory nor a symbolic link.
    #[error("{path} is not a file, directory or symbolic link, and cannot be copied")]
    Special { path: String },
    /// The file ended before the size that the server had reported.
    #[error(
        "{path} ended on the host after {got} of {size} bytes: it was truncated during the copy, or cannot be read to its end"
    )]
    Short {
        path: String,
        got: u64,
        /// Size in bytes, as reported by the server.
        size: u64,
    },
    /// The server's list of a directory is too long for its number of names.
    #[error("the list of {path} from the server is too long: {bytes} bytes for {names} names")]
    Talkative {
        path: String,
        /// Bytes of the names and their descriptions.
        bytes: u64,
        /// Number of names in the list so far.
        names: u64,
    },
    /// A name that could lead out of its directory, or that no local file can have.
    #[error("the server lists a file with the invalid name {name}")]
    Name { name: String },
    /// A symbolic link that leads out of the copied directory.
    #[error("the link {path} leads out of what is copied, to {to}")]
    Outside {
        path: String,
        /// Target of the symbolic link.
        to: String,
    },
    /// A name with U+FFFD: the library replaces bytes that are not UTF-8 by it, so the name may lead to another file.
    #[error(
        "in {directory} on the host, the name {name} is not UTF-8 and could be confused with another: rename it there"
    )]
    Lossy {
        /// Name after the replacement.
        name: String,
        directory: String,
    },
    /// The tree is deeper than any real tree: perhaps it is a loop.
    #[error("{path} is nested more than {DEEPEST} directories deep")]
    Deep {
        /// Path at which the copy was stopped.
        path: String,
    },
    /// The files have more bytes than the allowance.
    #[error("the total exceeds {most} bytes with {path}")]
    Large {
        most: u64,
        /// Path at which the copy was stopped.
        path: String,
    },
    /// The tree has more files and directories than the allowance.
    #[error("there are more than {most} files and directories, with those in {path}")]
    Many {
        most: u64,
        /// Path at which the copy was stopped.
        path: String,
    },
    /// The destination of several files exists and is not a directory.
    #[error("{path} is not a directory there, and more than one source goes into it")]
    NoDirectory { path: String },
    /// A fault of penstock itself.
    #[error("internal error: a task panicked: {0}; please report this")]
    Broken(String),
}

impl Session {
    /// Opens an SFTP channel.
    ///
    /// # Errors
    /// The server has no SFTP, or refused the channel.
    pub async fn sftp(&self) -> Result<Sftp, Failure> {
        let stream = self.subsystem("sftp").await?;
        let (stream, seen, copies) = channel::carry(stream);
        let mut raw = RawSftpSession::new(stream);
        raw.set_timeout(REQUEST_SECONDS);
        let broken = |fault: Error| {
            let detail = format!("{} does not speak SFTP: {}", self.name(), said(&fault));
            Failure { remote: Remote::NotStarted, ..failure(Phase::Start, Reason::ProtocolError, detail) }
        };
        let version = raw.init().await.map_err(broken)?;
        let has = |extension: &str| version.extensions.contains_key(extension);
        let replaces = if has(POSIX_RENAME) { Replaces::Atomically } else { Replaces::No };
        let mut chunk = Chunk { read: CHUNK, write: CHUNK };
        if has(russh_sftp::extensions::LIMITS)
            && let Ok(limits) = raw.limits().await
        {
            let limits: russh_sftp::client::rawsession::Limits = limits.into();
            // A write request has the handle (at most 256 bytes) and five numbers besides its data.
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
        Ok(Sftp { raw: Requests::new(raw, seen), copies, in_flight, chunk, tells_room, replaces })
    }
}

impl Sftp {
    /// Limits the number of requests of 32 KiB that wait for an answer, and so the memory of a copy on this machine.
    #[must_use]
    pub fn at_most(mut self, in_flight: usize) -> Self {
        self.in_flight = in_flight.clamp(1, self.in_flight);
        self
    }

    /// Renames a file in one step, and replaces an existing file.
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

/// Converts a Unix mode.
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

/// Formats a local path, safe to print on a terminal.
fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn there(doing: &'static str, path: &str, fault: &Error) -> TransferError {
    TransferError::There { doing, path: quoted(path), said: said(fault) }
}

fn said(fault: &Error) -> String {
    match fault {
        Error::Status(status) => match status.status_code {
            StatusCode::NoSuchFile => "no such file or directory".to_owned(),
            StatusCode::PermissionDenied => "permission denied".to_owned(),
            StatusCode::OpUnsupported => "the server does not support this operation".to_owned(),
            _ => quoted(&status.error_message),
        },
        Error::Timeout => format!("no answer within {REQUEST_SECONDS} s"),
        Error::Limited(_) => "it is over a limit of the server".to_owned(),
        Error::UnexpectedPacket => "the server sent an SFTP reply of the wrong type".to_owned(),
        Error::UnexpectedBehavior(why) if why == FLOODED => FLOODED.to_owned(),
        Error::IO(_) | Error::UnexpectedBehavior(_) => {
            "the channel is closed: the server ended it, or sent what is not SFTP".to_owned()
        }
    }
}

/// Converts a remote path for SFTP: it starts in the log-in directory, where no shell expands `~`.
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

/// Runs file operations on a thread where they delay no connection.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| Err(std::io::Error::other(fault)))
}

/// Returns a temporary name beside `path` that no other process uses.
fn beside(path: &str) -> String {
    let (directory, name) = path.rsplit_once('/').map_or(("", path), |(directory, name)| (directory, name));
    let slash = if path.contains('/') { "/" } else { "" };
    // With 4 bytes per character, the name stays below the limit of 255 bytes.
    let short: String = name.chars().take(50).collect();
    format!("{directory}{slash}.{short}.{:08x}", fastrand::u32(..))
}

/// Maximum size of one request. Servers need not accept more (draft section 3), and OpenSSH's packets are no larger.
const CHUNK: u32 = 32 * 1024;

/// Timeout of a request, which may wait behind all others on a slow line.
const REQUEST_SECONDS: u64 = 300;

/// Maximum depth of a tree.
const DEEPEST: usize = 128;

const POSIX_RENAME: &str = "posix-rename@openssh.com";
