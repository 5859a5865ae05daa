//! Copies files to a host. An existing file is replaced in one step or not at all; a cancelled copy is undone.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, OpenFlags, StatusCode};

use super::channel::Copying;
use super::get::Directory;
use super::packets::{self, Answer};
use super::tree::{Entry, Kind, Seen, Tree};
use super::{
    Kind as What, Moved, Replaces, Sftp, TransferError, beside, blocking, here, kind, mode_only, path_there,
    shown, there,
};
use crate::trouble::quoted;

/// A copy of a [`Tree`] to one host. If the future of [`Put::run`] is dropped early, [`Put::take_back`] cleans up.
pub struct Put<'a> {
    sftp: &'a Sftp,
    tree: &'a Tree,
    destination: &'a str,
    moved: Moved,
    change: Change,
    /// Temporary file that would stay on the host if the copy stopped now.
    begun: Option<Begun>,
}

/// Effect of a copy on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    None,
    /// Some of the files are in place.
    Some,
    /// The server has not answered a request that changes a file.
    Unclear,
}

/// A file whose copy has begun.
struct Begun {
    temporary: String,
    handle: Option<String>,
    /// Path of the file, and the temporary name of its old content during the replacement.
    aside: Option<(String, String)>,
}

/// Destination of the copied files and directories.
enum Place {
    Into(String),
    /// The only file or directory gets this name.
    As(String),
}

impl<'a> Put<'a> {
    /// Prepares a copy of `tree` to `destination`. If `destination` is a directory on the host or ends in `/`, the
    /// files are copied into it; otherwise the only file gets this name.
    #[must_use]
    pub fn new(sftp: &'a Sftp, tree: &'a Tree, destination: &'a str) -> Self {
        let moved = Moved::default();
        Self { sftp, tree, destination, moved, change: Change::None, begun: None }
    }

    /// Copies the tree, with modes and symbolic links. Each file is written under a temporary name beside its path and
    /// then renamed, so that it appears only when it is complete. The function calls `on_bytes` with the number of
    /// bytes that have arrived.
    ///
    /// # Errors
    /// A file could not be read locally or written on the host. Its temporary file was removed; files that were copied
    /// before stay.
    pub async fn run(&mut self, on_bytes: &(dyn Fn(u64) + Sync)) -> Result<Moved, TransferError> {
        let copied = self.copy(on_bytes).await;
        // After an answer of the server, only unanswered requests are unclear, so the cleanup is safe.
        if copied.is_err() && self.begun.is_some() {
            let _ = self.take_back().await;
        }
        copied.map(|()| self.moved)
    }

    #[must_use]
    pub fn change(&self) -> Change {
        self.change
    }

    #[must_use]
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// Names the temporary files that may be left on the host, safe to print on a terminal.
    #[must_use]
    pub fn left(&self) -> Option<String> {
        let begun = self.begun.as_ref()?;
        let temporary = quoted(&begun.temporary);
        Some(match &begun.aside {
            None => temporary,
            Some((place, old)) => {
                format!("the old content of {}, as {}, and {temporary}", quoted(place), quoted(old))
            }
        })
    }

    /// Removes the temporary files of a copy that was stopped. After `Ok`, none is left.
    ///
    /// # Errors
    /// The server did not confirm the removal.
    pub async fn take_back(&mut self) -> Result<(), TransferError> {
        let Some(begun) = &mut self.begun else { return Ok(()) };
        let raw = &self.sftp.raw;
        if let Some(handle) = begun.handle.take() {
            let _ = raw.close(handle).await;
        }
        if let Some((place, old)) = &begun.aside {
            if let Err(fault) = raw.rename(old, place).await
                && !is_missing(raw.lstat(old).await.map(drop))
            {
                // The old content is removed only if the new one is in place, which is so when its temporary name is
                // gone.
                if !is_missing(raw.lstat(&begun.temporary).await.map(drop)) {
                    return Err(there("put back", place, &fault));
                }
                let removed = raw.remove(old).await;
                removed.map_err(|fault| there("remove the old", old, &fault))?;
                self.change = Change::Some;
            }
            begun.aside = None;
        }
        let removed = raw.remove(&begun.temporary).await.map(drop);
        if let Err(fault) = &removed
            && !is_missing(removed.clone())
        {
            return Err(there("remove", &begun.temporary, fault));
        }
        self.begun = None;
        Ok(())
    }

    async fn copy(&mut self, on_bytes: &(dyn Fn(u64) + Sync)) -> Result<(), TransferError> {
        let place = self.place().await?;
        let tree = self.tree;
        for top in &tree.tops {
            let root = match &place {
                Place::Into(directory) if directory.ends_with('/') => format!("{directory}{}", top.name),
                Place::Into(directory) => format!("{directory}/{}", top.name),
                Place::As(name) => name.clone(),
            };
            let mut made = Vec::new();
            for entry in &top.entries {
                let remote = format!("{root}{}", entry.below);
                match &entry.kind {
                    Kind::File(seen) => self.file(entry, *seen, &remote, on_bytes).await?,
                    Kind::Directory => {
                        if self.directory(&remote, mode_only(first_mode(entry.mode))).await? == Directory::New
                        {
                            made.push(entry);
                        }
                    }
                    Kind::Link(leads) => self.link(leads, &remote).await?,
                }
            }
            // The modes of directories come last, inner directories first, because a mode may forbid writing into the
            // directory. A directory that was there before keeps its own: it may be /etc, or belong to another user.
            for entry in made.into_iter().rev() {
                let remote = format!("{root}{}", entry.below);
                let set = self.sftp.raw.setstat(&remote, mode_only(entry.mode)).await;
                set.map_err(|fault| there("set the mode of", &remote, &fault))?;
            }
        }
        Ok(())
    }

    async fn place(&mut self) -> Result<Place, TransferError> {
        let destination = path_there(self.destination);
        let name = match destination.trim_end_matches('/') {
            "" if destination.starts_with('/') => "/",
            "" => ".",
            name => name,
        };
        if self.sftp.is_directory(name).await {
            return Ok(Place::Into(name.to_owned()));
        }
        if destination.ends_with('/') {
            // Without attributes, the directory gets the usual mode of the host.
            self.directory(name, FileAttributes::empty()).await?;
            return Ok(Place::Into(name.to_owned()));
        }
        if self.tree.count() > 1 {
            return Err(TransferError::NoDirectory { path: quoted(name) });
        }
        Ok(Place::As(name.to_owned()))
    }

    /// Waits for the answer to a request that changes the host.
    async fn changing<T>(&mut self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let before = std::mem::replace(&mut self.change, Change::Unclear);
        let answer = answer.await;
        self.change = match &answer {
            Ok(_) => Change::Some,
            Err(Error::Status(_) | Error::Limited(_)) => before,
            Err(_) => Change::Unclear,
        };
        answer
    }

    async fn directory(&mut self, remote: &str, mode: FileAttributes) -> Result<Directory, TransferError> {
        let sftp = self.sftp;
        match self.changing(sftp.raw.mkdir(remote, mode)).await {
            Ok(_) => Ok(Directory::New),
            Err(_) if sftp.is_directory(remote).await => Ok(Directory::Old),
            Err(fault) => {
                Err(missing_around(remote, &fault)
                    .unwrap_or_else(|| there("make the directory", remote, &fault)))
            }
        }
    }

    async fn link(&mut self, leads: &str, remote: &str) -> Result<(), TransferError> {
        let sftp = self.sftp;
        let temporary = beside(remote);
        self.begun = Some(Begun { temporary: temporary.clone(), handle: None, aside: None });
        // OpenSSH reads the two names in the opposite order to the draft, and every other client does the same.
        let (made, found) = tokio::join!(sftp.raw.symlink(leads, &temporary), sftp.raw.lstat(remote));
        made.map_err(|fault| there("make the link", remote, &fault))?;
        // A link replaces a link or a file, and nothing else.
        if let Some(what) = found.ok().and_then(|found| special(&found.attrs)) {
            return Err(occupied(remote, what));
        }
        self.place_file(temporary, remote).await
    }

    async fn file(
        &mut self,
        entry: &Entry,
        seen: Seen,
        remote: &str,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), TransferError> {
        let local = entry.path.as_path();
        let opened = open(local, seen).await?;
        let sftp = self.sftp;
        let mut place = remote.to_owned();
        let (mut created, found) = tokio::join!(self.create(&place), sftp.raw.lstat(remote));
        if let Ok(found) = found
            && let Some(other) = sftp.place_of(remote, &found.attrs).await?
        {
            // The path is a symbolic link to a file: the temporary file must be beside the link's target.
            self.take_back().await?;
            created = self.create(&other).await;
            place = other;
        }
        let remote = place.as_str();
        let (temporary, handle) = created?;
        let bytes = sftp.contents(&opened, local, &handle, remote, on_bytes).await?;
        unchanged(&opened, local, seen).await?;
        let set = sftp.raw.fsetstat(&handle, mode_only(entry.mode)).await;
        set.map_err(|fault| there("set the mode of", remote, &fault))?;
        if let Some(begun) = &mut self.begun {
            begun.handle = None;
        }
        let closed = sftp.raw.close(&handle).await;
        closed.map_err(|fault| there("finish", remote, &fault))?;
        self.place_file(temporary, remote).await?;
        self.moved.files += 1;
        self.moved.bytes += bytes;
        Ok(())
    }

    /// Creates a temporary file beside `remote`. Returns its name and a handle.
    async fn create(&mut self, remote: &str) -> Result<(String, String), TransferError> {
        let temporary = beside(remote);
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
        self.begun = Some(Begun { temporary: temporary.clone(), handle: None, aside: None });
        match self.sftp.raw.open(&temporary, flags, mode_only(0o600)).await {
            Ok(opened) => {
                let handle = Some(opened.handle.clone());
                self.begun = Some(Begun { temporary: temporary.clone(), handle, aside: None });
                Ok((temporary, opened.handle))
            }
            Err(fault) => {
                if matches!(fault, Error::Status(_)) {
                    self.begun = None;
                }
                Err(missing_around(remote, &fault).unwrap_or_else(|| there("create", &temporary, &fault)))
            }
        }
    }

    /// Renames a complete temporary file to its path.
    async fn place_file(&mut self, temporary: String, remote: &str) -> Result<(), TransferError> {
        let sftp = self.sftp;
        let renamed = match sftp.replaces {
            Replaces::Atomically => self.changing(sftp.replace(&temporary, remote)).await,
            Replaces::No => self.changing(sftp.raw.rename(&temporary, remote)).await.map(drop),
        };
        let Err(fault) = renamed else {
            self.begun = None;
            return Ok(());
        };
        if !matches!(fault, Error::Status(_)) {
            return Err(there("rename into place", remote, &fault));
        }
        if sftp.is_directory(remote).await {
            let said = "it is a directory there".to_owned();
            return Err(TransferError::There { doing: "replace", path: quoted(remote), said });
        }
        if sftp.replaces == Replaces::Atomically {
            return Err(there("rename into place", remote, &fault));
        }
        // SFTP version 3 refuses a rename to an existing file: the old file first gets another name, so that it is
        // never lost.
        let old = beside(remote);
        if let Some(begun) = &mut self.begun {
            begun.aside = Some((remote.to_owned(), old.clone()));
        }
        if self.changing(sftp.raw.rename(remote, &old)).await.is_err() {
            return Err(there("rename into place", remote, &fault));
        }
        let renamed = self.changing(sftp.raw.rename(&temporary, remote)).await;
        renamed.map_err(|fault| there("rename into place", remote, &fault))?;
        self.begun = Some(Begun { temporary: old.clone(), handle: None, aside: None });
        let removed = sftp.raw.remove(&old).await;
        removed.map_err(|fault| there("remove the old", &old, &fault))?;
        self.begun = None;
        Ok(())
    }
}

/// The directory of a remote path.
fn around(remote: &str) -> &str {
    match remote.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/",
        Some((directory, _)) => directory,
        None => ".",
    }
}

/// A new entry for which the server has no such file: its directory is what is missing, or is none.
fn missing_around(remote: &str, fault: &Error) -> Option<TransferError> {
    let Error::Status(status) = fault else { return None };
    (status.status_code == StatusCode::NoSuchFile).then(|| TransferError::There {
        doing: "copy into",
        path: quoted(around(remote)),
        said: "no such directory".to_owned(),
    })
}

impl Sftp {
    /// Returns the path to write instead of `remote`, if there is one: a symbolic link to a file stays, and its target
    /// gets the new content, as with `cp` and `scp`. An error if the existing path is not a file.
    async fn place_of(&self, remote: &str, found: &FileAttributes) -> Result<Option<String>, TransferError> {
        if let Some(what) = special(found) {
            return Err(occupied(remote, what));
        }
        if found.permissions.map(kind) != Some(What::Link) {
            return Ok(None);
        }
        let Ok(leads) = self.raw.stat(remote).await else {
            return Err(occupied(remote, "a symbolic link that leads to nothing"));
        };
        if leads.attrs.permissions.map(kind) == Some(What::Directory) {
            return Err(occupied(remote, "a symbolic link to a directory"));
        }
        if let Some(what) = special(&leads.attrs) {
            return Err(occupied(remote, &format!("a symbolic link to {what}")));
        }
        // A user who may write to the directory could make a link to any file that the logged-in user may write.
        let directory = around(remote);
        let around = self.raw.stat(directory).await.map_err(|fault| there("look at", directory, &fault))?;
        if around.attrs.permissions.is_none_or(|mode| mode & 0o002 != 0) {
            return Err(occupied(
                remote,
                "a symbolic link, in a directory where any user could have made it",
            ));
        }
        let real = self.raw.realpath(remote).await.map_err(|fault| there("look where", remote, &fault))?;
        let real = real.files.into_iter().next().map(|file| file.filename).unwrap_or_default();
        // The library has changed a name that is not UTF-8.
        if !real.starts_with('/') || real.contains('\u{fffd}') {
            return Err(occupied(remote, "a symbolic link, and where it leads is not clear"));
        }
        Ok(Some(real))
    }

    async fn contents(
        &self,
        file: &Arc<File>,
        local: &Path,
        handle: &str,
        remote: &str,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, TransferError> {
        let mut copying = self.copies.begin();
        // One read of the disk fills several requests.
        let ahead = (self.in_flight / 2).clamp(1, LOOK);
        let (mut offset, mut is_read) = (0, false);
        loop {
            while is_read && copying.unanswered() > 0 || copying.unanswered() + ahead > self.in_flight {
                let answer = copying.answer().await.map_err(|fault| there("write", remote, &fault))?;
                self.written(answer, remote, on_bytes).await?;
            }
            if is_read {
                return Ok(offset);
            }
            let requests =
                WriteRequests::read(Arc::clone(file), handle, offset, ahead, self.chunk.write as usize);
            let mut requests = requests.await.map_err(|fault| here("read", local, fault))?;
            requests.number(handle, &mut offset, &mut copying);
            is_read = requests.is_last;
            if !requests.bytes.is_empty() {
                let sent = copying.send(requests.bytes.into()).await;
                sent.map_err(|fault| there("write", remote, &fault))?;
            }
            while let Some(answer) = copying.answered() {
                self.written(answer, remote, on_bytes).await?;
            }
        }
    }

    async fn written(
        &self,
        (length, answer): (u64, Answer),
        remote: &str,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), TransferError> {
        match answer {
            Answer::Status(status) if status.status_code == StatusCode::Ok => {
                on_bytes(length);
                Ok(())
            }
            Answer::Status(status) => Err(self.why_not_written(remote, &Error::Status(status)).await),
            Answer::Data(_) | Answer::Wrong => Err(there("write", remote, &Error::UnexpectedPacket)),
        }
    }

    /// Explains a failed write: OpenSSH's `sftp-server` reports a general failure for a full disk too, so the function
    /// asks for the free space.
    async fn why_not_written(&self, remote: &str, fault: &Error) -> TransferError {
        let failure = there("write", remote, fault);
        let vague = matches!(fault, Error::Status(status) if status.status_code == StatusCode::Failure);
        if !vague || !self.tells_room {
            return failure;
        }
        let directory = match remote.rsplit_once('/') {
            Some(("", _)) => "/",
            Some((directory, _)) => directory,
            None => ".",
        };
        match self.raw.statvfs(directory).await {
            Ok(room) if room.blocks_avail == 0 => TransferError::There {
                doing: "write",
                path: quoted(remote),
                said: "no space left on that disk".to_owned(),
            },
            _ => failure,
        }
    }
}

/// Names the type, if it is neither a file, a directory nor a symbolic link.
fn special(attributes: &FileAttributes) -> Option<&'static str> {
    Some(match attributes.permissions? & 0o170_000 {
        0o010_000 => "a named pipe (FIFO)",
        0o020_000 => "a character device",
        0o060_000 => "a block device",
        0o140_000 => "a socket",
        _ => return None,
    })
}

/// Makes the error for a path that cannot be replaced: only files and links can.
fn occupied(remote: &str, what: &str) -> TransferError {
    let said = format!("it is {what}; remove it there first, or name another place");
    TransferError::There { doing: "replace", path: quoted(remote), said }
}

/// Mode with which a directory begins whose content is to come. A copy that is broken off leaves it, and the next one finds a
/// directory that was there: so it is near the final mode, but no other user can write into it before the copy is done.
fn first_mode(mode: u32) -> u32 {
    mode & 0o755 | 0o700
}

fn is_missing(answer: Result<(), Error>) -> bool {
    matches!(answer, Err(Error::Status(status)) if status.status_code == StatusCode::NoSuchFile)
}

async fn open(local: &Path, seen: Seen) -> Result<Arc<File>, TransferError> {
    let path = local.to_owned();
    let opened = blocking(move || {
        // Without O_NONBLOCK, the open of a pipe that has replaced the file would block.
        let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
        Ok(Arc::new(file))
    });
    let file = opened.await.map_err(|fault| here("open", local, fault))?;
    unchanged(&file, local, seen).await?;
    Ok(file)
}

/// Checks that a local file has not changed, so that all hosts get the same content.
async fn unchanged(file: &Arc<File>, local: &Path, seen: Seen) -> Result<(), TransferError> {
    let now = Arc::clone(file);
    let now = blocking(move || now.metadata()).await.map_err(|fault| here("look at", local, fault))?;
    if Seen::of(&now) == seen { Ok(()) } else { Err(TransferError::Moving { path: shown(local) }) }
}

/// Requests to write, with the data between their heads as the disk has filled it.
struct WriteRequests {
    bytes: Vec<u8>,
    /// Length of each request.
    slot: usize,
    /// True if the file ends here.
    is_last: bool,
}

impl WriteRequests {
    /// Reads the data of `count` requests.
    async fn read(
        file: Arc<File>,
        handle: &str,
        mut offset: u64,
        count: usize,
        chunk: usize,
    ) -> std::io::Result<Self> {
        let head = packets::write_head(handle);
        let slot = head + chunk;
        blocking(move || {
            let mut bytes = vec![0; count * slot];
            let (mut filled, mut is_last) = (0, false);
            for place in bytes.chunks_exact_mut(slot) {
                let count = read_at(&file, &mut place[head..], offset)?;
                offset += count as u64;
                is_last = count < chunk;
                filled += if count > 0 { head + count } else { 0 };
                if is_last {
                    break;
                }
            }
            bytes.truncate(filled);
            Ok(Self { bytes, slot, is_last })
        })
        .await
    }

    /// Writes the head of each request.
    fn number(&mut self, handle: &str, offset: &mut u64, copying: &mut Copying<'_, u64>) {
        let head = packets::write_head(handle);
        for request in self.bytes.chunks_mut(self.slot) {
            let length = request.len() - head;
            let number = copying.number(length as u64);
            packets::put_write_head(&mut request[..head], number, handle, *offset, length);
            *offset += length as u64;
        }
    }
}

/// Reads up to the end of the file, or until `place` is full.
fn read_at(file: &File, place: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < place.len() {
        match file.read_at(&mut place[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(fault) if fault.kind() == std::io::ErrorKind::Interrupted => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(filled)
}

/// Maximum number of write requests that one read of the disk fills (1 MiB): each read is the work of another thread.
const LOOK: usize = 32;
