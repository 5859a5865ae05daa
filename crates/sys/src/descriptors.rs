//! Open file descriptors of this process: their limit and their number.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::{fs, io};

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open descriptors to the hard limit, and returns the hard limit. The caller must call this
/// function before privileges are dropped and before sessions arrive: every session needs up to four descriptors.
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// Returns the number of open descriptors. Before Linux 6.2 the call takes time in proportion to this number: call the
/// function for a status page or a scrape, not for each session.
pub fn open_count() -> io::Result<usize> {
    // Since Linux 6.2 the size of the directory is the number of open descriptors (proc(5)); before 6.2 the size is 0.
    match fs::metadata("/proc/self/fd")?.len() {
        0 => count_entries(),
        count => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
    }
}

/// Another descriptor of what this number refers to now, with close-on-exec. The caller must know that the number is still
/// that of the file it means: the kernel gives the number of a closed file to the next one.
///
/// # Errors
/// No file is open under this number, or no descriptor is left.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers and touches no memory; it fails if the first one is not open.
    let new = Errno::result(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: the kernel has just opened this descriptor, and no other part of the program has it.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

fn count_entries() -> io::Result<usize> {
    // One of the entries is the descriptor by which the directory is read.
    Ok(fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// Returns true if a system call failed because no descriptor is left in this process or in the whole system.
pub fn are_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(512), hard).unwrap();
        assert_eq!(raise_limit().unwrap(), hard);
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }

    /// The tests that open many files run one after another.
    fn lock() -> std::sync::MutexGuard<'static, ()> {
        static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
        LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[test]
    fn the_kernels_count_is_that_of_the_entries() {
        let _alone = lock();
        // Other tests open and close a few dozen files at the same time, far fewer than 200.
        let files: Vec<_> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let (told, counted) = (open_count().unwrap(), count_entries().unwrap());
        assert!(told.abs_diff(counted) < 100, "{told} told, {counted} counted, {} files", files.len());
    }

    #[test]
    fn descriptors_opened_are_counted() {
        let _alone = lock();
        let before = open_count().unwrap();
        let files: Vec<_> = (0..200).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let during = open_count().unwrap();
        assert!(during >= before + 100, "{before} before, {during} with {} files", files.len());
    }
}
