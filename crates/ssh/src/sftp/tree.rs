//! What is copied to hosts: looked at once, before any of them is asked, and the same for all.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{DEEPEST, shown};

/// Files and directories, with all that is in them. Only what they are is kept, not what they contain.
#[derive(Debug)]
pub struct Tree {
    pub(super) tops: Vec<Top>,
    /// Files, and their bytes.
    files: u64,
    bytes: u64,
}

/// One of those that were named.
#[derive(Debug)]
pub(super) struct Top {
    /// Its own name.
    pub(super) name: String,
    /// Itself first; a directory before what is in it.
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Here.
    pub(super) path: PathBuf,
    /// Behind the name of the top: empty, or `/sub/file`.
    pub(super) below: String,
    pub(super) mode: u32,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    File(Seen),
    Directory,
    Link(String),
}

/// What tells a file that stayed the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Seen {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// Why something cannot be copied to hosts.
#[derive(Debug, Error)]
pub enum TreeError {
    /// It cannot be looked at.
    #[error("{doing} {path}: {source}")]
    Here {
        /// Such as `look at`.
        doing: &'static str,
        /// Which, harmless on a terminal.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// `/`, `..` and the like.
    #[error("{0} has no name of its own: name it as its parent does")]
    Nameless(String),
    /// Two of those that were named have the same name.
    #[error("{first} and {second} would go to the same place")]
    Twice {
        /// Harmless on a terminal.
        first: String,
        /// Harmless on a terminal.
        second: String,
    },
    /// A device, a socket, a pipe.
    #[error("{0} is no file, directory or symbolic link: such things cannot be copied")]
    Special(String),
    /// Perhaps a loop.
    #[error("{0} is more than {DEEPEST} directories deep")]
    Deep(String),
    /// SFTP has names as text, and its library only in UTF-8.
    #[error("the name of {0} is not in UTF-8")]
    NotText(String),
    /// More than can be kept in mind.
    #[error("there are more than {MOST_ENTRIES} files and directories in {0}")]
    Many(String),
}

impl Tree {
    /// Looks at these files and directories. Symbolic links that are named are followed, others are not.
    ///
    /// # Errors
    /// One of them cannot be copied: it is not there, it is no file or directory, two have the same name.
    pub fn read(sources: &[PathBuf]) -> Result<Self, TreeError> {
        let mut tree = Self { tops: Vec::new(), files: 0, bytes: 0 };
        let mut names: HashMap<OsString, &Path> = HashMap::new();
        let mut room = MOST_ENTRIES;
        for source in sources {
            let Some(name) = source.file_name() else { return Err(TreeError::Nameless(shown(source))) };
            if let Some(first) = names.insert(name.to_owned(), source) {
                return Err(TreeError::Twice { first: shown(first), second: shown(source) });
            }
            let top = Top { name: text(Path::new(name), source)?, entries: tree.walk(source, &mut room)? };
            tree.tops.push(top);
        }
        Ok(tree)
    }

    /// How many were named.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tops.len()
    }

    /// Files in it, not counting directories and symbolic links.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn walk(&mut self, source: &Path, room: &mut usize) -> Result<Vec<Entry>, TreeError> {
        let mut entries = Vec::new();
        let mut waiting = vec![(source.to_owned(), String::new(), 0)];
        while let Some((path, below, depth)) = waiting.pop() {
            let found = if depth == 0 { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
            let found = found.map_err(|fault| here("look at", &path, fault))?;
            let kind = if found.is_dir() {
                if depth > DEEPEST {
                    return Err(TreeError::Deep(shown(&path)));
                }
                for inner in fs::read_dir(&path).map_err(|fault| here("list", &path, fault))? {
                    let inner = inner.map_err(|fault| here("list", &path, fault))?;
                    let below = format!("{below}/{}", text(Path::new(&inner.file_name()), &inner.path())?);
                    *room = room.checked_sub(1).ok_or_else(|| TreeError::Many(shown(source)))?;
                    waiting.push((inner.path(), below, depth + 1));
                }
                Kind::Directory
            } else if found.is_symlink() {
                let leads = fs::read_link(&path).map_err(|fault| here("read the link", &path, fault))?;
                Kind::Link(text(&leads, &path)?)
            } else if found.is_file() {
                self.files += 1;
                self.bytes += found.size();
                Kind::File(Seen::of(&found))
            } else {
                return Err(TreeError::Special(shown(&path)));
            };
            entries.push(Entry { path, below, mode: found.mode() & 0o7777, kind });
        }
        Ok(entries)
    }
}

fn here(doing: &'static str, path: &Path, source: io::Error) -> TreeError {
    TreeError::Here { doing, path: shown(path), source }
}

fn text(name: &Path, of: &Path) -> Result<String, TreeError> {
    name.to_str().map(str::to_owned).ok_or_else(|| TreeError::NotText(shown(of)))
}

/// Some hundred MiB of names.
const MOST_ENTRIES: usize = 1_000_000;
