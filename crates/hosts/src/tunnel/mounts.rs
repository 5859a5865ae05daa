//! List of mounts from the kernel (`/proc/self/mountinfo`, proc_pid_mountinfo(5)).

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount id of the kernel. The kernel uses a free id again.
    pub id: u64,
    pub point: PathBuf,
    /// File system type: `nfs4`, `fuse.sshfs`.
    pub kind: String,
    pub source: String,
}

/// Mounts at a path; the last one is on top. Lines that cannot be parsed describe other mounts, and are skipped.
#[must_use]
pub fn mounted_at(mountinfo: &[u8], point: &Path) -> Vec<MountEntry> {
    let all = mountinfo.split(|byte| *byte == b'\n').filter_map(entry);
    all.filter(|entry| entry.point == point).collect()
}

/// Evidence by which a run recognises its own mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Mount that the run saw after its mount command succeeded.
    Seen(&'a MountEntry),
    /// Words of the mount command; the run saw no mount.
    Command(&'a [String]),
}

/// Mount at a path, from the point of view of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    Nothing,
    /// The mount of the run is on top.
    Ours(&'a MountEntry),
    /// Another mount covers the mount of the run.
    Covered(&'a MountEntry),
    /// Another mount, and no mount that is proved to belong to the run.
    Other(&'a MountEntry),
}

impl Claim<'_> {
    /// Searches the mounts at the path of the run; the last one is on top.
    #[must_use]
    pub fn look<'a>(&self, all: &'a [MountEntry]) -> Found<'a> {
        match all.last() {
            None => Found::Nothing,
            Some(top) if self.covers(top) => Found::Ours(top),
            Some(top) if all.iter().any(|entry| self.covers(entry)) => Found::Covered(top),
            Some(top) => Found::Other(top),
        }
    }

    fn covers(&self, entry: &MountEntry) -> bool {
        match self {
            // The mount id is not compared, because the kernel uses free ids again.
            Self::Seen(seen) => (&seen.kind, &seen.source) == (&entry.kind, &entry.source),
            Self::Command(words) => {
                let parts = words.iter().flat_map(|word| word.split([' ', '\t', '\n', '\'', '"', ';']));
                // `none` or the type as source can be the source of any mount of the type.
                let has_name = entry.source != "none" && entry.source != entry.kind;
                let whole = words.iter().map(String::as_str);
                has_name && (has_source(whole, &entry.source) || has_source(parts, &entry.source))
            }
        }
    }
}

/// True if the words of a mount command contain this source. The kernel removes a final slash.
fn has_source<'a>(words: impl Iterator<Item = &'a str>, source: &str) -> bool {
    let source = source.trim_end_matches('/');
    let mut is_value = false;
    !source.is_empty()
        && words.into_iter().any(|word| {
            // The word after `-t` or `-o` is not the source.
            let is_source = !is_value && word.trim_end_matches('/') == source;
            is_value = matches!(word, "-t" | "-o" | "-O" | "--types" | "--options");
            is_source
        })
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = PathBuf::from(std::ffi::OsString::from_vec(unescape(fields.nth(3)?)));
    // Optional fields and a dash precede the type.
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    Some(MountEntry { id, point, kind, source })
}

/// Decodes `\040` and the like: blanks, tabs, line ends and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match (first, octal) {
            (b'\\', Some(digits)) => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(u8::try_from(value).unwrap_or(b'?'));
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Escapes blanks and special bytes of a path, as `mountinfo` does.
#[must_use]
pub fn escape(path: &Path) -> String {
    let mut out = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'!'..=b'[' | b']'..=b'~' => out.push(char::from(*byte)),
            other => out.push_str(&format!("\\{other:03o}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        44 22 0:39 / /mnt/my\\040nas rw,nosuid shared:3 master:1 - fuse.sshfs nas:/a\\040b rw,user_id=0\n\
        45 22 0:40 / /mnt/my\\040nas rw - tmpfs none rw\n\
        nonsense\n46 22 0:41 / /broken rw\n";

    #[test]
    fn mounts_are_found_in_their_order_whatever_their_path_holds() {
        let found = mounted_at(INFO, Path::new("/mnt/my nas"));
        let found: Vec<_> = found.iter().map(|it| (it.id, it.kind.as_str(), it.source.as_str())).collect();
        assert_eq!(found, [(44, "fuse.sshfs", "nas:/a b"), (45, "tmpfs", "none")]);
        assert_eq!(mounted_at(INFO, Path::new("/"))[0].kind, "ext4");
        assert_eq!(mounted_at(INFO, Path::new("/mnt")), []);
        assert_eq!(mounted_at(INFO, Path::new("/broken")), []);
        assert_eq!(mounted_at(b"\\", Path::new("/")), []);
    }

    #[test]
    fn a_mount_that_was_never_seen_is_known_by_the_source_in_its_command_alone() {
        let entry = |kind: &str, source: &str| MountEntry {
            id: 1,
            point: "/mnt".into(),
            kind: kind.to_owned(),
            source: source.to_owned(),
        };
        let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let ours = entry("nfs4", "127.0.0.1:/a b");
        for (words, source, proved) in [
            (command(&["mount", "127.0.0.1:/a b", "/mnt"]), "127.0.0.1:/a b", true),
            (command(&["mount", "nas:/a/", "/mnt"]), "nas:/a", true),
            (command(&["sh", "-c", "mount -t nfs4 'nas:/a' /mnt; true"]), "nas:/a", true),
            (command(&["mount", "nas:/a", "/mnt"]), "admins-own", false),
            (command(&["mount", "nas:/a", "/mnt"]), "nas:/ab", false),
            (command(&["mount", "-t", "tmpfs", "nas", "/mnt"]), "tmpfs", false),
            (command(&["mount", "-t", "data", "nas", "/mnt"]), "data", false),
            (command(&["mount", "-t", "tmpfs", "none", "/mnt"]), "none", false),
            (command(&["mount", "tmpfs"]), "tmpfs", true),
            (command(&["mount", ""]), "", false),
            (Vec::new(), "nas:/a", false),
        ] {
            let found = entry("nfs4", source);
            let all = [found.clone()];
            let wanted = if proved { Found::Ours(&found) } else { Found::Other(&found) };
            assert_eq!(Claim::Command(&words).look(&all), wanted, "{words:?} {source}");
        }
        // A mount with the usual source of its type.
        let common = [entry("tmpfs", "tmpfs")];
        assert_eq!(Claim::Command(&command(&["mount", "tmpfs"])).look(&common), Found::Other(&common[0]));
        let other = entry("tmpfs", "theirs");
        let claim = Claim::Seen(&ours);
        assert_eq!(claim.look(&[]), Found::Nothing);
        assert_eq!(claim.look(&[other.clone(), ours.clone()]), Found::Ours(&ours));
        assert_eq!(claim.look(&[ours.clone(), other.clone()]), Found::Covered(&other));
        assert_eq!(claim.look(std::slice::from_ref(&other)), Found::Other(&other));
    }

    #[test]
    fn escaping_is_what_the_kernel_does() {
        let path = Path::new("/a b\\c\n\u{e9}");
        assert_eq!(unescape(escape(path).as_bytes()), path.as_os_str().as_bytes());
        assert_eq!(escape(Path::new("/a b")), "/a\\040b");
    }
}
