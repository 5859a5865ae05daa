//! Keeps the output beside the view: a hash for each host, and files if the user asked for them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use super::happening::Stream;

#[derive(Debug, Default)]
pub struct Written {
    /// Hosts whose output could not be kept, with the reason.
    pub lost: Vec<(usize, String)>,
    /// SHA-256 of the standard output of each host.
    pub hashes: Vec<Option<String>>,
}

pub struct Keep {
    hosts: Vec<Kept>,
    files: Option<Files>,
    lost: Vec<(usize, String)>,
}

#[derive(Default)]
struct Kept {
    hash: Option<Box<Sha256>>,
    sum: Option<String>,
    out: Option<(PathBuf, File)>,
    err: Option<(PathBuf, File)>,
    broken: bool,
    closed: bool,
}

struct Files {
    directory: PathBuf,
    names: Vec<String>,
}

impl Keep {
    /// Keeps hashes only.
    #[must_use]
    pub fn hashes(hosts: usize) -> Self {
        Self { hosts: (0..hosts).map(|_| Kept::default()).collect(), files: None, lost: Vec::new() }
    }

    /// Keeps hashes, and also writes files `HOST.out` and `HOST.err` in `directory`, which is created. A file has the name
    /// `.HOST.out.part` until the host is done (`.HOST.out.2.part` while another run writes to that file). A host that wrote no
    /// output gets no file, and the file of an earlier run is removed. If two runs at once write to the directory, each file
    /// is the whole output of the run in which the host ended last.
    ///
    /// # Errors
    /// The directory cannot be created or written to.
    pub fn files(directory: &Path, names: &[String]) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let probe = directory.join(format!(".penstock-{:016x}", fastrand::u64(..)));
        File::create_new(&probe)?;
        fs::remove_file(&probe)?;
        let names = names.iter().map(|name| file_name(name)).collect();
        let mut keep = Self::hashes(0);
        keep.files = Some(Files { directory: directory.to_owned(), names });
        keep.hosts =
            (0..keep.files.as_ref().map_or(0, |files| files.names.len())).map(|_| Kept::default()).collect();
        Ok(keep)
    }

    pub(super) fn output(&mut self, host: usize, stream: Stream, bytes: &[u8]) {
        let Some(kept) = self.hosts.get_mut(host) else { return };
        if stream == Stream::Stdout {
            kept.hash.get_or_insert_with(Box::default).update(bytes);
        }
        let Some(files) = &self.files else { return };
        if kept.broken {
            return;
        }
        if let Err(error) = kept.write(files, host, stream, bytes) {
            kept.broken = true;
            let name = &files.names[host];
            self.lost.push((host, format!("{}/{name}: {error}", files.directory.display())));
        }
    }

    pub(super) fn ended(&mut self, host: usize) {
        let Some(kept) = self.hosts.get_mut(host) else { return };
        kept.sum = kept.hash.take().map(|hash| hex(&hash.finalize()));
        let Some(files) = &self.files else { return };
        for (part, ending) in [(kept.out.take(), "out"), (kept.err.take(), "err")] {
            let last = files.directory.join(format!("{}.{ending}", files.names[host]));
            let done = match part {
                // A file that could not be written to the end keeps its name ending in `.part`.
                Some((path, _)) if !kept.broken => fs::rename(&path, &last),
                // In this run the host wrote no output, or not all of it could be written: the file of an earlier run is removed.
                _ if kept.closed => Ok(()),
                _ => match fs::remove_file(&last) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                },
            };
            if let Err(error) = done {
                self.lost.push((host, format!("{}: {error}", last.display())));
            }
        }
        kept.closed = true;
    }

    /// Number of different outputs among `hosts`. A host without output has the hash of the empty output.
    pub(super) fn differing(&self, hosts: &[usize]) -> usize {
        hosts.iter().map(|host| &self.hosts[*host].sum).collect::<HashSet<_>>().len()
    }

    pub(super) fn finish(&mut self) -> Written {
        for host in 0..self.hosts.len() {
            if self.hosts[host].hash.is_some() {
                self.ended(host);
            }
        }
        Written {
            lost: std::mem::take(&mut self.lost),
            hashes: self.hosts.iter_mut().map(|kept| kept.sum.take()).collect(),
        }
    }
}

impl Kept {
    fn write(&mut self, files: &Files, host: usize, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let (slot, ending) = match stream {
            Stream::Stdout => (&mut self.out, "out"),
            Stream::Stderr => (&mut self.err, "err"),
        };
        if slot.is_none() {
            *slot = Some(part(&files.directory, &format!(".{}.{ending}", files.names[host]))?);
        }
        match slot {
            Some((_, file)) => file.write_all(bytes),
            None => Ok(()),
        }
    }
}

/// Creates a file for unfinished output. The run locks the file (flock(2)) as long as it writes to the file: so two runs with one
/// directory write to two files, and a file without a lock is known to be left from a killed run.
fn part(directory: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    for number in 1..=MOST_RUNS {
        let number = if number == 1 { String::new() } else { format!(".{number}") };
        let path = directory.join(format!("{name}{number}.part"));
        if !is_free(&path)? {
            continue;
        }
        match File::create_new(&path) {
            // On a file system without locks, `create_new` still gives each of two runs a file of its own.
            Ok(file) => match file.try_lock() {
                Err(TryLockError::WouldBlock) => {}
                Ok(()) | Err(TryLockError::Error(_)) if is_at(&file, &path) => return Ok((path, file)),
                // Another run removed the file as left from a killed run, before this run had locked the file.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            },
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!(
        "{MOST_RUNS} other runs write to it, or it cannot be locked and they left files there"
    )))
}

/// Whether no run writes to a file of this name. A file left by an earlier run, or a symbolic link, is removed: this run must
/// write to neither.
fn is_free(path: &Path) -> io::Result<bool> {
    let removed = || match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    };
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    match File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => match file.try_lock() {
            Ok(()) if is_at(&file, path) => removed(),
            Ok(()) | Err(_) => Ok(false),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        // A symbolic link is removed, not its target. A file that this user may not read belongs to another user, whose run may
        // still write to it.
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => removed(),
        Err(_) => Ok(false),
    }
}

/// Whether `path` still names `file`, which another run may have removed or replaced.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => of(ours) == of(there),
        _ => false,
    }
}

/// Limit of the runs that write to one directory at once.
const MOST_RUNS: usize = 100;

/// A file name for a host, unique among hosts: a character that a file name cannot hold is written as `%2F`.
pub(super) fn file_name(host: &str) -> String {
    let mut name = String::new();
    for (at, c) in host.char_indices() {
        if c == '/' || c == '%' || c.is_control() || (at == 0 && c == '.') {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(name, "%{byte:02X}");
            }
        } else {
            name.push(c);
        }
    }
    name
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_get_their_names_when_hosts_are_done_and_the_silent_have_none() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a".to_owned(), "b".to_owned(), "../c".to_owned()];
        let mut keep = Keep::files(directory.path(), &names).unwrap();
        keep.output(0, Stream::Stdout, b"one");
        keep.output(2, Stream::Stderr, b"two");
        assert!(!directory.path().join("a.out").exists());
        (0..3).for_each(|host| keep.ended(host));
        let mut found: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, ["%2E.%2Fc.err", "a.out"]);
        assert_eq!(keep.differing(&[0, 1, 2]), 2);
        let written = keep.finish();
        assert!(written.lost.is_empty());
        assert_eq!(written.hashes[0].as_deref().map(|sum| &sum[..8]), Some("7692c3ad"));
    }

    #[test]
    fn disk_that_is_full_is_said_once_per_host_and_the_file_keeps_its_unfinished_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut keep = Keep::files(directory.path(), &["a".to_owned()]).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        keep.hosts[0].out = Some((directory.path().join(".a.out.part"), full));
        keep.output(0, Stream::Stdout, b"one");
        keep.output(0, Stream::Stdout, b"two");
        keep.ended(0);
        let written = keep.finish();
        assert_eq!(written.lost.len(), 1);
        assert!(written.lost[0].1.contains("No space left"), "{:?}", written.lost);
        assert!(!directory.path().join("a.out").exists());
    }

    #[test]
    fn files_of_an_earlier_run_and_planted_links_are_not_taken_for_output() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let names = ["a".to_owned(), "b".to_owned()];
        for name in ["a.out", "b.out", "b.err", "victim"] {
            fs::write(path(name), "old").unwrap();
        }
        std::os::unix::fs::symlink(path("victim"), path(".a.out.part")).unwrap();
        let mut keep = Keep::files(directory.path(), &names).unwrap();
        keep.output(0, Stream::Stdout, b"new");
        (0..2).for_each(|host| keep.ended(host));
        assert!(keep.finish().lost.is_empty());
        assert_eq!(fs::read(path("a.out")).unwrap(), b"new");
        assert_eq!(fs::read(path("victim")).unwrap(), b"old");
        assert!(!path("b.out").exists() && !path("b.err").exists());
    }

    #[test]
    fn two_runs_with_one_directory_each_write_whole_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let begin = || Keep::files(directory.path(), &["a".to_owned()]).unwrap();
        // The file that a killed run left.
        fs::write(path(".a.out.part"), "dead").unwrap();
        let (mut first, mut second) = (begin(), begin());
        first.output(0, Stream::Stdout, b"first one, ");
        second.output(0, Stream::Stdout, b"second one, ");
        first.output(0, Stream::Stdout, b"first two");
        first.ended(0);
        assert_eq!(fs::read_to_string(path("a.out")).unwrap(), "first one, first two");
        second.output(0, Stream::Stdout, b"second two");
        second.ended(0);
        assert_eq!(fs::read_to_string(path("a.out")).unwrap(), "second one, second two");
        assert_eq!((first.finish().lost, second.finish().lost), (vec![], vec![]));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn hosts_never_share_a_file() {
        let names = ["a/b", "a_b", "a%2Fb", ".a", "_.a", "%2Ea"].map(file_name);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{names:?}");
    }
}
