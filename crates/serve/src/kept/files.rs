//! The files of the state directory. The process that holds the directory (flock(2)) is the only one that uses them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::events::{Events, Level};
use state::kept::{self, Kind};
use state::lock::lock;
use state::state_directory::{self, StateDirectory};

/// Subject of events, and of the list of degraded subjects.
pub(crate) const SUBJECT: &str = "stored-state";

/// The directory, and what this process has of it.
pub(crate) struct Files {
    directory: Option<PathBuf>,
    held: Option<Held>,
    /// Why the file with the marks of operators was not used, if there was one.
    marks_lost: Option<String>,
    /// That of the newest store.
    pub(super) turn: Turn,
}

/// Whether other stores follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    #[default]
    OneOfMany,
    Last,
}

/// The directory while this process holds it.
pub(super) struct Held {
    path: PathBuf,
    /// Closing it releases the directory.
    _directory: File,
    /// Sizes of the files that were written.
    sizes: Mutex<BTreeMap<&'static str, u64>>,
}

/// Why the directory is not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unheld {
    /// Another process holds it: several may share certificates there.
    Busy(String),
    Fault(String),
}

impl Files {
    pub(super) fn new(directory: Option<&Path>) -> Self {
        Self { directory: directory.map(Path::to_owned), held: None, marks_lost: None, turn: Turn::default() }
    }

    /// Those of an upgrade: the process before holds the directory until this one serves, and passes its state on.
    pub(crate) fn later(directory: Option<&Path>) -> Self {
        Self::new(directory)
    }

    /// Leaves the directory to another process, and stores nothing any more.
    pub(super) fn release(&mut self) {
        self.turn = Turn::Last;
        (self.held, self.directory) = (None, None);
    }

    /// What to tell operators until one has set a mark again.
    pub(super) fn marks_lost(&self) -> Option<String> {
        let why = self.marks_lost.as_ref()?;
        Some(format!(
            "{why}. Backends that operators had drained serve again, and weights are those of the configuration: \
             set them again with `penstock ctl drain` and `weight`, or, if there were none, \
             `penstock ctl ready BACKEND` of any backend ends this message"
        ))
    }

    pub(super) fn lose_marks(&mut self, why: Option<String>) {
        self.marks_lost = why;
    }

    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Holds the directory from now on. `None` if there is none.
    pub(super) fn hold(&mut self) -> Result<Option<&Held>, Unheld> {
        if self.held.is_none() {
            self.held = self.directory.as_deref().map(Held::take).transpose()?;
        }
        Ok(self.held.as_ref())
    }
}

impl Held {
    fn take(path: &Path) -> Result<Self, Unheld> {
        let fault = |what: &str, error: io::Error| {
            Unheld::Fault(format!("{}: cannot be {what}: {error}; no state is stored", path.display()))
        };
        if !path.exists() {
            StateDirectory::open(path).map_err(|error| Unheld::Fault(error.to_string()))?;
        }
        let directory = File::open(path).map_err(|error| fault("opened", error))?;
        match directory.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _directory: directory, sizes: Mutex::default() }),
            Err(TryLockError::WouldBlock) => Err(Unheld::Busy(format!(
                "another process stores its state in {}: this one keeps none over a restart until that one has ended; give each a process.state-directory of its own",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => Err(fault("locked", error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of all files that were written.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.sizes).values().sum()
    }

    pub(super) fn write(&self, kind: Kind, content: &impl Serialize) -> Result<(), String> {
        let path = self.path.join(kind.file());
        let cannot = |why: String| format!("{} cannot be written: {why}", path.display());
        let bytes = kept::seal(kind, content).map_err(cannot)?;
        state_directory::write(&path, &bytes).map_err(|error| cannot(error.to_string()))?;
        lock(&self.sizes).insert(kind.word(), bytes.len() as u64);
        Ok(())
    }

    /// Reads a file of an earlier process. One that is not usable is ignored and kept aside, and that is said.
    pub(super) fn read<T: DeserializeOwned>(&self, kind: Kind, events: &Events) -> Option<T> {
        self.read_or_why(kind, events).unwrap_or_default()
    }

    /// The same; the error is what was said.
    pub(super) fn read_or_why<T: DeserializeOwned>(
        &self,
        kind: Kind,
        events: &Events,
    ) -> Result<Option<T>, String> {
        let path = self.path.join(kind.file());
        let content = match read(&path) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => kept::unseal(kind, &bytes).map_err(|unusable| unusable.to_string()),
            Err(why) => Err(why),
        };
        content.map(Some).map_err(|why| {
            let message = format!("{} {why}: it is ignored{}", path.display(), set_aside(&path));
            events.record(Level::Warning, SUBJECT, message.as_str());
            message
        })
    }
}

/// Reads a file that only this user can have written. `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    // A link could lead out of the directory, and a pipe could make its reader wait.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            return Err("is a symbolic link, which Penstock never makes".to_owned());
        }
        opened => opened.map_err(|error| format!("cannot be read: {error}"))?,
    };
    let facts = file.metadata().map_err(|error| format!("cannot be read: {error}"))?;
    let me = nix::unistd::geteuid().as_raw();
    if !facts.is_file() {
        return Err("is no file".to_owned());
    }
    if facts.uid() != me {
        return Err(format!("belongs to uid {}, and this process runs as uid {me}", facts.uid()));
    }
    if facts.mode() & 0o022 != 0 {
        return Err("can be written by other users".to_owned());
    }
    if facts.len() > kept::MOST_BYTES as u64 {
        return Err("is larger than any state that is stored".to_owned());
    }
    let mut bytes = Vec::new();
    let limit = kept::MOST_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(Some(bytes))
}

/// Renames a file for later inspection, unless an earlier one is there already. Returns what to say about it.
fn set_aside(path: &Path) -> String {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    let aside = PathBuf::from(aside);
    if aside.symlink_metadata().is_ok() {
        return format!(" ({} is an earlier one: remove it to have the next kept)", aside.display());
    }
    match fs::rename(path, &aside) {
        Ok(()) => format!(", and kept as {}", aside.display()),
        Err(error) => format!("; it cannot be kept aside: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn held(path: &Path) -> Held {
        Held::take(path).unwrap()
    }

    fn last(events: &Events) -> String {
        events.last(1).pop().map(|event| event.message).unwrap_or_default()
    }

    #[test]
    fn a_second_process_is_told_until_the_first_has_ended() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("state");
        let mut first = Files::new(Some(&path));
        let mut second = Files::new(Some(&path));
        assert!(first.hold().unwrap().is_some());
        let Err(Unheld::Busy(why)) = second.hold() else { panic!("it holds it too") };
        assert!(why.starts_with("another process stores its state in "), "{why}");
        drop(first);
        assert!(second.hold().unwrap().is_some());
    }

    #[test]
    fn what_is_written_is_read_and_only_the_owner_can_read_it() {
        let base = tempfile::tempdir().unwrap();
        let (held, events) = (held(base.path()), Events::default());
        assert_eq!(held.read::<Vec<u8>>(Kind::Clients, &events), None);
        held.write(Kind::Clients, &vec![1, 2, 3]).unwrap();
        assert_eq!(held.read::<Vec<u8>>(Kind::Clients, &events), Some(vec![1, 2, 3]));
        let file = base.path().join("clients.state");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!((held.bytes(), last(&events)), (file.metadata().unwrap().len(), String::new()));
    }

    #[test]
    fn an_unusable_file_is_named_and_the_first_one_is_kept_aside() {
        let base = tempfile::tempdir().unwrap();
        let (held, events) = (held(base.path()), Events::default());
        let (file, aside) = (base.path().join("clients.state"), base.path().join("clients.state.damaged"));
        let said = |expected: &str| {
            assert_eq!(held.read::<Vec<u8>>(Kind::Clients, &events), None);
            let said = last(&events);
            assert!(said.contains(expected), "{said}");
            said
        };
        let owned = |text: &str| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        };
        owned("first");
        assert!(
            said("is no state file of Penstock: it is ignored, and kept as ")
                .contains("clients.state.damaged")
        );
        owned("second");
        said("clients.state.damaged is an earlier one");
        assert_eq!(fs::read_to_string(&aside).unwrap(), "first");
        fs::remove_file(&aside).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        said("can be written by other users");
        symlink("/etc/passwd", &file).unwrap();
        fs::remove_file(&aside).unwrap();
        said("is a symbolic link");
        fs::remove_file(&aside).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        said("is no file");
        fs::remove_file(&aside).unwrap();
        owned("penstock-state 9 clients 0 0\n");
        said("is of a newer version of Penstock: its format is 9");
    }

    #[test]
    fn a_file_of_another_user_is_ignored() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root can give a file away");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let (held, events) = (held(base.path()), Events::default());
        held.write(Kind::Clients, &vec![1]).unwrap();
        std::os::unix::fs::chown(base.path().join("clients.state"), Some(65534), None).unwrap();
        assert_eq!(held.read::<Vec<u8>>(Kind::Clients, &events), None);
        assert!(last(&events).contains("belongs to uid 65534, and this process runs as uid 0"));
    }
}
