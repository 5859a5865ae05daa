//! Makes a multi-threaded runtime, or returns the reason why threads are not available.

use std::io;

use sys::threads::try_out;
use text::units;
use tokio::runtime::{Builder, Runtime};

use crate::output::Failure;

/// Makes a runtime with `workers` worker threads.
///
/// # Errors
/// The kernel refuses more threads for this user. Tokio would panic in that case, so the number of threads that it
/// needs at first is tried out before.
pub(crate) fn runtime(workers: usize) -> Result<Runtime, Failure> {
    // The workers, and one thread for a blocking call: DNS, a file, a terminal.
    let needed = workers + 1;
    try_out(needed).map_err(|error| refused(needed, &error))?;
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

/// Makes a runtime on this thread, for few connections.
///
/// # Errors
/// The kernel refuses the thread that a look-up of a name needs.
pub(crate) fn single() -> Result<Runtime, Failure> {
    try_out(1).map_err(|error| refused(1, &error))?;
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Failure of a program that the kernel gives no more threads.
pub(crate) fn refused(needed: usize, error: &io::Error) -> Failure {
    Failure::runtime(format_args!(
        "cannot start {}: {error}\n  hint: this user has too many processes (ulimit -u), the service has too many tasks \
         (TasksMax), or this process has too little address space (ulimit -v)",
        units::count(needed, "thread")
    ))
}
