//! Reading all identities: thousands of small files in milliseconds, with several threads.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use logic::identity::{Authority, Damage, Fault, HostFile, Index, Name};
use logic::ssh::key::PublicKey;
use nix::fcntl::OFlag;

use super::IdentityError;
use super::files::{Places, directory_is_ours, is_ours};

/// A longer file is no file of a host.
const LONGEST: u64 = 1024 * 1024;
/// Below this many files one thread is quicker.
const WORTH_A_THREAD: usize = 256;
/// More threads than this wait for the kernel.
const MOST_THREADS: usize = 4;

/// An authority, or what is wrong with its file.
type AuthorityRead = Result<Authority, (Name, Damage)>;

/// One file of a directory.
pub(super) enum Read<T> {
    Well(T),
    Damaged(Name, Damage),
}

/// Reads everything. Only what makes all of it unreliable is an error; a damaged file stands in the index as such.
pub(super) fn index(places: &Places) -> Result<Index, IdentityError> {
    let (mut hosts, mut damaged) = (Vec::new(), Vec::new());
    for read in directory(&places.hosts(), ".host", HostFile::parse)? {
        match read {
            Read::Well(host) => hosts.push(host),
            Read::Damaged(name, damage) => damaged.push((name, damage)),
        }
    }
    Ok(Index::new(hosts, damaged, authorities(places)?, revoked(places)?))
}

/// All authorities.
pub(super) fn authorities(places: &Places) -> Result<Vec<AuthorityRead>, IdentityError> {
    let read = directory(&places.authorities(), ".ca", Authority::parse)?;
    let result = read.into_iter().map(|read| match read {
        Read::Well(authority) => Ok(authority),
        Read::Damaged(name, damage) => Err((name, damage)),
    });
    Ok(result.collect())
}

/// The keys that nobody may show. A file that cannot be read must not let them through: an error.
pub(super) fn revoked(places: &Places) -> Result<Vec<PublicKey>, IdentityError> {
    let path = places.revoked();
    let text = match read(&path) {
        Ok(text) => text,
        // A link that leads nowhere is a list that is lost, not one that was never there.
        Err(fault) if fault.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
            return Ok(Vec::new());
        }
        Err(fault) => return Err(IdentityError::io("cannot read", &path)(fault)),
    };
    revoked_in(&text, &path)
}

/// The keys in the text of that list.
pub(super) fn revoked_in(text: &str, path: &Path) -> Result<Vec<PublicKey>, IdentityError> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(line, text)| {
        text.parse::<PublicKey>().map_err(|error| IdentityError::Damaged {
            path: path.to_owned(),
            fault: Fault { line, message: error.to_string() },
        })
    });
    keys.collect()
}

/// One file, if it is there.
pub(super) fn one<T>(
    directory: &Path,
    name: &Name,
    ending: &str,
    parse: fn(&Name, &str) -> Result<T, Vec<Fault>>,
) -> Option<Read<T>> {
    let path = directory.join(format!("{name}{ending}"));
    match read(&path) {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => None,
        // A file that is lost is not one that was never there.
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
            let lost =
                io::Error::other("it is a link that leads nowhere: restore what it leads to, or remove it");
            Some(take(&path, name, Err(lost), parse))
        }
        result => Some(take(&path, name, result, parse)),
    }
}

fn directory<T: Send>(
    path: &Path,
    ending: &str,
    parse: fn(&Name, &str) -> Result<T, Vec<Fault>>,
) -> Result<Vec<Read<T>>, IdentityError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(fault) => return Err(IdentityError::io("cannot read", path)(fault)),
    };
    directory_is_ours(path)?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(IdentityError::io("cannot read", path))?.file_name();
        // Hidden files are editors' and ours.
        let name =
            name.to_str().filter(|name| !name.starts_with('.')).and_then(|name| name.strip_suffix(ending));
        if let Some(name) =
            name.and_then(|name| name.parse::<Name>().ok().filter(|parsed| parsed.as_str() == name))
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let share = names.len().div_ceil(threads).max(WORTH_A_THREAD);
    let read_share = |names: &[Name]| -> Vec<Read<T>> {
        names.iter().filter_map(|name| one(path, name, ending, parse)).collect()
    };
    let mut shares = names.chunks(share);
    let Some(first) = shares.next() else { return Ok(Vec::new()) };
    Ok(std::thread::scope(|scope| {
        let others: Vec<_> = shares.map(|names| scope.spawn(move || read_share(names))).collect();
        let mut all = read_share(first);
        for other in others {
            match other.join() {
                Ok(read) => all.extend(read),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    }))
}

fn take<T>(
    path: &Path,
    name: &Name,
    result: io::Result<String>,
    parse: fn(&Name, &str) -> Result<T, Vec<Fault>>,
) -> Read<T> {
    let faults = match result.map(|text| parse(name, &text)) {
        Ok(Ok(file)) => return Read::Well(file),
        Ok(Err(faults)) => faults,
        Err(fault) => vec![Fault { line: 0, message: fault.to_string() }],
    };
    Read::Damaged(name.clone(), Damage { path: path.display().to_string(), faults })
}

fn read(path: &Path) -> io::Result<String> {
    // Opening a pipe that nobody writes to would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    is_ours(path, &metadata).map_err(|error| io::Error::other(error.to_string()))?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes")));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
    file.take(LONGEST).read_to_end(&mut bytes)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::other("it is not UTF-8 text: the file is damaged; restore it"))
}
