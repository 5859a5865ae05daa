//! Files to and from a host (SFTP version 3, draft-ietf-secsh-filexfer-02), many requests in flight.

mod get;
mod put;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logic::fleet::ending::{Failure, Phase, Reason, Remote};
use russh_sftp::client::RawSftpSession;
use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, Packet, StatusCode};
use thiserror::Error;

use crate::session::Session;
use crate::target::Purpose;
use crate::trouble::{failure, harmless};

/// A channel for files.
pub struct Sftp {
    raw: Arc<RawSftpSession>,
    /// Requests that may wait for an answer at once, per file.
    in_flight: usize,
    /// Whether the server can rename over a file that exists.
    replaces: Replaces,
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
    #[error("{doing} {}: {source}", .path.display())]
    Here {
        /// Such as `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
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
        /// Which.
        path: String,
    },
    /// A name that could leave the directory it is in.
    #[error("the server lists a file with the name {name}, which is none")]
    Name {
        /// As it was sent, harmless on a terminal.
        name: String,
    },
    /// A tree deeper than any real one: perhaps a loop.
    #[error("{path} is more than {DEEPEST} directories deep")]
    Deep {
        /// Where it was given up.
        path: String,
    },
    /// A name that is no text, or not in UTF-8: the library can send only that.
    #[error("the name of {} is not in UTF-8", .0.display())]
    NotText(PathBuf),
}

impl Session {
    /// Opens a channel for files.
    ///
    /// # Errors
    /// The server has no SFTP, or refused the channel.
    pub async fn sftp(&self) -> Result<Sftp, Failure> {
        let stream = self.subsystem("sftp").await?;
        let mut raw = RawSftpSession::new(stream);
        raw.set_timeout(REQUEST_SECONDS);
        let broken = |fault: Error| {
            let detail = format!("{} does not speak SFTP: {}", self.name(), said(&fault));
            Failure { remote: Remote::NeverStarted, ..failure(Phase::Start, Reason::Protocol, detail) }
        };
        let version = raw.init().await.map_err(broken)?;
        let has = |extension: &str| version.extensions.contains_key(extension);
        let replaces = if has(POSIX_RENAME) { Replaces::Atomically } else { Replaces::No };
        if has(russh_sftp::extensions::LIMITS)
            && let Ok(limits) = raw.limits().await
        {
            raw.set_limits(limits.into());
        }
        let in_flight = match self.purpose() {
            Purpose::Commands => 16,
            Purpose::Bulk => 128,
        };
        Ok(Sftp { raw: Arc::new(raw), in_flight, replaces })
    }
}

impl Sftp {
    /// Puts `from` over `to`, if there is a way at once.
    async fn rename(&self, from: &str, to: &str) -> Result<(), TransferError> {
        if self.replaces == Replaces::Atomically {
            let mut names = Vec::new();
            for name in [from, to] {
                let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
                names.extend_from_slice(&length.to_be_bytes());
                names.extend_from_slice(name.as_bytes());
            }
            let answer = self.raw.extended(POSIX_RENAME, names).await;
            return match answer {
                Ok(Packet::Status(status)) if status.status_code == StatusCode::Ok => Ok(()),
                Ok(Packet::Status(status)) => Err(there("rename into place", to, &Error::Status(status))),
                Ok(_) => Err(there("rename into place", to, &Error::UnexpectedPacket)),
                Err(fault) => Err(there("rename into place", to, &fault)),
            };
        }
        if self.raw.rename(from, to).await.is_ok() {
            return Ok(());
        }
        // Version 3 refuses to rename over something.
        let _ = self.raw.remove(to).await;
        self.raw.rename(from, to).await.map(drop).map_err(|fault| there("rename into place", to, &fault))
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

fn text(path: &Path) -> Result<&str, TransferError> {
    path.to_str().ok_or_else(|| TransferError::NotText(path.to_owned()))
}

fn here(doing: &'static str, path: &Path, source: std::io::Error) -> TransferError {
    TransferError::Here { doing, path: path.to_owned(), source }
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
        Error::IO(_) | Error::UnexpectedBehavior(_) => "the channel is closed".to_owned(),
    }
}

/// A name beside `path` that nobody else uses, on the way to it.
fn beside(path: &str) -> String {
    let (directory, name) = path.rsplit_once('/').map_or(("", path), |(directory, name)| (directory, name));
    let slash = if path.contains('/') { "/" } else { "" };
    let short: String = name.chars().take(100).collect();
    format!("{directory}{slash}.{short}.{:08x}", fastrand::u32(..))
}

/// Servers need not take more in one request (draft section 3), and OpenSSH's packets are no larger.
const CHUNK: u32 = 32 * 1024;

/// A request may wait behind all others on a slow line.
const REQUEST_SECONDS: u64 = 300;

/// Trees are followed so far.
const DEEPEST: usize = 128;

const POSIX_RENAME: &str = "posix-rename@openssh.com";
