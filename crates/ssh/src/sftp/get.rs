//! From a host. Nothing that the server says leads outside of the place where the copy goes.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh_sftp::client::error::Error;
use russh_sftp::protocol::{Data, FileAttributes, OpenFlags, StatusCode};
use tokio::task::JoinSet;

use super::put::blocking;
use super::{CHUNK, DEEPEST, Kind, Moved, Sftp, TransferError, beside, here, kind, text, there};
use crate::trouble::harmless;

impl Sftp {
    /// Copies a file, or a directory with all that is in it, to `local`, with modes (but for set-user-id and its like)
    /// and symbolic links. A file appears whole or not at all. If `local` is a directory, the copy goes into it.
    ///
    /// # Errors
    /// Something could not be read there or written here.
    pub async fn get(&self, remote: &str, local: &Path) -> Result<Moved, TransferError> {
        let trimmed = remote.trim_end_matches('/');
        let mut to = local.to_owned();
        if tokio::fs::metadata(local).await.is_ok_and(|found| found.is_dir()) {
            let name = trimmed.rsplit('/').next().unwrap_or_default();
            if is_name(name) {
                to.push(name);
            }
        }
        let found = self.raw.stat(remote).await.map_err(|fault| there("look at", remote, &fault))?;
        let mut moved = Moved::default();
        let mut modes = Vec::new();
        let mut waiting = vec![(remote.to_owned(), to, found.attrs, 0_usize)];
        while let Some((remote, local, attributes, depth)) = waiting.pop() {
            let mode = attributes.permissions.unwrap_or(0o100_644);
            match kind(mode) {
                Kind::File => {
                    moved.bytes += self.fetch(&remote, &local, &attributes).await?;
                    moved.files += 1;
                }
                Kind::Directory if depth > DEEPEST => {
                    return Err(TransferError::Deep { path: harmless(&remote) });
                }
                Kind::Directory => {
                    make_directory(&local).await?;
                    modes.push((local.clone(), mode & 0o777));
                    for (name, attributes) in self.list(&remote).await? {
                        let below = format!("{}/{name}", remote.trim_end_matches('/'));
                        waiting.push((below, local.join(&name), attributes, depth + 1));
                    }
                }
                Kind::Link => {
                    let leads = self.raw.readlink(&remote).await;
                    let leads = leads.map_err(|fault| there("read the link", &remote, &fault))?;
                    let leads = leads.files.into_iter().next().map(|file| file.filename).unwrap_or_default();
                    let _ = tokio::fs::remove_file(&local).await;
                    tokio::fs::symlink(&leads, &local)
                        .await
                        .map_err(|fault| here("make the link", &local, fault))?;
                }
                Kind::Special => return Err(TransferError::Special { path: harmless(&remote) }),
            }
        }
        for (local, mode) in modes.into_iter().rev() {
            tokio::fs::set_permissions(&local, Permissions::from_mode(mode))
                .await
                .map_err(|fault| here("set the mode of", &local, fault))?;
        }
        Ok(moved)
    }

    async fn list(&self, remote: &str) -> Result<Vec<(String, FileAttributes)>, TransferError> {
        let handle = self.raw.opendir(remote).await.map_err(|fault| there("list", remote, &fault))?.handle;
        let mut found = Vec::new();
        let listed = loop {
            match self.raw.readdir(&handle).await {
                Ok(names) => {
                    let names =
                        names.files.into_iter().filter(|file| !matches!(file.filename.as_str(), "." | ".."));
                    for file in names {
                        if !is_name(&file.filename) {
                            return Err(TransferError::Name { name: harmless(&file.filename) });
                        }
                        found.push((file.filename, file.attrs));
                    }
                }
                Err(Error::Status(status)) if status.status_code == StatusCode::Eof => break Ok(found),
                Err(fault) => break Err(there("list", remote, &fault)),
            }
        };
        let _ = self.raw.close(&handle).await;
        listed
    }

    async fn fetch(
        &self,
        remote: &str,
        local: &Path,
        attributes: &FileAttributes,
    ) -> Result<u64, TransferError> {
        let handle = self
            .raw
            .open(remote, OpenFlags::READ, FileAttributes::empty())
            .await
            .map_err(|fault| there("open", remote, &fault))?
            .handle;
        let temporary = PathBuf::from(beside(text(local)?));
        let mode = attributes.permissions.unwrap_or(0o644) & 0o777;
        let path = temporary.clone();
        let created =
            blocking(move || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)).await;
        let fetched = match created {
            Ok(file) => {
                let file = Arc::new(file);
                let size = attributes.size.unwrap_or_default();
                match self.contents_of(&handle, remote, &file, &temporary, size).await {
                    Ok(bytes) => place(file, &temporary, local, mode).await.map(|()| bytes),
                    Err(fault) => Err(fault),
                }
            }
            Err(fault) => Err(here("create", &temporary, fault)),
        };
        let _ = self.raw.close(&handle).await;
        if fetched.is_err() {
            let _ = tokio::fs::remove_file(&temporary).await;
        }
        fetched
    }

    /// Reads up to the end, wherever the server finds it: `size` only says how far it is worth asking ahead.
    async fn contents_of(
        &self,
        handle: &str,
        remote: &str,
        file: &Arc<File>,
        temporary: &Path,
        size: u64,
    ) -> Result<u64, TransferError> {
        let mut reading: JoinSet<(u64, u32, Result<Data, Error>)> = JoinSet::new();
        let ask = |reading: &mut JoinSet<_>, offset: u64, length: u32| {
            let (raw, handle) = (Arc::clone(&self.raw), handle.to_owned());
            reading.spawn(async move { (offset, length, raw.read(handle, offset, length).await) });
        };
        let (mut next, mut end, mut bytes) = (0_u64, u64::MAX, 0_u64);
        loop {
            while next < end && reading.len() < self.in_flight && (next < size || reading.is_empty()) {
                ask(&mut reading, next, CHUNK);
                next += u64::from(CHUNK);
            }
            let Some(done) = reading.join_next().await else { break };
            let Ok((offset, length, answer)) = done else { continue };
            match answer {
                Ok(Data { data, .. }) if !data.is_empty() && data.len() <= length as usize => {
                    let got = u32::try_from(data.len()).unwrap_or(length);
                    if got < length && offset + u64::from(got) < end {
                        ask(&mut reading, offset + u64::from(got), length - got);
                    }
                    bytes += u64::from(got);
                    let file = Arc::clone(file);
                    blocking(move || file.write_all_at(&data, offset))
                        .await
                        .map_err(|fault| here("write", temporary, fault))?;
                }
                Ok(_) => return Err(there("read", remote, &Error::UnexpectedPacket)),
                Err(Error::Status(status)) if status.status_code == StatusCode::Eof => end = end.min(offset),
                Err(fault) => return Err(there("read", remote, &fault)),
            }
        }
        Ok(bytes)
    }
}

/// A name of one file in its directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

async fn make_directory(local: &Path) -> Result<(), TransferError> {
    match tokio::fs::create_dir(local).await {
        Ok(()) => Ok(()),
        // A symbolic link that stands there is not followed: what the server sends stays below `local`.
        Err(_) if tokio::fs::symlink_metadata(local).await.is_ok_and(|found| found.is_dir()) => Ok(()),
        Err(fault) => Err(here("make the directory", local, fault)),
    }
}

async fn place(file: Arc<File>, temporary: &Path, local: &Path, mode: u32) -> Result<(), TransferError> {
    let (from, to) = (temporary.to_owned(), local.to_owned());
    let placed = blocking(move || {
        file.set_permissions(Permissions::from_mode(mode))?;
        std::fs::rename(from, to)
    });
    placed.await.map_err(|fault| here("rename into place", local, fault))
}
