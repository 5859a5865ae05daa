//! The files to copy to hosts: their metadata is read once, before the first host is asked, and is the same for all
//! hosts.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{DEEPEST, shown};

/// Files and directories with their content. Only metadata is kept, not the data of files.
#[derive(Debug)]
pub struct Tree {
    pub(super) tops: Vec<Top>,
    files: u64,
    bytes: u64,
}

/// One of the paths that the user named.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) name: String,
    /// Entries in order: the path itself first, each directory before its content.
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    /// Path below the top: empty, or `/sub/file`.
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

/// Metadata by which a change of a file is detected.
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

/// Reason why a path cannot be copied to hosts. Strings are safe to print on a terminal.
#[derive(Debug, Error)]
pub enum TreeError {
    /// A system call failed.
    #[error("{doing} {path}: {source}")]
    Here {
        /// Failed operation, such as `look at`.
        doing: &'static str,
        path: String,
        source: io::Error,
    },
    /// The path has no file name: `/`, `..` and similar.
    #[error(
        "{0} is not a name that the copy could have: write the name of the directory itself, as in ../NAME"
    )]
    Nameless(String),
    /// Two of the named paths have the same file name.
    #[error("{first} and {second} would go to the same destination")]
    Twice { first: String, second: String },
    #[error("{0} is not a file, directory or symbolic link, and cannot be copied")]
    Special(String),
    #[error("{0} is nested more than {DEEPEST} directories deep")]
    Deep(String),
    /// The name is not UTF-8: SFTP has names as text, and its library only as UTF-8.
    #[error("the name of {0} is not in UTF-8")]
    NotText(String),
    /// The tree has more than a million entries.
    #[error("there are more than {MOST_ENTRIES} files and directories in {0}")]
    Many(String),
}

impl Tree {
    /// Reads the metadata of these files and directories. Symbolic links that are named are followed, other links are
    /// not.
    ///
    /// # Errors
    /// A path cannot be copied: it does not exist, it is no file or directory, or two paths have the same name.
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

    /// Returns the number of named paths.
    #[must_use]
    pub fn count(&self) -> usize {
        self.tops.len()
    }

    /// Returns the number of files, without directories and symbolic links.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files
    }

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
            // Set-user-id and set-group-id bits would be for another user there. The sticky bit of a directory protects the
            // files of its users from each other.
            let kept = if found.is_dir() { 0o1777 } else { 0o777 };
            entries.push(Entry { path, below, mode: found.mode() & kept, kind });
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

/// Maximum number of entries: a million names take a few hundred MiB.
const MOST_ENTRIES: usize = 1_000_000;
