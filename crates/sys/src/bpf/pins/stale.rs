//! Programs that earlier processes have left in the kernel, with names that no service has any more: they would forward
//! packets for ever, to the backends of their time, before the programs of this process.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use super::{DIRECTORY, LINKS, Pins, Unpinned, detach, network, path_of, remove, wrong};

/// A directory of this network namespace that no process has.
pub struct StalePins(Pins);

impl StalePins {
    /// All of them but those with these names.
    pub fn all(names: &[String]) -> Result<Vec<Self>, Unpinned> {
        let directory = Path::new(DIRECTORY);
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            // Without the right to look, what there is cannot be taken away either.
            Err(error) if is_hidden(&error) => return Ok(Vec::new()),
            Err(error) => return Err(wrong(directory)(error)),
        };
        let number = network()?;
        let current = names
            .iter()
            .map(|name| Ok(path_of(name)?.file_name().unwrap_or_default().to_owned()))
            .collect::<Result<BTreeSet<OsString>, Unpinned>>()?;
        let mut stale = Vec::new();
        for entry in entries {
            let name = entry.map_err(wrong(directory))?.file_name();
            if current.contains(&name) || !name.to_str().is_some_and(|name| is_of(name, number)) {
                continue;
            }
            match Pins::lock(directory.join(name)) {
                Ok(pins) => stale.push(Self(pins)),
                Err(Unpinned::Taken(_)) => {}
                Err(Unpinned::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(stale)
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Takes its program away, and removes what it had, also of another form.
    pub fn remove(&self) -> io::Result<Removed> {
        let path = &self.0.path;
        let mut removed = Removed::Nothing;
        for link in LINKS.map(|link| path.join(link)) {
            if link.exists() {
                removed = Removed::Program;
            }
            detach(&link)?;
        }
        for entry in fs::read_dir(path)? {
            remove(&entry?.path())?;
        }
        fs::remove_dir(path)?;
        Ok(removed)
    }
}

/// What a directory had. That of a service whose process was not root at its end is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    Program,
    Nothing,
}

fn is_hidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Whether a directory has a name of this network namespace, of any version of the layout: `v1-4026531840-eth0-...`.
fn is_of(name: &str, number: u64) -> bool {
    let mut parts = name.splitn(3, '-');
    let version = parts.next().and_then(|version| version.strip_prefix('v'));
    version.is_some_and(|version| version.parse::<u32>().is_ok())
        && parts.next().is_some_and(|found| found.parse() == Ok(number))
        && parts.next().is_some()
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn directories_of_other_networks_and_of_others_are_no_ones_to_remove() {
        for (name, is_ours) in [
            ("v1-4026531840-eth0-web-192_0_2_10-80", true),
            ("v9-4026531840-x", true),
            ("v1-4026531841-eth0-web-192_0_2_10-80", false),
            ("v1-4026531840", false),
            ("x1-4026531840-eth0", false),
            ("v-4026531840-eth0", false),
            ("", false),
        ] {
            assert_eq!(is_of(name, 4_026_531_840), is_ours, "{name}");
        }
    }
}
