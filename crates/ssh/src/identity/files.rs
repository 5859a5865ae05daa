//! Where identities are, and how a file there is replaced: all or nothing, by one process at a time.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::IdentityError;
use crate::harmless::harmless;

/// The directories of one user.
#[derive(Debug, Clone)]
pub struct Places {
    /// `$XDG_CONFIG_HOME/penstock`: what people decide, fit for version control.
    pub configuration: PathBuf,
    /// `$XDG_STATE_HOME/penstock`: what was noticed.
    pub state: PathBuf,
}

impl Places {
    /// Those of the user who runs this.
    ///
    /// # Errors
    /// There is no home directory.
    pub fn of_user() -> Result<Self, IdentityError> {
        let place = |variable: &'static str, name, otherwise: &str| {
            let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
            let home = || std::env::var_os("HOME").and_then(absolute).map(|home| home.join(otherwise));
            let base = std::env::var_os(variable).and_then(absolute).or_else(home);
            base.map(|base| base.join("penstock")).ok_or(IdentityError::NoHome(name))
        };
        Ok(Self {
            configuration: place("XDG_CONFIG_HOME", "CONFIG", ".config")?,
            state: place("XDG_STATE_HOME", "STATE", ".local/state")?,
        })
    }

    /// One file per host.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.configuration.join("hosts")
    }

    /// One file per authority.
    #[must_use]
    pub fn authorities(&self) -> PathBuf {
        self.configuration.join("authorities")
    }

    /// Keys that nobody may show.
    #[must_use]
    pub fn revoked(&self) -> PathBuf {
        self.configuration.join("revoked")
    }

    pub(super) fn identity_state(&self) -> PathBuf {
        self.state.join("identity")
    }
}

/// Makes a directory for us alone, and refuses one that others can write to.
pub(super) fn private_directory(path: &Path) -> Result<(), IdentityError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(IdentityError::io("cannot create", path))?;
    directory_is_ours(path)
}

/// Refuses a directory in which others can replace what is there, be it through a directory above it.
pub(super) fn directory_is_ours(path: &Path) -> Result<(), IdentityError> {
    let whole = path.canonicalize().map_err(IdentityError::io("cannot look at", path))?;
    for (above, part) in whole.ancestors().enumerate() {
        let metadata = fs::metadata(part).map_err(IdentityError::io("cannot look at", part))?;
        // In a sticky directory such as /tmp others can add files, but not replace ours.
        let is_sticky = above > 0 && metadata.mode() & 0o1000 != 0;
        if !is_sticky {
            is_ours(part, &metadata)?;
        }
    }
    Ok(())
}

/// Refuses what somebody other than root and us has, or can write to: whoever writes there says whom we trust.
pub(super) fn is_ours(path: &Path, metadata: &fs::Metadata) -> Result<(), IdentityError> {
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        return Err(IdentityError::Foreign { path: path.to_owned(), owner: metadata.uid() });
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(IdentityError::Open(path.to_owned()));
    }
    Ok(())
}

/// Held while files of a directory are written. Readers need none: a file is replaced whole.
pub(super) struct Lock(#[allow(dead_code, reason = "held until it is dropped")] Flock<File>);

impl Lock {
    /// Waits for other writers, but not for ever: one that is stopped or hangs must not hold us.
    pub(super) fn of(directory: &Path) -> Result<Self, IdentityError> {
        Self::within(directory, LONGEST_WAIT)
    }

    /// The same for somebody who has less time.
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

    /// Whether nobody writes there now.
    pub(super) fn is_free(directory: &Path) -> bool {
        match File::open(directory.join(".lock")) {
            Ok(file) => Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok(),
            // Nobody has written there yet, or the writing will say what is wrong.
            Err(_) => true,
        }
    }
}

/// Has whoever waits for another process be told of it by `tell`, once for each lock. Before the first call nobody is told.
/// The text is one line without its end, harmless on a terminal. Later calls change nothing.
pub fn tell_waits(tell: fn(&str)) {
    let _ = TELL.set(tell);
}

static TELL: OnceLock<fn(&str)> = OnceLock::new();

fn tell_wait(path: &Path, holder: &str) {
    if let Some(tell) = TELL.get() {
        let (path, limit) = (harmless(&path.display().to_string(), 4096), LONGEST_WAIT.as_secs());
        tell(&format!("waiting for {holder}, which has locked {path}; giving up after {limit} s"));
    }
}

/// Who holds the lock of a file, if that is clear.
fn holder(file: &File) -> String {
    let holders = file.metadata().map(|about| sys::lock::holders(about.ino())).unwrap_or_default();
    let [process] = holders.as_slice() else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", harmless(name.trim_end(), 64)),
        Err(_) => format!("process {process}"),
    }
}

/// Writers hold the lock for milliseconds; one that holds it longer has been stopped.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Who waits longer is told what for.
const LONGEST_SILENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a writer that was killed left behind. Nobody else writes while we hold the lock.
fn remove_leftovers(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()))
    {
        let _ = fs::remove_file(entry.path());
    }
}

/// Replaces files of one directory: each is the old one or the new one at every moment, after a power cut too.
/// The directory must be locked.
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

/// More files than this are brought to the disk together.
const SYNCED_ALONE: usize = 32;
const TEMPORARY: &str = ".new.";
