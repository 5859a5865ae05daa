//! The list of all hosts for people. Thousands of files take long to read, so that what the list shows of them is kept in
//! one file, `identity/list` in the state directory, which may be removed at any time. A file that the kernel says is the
//! same as when it was read is not read again. No decision about a host depends on this: all others read the files.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use hosts::identity::{Damage, HostFile, Name, Summary};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{SFlag, fstatat};
use nix::sys::statfs::{self, FsType};
use nix::unistd::geteuid;

use super::IdentityError;
use super::files::{Lock, Places, TEMPORARY, is_ours};
use super::load::{self, Read, WORTH_A_THREAD};

/// What a list shows of all hosts.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing {
    pub hosts: Vec<Summary>,
    pub damaged: BTreeMap<Name, Damage>,
}

/// Reads the list of all hosts. Its errors are those of [`load::index`].
pub(super) fn read(places: &Places) -> Result<Listing, IdentityError> {
    read_at(places, SystemTime::now())
}

/// [`read`] where `now` is the time before the first file is read.
fn read_at(places: &Places, now: SystemTime) -> Result<Listing, IdentityError> {
    let (path, own) = (places.hosts(), geteuid());
    let directory = File::open(&path).ok().filter(has_exact_times);
    let text = directory.as_ref().and_then(|_| kept(places)).unwrap_or_default();
    let known = entries(&text);
    let one = |name: &Name| {
        if let (Some(directory), Some((stamp, line))) = (&directory, known.get(name.as_str()))
            && Stamp::of_now(directory, name).as_ref() == Some(stamp)
            && let Some(summary) = Summary::from_line(line)
        {
            return Some(Read::Well(Entry { summary, stamp: Some(*stamp), from: From::Kept }));
        }
        let parse = |name: &Name, text: &str, metadata: &Metadata| {
            let summary = Summary::of(&HostFile::parse(name, text)?);
            Ok(Entry { summary, stamp: Stamp::settled(metadata, now), from: From::File })
        };
        load::stamped(&path, name, ".host", parse, own)
    };
    let (mut all, mut damaged) = (Vec::new(), BTreeMap::new());
    for read in load::directory(&path, ".host", one)? {
        match read {
            Read::Well(entry) => all.push(entry),
            Read::Damaged(name, damage) => drop(damaged.insert(name, damage)),
        }
    }
    // What is wrong with these is wrong with every command.
    load::authorities(places)?;
    load::revoked(places)?;
    let taken = all.iter().filter(|entry| entry.from == From::Kept).count();
    let new = all.iter().filter(|entry| entry.from == From::File && entry.stamp.is_some()).count();
    if directory.is_some() && all.len() >= WORTH_A_THREAD && (new > 0 || taken < known.len()) {
        keep(places, &all);
    }
    Ok(Listing { hosts: all.into_iter().map(|entry| entry.summary).collect(), damaged })
}

struct Entry {
    summary: Summary,
    /// `None` if the file changed too short a time ago to tell it from a later change.
    stamp: Option<Stamp>,
    from: From,
}

#[derive(PartialEq, Eq)]
enum From {
    Kept,
    File,
}

/// What the kernel says of a file, and what is different after each change of its content, owner or mode. A user can set the
/// time of the content, but not the time of the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    file: u64,
    size: u64,
    content: (i64, i64),
    change: (i64, i64),
}

impl Stamp {
    /// Stamp of the file of a host, if it is a regular file and not a link.
    fn of_now(directory: &File, name: &Name) -> Option<Self> {
        let stat = fstatat(directory, format!("{name}.host").as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
        is_file.then_some(Self {
            device: stat.st_dev,
            file: stat.st_ino,
            size: u64::try_from(stat.st_size).ok()?,
            content: (stat.st_mtime, stat.st_mtime_nsec),
            change: (stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    /// Stamp of a file that was opened after `now`, if a later change must give it another one.
    fn settled(metadata: &Metadata, now: SystemTime) -> Option<Self> {
        let now = now.duration_since(UNIX_EPOCH).ok()?;
        let changed =
            Duration::new(u64::try_from(metadata.ctime()).ok()?, u32::try_from(metadata.ctime_nsec()).ok()?);
        (changed + SETTLED <= now).then_some(Self {
            device: metadata.dev(),
            file: metadata.ino(),
            size: metadata.size(),
            content: (metadata.mtime(), metadata.mtime_nsec()),
            change: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, file, size, content, change } = self;
        write!(f, "{device} {file} {size} {} {} {} {}", content.0, content.1, change.0, change.1)
    }
}

impl FromStr for Stamp {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        let mut unsigned = || word()?.parse::<u64>().map_err(drop);
        let (device, file, size) = (unsigned()?, unsigned()?, unsigned()?);
        let mut signed = || word()?.parse::<i64>().map_err(drop);
        let (content, change) = ((signed()?, signed()?), (signed()?, signed()?));
        if words.next().is_some() { Err(()) } else { Ok(Self { device, file, size, content, change }) }
    }
}

/// True for file systems whose time of the last change is that of this machine's clock, and at most [`SETTLED`] coarse. What
/// another machine changes, the kernel may not know at once.
fn has_exact_times(directory: &File) -> bool {
    statfs::fstatfs(directory).is_ok_and(|about| EXACT.contains(&about.filesystem_type()))
}

/// Reads the kept list without its last line; `None` if it is not there, not ours, of another version, or damaged.
fn kept(places: &Places) -> Option<String> {
    let path = places.identity_state().join(FILE);
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).ok()?;
    let metadata = file.metadata().ok()?;
    is_ours(&path, &metadata, geteuid()).ok()?;
    if !metadata.is_file() || metadata.len() > LONGEST {
        return None;
    }
    let mut text = String::with_capacity(usize::try_from(metadata.len()).ok()?.saturating_add(1));
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    let (lines, _) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let end = lines.len() + 1;
    if text[end..] != seal(&text[..end]) || !text.starts_with(HEAD) {
        return None;
    }
    text.truncate(end);
    Some(text)
}

/// Last line of the file, by which a part or a mixture of two is told from the whole.
fn seal(lines: &str) -> String {
    let mut seal = "sha256 ".to_owned();
    for byte in digest(&SHA256, lines.as_bytes()).as_ref() {
        let _ = write!(seal, "{byte:02x}");
    }
    seal + "\n"
}

/// Lines of the kept list by the name of the host.
fn entries(text: &str) -> HashMap<&str, (Stamp, &str)> {
    let entry = |line| {
        let (stamp, summary): (&str, &str) = str::split_once(line, '\t')?;
        let (name, _) = summary.split_once('\t')?;
        Some((name, (stamp.parse().ok()?, summary)))
    };
    text.lines().skip(1).filter_map(entry).collect()
}

/// Writes the kept list. Where that is not possible, or another process is writing, the next list reads the files again.
fn keep(places: &Places, all: &[Entry]) {
    let mut text = HEAD.to_owned();
    for entry in all {
        if let (Some(stamp), Some(line)) = (entry.stamp, entry.summary.to_line()) {
            let _ = writeln!(text, "{stamp}\t{line}");
        }
    }
    text.push_str(&seal(&text));
    let directory = places.identity_state();
    let Ok(_lock) = Lock::within(&directory, Duration::ZERO) else { return };
    let temporary = directory.join(format!("{TEMPORARY}{FILE}"));
    if write(&temporary, &text).and_then(|()| fs::rename(&temporary, directory.join(FILE))).is_err() {
        let _ = fs::remove_file(&temporary);
    }
}

/// Without fsync(2): after a power failure the last line tells a whole file from others.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Name in the state directory of identities.
const FILE: &str = "list";
/// First line of the file. Another version may show something else of a host.
const HEAD: &str = concat!("penstock host list, format 1, version ", env!("CARGO_PKG_VERSION"), "\n");
/// Maximum size of the file in bytes: a hundred thousand hosts have 20 MB.
const LONGEST: u64 = 64 * 1024 * 1024;
/// Time after a change of a file within which another change may give it the same times: timestamps are as coarse as the
/// kernel's tick, on old file systems a second.
const SETTLED: Duration = Duration::from_secs(2);
/// ext2, ext3, ext4, XFS, Btrfs, F2FS, ZFS, bcachefs, tmpfs, and what containers put over them.
const EXACT: [FsType; 8] = [
    statfs::EXT4_SUPER_MAGIC,
    // XFS, whose name nix leaves out with musl.
    FsType(0x5846_5342),
    statfs::BTRFS_SUPER_MAGIC,
    statfs::F2FS_SUPER_MAGIC,
    FsType(0x2fc1_2fc1),
    FsType(0xca45_1a4e),
    statfs::TMPFS_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
];

#[cfg(test)]
mod tests;
