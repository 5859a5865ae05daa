//! The CPU cores that this process may use. A thread can be tied to one of them.

use std::num::NonZeroUsize;
use std::time::Duration;
use std::{io, thread};

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

#[cfg(test)]
mod tests {
    use super::*;

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
