//! Reads all identities: thousands of small files in milliseconds, on several threads.

use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use hosts::identity::{Authority, Damage, Fault, HostFile, Index, Name};
use hosts::ssh::key::PublicKey;
use nix::fcntl::OFlag;
use nix::unistd::{Uid, geteuid};

use super::IdentityError;
use super::files::{Places, directory_is_ours, is_ours};

/// Suffixes of the files of hosts and of authorities.
const ENDINGS: [&str; 2] = [".host", ".ca"];
/// Maximum size of a file in bytes.
const LONGEST: u64 = 1024 * 1024;
/// Minimum number of files per thread: for fewer files, one thread is faster.
pub(super) const WORTH_A_THREAD: usize = 256;
/// Maximum number of threads: more only wait for the kernel.
const MOST_THREADS: usize = 4;

type AuthorityRead = Result<Authority, (Name, Damage)>;

pub(super) enum Read<T> {
    Well(T),
    Damaged(Name, Damage),
}

/// Reads all identities. A damaged file is an entry of the index. Only a fault that affects all files is an error.
pub(super) fn index(places: &Places) -> Result<Index, IdentityError> {
    let (mut hosts, mut damaged) = (Vec::new(), Vec::new());
    let (path, own) = (places.hosts(), geteuid());
    let read = |name: &Name| one_of(&path, name, ".host", HostFile::parse, own);
    for read in directory(&path, ".host", read)? {
        match read {
            Read::Well(host) => hosts.push(host),
            Read::Damaged(name, damage) => damaged.push((name, damage)),
        }
    }
    Ok(Index::new(hosts, damaged, authorities(places)?, revoked(places)?))
}

pub(super) fn authorities(places: &Places) -> Result<Vec<AuthorityRead>, IdentityError> {
    let (path, own) = (places.authorities(), geteuid());
    let read = |name: &Name| one_of(&path, name, ".ca", Authority::parse, own);
    let result = directory(&path, ".ca", read)?.into_iter().map(|read| match read {
        Read::Well(authority) => Ok(authority),
        Read::Damaged(name, damage) => Err((name, damage)),
    });
    Ok(result.collect())
}

/// Reads the keys that are refused from every host. A file that cannot be read is an error: its keys must stay refused.
pub(super) fn revoked(places: &Places) -> Result<Vec<PublicKey>, IdentityError> {
    let path = places.revoked();
    let text = match read(&path, geteuid()) {
        Ok((text, _)) => text,
        // A symbolic link without a target means that the list was lost: this is an error. Without a link, there was no
        // list.
        Err(fault) if fault.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
            return Ok(Vec::new());
        }
        Err(fault) => return Err(IdentityError::io("cannot read", &path)(fault)),
    };
    revoked_in(&text, &path)
}

/// Parses the list of revoked keys.
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

/// Reads one file; `None` if it does not exist.
pub(super) fn one<T>(
    directory: &Path,
    name: &Name,
    ending: &str,
    parse: fn(&Name, &str) -> Result<T, Vec<Fault>>,
) -> Option<Read<T>> {
    one_of(directory, name, ending, parse, geteuid())
}

/// [`one`] for the user `own`: thousands of files need one question who that is.
fn one_of<T>(
    directory: &Path,
    name: &Name,
    ending: &str,
    parse: fn(&Name, &str) -> Result<T, Vec<Fault>>,
    own: Uid,
) -> Option<Read<T>> {
    stamped(directory, name, ending, |name, text, _| parse(name, text), own)
}

/// [`one_of`] where `parse` also gets what the kernel said of the file before its content was read.
pub(super) fn stamped<T>(
    directory: &Path,
    name: &Name,
    ending: &str,
    parse: impl Fn(&Name, &str, &Metadata) -> Result<T, Vec<Fault>>,
    own: Uid,
) -> Option<Read<T>> {
    let path = directory.join(format!("{name}{ending}"));
    match read(&path, own) {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => None,
        // A symbolic link without a target is a lost file: it counts as damaged, not as absent.
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
            let lost =
                io::Error::other("it is a link that leads nowhere: restore what it leads to, or remove it");
            Some(take(&path, name, Err(lost), parse))
        }
        result => Some(take(&path, name, result, parse)),
    }
}

/// Reads each file of a directory with `one`, on several threads if there are many.
pub(super) fn directory<T: Send>(
    path: &Path,
    ending: &str,
    one: impl Fn(&Name) -> Option<Read<T>> + Sync,
) -> Result<Vec<Read<T>>, IdentityError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(fault) => return Err(IdentityError::io("cannot read", path)(fault)),
    };
    directory_is_ours(path)?;
    let (mut names, mut misnamed) = (Vec::new(), Vec::new());
    for entry in entries {
        let file = entry.map_err(IdentityError::io("cannot read", path))?.file_name();
        match called(&file.to_string_lossy(), ending) {
            Called::Well(name) => names.push(name),
            Called::Wrong(wanted) => misnamed.push((path.join(file), wanted)),
            Called::Other => {}
        }
    }
    names.sort_unstable();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let share = names.len().div_ceil(threads).max(WORTH_A_THREAD);
    let read_share = |names: &[Name]| -> Vec<Read<T>> { names.iter().filter_map(&one).collect() };
    let mut shares = names.chunks(share);
    let first = shares.next().unwrap_or_default();
    let mut all = thread::scope(|scope| {
        // If no thread can be started, this thread reads the share.
        let start = |names| (names, thread::Builder::new().spawn_scoped(scope, move || read_share(names)));
        let others: Vec<_> = shares.map(start).collect();
        let mut all = read_share(first);
        for (names, other) in others {
            match other.map(ScopedJoinHandle::join) {
                Ok(Ok(read)) => all.extend(read),
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(_) => all.extend(read_share(names)),
            }
        }
        all
    });
    all.extend(misnamed.into_iter().map(|(file, wanted)| misnamed_file(&file, wanted, ending, &names)));
    Ok(all)
}

/// Meaning of a file name.
#[derive(Debug, PartialEq)]
enum Called {
    /// The file of this host or authority.
    Well(Name),
    /// A file for a host or authority, perhaps with this name, whose file name is not valid.
    Wrong(Option<Name>),
    /// A file of an editor, a copy, or a text for people.
    Other,
}

/// Classifies a file name. Hidden files belong to editors or to penstock.
fn called(file: &str, ending: &str) -> Called {
    if file.starts_with('.') {
        return Called::Other;
    }
    let well = |name: &str| name.parse::<Name>().ok().filter(|parsed| parsed.as_str() == name);
    if let Some(name) = file.strip_suffix(ending).and_then(well) {
        return Called::Well(name);
    }
    let plain = file.trim().to_lowercase();
    let meant = ENDINGS.into_iter().find_map(|known| plain.strip_suffix(known));
    meant.map_or(Called::Other, |name| Called::Wrong(name.trim().parse().ok()))
}

/// Makes a damaged entry for a file with a wrong name, so that the host is refused and the audit has the reason. The
/// entry has the host's name, or a name made of the file's name if there is no such host or if the host has a correct
/// file too.
fn misnamed_file<T>(path: &Path, wanted: Option<Name>, ending: &str, there: &[Name]) -> Read<T> {
    let known = |name: &Name| there.binary_search(name).is_ok();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '_' };
    let own = || {
        let name = format!("_{}", file.chars().take(100).map(allowed).collect::<String>());
        name.parse().expect("letters, digits, dots and underscores are allowed in a name")
    };
    let name = wanted.filter(|name| !known(name)).unwrap_or_else(own);
    let message = format!(
        "it is not read because of its name: here files are called NAME{ending}, NAME in lower case and without blanks; \
         rename it, move it or remove it"
    );
    Read::Damaged(name, Damage { path: path.display().to_string(), faults: vec![Fault { line: 0, message }] })
}

fn take<T>(
    path: &Path,
    name: &Name,
    result: io::Result<(String, Metadata)>,
    parse: impl Fn(&Name, &str, &Metadata) -> Result<T, Vec<Fault>>,
) -> Read<T> {
    let faults = match result.map(|(text, metadata)| parse(name, &text, &metadata)) {
        Ok(Ok(file)) => return Read::Well(file),
        Ok(Err(faults)) => faults,
        Err(fault) => vec![Fault { line: 0, message: fault.to_string() }],
    };
    Read::Damaged(name.clone(), Damage { path: path.display().to_string(), faults })
}

fn read(path: &Path, own: Uid) -> io::Result<(String, Metadata)> {
    // Without O_NONBLOCK, open(2) of a pipe without a writer blocks for ever.
    let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    is_ours(path, &metadata, own).map_err(|error| io::Error::other(error.to_string()))?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes")));
    }
    let size = usize::try_from(metadata.len()).unwrap_or(0);
    let mut bytes = vec![0; size + 1];
    let got = file.read(&mut bytes)?;
    bytes.truncate(got);
    // A read that returns the whole size where there was room for more has met the end: thousands of files need no second
    // one.
    if got != size {
        file.take(LONGEST).read_to_end(&mut bytes)?;
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| io::Error::other("it is not UTF-8 text: the file is damaged; restore it"))?;
    Ok((text, metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_called_almost_like_those_of_hosts_are_told_from_others() {
        let wrong = |name: &str| Called::Wrong(Some(name.parse().unwrap()));
        for (file, expected) in [
            ("h1.host", Called::Well("h1".parse().unwrap())),
            ("[h1]:22.host", Called::Well("[h1]:22".parse().unwrap())),
            ("H1.host", wrong("h1")),
            ("web9.HOST", wrong("web9")),
            ("h1 .host", wrong("h1")),
            (" h1.host\n", wrong("h1")),
            ("Fleet.ca", wrong("fleet")),
            ("fleet.ca", wrong("fleet")),
            ("a b.host", Called::Wrong(None)),
            ("h\u{fffd}.host", Called::Wrong(None)),
            (".h1.host", Called::Other),
            ("h1.host~", Called::Other),
            ("h1.host.bak", Called::Other),
            ("README", Called::Other),
        ] {
            assert_eq!(called(file, ".host"), expected, "{file:?}");
        }
    }
}
