//! Copies files from a host. The server can neither write outside of the destination nor keep the copy running for
//! ever.

use std::fs::{File, OpenOptions, Permissions};
use std::io::IoSlice;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::uio::pwritev;
use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, OpenFlags, StatusCode};

use super::channel::Copying;
use super::packets::{self, Answer};
use super::{DEEPEST, Kind, Moved, Sftp, TransferError, beside, blocking, here, kind, path_there, there};
use crate::trouble::quoted;

/// Limits of the data that a host may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Maximum number of bytes in all files together.
    pub bytes: u64,
    /// Maximum number of files, directories and symbolic links together.
    pub entries: u64,
    pub links: Links,
}

/// Symbolic links that are created locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Only links that stay within the copied directory; other links are an error.
    Inside,
    All,
}

/// The allowance of a copy and its use so far.
struct Budget<'a> {
    allowance: Allowance,
    /// Complete files, with their bytes.
    moved: &'a mut Moved,
    /// Bytes that have arrived, those of incomplete files too.
    arrived: u64,
    entries: u64,
    on_bytes: &'a (dyn Fn(u64) + Sync),
    made: MadeDirectories,
}

/// Directories that a copy has created. If the copy fails or is cancelled, the drop removes the empty ones; directories
/// that existed before, or that hold a file, stay.
#[derive(Debug, Default)]
struct MadeDirectories(Vec<MadeDirectory>);

#[derive(Debug)]
struct MadeDirectory {
    local: PathBuf,
    /// Its mode in the end; `None` once it is set.
    mode: Option<u32>,
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for MadeDirectory { local, mode } in self.0.iter().rev() {
            // The removal fails for a directory that is not empty. A directory whose mode forbids writing is complete,
            // and so are its subdirectories.
            if std::fs::remove_dir(local).is_err()
                && let Some(mode) = mode
            {
                // For the next copy it is a directory that was there before, which keeps its mode.
                let _ = std::fs::set_permissions(local, Permissions::from_mode(mode | 0o700));
            }
        }
    }
}

/// Whether a copy has created a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directory {
    New,
    Old,
}

/// A directory during its copy.
struct Level {
    remote: String,
    local: PathBuf,
    /// Index of the directory in [`MadeDirectories`]; `None` if it existed before.
    made: Option<usize>,
    left: std::vec::IntoIter<Listed>,
}

/// An entry of a directory list. It is kept small, because there may be many.
struct Listed {
    name: Box<str>,
    about: About,
}

#[derive(Debug, Clone, Copy)]
struct About {
    mode: u32,
    size: u64,
}

impl About {
    fn of(attributes: &FileAttributes) -> Self {
        Self { mode: attributes.permissions.unwrap_or(0o100_644), size: attributes.size.unwrap_or_default() }
    }
}

impl Sftp {
    /// Copies a file, or a directory with its content, to `local`, with symbolic links and modes (without set-user-id
    /// and similar bits). A file appears only when it is complete; an existing directory receives the new files. The
    /// function calls `on_bytes` with the number of bytes that have arrived. If the future is dropped, only complete
    /// files stay.
    ///
    /// # Errors
    /// A file could not be read on the host or written locally, or exceeds `allowance`. Files that were copied before
    /// stay.
    pub async fn get(
        &self,
        remote: &str,
        local: &Path,
        allowance: Allowance,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<Moved, TransferError> {
        let one = [(remote.to_owned(), local.to_owned())];
        let mut moved = Moved::default();
        self.get_all(&one, allowance, &mut moved, on_bytes).await?;
        Ok(moved)
    }

    /// Copies several files or directories, each to its own local path; `allowance` applies to all of them together.
    /// `moved` counts the complete files, also if the copy fails or is cancelled.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub async fn get_all(
        &self,
        sources: &[(String, PathBuf)],
        allowance: Allowance,
        moved: &mut Moved,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), TransferError> {
        let made = MadeDirectories::default();
        let mut budget = Budget { allowance, moved, arrived: 0, entries: 0, on_bytes, made };
        for (remote, local) in sources {
            self.get_one(path_there(remote), local, &mut budget).await?;
        }
        budget.made.0.clear();
        Ok(())
    }

    async fn get_one(
        &self,
        remote: &str,
        local: &Path,
        budget: &mut Budget<'_>,
    ) -> Result<(), TransferError> {
        let found = self.raw.stat(remote).await.map_err(|fault| there("look at", remote, &fault))?;
        budget.count(1, remote)?;
        let mut levels: Vec<Level> = Vec::new();
        let top = About::of(&found.attrs);
        if kind(top.mode) == Kind::Link {
            // stat(2) follows symbolic links, so a server that still reports a link is wrong.
            return Err(TransferError::Special { path: quoted(remote) });
        }
        let mut next = Some((remote.to_owned(), local.to_owned(), top));
        loop {
            if let Some((remote, local, about)) = next.take() {
                match kind(about.mode) {
                    Kind::File => self.fetch(&remote, &local, about, budget).await?,
                    Kind::Directory if levels.len() > DEEPEST => {
                        return Err(TransferError::Deep { path: quoted(&remote) });
                    }
                    Kind::Directory => {
                        // Other users cannot read the directory before the modes of its whole content are set.
                        let made = match make_directory(&local, 0o700).await? {
                            Directory::New => {
                                let (local, mode) = (local.clone(), Some(about.mode & 0o1777));
                                budget.made.0.push(MadeDirectory { local, mode });
                                Some(budget.made.0.len() - 1)
                            }
                            Directory::Old => None,
                        };
                        let left = self.list(&remote, budget).await?.into_iter();
                        levels.push(Level { remote, local, made, left });
                    }
                    Kind::Link => self.link(&remote, &local, levels.len(), budget).await?,
                    Kind::Special => return Err(TransferError::Special { path: quoted(&remote) }),
                }
            }
            let Some(level) = levels.last_mut() else { return Ok(()) };
            match level.left.next() {
                Some(listed) => {
                    let remote = format!("{}/{}", level.remote.trim_end_matches('/'), listed.name);
                    next = Some((remote, level.local.join(&*listed.name), listed.about));
                }
                None => {
                    // The mode comes last, because it may forbid writing into the directory. A directory that existed
                    // before keeps its own.
                    if let Some(made) = level.made.and_then(|made| budget.made.0.get_mut(made))
                        && let Some(mode) = made.mode
                    {
                        let set = tokio::fs::set_permissions(&made.local, Permissions::from_mode(mode)).await;
                        set.map_err(|fault| here("set the mode of", &made.local, fault))?;
                        made.mode = None;
                    }
                    levels.pop();
                }
            }
        }
    }

    /// Lists a directory. The entries count at once, not at their visit, because they take memory until then.
    async fn list(&self, remote: &str, budget: &mut Budget<'_>) -> Result<Vec<Listed>, TransferError> {
        let handle = self.raw.opendir(remote).await.map_err(|fault| there("list", remote, &fault))?.handle;
        let mut found = Vec::new();
        let (mut named, mut told) = (0_u64, 0_u64);
        let listed = loop {
            match self.raw.readdir(&handle).await {
                // OpenSSH's client also takes an empty list for the end.
                Ok(names) if names.files.is_empty() => break Ok(found),
                Ok(names) => {
                    named += names.files.len() as u64;
                    // `.` and `..` do not count as entries.
                    if named > budget.left().saturating_add(2) {
                        break Err(budget.many(remote));
                    }
                    let lengths = names.files.iter().map(|file| file.filename.len() + file.longname.len());
                    told += lengths.sum::<usize>() as u64;
                    if told > TOLD_AT_ONCE + named * TOLD_OF_EACH {
                        break Err(TransferError::Talkative {
                            path: quoted(remote),
                            bytes: told,
                            names: named,
                        });
                    }
                    let wrong =
                        names.files.iter().find(|file| !is_name(&file.filename) && !is_dots(&file.filename));
                    if let Some(wrong) = wrong {
                        break Err(TransferError::Name { name: quoted(&wrong.filename) });
                    }
                    if let Some(file) = names.files.iter().find(|file| file.filename.contains('\u{fffd}')) {
                        let (name, directory) = (quoted(&file.filename), quoted(remote));
                        break Err(TransferError::Lossy { name, directory });
                    }
                    let real = names.files.into_iter().filter(|file| !is_dots(&file.filename));
                    found.extend(
                        real.map(|file| Listed { about: About::of(&file.attrs), name: file.filename.into() }),
                    );
                }
                Err(Error::Status(status)) if status.status_code == StatusCode::Eof => break Ok(found),
                Err(fault) => break Err(there("list", remote, &fault)),
            }
        };
        self.let_go(&handle).await;
        let listed = listed?;
        budget.count(listed.len() as u64, remote)?;
        Ok(listed)
    }

    /// Closes a handle that was only read. A server may never answer, so the wait is short and the answer is ignored.
    async fn let_go(&self, handle: &str) {
        let _ = tokio::time::timeout(LETTING_GO, self.raw.close(handle)).await;
    }

    async fn link(
        &self,
        remote: &str,
        local: &Path,
        depth: usize,
        budget: &Budget<'_>,
    ) -> Result<(), TransferError> {
        let read = self.raw.readlink(remote).await.map_err(|fault| there("read the link", remote, &fault))?;
        let leads = read.files.into_iter().next().map(|file| file.filename).unwrap_or_default();
        // The directory of the link is `depth - 1` levels below the top of the copy.
        if budget.allowance.links == Links::Inside && !stays_inside(&leads, depth.saturating_sub(1)) {
            return Err(TransferError::Outside { path: quoted(remote), to: quoted(&leads) });
        }
        let (partial, to) = (Partial(beside_here(local)), local.to_owned());
        let made = blocking(move || {
            std::os::unix::fs::symlink(leads, &partial.0)?;
            std::fs::rename(&partial.0, to)
        });
        made.await.map_err(|fault| here("make the link", local, fault))
    }

    async fn fetch(
        &self,
        remote: &str,
        local: &Path,
        about: About,
        budget: &mut Budget<'_>,
    ) -> Result<(), TransferError> {
        // The reported size only avoids a useless download; the received bytes are what counts.
        budget.room(about.size, remote)?;
        let opened = self.raw.open(remote, OpenFlags::READ, FileAttributes::empty()).await;
        let handle = opened.map_err(|fault| there("open", remote, &fault))?.handle;
        let partial = Partial(beside_here(local));
        let created = blocking(move || {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial.0)?;
            Ok((file, partial))
        });
        let before = budget.arrived;
        let fetched = match created.await {
            Ok((file, partial)) => {
                let file = Arc::new(file);
                match self.contents_of((&handle, remote), &file, local, about.size, budget).await {
                    Ok(()) => place(file, partial, local, about.mode & 0o777).await,
                    Err(fault) => Err(fault),
                }
            }
            Err(fault) => Err(here("create a file for", local, fault)),
        };
        self.let_go(&handle).await;
        if fetched.is_ok() {
            budget.moved.files += 1;
            budget.moved.bytes += budget.arrived - before;
        }
        fetched
    }

    /// Reads a file to its end, as the server reports it: `size` only limits how many requests are sent ahead.
    async fn contents_of(
        &self,
        (handle, remote): (&str, &str),
        file: &Arc<File>,
        local: &Path,
        size: u64,
        budget: &mut Budget<'_>,
    ) -> Result<(), TransferError> {
        let mut copying = self.copies.begin();
        let before = budget.arrived;
        let (mut next, mut end, mut reach) = (0_u64, u64::MAX, 0_u64);
        let mut arrived = Arrived::default();
        // What was left out of an answer, and is to be asked for again.
        let mut short: Vec<(u64, u32)> = Vec::new();
        loop {
            let mut requests = Vec::new();
            let mut ask = |copying: &mut Copying<'_, _>, offset: u64, length: u32| {
                let number = copying.number((offset, length));
                packets::put_read(&mut requests, number, handle, offset, length);
            };
            for (offset, length) in short.drain(..).filter(|(offset, _)| *offset < end) {
                ask(&mut copying, offset, length);
            }
            while next < end
                && copying.unanswered() + arrived.requests < self.in_flight
                && (next < size || copying.unanswered() == 0)
            {
                ask(&mut copying, next, self.chunk.read);
                next += u64::from(self.chunk.read);
            }
            if !requests.is_empty() {
                copying.send(requests.into()).await.map_err(|fault| there("read", remote, &fault))?;
            }
            if arrived.requests > 0 {
                let (file, arrived) = (Arc::clone(file), std::mem::take(&mut arrived));
                let written = blocking(move || arrived.write(&file)).await;
                written.map_err(|fault| here("write", local, fault))?;
                // More requests may be sent now.
                continue;
            }
            if copying.unanswered() == 0 {
                break;
            }
            let mut answered = Some(copying.answer().await.map_err(|fault| there("read", remote, &fault))?);
            while let Some(((offset, length), answer)) = answered {
                match answer {
                    Answer::Data(data) => {
                        let got = data.iter().map(Bytes::len).sum::<usize>() as u64;
                        if got == 0 || got > u64::from(length) {
                            return Err(there("read", remote, &Error::UnexpectedPacket));
                        }
                        let until = offset + got;
                        reach = reach.max(until);
                        if got < u64::from(length) {
                            short.push((until, length - u32::try_from(got).unwrap_or(length)));
                        }
                        budget.take(got, remote)?;
                        arrived.add(offset, data);
                    }
                    Answer::Status(status) if status.status_code == StatusCode::Eof => end = end.min(offset),
                    Answer::Status(status) => return Err(there("read", remote, &Error::Status(status))),
                    Answer::Wrong => return Err(there("read", remote, &Error::UnexpectedPacket)),
                }
                let is_full = arrived.requests * 4 >= self.in_flight;
                answered = if is_full { None } else { copying.answered() };
            }
        }
        // The file ended before data that was received: it was truncated during the copy, and the local file has a gap.
        if reach > end || budget.arrived - before != reach {
            return Err(TransferError::Moving { path: quoted(remote) });
        }
        // A file that is longer than reported is valid: a log grows, and a file in /proc has no size.
        if reach < size {
            return Err(TransferError::Short { path: quoted(remote), got: reach, size });
        }
        Ok(())
    }
}

/// Data that has arrived and is to be written: one write for many answers.
#[derive(Default)]
struct Arrived {
    /// Number of requests whose data it is.
    requests: usize,
    /// Places in the file, and what is there: an entry for what follows on each other.
    runs: Vec<(u64, Vec<Bytes>)>,
    /// End of the last entry.
    end: u64,
}

impl Arrived {
    fn add(&mut self, offset: u64, data: Vec<Bytes>) {
        self.requests += 1;
        let length = data.iter().map(Bytes::len).sum::<usize>() as u64;
        match self.runs.last_mut() {
            Some((_, run)) if self.end == offset => run.extend(data),
            _ => self.runs.push((offset, data)),
        }
        self.end = offset + length;
    }

    fn write(&self, file: &File) -> std::io::Result<()> {
        for (offset, run) in &self.runs {
            let mut offset = *offset;
            // The kernel takes at most 1024 pieces at once (IOV_MAX).
            for pieces in run.chunks(1024) {
                let mut pieces: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
                let mut left = &mut pieces[..];
                while !left.is_empty() {
                    let count = match pwritev(file, left, i64::try_from(offset).unwrap_or(i64::MAX)) {
                        Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                        Ok(count) => count,
                        Err(Errno::EINTR) => continue,
                        Err(error) => return Err(error.into()),
                    };
                    offset += count as u64;
                    IoSlice::advance_slices(&mut left, count);
                }
            }
        }
        Ok(())
    }
}

impl Budget<'_> {
    fn left(&self) -> u64 {
        self.allowance.entries.saturating_sub(self.entries)
    }

    fn count(&mut self, more: u64, path: &str) -> Result<(), TransferError> {
        if more > self.left() {
            return Err(self.many(path));
        }
        self.entries += more;
        Ok(())
    }

    fn many(&self, path: &str) -> TransferError {
        TransferError::Many { most: self.allowance.entries, path: quoted(path) }
    }

    fn room(&self, bytes: u64, path: &str) -> Result<(), TransferError> {
        if bytes <= self.allowance.bytes.saturating_sub(self.arrived) {
            return Ok(());
        }
        Err(TransferError::Large { most: self.allowance.bytes, path: quoted(path) })
    }

    fn take(&mut self, bytes: u64, path: &str) -> Result<(), TransferError> {
        self.room(bytes, path)?;
        self.arrived += bytes;
        (self.on_bytes)(bytes);
        Ok(())
    }
}

/// A temporary file that the drop removes unless it was renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns true if `name` is one file name in its directory, within the length limit of Linux.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !is_dots(name) && name.len() <= LONGEST_NAME && !name.contains(['/', '\0'])
}

fn is_dots(name: &str) -> bool {
    matches!(name, "." | "..")
}

/// Returns true if a link target stays below the top, for a link in a directory `depth` levels below the top. `..` is
/// allowed only at the start: later parts may be links themselves, whose parent is unknown.
fn stays_inside(leads: &str, depth: usize) -> bool {
    let mut parts = leads.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
    let mut up = 0;
    while parts.next_if_eq(&"..").is_some() {
        up += 1;
    }
    !leads.is_empty() && !leads.starts_with('/') && up <= depth && parts.all(|part| part != "..")
}

fn beside_here(local: &Path) -> PathBuf {
    // The temporary name does not contain the file's name, which would only make it longer.
    local.with_file_name(beside("part"))
}

/// Creates a local directory with `mode`, as far as the umask allows. An existing directory is used.
///
/// # Errors
/// The directory cannot be created, or another file has the name.
pub async fn make_directory(local: &Path, mode: u32) -> Result<Directory, TransferError> {
    match tokio::fs::DirBuilder::new().mode(mode).create(local).await {
        Ok(()) => Ok(Directory::New),
        // A symbolic link at the path is not followed: the server's files stay below `local`.
        Err(_) if tokio::fs::symlink_metadata(local).await.is_ok_and(|found| found.is_dir()) => {
            Ok(Directory::Old)
        }
        Err(fault) => Err(here("make the directory", local, fault)),
    }
}

async fn place(file: Arc<File>, partial: Partial, local: &Path, mode: u32) -> Result<(), TransferError> {
    let to = local.to_owned();
    let placed = blocking(move || {
        file.set_permissions(Permissions::from_mode(mode))?;
        std::fs::rename(&partial.0, to)
    });
    placed.await.map_err(|fault| here("rename into place", local, fault))
}

const LONGEST_NAME: usize = 255;

/// Maximum number of bytes for each name in a list of a directory: the name and a line like `ls -l`, about 255 bytes
/// each. `TOLD_AT_ONCE` bytes more are allowed.
const TOLD_OF_EACH: u64 = 1024;
const TOLD_AT_ONCE: u64 = 1 << 20;

/// Maximum wait for the close of a handle that was read.
const LETTING_GO: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_one_file_are_taken() {
        let long = "x".repeat(256);
        for bad in ["", ".", "..", "a/b", "/etc", "../x", "a\0b", &long] {
            assert!(!is_name(bad), "{bad:?}");
        }
        for good in ["a", "...", "..a", "a b\n\x1b[2J", &long[1..]] {
            assert!(is_name(good), "{good:?}");
        }
    }

    #[test]
    fn links_lead_inside_only_if_nothing_can_lead_them_out() {
        for (leads, depth) in [("a", 0), ("./a//b", 0), ("../a", 1), ("../../a/b", 2), (".", 0), ("..", 1)] {
            assert!(stays_inside(leads, depth), "{leads} at {depth}");
        }
        for (leads, depth) in
            [("/etc", 5), ("..", 0), ("../a", 0), ("../../a", 1), ("a/../../b", 1), ("a/..", 3), ("", 0)]
        {
            assert!(!stays_inside(leads, depth), "{leads} at {depth}");
        }
    }
}
