//! The journal on the disk: lines are appended, or the whole file is replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Largest journal that is read: a store of the most tokens has less, and it is replaced long before.
const LARGEST: u64 = 1 << 30;

/// The owner of the directory, whom root does not trust, may have put a link or a pipe in the place of a file.
const NO_LINK: i32 = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;

/// An open journal, read up to a place.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    inode: (u64, u64),
    /// Bytes that are known.
    pub(crate) length: u64,
}

/// What another process did to a journal.
pub(crate) enum Seen {
    /// It has these bytes more.
    More(Vec<u8>),
    /// Another file is in its place.
    Replaced,
    /// It is shorter than it was.
    Shorter,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, OpenOptions::new().read(true).append(true))
    }

    /// For those who write nothing.
    pub(crate) fn open_to_read(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, OpenOptions::new().read(true))
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> Result<Self, StoreError> {
        let io = |doing| StoreError::io(doing, path);
        let file = options.custom_flags(NO_LINK).open(path).map_err(io("open"))?;
        let facts = file.metadata().map_err(io("look at"))?;
        Ok(Self { path: path.to_owned(), file, inode: (facts.dev(), facts.ino()), length: 0 })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what was written since the last time. Call it with the lock only.
    pub(crate) fn look(&mut self) -> Result<Seen, StoreError> {
        let io = |doing| StoreError::io(doing, &self.path);
        let facts = fs::metadata(&self.path).map_err(io("look at"))?;
        if (facts.dev(), facts.ino()) != self.inode {
            return Ok(Seen::Replaced);
        }
        if facts.len() < self.length {
            return Ok(Seen::Shorter);
        }
        if facts.len() - self.length > LARGEST {
            let why = format!("it has more than {LARGEST} bytes");
            return Err(StoreError::Damaged { path: self.path.clone(), why });
        }
        if facts.len() == self.length {
            return Ok(Seen::More(Vec::new()));
        }
        let mut bytes = Vec::new();
        let mut file = &self.file;
        let read =
            file.seek(SeekFrom::Start(self.length)).and_then(|_| file.take(LARGEST).read_to_end(&mut bytes));
        read.map_err(io("read"))?;
        Ok(Seen::More(bytes))
    }

    /// Appends lines, and returns when they are on the disk.
    pub(crate) fn append(&mut self, lines: &[u8]) -> Result<(), StoreError> {
        let io = |doing| StoreError::io(doing, &self.path);
        self.file.write_all(lines).map_err(io("write"))?;
        self.file.sync_data().map_err(io("write"))?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Replaces the journal, or makes the first one, by rename(2): a reader sees the old one or the new one whole.
    pub(crate) fn replace(path: &Path, lines: &[u8]) -> Result<Self, StoreError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let new = directory.join("journal.new");
        let io = |doing| StoreError::io(doing, &new);
        // Left by a crash, or a link that the owner of the directory has placed.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io("remove")(error)),
            _ => {}
        }
        let mut file = create(&new, Content::New)?;
        file.write_all(lines).and_then(|()| file.sync_all()).map_err(io("write"))?;
        fs::rename(&new, path).map_err(io("rename"))?;
        // The name is durable only with its directory.
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(StoreError::io("write the directory", directory))?;
        let mut journal = Self::open(path)?;
        journal.length = lines.len() as u64;
        Ok(journal)
    }
}

/// What becomes of the content of a file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Kept,
    /// There must be none.
    New,
}

/// Opens a file for writing, with mode 0600 if it is made. Made by root, it belongs to the owner of its directory: the daemon
/// must be able to use it.
pub(crate) fn create(path: &Path, content: Content) -> Result<File, StoreError> {
    let io = |doing| StoreError::io(doing, path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(NO_LINK);
    match content {
        Content::Kept => options.create(true).truncate(false),
        Content::New => options.create_new(true),
    };
    let file = options.open(path).map_err(io("make"))?;
    if nix::unistd::geteuid().is_root() {
        let directory = path.parent().unwrap_or(Path::new("."));
        let owner = fs::metadata(directory).map_err(io("look at the directory of"))?;
        let own = file.metadata().map_err(io("look at"))?;
        // Root gives away nothing but a file that is in this directory alone: its owner could have linked another one to here.
        let is_ours = own.is_file() && own.nlink() == 1;
        if is_ours && (own.uid(), own.gid()) != (owner.uid(), owner.gid()) {
            let given = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
            given.map_err(io("give away"))?;
        }
    }
    Ok(file)
}
