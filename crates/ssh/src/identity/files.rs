//! The directories of the identities, and the replacement of their files: all or none, by one process at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Uid, geteuid};
use sys::directories;

use super::IdentityError;
use text::terminal::escaped;

#[derive(Debug, Clone)]
pub struct Places {
    /// `$XDG_CONFIG_HOME/penstock`: decisions of people, suitable for version control.
    pub configuration: PathBuf,
    /// `$XDG_STATE_HOME/penstock`: data that penstock collects.
    pub state: PathBuf,
}

impl Places {
    /// Returns the directories of the user who runs this program.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn of_user() -> Result<Self, IdentityError> {
        Ok(Self { configuration: directories::configuration()?, state: directories::state()? })
    }

    /// Directory with one file per host.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.configuration.join("hosts")
    }

    /// Directory with one file per authority.
    #[must_use]
    pub fn authorities(&self) -> PathBuf {
        self.configuration.join("authorities")
    }

    /// File of the keys that are refused from every host.
    #[must_use]
    pub fn revoked(&self) -> PathBuf {
        self.configuration.join("revoked")
    }

    pub(super) fn identity_state(&self) -> PathBuf {
        self.state.join("identity")
    }
}

/// Creates a directory that only this user can use. Refuses an existing one that other users can write to.
pub(super) fn private_directory(path: &Path) -> Result<(), IdentityError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(IdentityError::io("cannot create", path))?;
    directory_is_ours(path)
}

/// Refuses a directory whose files other users can replace, also through one of its parent directories.
pub(super) fn directory_is_ours(path: &Path) -> Result<(), IdentityError> {
    let whole = path.canonicalize().map_err(IdentityError::io("cannot look at", path))?;
    for (above, part) in whole.ancestors().enumerate() {
        let metadata = fs::metadata(part).map_err(IdentityError::io("cannot look at", part))?;
        // In a sticky directory such as /tmp, other users can add files, but cannot replace ours.
        let is_sticky = above > 0 && metadata.mode() & 0o1000 != 0;
        if !is_sticky {
            is_ours(part, &metadata, geteuid())?;
        }
    }
    Ok(())
}

/// Refuses files that a user other than root and this user owns or can write to: they contain the trusted keys.
pub(super) fn is_ours(path: &Path, metadata: &fs::Metadata, own: Uid) -> Result<(), IdentityError> {
    if metadata.uid() != own.as_raw() && metadata.uid() != 0 {
        return Err(IdentityError::Foreign { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(IdentityError::Open(path.to_owned()));
    }
    Ok(())
}

/// Lock of a directory for writers. Readers need no lock, because each file is replaced in one step.
pub(super) struct Lock(#[allow(dead_code, reason = "held until it is dropped")] Flock<File>);

impl Lock {
    /// Waits for other writers up to [`LONGEST_WAIT`]: a stopped process must not block this one for ever.
    pub(super) fn of(directory: &Path) -> Result<Self, IdentityError> {
        Self::within(directory, LONGEST_WAIT)
    }

    /// Waits for other writers up to `limit`.
    pub(super) fn within(directory: &Path, limit: Duration) -> Result<Self, IdentityError> {
        private_directory(directory)?;
        let path = directory.join(".lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(IdentityError::io("cannot open", &path))?;
        let begun = Instant::now();
        let mut told = false;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    remove_leftovers(directory);
                    return Ok(Self(lock));
                }
                Err((again, Errno::EINTR)) => file = again,
                Err((again, Errno::EWOULDBLOCK)) if begun.elapsed() < limit => {
                    if !told && begun.elapsed() >= LONGEST_SILENCE {
                        told = true;
                        tell_wait(&path, &holder(&again));
                    }
                    file = again;
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err((file, Errno::EWOULDBLOCK)) => {
                    let (holder, seconds) = (holder(&file), limit.as_secs());
                    return Err(IdentityError::Locked { holder, path, seconds });
                }
                Err((_, errno)) => return Err(IdentityError::io("cannot lock", &path)(errno.into())),
            }
        }
    }

    /// Returns true if no process holds the lock.
    pub(super) fn is_free(directory: &Path) -> bool {
        match File::open(directory.join(".lock")) {
            Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok(),
            // Without a lock file, nobody writes. If it cannot be opened, the next writer reports the reason.
            Err(_) => true,
        }
    }
}

/// Sets the function that is called once for each lock for which penstock waits. Its text is one line without a
/// newline, safe to print on a terminal. Only the first call has an effect.
pub fn tell_waits(tell: fn(&str)) {
    let _ = TELL.set(tell);
}

static TELL: OnceLock<fn(&str)> = OnceLock::new();

fn tell_wait(path: &Path, holder: &str) {
    if let Some(tell) = TELL.get() {
        let (path, limit) = (escaped(&path.display().to_string(), 4096), LONGEST_WAIT.as_secs());
        tell(&format!("waiting for {holder}, which has locked {path}; giving up after {limit} s"));
    }
}

/// Names the process that holds the lock of a file, if exactly one is known.
fn holder(file: &File) -> String {
    let holders = file.metadata().map(|about| sys::lock::holders(about.ino())).unwrap_or_default();
    let [process] = holders.as_slice() else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", escaped(name.trim_end(), 64)),
        Err(_) => format!("process {process}"),
    }
}

/// Maximum wait for a lock. Writers hold it for milliseconds; a process that holds it longer is stopped.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Time of waiting after which the user is told the reason.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Removes files that a killed writer left behind. No other process writes while this one holds the lock.
fn remove_leftovers(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()))
    {
        let _ = fs::remove_file(entry.path());
    }
}

/// Replaces files of a locked directory: at every moment, also after a power failure, each file is either old or new.
pub(super) fn replace(directory: &Path, files: &[(String, String)], _: &Lock) -> Result<(), IdentityError> {
    let mut ready = Vec::with_capacity(files.len());
    let result = files.iter().enumerate().try_for_each(|(at, (name, text))| {
        let temporary = directory.join(format!("{TEMPORARY}{at}"));
        let written = write_new(&temporary, text, files.len());
        ready.push((temporary, directory.join(name)));
        written.map_err(IdentityError::io("cannot write", &directory.join(name)))
    });
    let result = result.and_then(|()| {
        if files.len() > SYNCED_ALONE {
            let all = File::open(directory).and_then(|file| Ok(nix::unistd::syncfs(&file)?));
            all.map_err(IdentityError::io("cannot write", directory))?;
        }
        for (temporary, path) in &ready {
            fs::rename(temporary, path).map_err(IdentityError::io("cannot write", path))?;
        }
        let directory_file = File::open(directory).and_then(|file| file.sync_all());
        directory_file.map_err(IdentityError::io("cannot write", directory))
    });
    if result.is_err() {
        ready.iter().for_each(|(temporary, _)| drop(fs::remove_file(temporary)));
    }
    result
}

fn write_new(path: &Path, text: &str, of: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    if of > SYNCED_ALONE { Ok(()) } else { file.sync_data() }
}

/// Maximum number of files that are synced one by one; more files are synced with one syncfs(2).
const SYNCED_ALONE: usize = 32;
pub(super) const TEMPORARY: &str = ".new.";
