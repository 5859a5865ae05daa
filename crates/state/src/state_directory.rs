//! Directory for state that outlives the process. Only the user of the process can read its files. Each file is
//! complete or absent: written to a temporary name, synced, and renamed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sys::file::{self, Access};

/// Default path in packages.
pub const USUAL: &str = "/var/lib/penstock";

/// Returns the directory of a process: the configured one; without one, the default path, if it is there and `file`
/// configures the process. A process without a file is one of many on a machine, for a try or a test, with the same names
/// of pools: the state of one says nothing about the next.
pub fn chosen(configured: Option<&Path>, file: Option<&Path>) -> Option<PathBuf> {
    chosen_of(configured, file, usual())
}

fn chosen_of(configured: Option<&Path>, file: Option<&Path>, usual: Option<&Path>) -> Option<PathBuf> {
    configured.or(file.and(usual)).map(Path::to_owned)
}

/// The default path, if it was there when the process asked first, at its start: a directory that comes later is none that this
/// process may use.
pub fn usual() -> Option<&'static Path> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let path = Path::new(USUAL);
    THERE.get_or_init(|| path.is_dir()).then_some(path)
}

/// Directory in which this process can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDirectory {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{}: cannot be written: {source}; nothing is kept over a restart until the user that penstock runs as may write there",
    path.display()
)]
pub struct StateDirectoryError {
    path: PathBuf,
    source: io::Error,
}

impl StateDirectory {
    /// Opens a directory and creates it if necessary. Must be called as the user that the process keeps.
    pub fn open(path: &Path) -> Result<Self, StateDirectoryError> {
        let try_it = || {
            make(path)?;
            // Another process may try the same directory at this moment.
            let probe = path.join(format!(".probe-{}", std::process::id()));
            write(&probe, b"")?;
            fs::remove_file(&probe)
        };
        try_it().map_err(|source| StateDirectoryError { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Subdirectory of this name, created with mode 0700 if necessary.
    pub fn part(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        make(&path)?;
        Ok(path)
    }
}

/// Creates a directory and its parents if necessary.
fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file with mode 0600 atomically: after a crash it has its old content or all of `bytes`.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::replace(path, bytes, Access::Own)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_made_with_its_parents_for_its_owner_only() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lib/penstock");
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!((directory.path(), mode(&path)), (&*path, 0o700));
        assert_eq!(mode(&directory.part("ocsp").unwrap()), 0o700);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "the probe is taken away");
    }

    #[test]
    fn only_a_process_with_a_file_takes_the_usual_directory() {
        let base = tempfile::tempdir().unwrap();
        let (usual, own, file) = (Some(base.path()), Path::new("/own"), Path::new("/etc/penstock.toml"));
        assert_eq!(chosen_of(None, Some(file), usual).as_deref(), usual);
        assert_eq!(chosen_of(None, None, usual), None);
        assert_eq!(chosen_of(None, Some(file), None), None);
        for file in [Some(file), None] {
            assert_eq!(chosen_of(Some(own), file, usual).as_deref(), Some(own));
        }
    }

    #[test]
    fn one_that_cannot_be_written_is_an_error_that_names_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        fs::write(&path, "").unwrap();
        let error = StateDirectory::open(&path.join("inner")).unwrap_err().to_string();
        assert!(error.contains("file/inner: cannot be written: "), "{error}");
    }

    #[test]
    fn a_file_is_replaced_whole_and_is_its_owners_alone() {
        let base = tempfile::tempdir().unwrap();
        let (path, beside) = (base.path().join("a"), base.path().join("a.new"));
        // Left by a crash, longer than the new content.
        fs::write(&beside, [b'x'; 100]).unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o644)).unwrap();
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        assert!(!beside.exists());
    }

    #[test]
    fn processes_that_start_at_the_same_time_do_not_disturb_each_other() {
        let base = tempfile::tempdir().unwrap();
        // What another process has written, and has not taken away yet.
        let others = [".probe", ".probe.new"].map(|name| base.path().join(name));
        others.iter().for_each(|path| fs::write(path, "theirs").unwrap());
        StateDirectory::open(base.path()).unwrap();
        assert!(others.iter().all(|path| path.exists()), "they are still there");
    }
}
