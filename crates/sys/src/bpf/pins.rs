//! Names of a service's maps and its program in a BPF file system: with them the program forwards packets while no process
//! has it, and the next process finds its flows.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, readlinkat, renameat};
use nix::mount::{MsFlags, mount};
use nix::net::if_::if_nameindex;
use nix::sys::stat::fstatat;
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, symlinkat, unlinkat};

use super::clsact::{self, Qdisc};

mod flows;
mod stale;

pub(super) use flows::FlowsName;
pub use stale::{Named, StalePins, look, named, remove_empty};

const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// Below it each service has a directory.
const DIRECTORY: &str = "/sys/fs/bpf/penstock";

/// Names of the maps, as the program has them. That of the flows may be another one: `crates/sys/src/bpf/pins/flows.rs`.
pub(super) const MAPS: [&str; 9] =
    ["service", "rings", "backends", "counters", "tallies", "taken", "ids", "flows", "fragments"];

/// Names that say that a program is on an interface.
const LINKS: [&str; 4] = ["link-tc", FILTER, "link-xdp", "link-xdp-generic"];

/// The program of a filter of clsact.
const FILTER: &str = "filter-tc";

/// Says that the qdisc clsact was made for the filter.
pub(super) const QDISC: &str = "qdisc";

/// A symbolic link whose text says which instance of penstock has the directory: a BPF file system has no ordinary files.
const OWNER: &str = "owner";

/// Version of the layout of the maps. A process with another version makes new maps instead of taking over pinned ones.
const FORM: u32 = 2;

/// Longest name of a filter (CLS_BPF_NAME_LEN, with the zero at its end).
const LONGEST_FILTER: usize = 255;

/// How often an empty directory that another process has locked is tried again, and the pause.
const MOMENTS: u32 = 100;
const MOMENT: Duration = Duration::from_millis(1);

/// Whether names end with the mount namespace of this process: the file system was mounted there alone, as by a unit of systemd with
/// `PrivateMounts=` before another one was there. The parent is asked, which outlives this process.
pub fn end_with_namespace() -> bool {
    let device = |path: &str| fs::metadata(path).map(|found| found.dev());
    let of_parent = format!("/proc/{}/root{FILE_SYSTEM}", nix::unistd::getppid());
    // What the parent has is not shown to every user.
    matches!((device(FILE_SYSTEM), device(&of_parent)), (Ok(own), Ok(other)) if own != other)
}

/// The directory of a service, which this process has alone.
#[derive(Debug)]
pub struct Pins {
    path: PathBuf,
    /// Locked.
    directory: Flock<File>,
    /// Names that were in it then: a process that has given up its rights cannot look.
    found: Vec<String>,
}

/// Why a service has no directory.
#[derive(Debug, thiserror::Error)]
pub enum Unpinned {
    #[error("another process has {}", .0.display())]
    Taken(PathBuf),
    #[error(
        "a program that another user has left is there, and this process may not replace it: `penstock ctl dsr detach {}` as root ends it",
        .0.display()
    )]
    Foreign(PathBuf),
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
        loop {
            match fs::create_dir_all(&path) {
                // Another process has removed the directory above it as an empty one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                made => made.map_err(wrong(&path))?,
            }
            let pins = Self::lock(path.clone());
            match &pins {
                // Another process has removed it as an empty one, before it was locked here.
                Ok(pins) if !pins.is_there() => {}
                Err(Unpinned::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
                _ => return pins.and_then(Self::writable),
            }
        }
    }

    /// Refuses a directory that another user has left: no name can be made in it.
    fn writable(self) -> Result<Self, Unpinned> {
        match faccessat(&*self.directory, ".", AccessFlags::W_OK, AtFlags::AT_EACCESS) {
            Ok(()) => Ok(self),
            Err(_) if self.found.iter().any(|name| LINKS.contains(&&**name)) => {
                Err(Unpinned::Foreign(self.path))
            }
            Err(error) => Err(wrong(&self.path)(error.into())),
        }
    }

    /// Whether the path still leads to this directory.
    fn is_there(&self) -> bool {
        let (Ok(named), Ok(own)) = (fs::metadata(&self.path), self.directory.metadata()) else {
            return false;
        };
        (named.dev(), named.ino()) == (own.dev(), own.ino())
    }

    /// Says which instance has the directory from now on.
    pub fn set_owner(&self, owner: &str) -> io::Result<()> {
        if self.owner().as_deref() != Some(owner) {
            self.remove_one(OWNER)?;
            symlinkat(owner, &*self.directory, OWNER)?;
        }
        Ok(())
    }

    /// Notes something by the name of a link.
    pub(super) fn mark(&self, name: &str) -> io::Result<()> {
        self.remove_one(name)?;
        Ok(symlinkat("made", &*self.directory, name)?)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        fstatat(&*self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// Name of the filter of the service.
    pub(super) fn filter_name(&self) -> String {
        filter_name(self.path.file_name().unwrap_or_default())
    }

    /// Whether removing the program of the service needs CAP_NET_ADMIN: a filter of clsact does, because no descriptor stands
    /// for it.
    pub fn needs_rights(&self) -> bool {
        self.found.iter().any(|name| name == FILTER)
    }

    /// Removes the filter that an earlier process of the service has left, on whichever interface it is.
    pub(super) fn remove_filter(&self) -> io::Result<()> {
        if !self.needs_rights() {
            return Ok(());
        }
        let qdisc = if self.has(QDISC) { Qdisc::Made } else { Qdisc::WasThere };
        let name = self.filter_name();
        let mut first = Ok(());
        for interface in &if_nameindex()? {
            let found = clsact::find(interface.index(), &name);
            first = first.and(found.and_then(|found| found.map_or(Ok(()), |filter| filter.remove(qdisc))));
        }
        first
    }

    /// Which instance has the directory; `None`: a start that did not say it.
    pub fn owner(&self) -> Option<String> {
        let text = readlinkat(&*self.directory, OWNER).ok()?.into_vec();
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Takes a directory. An empty one may be locked for a moment by a process that removes it.
    fn lock(path: PathBuf) -> Result<Self, Unpinned> {
        for _ in 0..MOMENTS {
            match Self::try_lock(path.clone()) {
                // Another start may only look at it.
                Err(Unpinned::Taken(_)) => {
                    std::thread::sleep(MOMENT);
                }
                locked => return locked,
            }
        }
        Self::try_lock(path)
    }

    fn try_lock(path: PathBuf) -> Result<Self, Unpinned> {
        let file = File::open(&path).map_err(wrong(&path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(directory) => {
                let found = names(&path).unwrap_or_default();
                Ok(Self { path, directory, found })
            }
            Err((_, Errno::EWOULDBLOCK)) => Err(Unpinned::Taken(path)),
            Err((_, error)) => Err(wrong(&path)(error.into())),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether an earlier process has left maps.
    pub fn has_maps(&self) -> bool {
        self.found.iter().any(|name| MAPS.contains(&&**name))
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

    /// Gives a map the name of another one, which it loses.
    pub(super) fn rename_one(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&*self.directory, from, &*self.directory, to)?)
    }

    /// Forgets all of it, without a right to the directories above.
    pub fn remove(&self) -> io::Result<()> {
        let mut first = self.remove_filter();
        let usual = LINKS.into_iter().chain(MAPS).chain([OWNER, QDISC]);
        for name in usual.chain(self.found.iter().map(String::as_str)) {
            first = first.and(self.remove_one(name));
        }
        self.remove_directory();
        first
    }

    /// Removes the directory if it is empty, and the one of all services. They may belong to root: the next start removes
    /// them then.
    fn remove_directory(&self) {
        let _ = fs::remove_dir(&self.path).and_then(|()| fs::remove_dir(DIRECTORY));
    }

    /// The directory as a path that needs no right to those above it.
    pub fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd()).into()
    }
}

/// Name of the filter of the service that has a directory of this name.
fn filter_name(directory: &OsStr) -> String {
    format!("penstock-{}", directory.to_string_lossy()).chars().take(LONGEST_FILTER).collect()
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn wrong(path: &Path) -> impl FnOnce(io::Error) -> Unpinned {
    let path = path.to_owned();
    move |error| Unpinned::Io(path, error)
}

/// Where the program with a name, and its maps, have names in this network namespace.
pub fn directory_of(name: &str) -> Option<PathBuf> {
    path_of(name).ok()
}

/// Number of this network namespace.
fn network() -> Result<u64, Unpinned> {
    let space = Path::new("/proc/self/ns/net");
    Ok(fs::metadata(space).map_err(wrong(space))?.ino())
}

fn path_of(name: &str) -> Result<PathBuf, Unpinned> {
    let number = network()?;
    Ok(Path::new(DIRECTORY).join(format!("v{FORM}-{number}-{}", safe(name))))
}

/// A name as it is in that of a directory.
fn safe(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Whether a directory is on a BPF file system (linux/magic.h).
fn is_bpf(path: &Path) -> bool {
    statfs(path).is_ok_and(|of| of.filesystem_type().0 as u32 == 0xcafe_4a11)
}
