//! The number of threads of this process, and whether it may have more: some steps are correct only while there is
//! exactly one thread.

use std::sync::RwLock;
use std::{fs, io, thread};

/// Returns the number of threads of this process, with the calling thread.
pub(crate) fn count() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Checks that this process may have `threads` more threads at the same time: tokio panics where it gets none.
///
/// # Errors
/// The kernel refuses one of them: RLIMIT_NPROC, or pids.max of the control group.
pub fn try_out(threads: usize) -> io::Result<()> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write();
        let started: io::Result<Vec<_>> =
            (0..threads).map(|_| thread::Builder::new().spawn_scoped(scope, || drop(gate.read()))).collect();
        drop(closed);
        // Join the threads before others are started.
        started.map(|threads| threads.into_iter().for_each(|thread| _ = thread.join()))
    })
}
