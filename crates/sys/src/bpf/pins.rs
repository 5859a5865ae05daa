//! Names of a service's maps and its program in a BPF file system: with them the program forwards packets while no process
//! has it, and the next process finds its flows.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::fstatat;
use nix::sys::statfs::statfs;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{MAPS, calls};

mod stale;

pub use stale::{Removed, StalePins};

const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// Below it each service has a directory.
const DIRECTORY: &str = "/sys/fs/bpf/penstock";

const LINKS: [&str; 3] = ["link-tc", "link-xdp", "link-xdp-generic"];

/// Version of the layout of the maps. A process with another version makes new maps instead of taking over pinned ones.
const FORM: u32 = 2;

/// The directory of a service, which this process has alone.
#[derive(Debug)]
pub struct Pins {
    path: PathBuf,
    /// Locked.
    directory: Flock<File>,
}

/// Why a service has no directory.
#[derive(Debug, thiserror::Error)]
pub enum Unpinned {
    #[error("another process has {}", .0.display())]
    Taken(PathBuf),
    #[error("{} cannot be used: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
}

impl Pins {
    /// The directory for a name, if it is there.
    pub fn open_existing(name: &str) -> Result<Self, Unpinned> {
        let path = path_of(name)?;
        Self::lock(path)
    }

    /// The directory for a name, in this network namespace. Makes it, and mounts the file system if it is not there.
    pub fn open(name: &str) -> Result<Self, Unpinned> {
        let root = Path::new(FILE_SYSTEM);
        if !is_bpf(root) {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("bpf"), root, Some("bpf"), flags, Some("mode=700"))
                .map_err(|error| wrong(root)(error.into()))?;
        }
        let path = path_of(name)?;
        fs::create_dir_all(&path).map_err(wrong(&path))?;
        Self::lock(path)
    }

    fn lock(path: PathBuf) -> Result<Self, Unpinned> {
        let file = File::open(&path).map_err(wrong(&path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(directory) => Ok(Self { path, directory }),
            Err((_, Errno::EWOULDBLOCK)) => Err(Unpinned::Taken(path)),
            Err((_, error)) => Err(wrong(&path)(error.into())),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Forgets a map with another number of entries.
    pub(super) fn forget_unless(&self, name: &str, entries: u32) -> io::Result<()> {
        let path = self.path(name);
        match calls::get(&path).and_then(|map| calls::entries_of(map.as_fd())) {
            Ok(found) if found == entries => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            _ => fs::remove_file(path),
        }
    }

    /// Forgets the maps, unless a program is on an interface with them.
    pub fn remove_unused(&self) -> io::Result<()> {
        let is_there = |name: &&str| fstatat(&*self.directory, *name, AtFlags::empty()).is_ok();
        match LINKS.iter().any(is_there) {
            true => Ok(()),
            false => self.remove(),
        }
    }

    /// Takes one name away, if it is there.
    pub(super) fn remove_one(&self, name: &str) -> io::Result<()> {
        match unlinkat(&*self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets all of it, without a right to the directories above.
    pub fn remove(&self) -> io::Result<()> {
        let mut first = Ok(());
        for name in LINKS.into_iter().chain(MAPS) {
            first = first.and(self.remove_one(name));
        }
        // An empty directory holds nothing. The one above it may belong to root.
        let _ = fs::remove_dir(&self.path);
        first
    }

    /// The directory as a path that needs no right to those above it.
    pub fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }
}

/// Takes the program with this name away, if there is one.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    match calls::get(path) {
        // A link to an interface that is gone has nothing to detach.
        Ok(link) => calls::detach(link.as_fd()).or_else(|error| match calls::interface_of(link.as_fd()) {
            Ok(0) => Ok(()),
            _ => Err(error),
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    remove(path)
}

/// Removes a name that may be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn wrong(path: &Path) -> impl FnOnce(io::Error) -> Unpinned {
    let path = path.to_owned();
    move |error| Unpinned::Io(path, error)
}

/// Number of this network namespace.
fn network() -> Result<u64, Unpinned> {
    let space = Path::new("/proc/self/ns/net");
    Ok(fs::metadata(space).map_err(wrong(space))?.ino())
}

fn path_of(name: &str) -> Result<PathBuf, Unpinned> {
    let number = network()?;
    let safe: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    Ok(Path::new(DIRECTORY).join(format!("v{FORM}-{number}-{safe}")))
}

/// Whether a directory is on a BPF file system (linux/magic.h).
fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|of| of.filesystem_type().0 as u32 == 0xcafe_4a11)
}
