//! To a host.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh_sftp::client::error::Error;
use russh_sftp::protocol::{FileAttributes, OpenFlags, Status};
use tokio::task::JoinSet;

use super::{CHUNK, DEEPEST, Moved, Sftp, TransferError, beside, here, mode_only, text, there};

impl Sftp {
    /// Copies a file, or a directory with all that is in it, to `remote`, with modes and symbolic links. A file appears
    /// there whole or not at all: it is written under another name beside it and renamed. If `remote` is a directory,
    /// the copy goes into it.
    ///
    /// # Errors
    /// Something could not be read here or written there.
    pub async fn put(&self, local: &Path, remote: &str) -> Result<Moved, TransferError> {
        let mut to = remote.trim_end_matches('/').to_owned();
        if to.is_empty() {
            to = if remote.starts_with('/') { "/".to_owned() } else { ".".to_owned() };
        }
        if self.is_directory(&to).await
            && let Some(name) = local.file_name()
        {
            to = format!("{}/{}", to.trim_end_matches('/'), text(Path::new(name))?);
        }
        let mut moved = Moved::default();
        // Modes of directories come last: one may forbid writing into it.
        let mut modes = Vec::new();
        let mut waiting = vec![(local.to_owned(), to, 0_usize)];
        while let Some((local, remote, depth)) = waiting.pop() {
            let found = match depth {
                0 => tokio::fs::metadata(&local).await,
                _ => tokio::fs::symlink_metadata(&local).await,
            };
            let found = found.map_err(|fault| here("look at", &local, fault))?;
            let mode = found.permissions().mode() & 0o7777;
            if found.is_dir() {
                if depth > DEEPEST {
                    return Err(TransferError::Deep { path: local.display().to_string() });
                }
                self.directory(&remote).await?;
                modes.push((remote.clone(), mode));
                let mut entries =
                    tokio::fs::read_dir(&local).await.map_err(|fault| here("list", &local, fault))?;
                while let Some(entry) =
                    entries.next_entry().await.map_err(|fault| here("list", &local, fault))?
                {
                    let path = entry.path();
                    let name = entry.file_name();
                    let below = format!("{remote}/{}", text(Path::new(&name))?);
                    waiting.push((path, below, depth + 1));
                }
            } else if found.is_symlink() {
                let leads = tokio::fs::read_link(&local)
                    .await
                    .map_err(|fault| here("read the link", &local, fault))?;
                let _ = self.raw.remove(&remote).await;
                // OpenSSH takes the two names the other way round than the draft says; so does everybody else by now.
                self.raw
                    .symlink(text(&leads)?, &remote)
                    .await
                    .map_err(|fault| there("make the link", &remote, &fault))?;
            } else if found.is_file() {
                moved.bytes += self.file(&local, &remote, mode).await?;
                moved.files += 1;
            } else {
                return Err(TransferError::Special { path: local.display().to_string() });
            }
        }
        for (remote, mode) in modes.into_iter().rev() {
            self.raw
                .setstat(&remote, mode_only(mode))
                .await
                .map_err(|fault| there("set the mode of", &remote, &fault))?;
        }
        Ok(moved)
    }

    async fn directory(&self, remote: &str) -> Result<(), TransferError> {
        match self.raw.mkdir(remote, mode_only(0o700)).await {
            Ok(_) => Ok(()),
            Err(_) if self.is_directory(remote).await => Ok(()),
            Err(fault) => Err(there("make the directory", remote, &fault)),
        }
    }

    async fn file(&self, local: &Path, remote: &str, mode: u32) -> Result<u64, TransferError> {
        let opened = local.to_owned();
        let file = blocking(move || File::open(opened)).await.map_err(|fault| here("open", local, fault))?;
        let temporary = beside(remote);
        let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
        let handle = self
            .raw
            .open(&temporary, flags, mode_only(0o600))
            .await
            .map_err(|fault| there("create", &temporary, &fault))?
            .handle;
        let written = self.contents(Arc::new(file), local, &handle, remote).await;
        let finished = match written {
            Ok(bytes) => {
                let attributes: FileAttributes = mode_only(mode);
                let set = self.raw.fsetstat(&handle, attributes).await;
                let closed = self.raw.close(&handle).await;
                match set.and(closed) {
                    Ok(_) => self.rename(&temporary, remote).await.map(|()| bytes),
                    Err(fault) => Err(there("finish", remote, &fault)),
                }
            }
            Err(fault) => {
                let _ = self.raw.close(&handle).await;
                Err(fault)
            }
        };
        if finished.is_err() {
            let _ = self.raw.remove(&temporary).await;
        }
        finished
    }

    async fn contents(
        &self,
        file: Arc<File>,
        local: &Path,
        handle: &str,
        remote: &str,
    ) -> Result<u64, TransferError> {
        let mut writing: JoinSet<Result<Status, Error>> = JoinSet::new();
        let check = |done: Option<Result<Result<Status, Error>, _>>| match done {
            Some(Ok(Err(fault))) => Err(there("write", remote, &fault)),
            _ => Ok(()),
        };
        let mut offset = 0;
        loop {
            while writing.len() >= self.in_flight {
                check(writing.join_next().await)?;
            }
            // One look at the disk fetches several requests' worth.
            let at = Arc::clone(&file);
            let path: PathBuf = local.to_owned();
            let data = blocking(move || {
                let mut data = vec![0; 8 * CHUNK as usize];
                let mut filled = 0;
                while filled < data.len() {
                    match at.read_at(&mut data[filled..], offset + filled as u64)? {
                        0 => break,
                        more => filled += more,
                    }
                }
                data.truncate(filled);
                Ok(data)
            })
            .await
            .map_err(|fault| here("read", &path, fault))?;
            if data.is_empty() {
                break;
            }
            for chunk in data.chunks(CHUNK as usize) {
                let (raw, handle, chunk) = (Arc::clone(&self.raw), handle.to_owned(), chunk.to_vec());
                let (length, at) = (chunk.len() as u64, offset);
                writing.spawn(async move { raw.write(handle, at, chunk).await });
                offset += length;
            }
        }
        while let Some(done) = writing.join_next().await {
            check(Some(done))?;
        }
        Ok(offset)
    }
}

/// Work on files, where it delays nobody.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|fault| Err(std::io::Error::other(fault)))
}
