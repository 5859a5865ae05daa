//! The CPU cores that this process may use. A thread can be tied to one of them.

use std::num::NonZeroUsize;
use std::time::Duration;
use std::{io, thread};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Number of threads that can run at the same time: the allowed cores, limited by the CPU quota of a cgroup. At least
/// 1.
pub fn count() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns the numbers of the cores on which the calling thread may run, in ascending order (sched_getaffinity(2)).
pub fn usable() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
}

/// Ties the calling thread to `core`, which must be one of [`usable`]. Threads that it starts later inherit the
/// setting.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Returns the CPU time that the calling thread has used, without the time in which other threads ran
/// (clock_gettime(2)).
pub fn thread_time() -> Duration {
    // The kernel has this clock for every thread. If a kernel refuses the clock, all work seems to take no time; so the
    // callers count a minimum time for each step.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// How much less a background thread may run than others while they want its core, as steps of nice(2): each is a
/// factor of 1.25, so ten of them leave it a tenth of the core.
const BACKGROUND: i32 = 10;

/// Time that a background thread asks for at once. It is longer than that of other threads, so a kernel from 6.12 on lets these
/// run as soon as they wake, instead of at the end of its turn (sched_setattr(2)).
const BACKGROUND_SLICE: Duration = Duration::from_millis(20);

/// Gives the calling thread, and threads that it starts, only about a tenth of a core while other threads want it, and all time
/// in which no other thread does. A thread of a real-time or idle policy is refused: its order is another one.
pub fn run_in_background() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32
        && attributes.sched_policy != libc::SCHED_BATCH as u32
    {
        return Err(Errno::EINVAL.into());
    }
    attributes.sched_nice = (attributes.sched_nice + BACKGROUND).min(LOWEST);
    attributes.sched_runtime = BACKGROUND_SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads as many bytes as the first field of `attributes` says, which is the size of the structure.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if Errno::result(set).is_ok() {
        return Ok(());
    }
    // A filter of the service manager may refuse that call: it cannot see which policy is asked for.
    // SAFETY: the call takes numbers only.
    let set = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, attributes.sched_nice) };
    Ok(Errno::result(set).map(drop)?)
}

/// The lowest priority that nice(2) knows.
const LOWEST: i32 = 19;

/// Scheduling of the calling thread (sched_getattr(2)).
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: the structure has numbers only, for which all bytes zero are a valid value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes, for which `attributes` has room until the call has returned.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    Errno::result(got)?;
    attributes.size = u32::try_from(size).map_err(io::Error::other)?;
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_background_thread_has_a_lower_priority_than_its_parent() {
        let before = attributes().unwrap().sched_nice;
        let background = thread::spawn(|| {
            run_in_background().unwrap();
            attributes().unwrap().sched_nice
        });
        assert_eq!(background.join().unwrap(), (before + BACKGROUND).min(LOWEST));
        assert_eq!(attributes().unwrap().sched_nice, before);
    }

    #[test]
    fn a_pinned_thread_may_use_its_core_only() {
        let cores = usable().unwrap();
        assert!(count() >= 1 && count() <= cores.len());
        let last = *cores.last().unwrap();
        let pinned = thread::spawn(move || {
            pin_current_thread(last).unwrap();
            usable().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert_eq!(usable().unwrap(), cores);
    }

    #[test]
    fn a_core_that_cannot_exist_is_refused() {
        assert!(pin_current_thread(1_000_000).is_err());
    }
}
