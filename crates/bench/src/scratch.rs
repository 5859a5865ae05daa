//! Private directory of a run, for sockets, configurations and logs. It is removed at the end of the run; the next run
//! removes the directories of killed runs.
//!
//! A run holds a lock (flock(2)) in its directory for its whole life: a process id alone proves nothing, because ids
//! are reused, and containers may share a directory for temporary files.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{Pid, geteuid};

use crate::error::{Error, ErrorContext};

/// A private directory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    notice: Option<String>,
    /// Held until the directory is removed.
    _lock: File,
}

impl Scratch {
    /// Makes a directory among the temporary files, and removes those of killed runs.
    pub(crate) fn make() -> Result<Self, Error> {
        let Parent { parent, notice } = Parent::choose(env::var_os("TMPDIR"))?;
        sweep(&parent);
        let doing = || format!("create a directory in {}", parent.display());
        for number in 0..1000 {
            let path = parent.join(format!("{PREFIX}{}-{number}", process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                result => {
                    result.doing(doing())?;
                    let lock = lock(&path).doing(format!("lock {}", path.display()))?;
                    return Ok(Scratch { path, notice, _lock: lock });
                }
            }
        }
        Err(io::Error::from(ErrorKind::AlreadyExists)).doing(doing())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Explains why the directory is not in TMPDIR; `None` if it is.
    pub(crate) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // An error is ignored: the directory is among the temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[derive(Debug, PartialEq)]
struct Parent {
    parent: PathBuf,
    notice: Option<String>,
}

impl Parent {
    /// Selects TMPDIR or /tmp. Replaces a long or unusual path: paths go into the configurations of programs with
    /// various quoting rules, and into addresses of Unix sockets.
    fn choose(wanted: Option<OsString>) -> Result<Self, Error> {
        let wanted = wanted.filter(|wanted| !wanted.is_empty()).map(PathBuf::from);
        let Some(wanted) = wanted else { return Ok(Parent { parent: PathBuf::from("/tmp"), notice: None }) };
        let wanted = std::path::absolute(&wanted).doing(format!("find {}", wanted.display()))?;
        let Some(fault) = fault(&wanted) else { return Ok(Parent { parent: wanted, notice: None }) };
        let runtime = PathBuf::from(format!("/run/user/{}", geteuid()));
        let others = [PathBuf::from("/tmp"), PathBuf::from("/var/tmp"), runtime];
        match others.into_iter().find(|other| is_writable(other)) {
            Some(parent) => {
                let notice = format!("TMPDIR ({wanted:?}) {fault}: this run uses {}", parent.display());
                Ok(Parent { parent, notice: Some(notice) })
            }
            None => Err(Error::Unsupported {
                what: format!("a run with TMPDIR {wanted:?}"),
                why: format!(
                    "it {fault}, and /tmp, /var/tmp and /run/user/{} cannot be written to; set TMPDIR to a short \
                     path of letters, digits and any of {PUNCTUATION}",
                    geteuid()
                ),
            }),
        }
    }
}

/// Returns the reason why some program cannot use paths in this directory.
fn fault(parent: &Path) -> Option<&'static str> {
    let bytes = parent.as_os_str().as_bytes();
    if bytes.len() > LONGEST {
        Some("is too long for addresses of Unix sockets")
    } else if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || PUNCTUATION.as_bytes().contains(byte))
    {
        Some("has characters that not every configuration can have in a path")
    } else {
        None
    }
}

fn is_writable(directory: &Path) -> bool {
    let mode = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
    directory.is_dir() && nix::unistd::access(directory, mode).is_ok()
}

/// Creates and holds the lock of a directory. The file gets its final name only when locked: an unlocked file with that
/// name proves that its run has ended.
fn lock(directory: &Path) -> io::Result<File> {
    let early = directory.join(".lock");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&early)?;
    file.lock()?;
    fs::rename(early, directory.join(LOCK))?;
    Ok(file)
}

/// Removes the directories of this user's ended runs. Leaves those that cannot be read or removed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(owner) else { continue };
        let path = entry.path();
        let Some(AbandonedDirectory { _directory, lock }) = dead(&path, pid) else { continue };
        let _ = match &lock {
            // `remove_dir_all` follows no symbolic link, neither inside nor at the path itself.
            Some(_) => fs::remove_dir_all(&path),
            // Without a lock, remove only an empty directory (rmdir(2)): a user's own `penstock-bench-2026-11` may
            // contain results of November 2026.
            None => fs::remove_dir(&path),
        };
    }
}

/// Directory of an ended run, with its lock held during the removal.
struct AbandonedDirectory {
    _directory: File,
    /// Lock of the ended run, which proves that the directory is ours.
    lock: Option<File>,
}

/// Returns the process id in the name of a run's directory.
fn owner(name: &str) -> Option<Pid> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u16>().ok()?;
    pid.parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

/// Checks that a directory belongs to this user and an ended run. Returns the handles to hold during its removal.
fn dead(path: &Path, pid: Pid) -> Option<AbandonedDirectory> {
    // Do not follow symbolic links, and do not block on a FIFO.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let open = |path: &Path, more: OFlag| {
        OpenOptions::new().read(true).custom_flags((flags | more).bits()).open(path)
    };
    let directory = open(path, OFlag::O_DIRECTORY).ok()?;
    let about = directory.metadata().ok()?;
    if about.uid() != geteuid().as_raw() {
        return None;
    }
    match open(&path.join(LOCK), OFlag::empty()) {
        Ok(lock) => {
            let about = lock.metadata().ok()?;
            // Our lock files are empty: another program's file may have the same name.
            let ours = about.is_file() && about.len() == 0 && about.uid() == geteuid().as_raw();
            (ours && lock.try_lock().is_ok())
                .then_some(AbandonedDirectory { _directory: directory, lock: Some(lock) })
        }
        // The run was killed before it made the lock, or is about to make it.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let gone = !sys::process::is_taken(pid.as_raw());
            let age = about.modified().ok()?.elapsed().ok()?;
            (gone && age > OLD).then_some(AbandonedDirectory { _directory: directory, lock: None })
        }
        Err(_) => None,
    }
}

const PREFIX: &str = "penstock-bench-";
const LOCK: &str = "lock";
/// Characters allowed beside letters and digits.
const PUNCTUATION: &str = "/._-+";
/// Longest path of the parent in bytes. The 108 bytes of a Unix socket address (unix(7)) must hold this path,
/// `penstock-bench-PID-N`, the name of a socket, and the suffix that a program adds until it listens.
const LONGEST: usize = 56;
/// Smallest age of a directory without a lock that is not just being made.
const OLD: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::time::{Instant, SystemTime};

    use super::*;

    /// Returns the process id of an ended process.
    fn gone() -> i32 {
        let mut child = Command::new("true").stdout(Stdio::null()).spawn().unwrap();
        child.wait().unwrap();
        child.id() as i32
    }

    fn directory(parent: &Path, pid: i32) -> PathBuf {
        let path = parent.join(format!("{PREFIX}{pid}-0"));
        fs::create_dir_all(path.join("inner")).unwrap();
        path
    }

    /// Makes a directory older than `OLD`.
    fn age(path: &Path) {
        File::open(path).unwrap().set_modified(SystemTime::now() - OLD * 2).unwrap();
    }

    #[test]
    fn only_directories_of_dead_runs_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let (dead, living) = (directory(parent.path(), gone()), directory(parent.path(), 1));
        drop(lock(&dead).unwrap());
        // The process id may be in use by another process, or invisible from here: only the lock decides.
        let held = lock(&living).unwrap();
        let reused = directory(parent.path(), 2);
        drop(lock(&reused).unwrap());
        let foreign = parent.path().join(format!("{PREFIX}2026-11-20-120000"));
        fs::create_dir(&foreign).unwrap();
        sweep_until_gone(&[&dead, &reused]);
        assert!(living.join("inner").exists() && foreign.exists());
        drop(held);
        sweep_until_gone(&[&living]);
    }

    /// Sweeps repeatedly: a process that another test starts inherits the locks until its exec.
    fn sweep_until_gone(directories: &[&Path]) {
        let start = Instant::now();
        while directories.iter().any(|directory| directory.exists()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{directories:?}");
            sweep(directories[0].parent().unwrap());
        }
    }

    #[test]
    fn a_directory_without_a_lock_is_swept_when_it_is_empty_and_old_and_its_process_is_gone() {
        let parent = tempfile::tempdir().unwrap();
        let empty = |pid: i32| {
            let path = directory(parent.path(), pid);
            fs::remove_dir(path.join("inner")).unwrap();
            path
        };
        let (young, old) = (empty(gone()), empty(999_999_999));
        let alive = empty(process::id() as i32);
        for path in [&old, &alive] {
            age(path);
        }
        sweep(parent.path());
        assert!(young.exists() && alive.exists() && !old.exists());
    }

    #[test]
    fn a_directory_of_the_user_that_is_named_like_that_of_a_run_stays() {
        let parent = tempfile::tempdir().unwrap();
        // A user's directory with results, and one with another program's file named `lock`.
        let results = parent.path().join(format!("{PREFIX}999999999-11"));
        let locked = parent.path().join(format!("{PREFIX}999999998-12"));
        for path in [&results, &locked] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("results.json"), "{}").unwrap();
        }
        fs::write(locked.join(LOCK), "of the door\n").unwrap();
        for path in [&results, &locked] {
            age(path);
        }
        sweep(parent.path());
        assert!(results.join("results.json").exists(), "without a lock");
        assert!(locked.join("results.json").exists(), "with the lock of another program");
    }

    #[test]
    fn links_are_not_followed() {
        let (parent, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = directory(elsewhere.path(), gone());
        drop(lock(&victim).unwrap());
        symlink(&victim, parent.path().join(format!("{PREFIX}{}-1", gone()))).unwrap();
        // A symbolic link inside a directory, and a symbolic link as lock.
        let dead = directory(parent.path(), gone());
        drop(lock(&dead).unwrap());
        symlink(elsewhere.path(), dead.join("link")).unwrap();
        let linked = directory(parent.path(), 999_999_998);
        symlink(victim.join(LOCK), linked.join(LOCK)).unwrap();
        sweep(parent.path());
        assert!(victim.join(LOCK).exists() && linked.exists() && !dead.exists());
    }

    #[test]
    fn a_run_keeps_its_directory_while_others_start_and_takes_it_along() {
        let first = Scratch::make().unwrap();
        let second = Scratch::make().unwrap();
        assert!(first.path().exists() && first.path() != second.path());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn long_and_odd_directories_are_replaced_and_that_is_said() {
        let fine = Parent::choose(Some("/var/tmp/a-b_c.d+e".into())).unwrap();
        assert_eq!(fine, Parent { parent: "/var/tmp/a-b_c.d+e".into(), notice: None });
        assert_eq!(Parent::choose(Some("".into())).unwrap(), Parent::choose(None).unwrap());
        assert!(Parent::choose(Some("x".into())).unwrap().parent.is_absolute());
        let long = format!("/tmp/{}", "x".repeat(90));
        for odd in
            ["/tmp/a b", "/tmp/a\"b", "/tmp/a'b", "/tmp/a;b", "/tmp/a{b", "/tmp/a#b", "/tmp/\u{e4}", &long]
        {
            let Parent { parent, notice } = Parent::choose(Some(odd.into())).unwrap();
            assert!(
                fault(&parent).is_none() && notice.is_some_and(|notice| notice.contains("TMPDIR")),
                "{odd}"
            );
        }
    }
}
