//! Files of a host: SFTP version 3 (draft-ietf-secsh-filexfer-02) in a directory of its own. No path leads out of the
//! directory.

use std::collections::HashMap;
use std::io::{self, ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use russh::Channel;
use russh::server::{Handle as Connection, Msg};
use russh_sftp::protocol::{
    Attrs, Data, File as Listed, FileAttributes, Handle, Name, OpenFlags, Status, StatusCode,
};
use russh_sftp::server::{Handler, StatusReply};
use tokio::fs;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

pub(crate) struct Sftp {
    root: PathBuf,
    open: HashMap<String, Open>,
    opened: u64,
}

enum Open {
    File(fs::File),
    /// Entries that are not listed yet.
    Directory(Vec<Listed>),
}

/// Serves a channel until the client ends its direction, then sends exit status 0, as sftp-server does: without it scp
/// fails without a message.
pub(crate) async fn serve(channel: Channel<Msg>, connection: Connection, root: PathBuf) {
    let id = channel.id();
    let mut stream = channel.into_stream();
    let (mut near, far) = tokio::io::duplex(PIPE);
    russh_sftp::server::run(far, Sftp::new(root)).await;
    // An error means that the client has closed the connection.
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut near, PIPE, PIPE).await;
    let _ = connection.exit_status_request(id, 0).await;
    drop(stream);
}

/// Size of the buffer between the channel and the server, in bytes: more than one packet.
const PIPE: usize = 256 << 10;

impl Sftp {
    /// Serves the files under `root`, which is created at the first write.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, open: HashMap::new(), opened: 0 }
    }

    /// Converts a path of the client to a local path: `..` at the top stays at the top, as with `chroot`. A path with a
    /// link is refused: clients cannot create links, so a link was made by others and may lead out of the directory.
    async fn real(&self, path: &str) -> Result<PathBuf, StatusReply> {
        let mut real = self.root.clone();
        for part in std::iter::once("").chain(normal(path).split('/').filter(|part| !part.is_empty())) {
            // For the root nothing is pushed: the path would end with a slash, which follows a link.
            if !part.is_empty() {
                real.push(part);
            }
            match fs::symlink_metadata(&real).await {
                Ok(found) if found.is_symlink() => {
                    return Err(
                        StatusCode::PermissionDenied.with_message("a link, which this host does not follow")
                    );
                }
                // The caller's own system call reports other errors.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(real)
    }

    /// Opens a file for reading, for SFTP and for the host's `cat`.
    pub(crate) async fn regular(&self, path: &str) -> Result<fs::File, String> {
        let real = self.real(path).await.map_err(|_| "a link, which this host does not follow".to_owned())?;
        // O_NONBLOCK keeps a FIFO from blocking; O_NOFOLLOW refuses a link that was created after the check.
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(real).await;
        let file = opened.map_err(|error| said(&error))?;
        match file.metadata().await.map_err(|error| said(&error))? {
            found if found.is_file() => Ok(file),
            found if found.is_dir() => Err("Is a directory".to_owned()),
            _ => Err("not a regular file".to_owned()),
        }
    }

    fn keep(&mut self, id: u32, open: Open) -> Result<Handle, StatusReply> {
        if self.open.len() >= MOST_OPEN {
            return Err(StatusCode::Failure.with_message("too many open files"));
        }
        self.opened += 1;
        let handle = self.opened.to_string();
        self.open.insert(handle.clone(), open);
        Ok(Handle { id, handle })
    }

    fn file(&mut self, handle: &str) -> Result<&mut fs::File, StatusReply> {
        match self.open.get_mut(handle) {
            Some(Open::File(file)) => Ok(file),
            _ => Err(StatusCode::Failure.with_message("no such handle")),
        }
    }

    async fn attributes(&self, id: u32, path: &str) -> Result<Attrs, StatusReply> {
        let real = self.real(path).await?;
        if real == self.root {
            fs::create_dir_all(&real).await.map_err(reply)?;
        }
        let metadata = fs::symlink_metadata(real).await.map_err(reply)?;
        Ok(Attrs { id, attrs: (&metadata).into() })
    }
}

/// The error as `strerror` words it.
fn said(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| Errno::from_raw(code).desc().to_owned())
}

impl Handler for Sftp {
    type Error = StatusReply;

    fn unimplemented(&self) -> StatusReply {
        StatusCode::OpUnsupported.into()
    }

    async fn open(
        &mut self,
        id: u32,
        path: String,
        flags: OpenFlags,
        _: FileAttributes,
    ) -> Result<Handle, StatusReply> {
        if flags.contains(OpenFlags::WRITE) {
            fs::create_dir_all(&self.root).await.map_err(reply)?;
        }
        let options: std::fs::OpenOptions = flags.into();
        let file = fs::OpenOptions::from(options).open(self.real(&path).await?).await.map_err(reply)?;
        if file.metadata().await.map_err(reply)?.is_dir() {
            return Err(StatusCode::Failure.with_message("is a directory"));
        }
        self.keep(id, Open::File(file))
    }

    async fn close(&mut self, id: u32, handle: String) -> Result<Status, StatusReply> {
        if let Some(Open::File(mut file)) = self.open.remove(&handle) {
            file.flush().await.map_err(reply)?;
        }
        Ok(done(id))
    }

    async fn read(&mut self, id: u32, handle: String, offset: u64, length: u32) -> Result<Data, StatusReply> {
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).await.map_err(reply)?;
        let mut data = Vec::new();
        let length = u64::from(length.min(LONGEST_READ));
        file.take(length).read_to_end(&mut data).await.map_err(reply)?;
        if data.is_empty() && length > 0 {
            return Err(StatusCode::Eof.into());
        }
        Ok(Data { id, data })
    }

    async fn write(
        &mut self,
        id: u32,
        handle: String,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<Status, StatusReply> {
        let file = self.file(&handle)?;
        file.seek(SeekFrom::Start(offset)).await.map_err(reply)?;
        file.write_all(&data).await.map_err(reply)?;
        file.flush().await.map_err(reply)?;
        Ok(done(id))
    }

    async fn lstat(&mut self, id: u32, path: String) -> Result<Attrs, StatusReply> {
        self.attributes(id, &path).await
    }

    async fn stat(&mut self, id: u32, path: String) -> Result<Attrs, StatusReply> {
        self.attributes(id, &path).await
    }

    async fn fstat(&mut self, id: u32, handle: String) -> Result<Attrs, StatusReply> {
        let metadata = self.file(&handle)?.metadata().await.map_err(reply)?;
        Ok(Attrs { id, attrs: (&metadata).into() })
    }

    async fn setstat(
        &mut self,
        id: u32,
        path: String,
        attributes: FileAttributes,
    ) -> Result<Status, StatusReply> {
        let real = self.real(&path).await?;
        if let Some(mode) = mode(&attributes) {
            fs::set_permissions(&real, mode).await.map_err(reply)?;
        }
        if let Some(size) = attributes.size {
            let file = fs::OpenOptions::new().write(true).open(&real).await.map_err(reply)?;
            file.set_len(size).await.map_err(reply)?;
        }
        // Requests to change the owner or the times are ignored.
        Ok(done(id))
    }

    async fn fsetstat(
        &mut self,
        id: u32,
        handle: String,
        attributes: FileAttributes,
    ) -> Result<Status, StatusReply> {
        let file = self.file(&handle)?;
        if let Some(mode) = mode(&attributes) {
            file.set_permissions(mode).await.map_err(reply)?;
        }
        if let Some(size) = attributes.size {
            file.set_len(size).await.map_err(reply)?;
        }
        Ok(done(id))
    }

    async fn opendir(&mut self, id: u32, path: String) -> Result<Handle, StatusReply> {
        let real = self.real(&path).await?;
        if real == self.root {
            fs::create_dir_all(&real).await.map_err(reply)?;
        }
        let mut entries = fs::read_dir(real).await.map_err(reply)?;
        let mut listed = Vec::new();
        while let Some(entry) = entries.next_entry().await.map_err(reply)? {
            let metadata = entry.metadata().await.map_err(reply)?;
            listed.push(Listed::new(entry.file_name().to_string_lossy(), (&metadata).into()));
        }
        self.keep(id, Open::Directory(listed))
    }

    async fn readdir(&mut self, id: u32, handle: String) -> Result<Name, StatusReply> {
        match self.open.get_mut(&handle) {
            Some(Open::Directory(left)) if left.is_empty() => Err(StatusCode::Eof.into()),
            Some(Open::Directory(left)) => {
                let files = left.drain(..left.len().min(100)).collect();
                Ok(Name { id, files })
            }
            _ => Err(StatusCode::Failure.with_message("no such handle")),
        }
    }

    async fn remove(&mut self, id: u32, path: String) -> Result<Status, StatusReply> {
        fs::remove_file(self.real(&path).await?).await.map_err(reply)?;
        Ok(done(id))
    }

    async fn mkdir(&mut self, id: u32, path: String, _: FileAttributes) -> Result<Status, StatusReply> {
        fs::create_dir_all(&self.root).await.map_err(reply)?;
        fs::create_dir(self.real(&path).await?).await.map_err(reply)?;
        Ok(done(id))
    }

    async fn rmdir(&mut self, id: u32, path: String) -> Result<Status, StatusReply> {
        fs::remove_dir(self.real(&path).await?).await.map_err(reply)?;
        Ok(done(id))
    }

    async fn realpath(&mut self, id: u32, path: String) -> Result<Name, StatusReply> {
        Ok(Name { id, files: vec![Listed::dummy(normal(&path))] })
    }

    async fn rename(&mut self, id: u32, from: String, to: String) -> Result<Status, StatusReply> {
        let to = self.real(&to).await?;
        // In version 3 a rename does not replace a file (draft section 6.5).
        if Path::new(&to).exists() {
            return Err(StatusCode::Failure.with_message("there is such a file already"));
        }
        fs::rename(self.real(&from).await?, to).await.map_err(reply)?;
        Ok(done(id))
    }
}

/// Makes a path absolute, without `.` and `..`. A relative path starts in `/`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Permission bits, without set-user-ID, set-group-ID and the sticky bit.
fn mode(attributes: &FileAttributes) -> Option<std::fs::Permissions> {
    use std::os::unix::fs::PermissionsExt;
    attributes.permissions.map(|mode| std::fs::Permissions::from_mode(mode & 0o777))
}

fn reply(error: io::Error) -> StatusReply {
    let code = match error.kind() {
        ErrorKind::NotFound => StatusCode::NoSuchFile,
        ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
        _ => StatusCode::Failure,
    };
    code.with_message(error.to_string())
}

fn done(id: u32) -> Status {
    let language_tag = "en".to_owned();
    Status { id, status_code: StatusCode::Ok, error_message: "done".to_owned(), language_tag }
}

const MOST_OPEN: usize = 64;

/// Clients request 256 KiB at most.
const LONGEST_READ: u32 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_path_leads_out_of_the_directory() {
        for (path, expected) in
            [("", "/"), ("a/../../../etc/passwd", "/etc/passwd"), ("/./b//c/", "/b/c"), ("..", "/")]
        {
            assert_eq!(normal(path), expected);
        }
        assert_eq!(Sftp::new("/x".into()).real("/../../y").await.unwrap(), Path::new("/x/y"));
    }
}
